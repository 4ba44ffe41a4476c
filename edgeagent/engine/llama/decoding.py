"""What libmtmd does not do with files of images and sounds.

It decodes no WebP, does not turn a camera's photo upright, and believes the length in a WAV that was written to a pipe.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from io import BytesIO

import numpy as np

from edgeagent.errors import InvalidRequest, NotSupported

Pixels = np.ndarray[tuple[int, int, int], np.dtype[np.uint8]]
"""Of an image: shape (height, width, 3), the values red, green and blue."""
_ORIENTATION = 0x0112  # Exif's tag
_UPRIGHT = 1
_MAX_TAGS = 512
_MAX_PARTS = 4096  # of a JPEG, where each has up to 64 KiB, or of a WAV
_UNKNOWN_BYTES = 0x7FFF_0000  # the least of the lengths that stand for an unknown one
_ALONE = (0x01, *range(0xD0, 0xD9))  # JPEG's markers without content
_SCAN, _EXIF = 0xDA, 0xE1


def is_webp(data: bytes) -> bool:
    return data[:4] == b"RIFF" and data[8:12] == b"WEBP"


def webp_pixels(data: bytes) -> Pixels:
    """Return the pixels of a WebP, and of an animation its first picture. Raise NotSupported without Pillow.

    Raise InvalidRequest if the file cannot be decoded.
    """
    try:
        # Image.open would also import other formats.
        from PIL.WebPImagePlugin import WebPImageFile
    except ImportError as error:
        raise NotSupported(
            "WebP is read only with Pillow: install it (pip install 'edgeagent[webp]'), or send a PNG or a JPEG",
            param="messages",
        ) from error
    try:
        with WebPImageFile(BytesIO(data)) as image:
            return np.asarray(image.convert("RGB"))
    except (OSError, EOFError, SyntaxError, ValueError) as error:
        raise InvalidRequest("an image cannot be decoded: the WebP is damaged", param="messages") from error


def orientation(data: bytes) -> int:
    """Return how a JPEG or a WebP lies, by its Exif: 1 (upright) to 8; 1 if it has none, or if it is malformed."""
    try:
        found = next((part for part in _exif_parts(data) if part[:4] in (b"II*\0", b"MM\0*")), b"")
        return _orientation_of(found) if found else _UPRIGHT
    except (struct.error, IndexError):
        return _UPRIGHT


def turned(pixels: Pixels, how: int) -> Pixels:
    """Return an image upright that lies as `orientation` says."""
    if how >= 5:
        pixels = pixels.transpose(1, 0, 2)
    if how in (3, 4, 7, 8):
        pixels = pixels[::-1]
    if how in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    return np.ascontiguousarray(pixels)


def jpeg_parts(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the marker and the content of each part of a JPEG before its first scan, and end where it is damaged."""
    place = 2
    for _ in range(_MAX_PARTS):
        if place + 2 > len(data) or data[place] != 0xFF or data[place + 1] == _SCAN:
            return
        marker = data[place + 1]
        if marker == 0xFF or marker in _ALONE:
            place += 1 if marker == 0xFF else 2
            continue
        end = place + 2 + int.from_bytes(data[place + 2 : place + 4], "big")
        yield marker, data[place + 4 : end]
        place = end


def wav_data(data: bytes) -> tuple[int, int] | None:
    """Return where the samples of a WAV begin, and how many bytes they have; None if there are none.

    A program that writes to a pipe does not know the length, and writes a very large one. Then the samples end with the
    file.
    """
    place = 12
    for _ in range(_MAX_PARTS):
        if place + 8 > len(data):
            return None
        name, num_bytes = struct.unpack_from("<4sI", data, place)
        place += 8
        if name == b"data":
            return place, len(data) - place if num_bytes >= _UNKNOWN_BYTES else num_bytes
        place += num_bytes + num_bytes % 2
    return None


def with_true_length(data: bytes) -> bytes:
    """Return a WAV whose header says how long it is. A file of another format is returned as it is."""
    found = wav_data(data) if data[:4] == b"RIFF" and data[8:12] == b"WAVE" else None
    if found is None or data[found[0] - 4 : found[0]] == found[1].to_bytes(4, "little"):
        return data
    start, num_bytes = found
    riff = (len(data) - 8).to_bytes(4, "little")
    return b"".join((data[:4], riff, data[8 : start - 4], num_bytes.to_bytes(4, "little"), data[start:]))


def _exif_parts(data: bytes) -> Iterator[bytes]:
    """Yield what follows the words "Exif" in the parts of a file that hold Exif."""
    if data.startswith(b"\xff\xd8"):
        for marker, content in jpeg_parts(data):
            if marker == _EXIF and content.startswith(b"Exif\0\0"):
                yield content[6:]
    elif is_webp(data):
        place = 12
        while place + 8 <= len(data):
            name, num_bytes = struct.unpack_from("<4sI", data, place)
            if name == b"EXIF":
                yield data[place + 8 : place + 8 + num_bytes].removeprefix(b"Exif\0\0")
            place += 8 + num_bytes + num_bytes % 2


def _orientation_of(exif: bytes) -> int:
    order = "<" if exif[:1] == b"I" else ">"
    (start,) = struct.unpack_from(f"{order}I", exif, 4)
    (num_tags,) = struct.unpack_from(f"{order}H", exif, start)
    for index in range(min(num_tags, _MAX_TAGS)):
        tag, _, _, value = struct.unpack_from(f"{order}HHIH", exif, start + 2 + 12 * index)
        if tag == _ORIENTATION:
            return value if 1 <= value <= 8 else _UPRIGHT
    return _UPRIGHT
