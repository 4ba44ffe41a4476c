"""What files of images and sounds may claim, and mutations of files through the check and libmtmd's decoders."""

from __future__ import annotations

import random
import struct
import zlib
from pathlib import Path

import pytest

from edgeagent.config import EngineConfig
from edgeagent.engine.llama.model import Model
from edgeagent.engine.llama.projector import Projector
from edgeagent.errors import InvalidRequest
from edgeagent.types import MediaKind, MemoryKind
from edgeagent.worker.child.generator.media_file import MAX_PIXELS, check_medium
from tests.models import make_tiny_model
from tests.projectors import NEEDS_LIBMTMD, flac, gif, jpeg, make_projector, medium, mp3, png, wav

IMAGES = {"png": png(), "gif": gif(), "jpeg": jpeg()}
SOUNDS = {"wav": wav(seconds=0.1), "mp3": mp3(), "flac": flac()}
FILES: list[tuple[MediaKind, bytes]] = [
    *(("image", data) for data in IMAGES.values()),
    *(("audio", data) for data in SOUNDS.values()),
]


def huge_png(width: int, height: int, packed: bytes = b"") -> bytes:
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = b"IDAT" + packed
    parts = (header, data, b"IEND")
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(part) - 4) + part + struct.pack(">I", zlib.crc32(part)) for part in parts
    )


@pytest.mark.parametrize(("kind", "data"), FILES, ids=[*IMAGES, *SOUNDS])
def test_whole_files_pass(kind: MediaKind, data: bytes) -> None:
    check_medium(medium(data, kind))


@pytest.mark.parametrize(
    ("kind", "data", "why"),
    [
        ("image", huge_png(10_000, 10_000), "at most 40 million"),
        ("image", huge_png(10_000, 50), "may be 100 times"),
        ("image", huge_png(0, 50), "empty"),
        ("image", huge_png(50, 50, zlib.compress(bytes(1 << 20))), "more data than its image"),
        ("image", b"RIFF\0\0\0\0WEBPVP8 ", "WebP"),
        ("image", b"BM" + bytes(60), "PNG, JPEG and GIF"),
        ("image", SOUNDS["wav"], "no image"),
        ("image", jpeg() + b"\xff\xda" * 65, "scans"),
        ("image", b"\xff\xd8\xff\xc3", "lossless"),
        ("audio", IMAGES["png"], "no sound"),
        ("audio", SOUNDS["wav"][:-2], "claims more samples"),
        ("audio", SOUNDS["wav"].replace(b"\x01\0\x01\0", b"\x11\0\x01\0", 1), "neither PCM nor float"),
        ("audio", flac(num_samples=601 * 16_000), "at most 600 s"),
        ("audio", flac(num_samples=0), "empty"),
        ("audio", mp3(num_frames=26_000), "at most 600 s"),
        ("audio", b"ID3" + bytes(20), "no sound"),
        ("audio", b"", "incomplete"),
    ],
)
def test_what_claims_too_much_is_refused(kind: MediaKind, data: bytes, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why) as caught:
        check_medium(medium(data, kind))
    assert caught.value.param == "messages"


def test_the_largest_image_is_within_the_memory_of_a_worker() -> None:
    assert 3 * MAX_PIXELS < 1 << 27


@NEEDS_LIBMTMD
def test_mutations_are_read_or_refused(tmp_path: Path) -> None:
    """A file that the check accepts may be damaged all the same. Then libmtmd's decoders refuse it."""
    model = Model(make_tiny_model(tmp_path / "m.gguf", MemoryKind.FULL_ATTENTION), EngineConfig())
    seeing = Projector(make_projector(tmp_path / "see.gguf", "lfm2"), model, num_threads=1)
    hearing = Projector(make_projector(tmp_path / "hear.gguf", "ultravox"), model, num_threads=1)
    num_read = num_refused = 0
    for seed in range(240):
        chance = random.Random(seed)
        kind, data = FILES[seed % len(FILES)]
        mutated = bytearray(data)
        for _ in range(chance.randrange(1, 8) if seed >= len(FILES) else 0):
            place = chance.randrange(1 + min(len(mutated), chance.choice((40, 200, len(mutated)))))
            match chance.randrange(3):
                case 0:
                    mutated[place : place + 1] = bytes([chance.randrange(256)])
                case 1:
                    mutated[place : place + 4] = chance.choice((b"\xff\xff\xff\xff", bytes(4), b"\x7f\xff\xff\xff"))
                case _:
                    del mutated[place : place + chance.randrange(1, 50)]
        try:
            check_medium(medium(bytes(mutated), kind))
            if kind == "image":
                assert seeing.layout(bytes(mutated))
            else:  # the spectra of half a minute take longer than the decoder
                hearing._mtmd.mtmd_bitmap_free(hearing._bitmap(bytes(mutated)))
            num_read += 1
        except InvalidRequest:
            assert seed >= len(FILES), "whole files are read"
            num_refused += 1
    assert num_read > 20 and num_refused > 20
