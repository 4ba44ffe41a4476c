"""Checks a client's image or sound by its header, before libmtmd decodes it: its format, its size, its length.

The decoders (stb_image, miniaudio and libwebp) allocate what a header claims. So a header may claim only what the file
can hold and what the worker has memory for.
"""

from __future__ import annotations

import contextlib
import struct
import zlib
from collections.abc import Iterator

from edgeagent.engine.llama.media_formats import (
    flac_samples,
    is_webp,
    jpeg_parts,
    lies_on_its_side,
    mp3_sound,
    wav_data,
)
from edgeagent.errors import InvalidRequest
from edgeagent.types import Media

MAX_PIXELS = 40_000_000
"""The most pixels of an image. Decoded they take 120 MB, and a progressive JPEG as much again."""
MAX_PNG_BYTES = 160_000_000
"""The most bytes of a PNG's pixels: those of 40 million with four channels of 8 bits. Decoding takes thrice as much."""
MAX_WEBP_PIXELS = 16_000_000
"""The most pixels of a WebP. Pillow holds it in several copies, which take about 25 bytes for each pixel."""
MAX_RATIO = 100
"""The most times that an image may be longer than wide, or wider than long."""
MAX_SECONDS = 600
"""The longest sound. Its spectra take about a hundredth of that time."""
_PNG = b"\x89PNG\r\n\x1a\n"
_MAX_CHANNELS = 8
_RATES = range(4000, 192_001)
# Start-of-frame markers of JPEG that stb_image decodes: baseline, extended and progressive.
_JPEG_FRAMES = (0xC0, 0xC1, 0xC2)
_JPEG_OTHER_FRAMES = (0xC3, 0xC5, 0xC6, 0xC7, 0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF)
_MAX_SCANS = 64  # each may visit all blocks of an image, whatever its own size
_PNG_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # by colour type
# The images of an interlaced PNG: the first column and row of each, and the steps between its columns and rows.
_PASSES = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
_PIECE_BYTES = 1 << 20
_SPARE_BYTES = 64 << 10  # behind the pixels of a PNG, which some programs write
_WAV_FORMATS = (1, 3, 0xFFFE)  # PCM, float, and the extensible form of both
_BMP_BITS = (1, 4, 8, 16, 24, 32)
_FORMATS = {"image": "PNG, JPEG, WebP, GIF and BMP", "audio": "WAV, MP3 and FLAC"}


def check_medium(medium: Media) -> None:
    """Raise InvalidRequest if a file is not of a format that is read here, or claims to be too large or too long."""
    with _refusing_damage():
        if medium.kind == "image":
            _check_image(*_image_size(medium.data))
            if medium.data.startswith(_PNG):
                _check_png(medium.data)
        else:
            _check_sound(*_sound_length(medium.data))


def upright_size(data: bytes) -> tuple[int, int]:
    """Return the width and the height that an image has when it is decoded. Raise InvalidRequest, like `check_medium`.

    Only the header is read.
    """
    with _refusing_damage():
        width, height = _image_size(data)
        _check_image(width, height)
    return (height, width) if lies_on_its_side(data) else (width, height)


@contextlib.contextmanager
def _refusing_damage() -> Iterator[None]:
    try:
        yield
    except (struct.error, IndexError, zlib.error) as error:
        raise _refused("it is damaged or incomplete") from error


def _refused(why: str) -> InvalidRequest:
    return InvalidRequest(f"an image or a sound cannot be read: {why}", param="input", served_by="local")


def _check_image(width: int, height: int, max_pixels: int = MAX_PIXELS) -> None:
    if width < 1 or height < 1:
        raise _refused("the image is empty")
    if width * height > max_pixels:
        raise _refused(f"the image has {width} × {height} pixels; at most {max_pixels // 1_000_000} million are read")
    if max(width, height) > MAX_RATIO * min(width, height):
        raise _refused(f"the image has {width} × {height} pixels; one side may be {MAX_RATIO} times the other")


def _check_sound(num_samples: int, rate: int, num_channels: int) -> None:
    """Check the samples of one channel, the samples in a second, and the channels."""
    if rate not in _RATES or not 1 <= num_channels <= _MAX_CHANNELS:
        raise _refused(f"the sound has {num_channels} channels with {rate} samples a second")
    if num_samples < 1:
        raise _refused("the sound is empty")
    if num_samples > MAX_SECONDS * rate:
        raise _refused(f"the sound takes {num_samples // rate} s; at most {MAX_SECONDS} s are read")


def _image_size(data: bytes) -> tuple[int, int]:
    """Return an image's width and height in pixels, from its header."""
    if data.startswith(_PNG):
        return _png_size(data)
    if data.startswith((b"GIF87a", b"GIF89a")):
        width, height = struct.unpack_from("<HH", data, 6)
        return width, height
    if data.startswith(b"\xff\xd8"):
        return _jpeg_size(data)
    if is_webp(data):
        return _webp_size(data)
    if data.startswith(b"BM"):
        return _bmp_size(data)
    raise _refused(f"it is no image of a known format; {_FORMATS['image']} are read")


def _png_size(data: bytes) -> tuple[int, int]:
    width, height, depth, colour = struct.unpack_from(">IIBB", data, 16)
    if data[12:16] != b"IHDR" or colour not in _PNG_CHANNELS or depth not in (1, 2, 4, 8, 16):
        raise _refused("the PNG has no valid header")
    return width, height


def _check_png(data: bytes) -> None:
    """Check that a PNG's compressed data hold no more than an image of its size."""
    width, height, depth, colour, is_interlaced = struct.unpack_from(">IIBB2xB", data, 16)
    num_channels = _PNG_CHANNELS[colour]
    if width * height * num_channels * max(1, depth // 8) > MAX_PNG_BYTES:
        raise _refused(f"the PNG has {width} × {height} pixels of {depth} bits, which take too much memory")
    most = _filtered_bytes(width, height, depth * num_channels)
    if is_interlaced:
        parts = (
            _filtered_bytes((width - x + a - 1) // a, (height - y + b - 1) // b, depth * num_channels)
            for x, y, a, b in _PASSES
        )
        most = sum(parts)
    unpacked, num_bytes = zlib.decompressobj(), 0
    for packed in _png_data(data):
        while packed and not unpacked.eof:
            num_bytes += len(unpacked.decompress(packed, _PIECE_BYTES))
            packed = unpacked.unconsumed_tail
            if num_bytes > most + _SPARE_BYTES:
                raise _refused("the PNG holds more data than its image")


def _filtered_bytes(width: int, height: int, num_bits: int) -> int:
    """Return the bytes of an image as a PNG compresses it: each row begins with the number of its filter."""
    return height * (1 + (width * num_bits + 7) // 8) if width > 0 else 0


def _png_data(data: bytes) -> Iterator[bytes]:
    place, kind = 8, b""
    while kind != b"IEND" and place < len(data):
        num_bytes, kind = struct.unpack_from(">I4s", data, place)
        if kind == b"IDAT":
            yield data[place + 8 : place + 8 + num_bytes]
        place += num_bytes + 12


def _jpeg_size(data: bytes) -> tuple[int, int]:
    if data.count(b"\xff\xda") > _MAX_SCANS:
        raise _refused(f"the JPEG has more than {_MAX_SCANS} scans")
    for marker, content in jpeg_parts(data):
        if marker in _JPEG_FRAMES:
            height, width = struct.unpack_from(">HH", content, 1)
            return width, height
        if marker in _JPEG_OTHER_FRAMES:
            raise _refused("the JPEG is lossless or arithmetically coded")
    raise _refused("the JPEG is damaged")


def _webp_size(data: bytes) -> tuple[int, int]:
    """Return a WebP's size, from its first chunk, after a check that it is whole."""
    if int.from_bytes(data[4:8], "little") + 8 > len(data):
        raise _refused("the WebP is incomplete")
    place = 20  # of the first chunk's content
    match data[12:16]:
        case b"VP8X":
            width, height = (1 + int.from_bytes(data[at : at + 3], "little") for at in (place + 4, place + 7))
        case b"VP8L":
            bits = int.from_bytes(data[place + 1 : place + 5], "little")
            width, height = (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case b"VP8 ":
            width, height = (number & 0x3FFF for number in struct.unpack_from("<HH", data, place + 6))
        case _:
            raise _refused("the WebP has no image")
    _check_image(width, height, MAX_WEBP_PIXELS)
    return width, height


def _bmp_size(data: bytes) -> tuple[int, int]:
    """Return a BMP's size, after a check that it is as long as its pixels. Compressed ones are not read."""
    start, num_bytes = struct.unpack_from("<II", data, 10)
    width, height, _, num_bits = struct.unpack_from("<HHHH" if num_bytes == 12 else "<iiHH", data, 18)
    height = abs(height)  # below 0: the rows begin at the top
    if num_bits not in _BMP_BITS:
        raise _refused("the BMP has no valid header")
    _check_image(width, height)
    if start + (width * num_bits + 31) // 32 * 4 * height > len(data):
        raise _refused("the BMP claims more pixels than it has")
    return width, height


def _sound_length(data: bytes) -> tuple[int, int, int]:
    """Return how many samples a sound has in each channel, how many in a second, and how many channels."""
    if data[:4] == b"RIFF" and data[8:12] == b"WAVE":
        return _wav_length(data)
    if data.startswith(b"fLaC"):
        return _flac_length(data)
    if data.startswith(b"ID3") or (data[0] == 0xFF and data[1] & 0xE0 == 0xE0):
        return _mp3_length(data)
    raise _refused(f"it is no sound of a known format; {_FORMATS['audio']} are read")


def _wav_length(data: bytes) -> tuple[int, int, int]:
    found, place = wav_data(data), 12
    while found is not None and place + 8 < found[0]:
        name, num_bytes = struct.unpack_from("<4sI", data, place)
        place += 8
        if name == b"fmt ":
            code, num_channels, rate, _, align, num_bits = struct.unpack_from("<HHIIHH", data, place)
            if code not in _WAV_FORMATS or num_bits not in (8, 16, 24, 32, 64) or align != num_channels * num_bits // 8:
                raise _refused("the WAV is neither PCM nor float")
            if found[1] > len(data) - found[0] or not align:
                raise _refused("the WAV claims more samples than it has")
            return found[1] // align, rate, num_channels
        place += num_bytes + num_bytes % 2
    raise _refused("the WAV has no samples")


def _flac_length(data: bytes) -> tuple[int, int, int]:
    if data[4] & 0x7F or len(data) < 42:
        raise _refused("the FLAC does not begin with its form")
    bits = int.from_bytes(data[18:26], "big")
    rate, num_channels, num_samples = bits >> 44, (bits >> 41 & 7) + 1, flac_samples(data)
    if not num_samples:
        raise _refused("the FLAC has no frame that says how long it is")
    return num_samples, rate, num_channels


def _mp3_length(data: bytes) -> tuple[int, int, int]:
    sound = mp3_sound(data, MAX_SECONDS + 1)
    if sound is None:
        raise _refused("the MP3 has no sound")
    return sound.num_samples, sound.rate, sound.num_channels
