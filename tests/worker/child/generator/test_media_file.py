"""What files of images and sounds may claim, and mutations of files through the check and libmtmd's decoders."""

from __future__ import annotations

import random
import resource
import struct
import subprocess
import sys
import zlib
from collections import Counter
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest

from edgeagent.config import EngineConfig
from edgeagent.engine.llama.media_formats import (
    Pixels,
    flac_samples,
    mp3_sound,
    orientation,
    turned,
    webp_pixels,
    without_claims,
)
from edgeagent.engine.llama.model import Model
from edgeagent.engine.llama.projector import MediaChunk, Projector
from edgeagent.errors import InvalidRequest, NotSupported
from edgeagent.types import MediaKind, MemoryKind
from edgeagent.worker.child.generator.media_file import MAX_PIXELS, check_medium
from tests.media_corpus import bmp, by_rule, exif, mutated, webp_by_rule, with_exif
from tests.models import make_tiny_model
from tests.peer.media_fuzz import OF_PYTHON, Decoders, real_files
from tests.projectors import NEEDS_LIBMTMD, crc, flac, gif, jpeg, make_projector, medium, mp3, png, wav

FILES = by_rule()
SOUNDS = {"wav": wav(seconds=0.1)}
MAX_HEAD_BYTES = 100  # of a file that has nothing behind its header
SPARE = 64 << 10  # bytes that a PNG may have behind its pixels
IDS = ["png", "gif", "jpeg", "turned jpeg", "bmp", "bmp of 8 bits", "webp", "wav", "mp3", "flac"]


def huge_png(
    width: int, height: int, packed: bytes = b"", *, depth: int = 8, colour: int = 2, interlaced: int = 0
) -> bytes:
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, interlaced)
    data = b"IDAT" + packed
    parts = (header, data, b"IEND")
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(part) - 4) + part + struct.pack(">I", zlib.crc32(part)) for part in parts
    )


def flac_of_frame(number: int, *, is_by_sample: bool = False) -> bytes:
    """Return a FLAC of unknown length whose only frame has this number, or begins with the sample of this number."""
    head = bytes([0xFF, 0xF8 | is_by_sample, 0xC5, 0x08]) + _coded(number)
    return flac(num_samples=0)[:42] + head + bytes([crc(head, 7, 8)]) + bytes(5)


def _coded(number: int) -> bytes:
    """Write a number of up to 31 bits like a character in UTF-8."""
    if number < 0x80:
        return bytes([number])
    length = next(length for length in range(2, 7) if number < 1 << (5 * length + 1))
    rest = [0x80 | number >> 6 * index & 0x3F for index in range(length - 1)]
    return bytes([0xFF << (8 - length) & 0xFF | number >> 6 * (length - 1), *rest[::-1]])


def test_an_interlaced_png_has_its_own_rows() -> None:
    check_medium(medium(huge_png(9, 5, zlib.compress(bytes(11 + 9 * 5 * 3 + SPARE)), interlaced=1)))


@pytest.mark.parametrize(("kind", "data"), FILES, ids=IDS)
def test_whole_files_pass(kind: MediaKind, data: bytes) -> None:
    check_medium(medium(data, kind))


@pytest.mark.parametrize(
    ("kind", "data", "why"),
    [
        ("image", huge_png(10_000, 10_000), "at most 40 million"),
        ("image", huge_png(10_000, 50), "may be 100 times"),
        ("image", huge_png(0, 50), "empty"),
        ("image", huge_png(50, 50, zlib.compress(bytes(1 << 20))), "more data than its image"),
        ("image", huge_png(50, 50, zlib.compress(bytes(50 * 151 + SPARE + 1))), "more data than its image"),
        (
            "image",
            huge_png(9, 5, zlib.compress(bytes(11 + 9 * 5 * 3 + SPARE + 1)), interlaced=1),
            "more data than its image",
        ),
        ("image", huge_png(6000, 6000, depth=16, colour=6), "too much memory"),
        ("image", webp_by_rule()[:-4], "the WebP is incomplete"),
        ("image", b"RIFF\x10\0\0\0WEBPJUNK" + bytes(60), "the WebP has no image"),
        ("image", webp_by_rule(4001, 4000), "at most 16 million"),
        ("image", b"BM" + bytes(60), "no valid header"),
        ("image", bmp()[:-1], "claims more pixels than it has"),
        ("image", bmp(0), "empty"),
        ("image", b"II*\0" + bytes(60), "PNG, JPEG, WebP, GIF and BMP"),
        ("image", SOUNDS["wav"], "no image"),
        ("image", jpeg() + b"\xff\xda" * 65, "scans"),
        ("image", b"\xff\xd8\xff\xc3", "lossless"),
        ("audio", png(), "no sound"),
        ("audio", SOUNDS["wav"][:-2], "claims more samples"),
        ("audio", SOUNDS["wav"].replace(b"\x01\0\x01\0", b"\x11\0\x01\0", 1), "neither PCM nor float"),
        ("audio", flac(num_samples=601 * 16_000), "at most 600 s"),
        ("audio", flac(num_samples=0)[:42], "no frame that says how long"),
        ("audio", flac_of_frame(0x7FFFFFF), "at most 600 s"),
        ("audio", mp3(num_frames=26_000), "at most 600 s"),
        ("audio", b"ID3" + bytes(20), "no sound"),
        ("audio", b"", "incomplete"),
    ],
)
def test_what_claims_too_much_is_refused(kind: MediaKind, data: bytes, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why) as caught:
        check_medium(medium(data, kind))
    assert caught.value.param == "input"


def test_a_flac_of_unknown_length_ends_with_its_last_frame() -> None:
    sound, piped_sound = flac(), flac(num_samples=0)
    check_medium(medium(piped_sound, "audio"))
    assert without_claims(piped_sound, 9) == without_claims(sound, 9) == sound
    for number, num_samples in ((1, 8192), (300, 301 * 4096)):
        assert flac_samples(flac_of_frame(number)) == num_samples
        assert flac_samples(flac_of_frame(number) + b"\xff\xf8 no frame") == num_samples
    assert flac_samples(flac_of_frame(5, is_by_sample=True)) == 4101
    # The size of a last frame is not that of the others.
    for form, num_samples in ((b"\x65\x08\1\x63", 4196), (b"\x7d\x08\1\3\xe7\0\0", 5096), (b"\x15\x08\1", 4288)):
        head = b"\xff\xf8" + form
        assert flac_samples(piped_sound[:42] + head + bytes([crc(head, 7, 8)])) == num_samples


def piped(sound: bytes, length: bytes = b"\xff\xff\xff\xff") -> bytes:
    """Return a WAV as a program writes it to a pipe: it does not know the length."""
    start = sound.index(b"data")
    return sound[:4] + length + sound[8 : start + 4] + length + sound[start + 8 :]


@pytest.mark.parametrize("length", [b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f", b"\0\0\0\x80"])
def test_a_wav_of_unknown_length_ends_with_the_file(length: bytes) -> None:
    sound = wav(seconds=0.1)
    check_medium(medium(piped(sound, length), "audio"))
    assert without_claims(piped(sound, length), 9) == without_claims(sound, 9) == sound
    with pytest.raises(InvalidRequest, match="the WAV has no samples"):
        check_medium(medium(sound[:40], "audio"))
    for other in (flac(), png(), b"RIFF\0\0\0\0WAVE", b""):
        assert without_claims(other, 9) == other


def claiming(num_frames: int, frame: bytes) -> bytes:
    """Return a frame of an MP3 that claims how many follow, where encoders write it: behind the side information."""
    claim = b"Info\0\0\0\1" + num_frames.to_bytes(4, "big")
    return frame[:21] + claim + frame[21 + len(claim) :]


def test_an_mp3_is_as_long_as_its_frames() -> None:
    """A header that claims 2 ** 31 frames made the decoder allocate that."""
    sound, tag = mp3(), b"ID3\4\0\0\0\0\0\x05" + bytes(5)
    frame = sound[: len(sound) // 20]
    for data in (
        sound,
        tag + sound,
        claiming(1 << 31, frame) + sound,
        tag + claiming(1 << 31, frame) + sound,
        b"ID3\4\0\0\x7f\x7f\x7f\x7f" + bytes(5) + sound,
        sound[: 5 * len(frame)] + b"\xff\xfbjunk" + sound[5 * len(frame) :],
        sound + b"TAG" + bytes(125),
        sound + frame[:-1],
    ):
        found = mp3_sound(data, 9)
        if data.startswith(b"ID3\4\0\0\x7f"):  # the tag says that it is longer than the file
            assert found is None
            continue
        assert found is not None and found.frames == without_claims(data, 9)
        assert (found.rate, found.num_channels) == (44_100, 1)
        assert abs(len(found.frames) - len(sound)) <= len(frame) and set(found.frames) == set(sound)
    other_rate = b"\xff\xfb\x14" + frame[3:]
    mixed = mp3_sound(sound + other_rate * 9, 9)
    assert mixed is not None and mixed.frames == sound[: -len(frame)], "a decoder would lose its place in others"


@NEEDS_LIBMTMD
def test_a_claim_takes_no_memory(tmp_path: Path) -> None:
    sound = mp3()
    decoders, before_kib = Decoders(tmp_path), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert decoders.outcome("audio", claiming(1 << 24, sound[: len(sound) // 20]) + sound) == "read"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 64 << 10


def test_the_largest_image_is_within_the_memory_of_a_worker() -> None:
    assert 3 * MAX_PIXELS < 1 << 27


@pytest.mark.parametrize("how", range(1, 9))
def test_a_photo_is_turned_as_its_exif_says(how: int) -> None:
    image = pytest.importorskip("PIL.Image")
    turn = {2: 0, 3: 3, 4: 1, 5: 5, 6: 4, 7: 6, 8: 2}  # Pillow's Transpose, as its exif_transpose applies it
    pixels = np.random.default_rng(0).integers(0, 256, (3, 5, 3), np.uint8)
    expected = image.fromarray(pixels)
    expected = expected.transpose(turn[how]) if how in turn else expected
    for order in "<>":
        photo = with_exif(jpeg(), exif(how, order))
        assert orientation(photo) == how
        assert np.array_equal(turned(pixels, orientation(photo)), np.asarray(expected))


@pytest.mark.parametrize(
    "photo",
    [
        jpeg(),
        with_exif(jpeg(), b""),
        with_exif(jpeg(), exif(9)),
        with_exif(jpeg(), exif(6)[:20]),
        with_exif(jpeg(), exif(6))[:60],
        webp_by_rule(),
        png(),
        b"\xff\xd8" + b"\xff" * 9999,
        b"",
    ],
)
def test_a_photo_without_a_valid_exif_is_upright(photo: bytes) -> None:
    assert orientation(photo) == 1


def test_a_webp_is_decoded_and_turned() -> None:
    pytest.importorskip("PIL")
    photo = webp_by_rule(30, 20, exif=exif(6))
    assert orientation(photo) == 6
    pixels = turned(webp_pixels(photo), 6)
    assert pixels.shape == (30, 20, 3)
    assert (pixels == (100, 200, 50)).all()
    with pytest.raises(InvalidRequest, match="the WebP is damaged"):
        webp_pixels(photo[:40] + bytes(len(photo) - 40))


def test_a_webp_without_pillow_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL.WebPImagePlugin", None)
    with pytest.raises(NotSupported, match=r"edgeagent\[webp\]"):
        webp_pixels(webp_by_rule())


@NEEDS_LIBMTMD
def test_a_turned_photo_is_what_is_seen(tmp_path: Path) -> None:
    """It has the same embeddings as a photo that was turned before."""
    image = pytest.importorskip("PIL.Image")
    model = Model(make_tiny_model(tmp_path / "m.gguf", MemoryKind.FULL_ATTENTION), EngineConfig())
    projector = Projector(make_projector(tmp_path / "see.gguf", "lfm2"), model, num_threads=1)
    pixels = np.random.default_rng(0).integers(0, 256, (48, 64, 3), np.uint8)

    def webp(pixels: Pixels, how: int) -> bytes:
        file = BytesIO()
        image.fromarray(pixels).save(file, "WEBP", lossless=True, exif=exif(how))
        return file.getvalue()

    rows = []
    for each in ((pixels, 6), (turned(pixels, 6), 1)):
        opened = projector.open(webp(*each))
        rows.append(opened.encode(0))
        opened.close()
    assert rows[0] is not None and rows[1] is not None
    assert rows[0].tobytes() == rows[1].tobytes()
    file = BytesIO()
    image.fromarray(pixels).save(file, "JPEG")
    lying = with_exif(file.getvalue(), exif(6))
    assert projector.layout(lying) != projector.layout(file.getvalue())
    assert [part.num_tokens for part in projector.layout(lying) if isinstance(part, MediaChunk)] == [
        part.num_tokens for part in projector.layout(webp(turned(pixels, 6), 1)) if isinstance(part, MediaChunk)
    ]


@NEEDS_LIBMTMD
def test_of_an_animation_the_first_picture_is_seen(tmp_path: Path) -> None:
    model = Model(make_tiny_model(tmp_path / "m.gguf", MemoryKind.FULL_ATTENTION), EngineConfig())
    projector = Projector(make_projector(tmp_path / "see.gguf", "lfm2"), model, num_threads=1)
    seen: list[bytes] = []
    for colours in ((0, 1), (0,), (1, 0)):
        opened = projector.open(gif(*colours))
        rows = opened.encode(0)
        opened.close()
        assert rows is not None
        seen.append(rows.tobytes())
    assert seen[0] == seen[1] != seen[2]


@NEEDS_LIBMTMD
def test_mutations_are_read_or_refused(tmp_path: Path) -> None:
    """A file that the check accepts may be damaged all the same. Then the decoders refuse it."""
    decoders = Decoders(tmp_path)
    outcomes = Counter(decoders.outcome(*FILES[seed % len(FILES)]) for seed in range(len(FILES)))
    assert outcomes.pop("read") >= len(FILES) - ("PIL" not in sys.modules), "whole files are read"
    others = [data for _, data in FILES]
    for seed in range(240):
        kind, data = FILES[seed % len(FILES)]
        outcomes[decoders.outcome(kind, mutated(data, random.Random(seed), others))] += 1
    assert outcomes["read"] > 20 and outcomes["refused"] > 20


@NEEDS_LIBMTMD
def test_files_of_usual_programs_are_read(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    whole = [file for file in real_files([OF_PYTHON]) if len(file[1]) > MAX_HEAD_BYTES]
    if not whole:
        pytest.skip("the tests of CPython are not installed")
    decoders = Decoders(tmp_path)
    assert [decoders.outcome(*file) for file in whole] == ["read"] * len(whole)


@NEEDS_LIBMTMD
@pytest.mark.slow(seconds=70)
def test_a_minute_of_mutations() -> None:
    """Also of the files that Pillow writes. The program runs for an hour with --minutes 60."""
    pytest.importorskip("PIL")
    done = subprocess.run(
        [sys.executable, "-m", "tests.peer.media_fuzz", "--minutes", "1"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
