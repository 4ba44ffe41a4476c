"""What libmtmd does not do with files of images and sounds.

It decodes no WebP, does not turn a camera's photo upright, and believes the length that a sound claims.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO

import numpy as np

from edgeagent.errors import InvalidRequest, NotSupported

# A part of the key of what is cached of a file. Raise it if other pixels or samples are made of the same file.
PREPROCESSING = b"1"

Pixels = np.ndarray[tuple[int, int, int], np.dtype[np.uint8]]
"""Of an image: shape (height, width, 3), the values red, green and blue."""
_ORIENTATION = 0x0112  # Exif's tag
_UPRIGHT = 1
_MAX_TAGS = 512
# How many parts of a JPEG (of up to 64 KiB each) or a WAV are read, tags of an MP3, and places of an MP3 or a FLAC that
# begin no frame. A file that consists of them would take long to read.
_MAX_PARTS = 4096
_MP3_RATES = {3: (44_100, 48_000, 32_000), 2: (22_050, 24_000, 16_000), 0: (11_025, 12_000, 8_000)}  # by version
_MP3_KBITS = {
    True: (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),  # version 1, layer III
    False: (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}
_FLAC_NUMBER, _MAX_FLAC = slice(18, 26), (1 << 36) - 1  # of its samples: the last bits of these bytes
_FLAC_HEAD_BYTES = 16  # the longest header of a frame
_CLAIM_BYTES = 64  # of a frame, in which the claim begins behind the side information
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
            param="input",
        ) from error
    try:
        with WebPImageFile(BytesIO(data)) as image:
            return np.asarray(image.convert("RGB"))
    except (OSError, EOFError, SyntaxError, ValueError) as error:
        raise InvalidRequest("an image cannot be decoded: the WebP is damaged", param="input") from error


def orientation(data: bytes) -> int:
    """Return how a JPEG or a WebP lies, by its Exif: 1 (upright) to 8; 1 if it has none, or if it is malformed."""
    try:
        found = next((part for part in _exif_parts(data) if part[:4] in (b"II*\0", b"MM\0*")), b"")
        return _orientation_of(found) if found else _UPRIGHT
    except (struct.error, IndexError):
        return _UPRIGHT


def lies_on_its_side(data: bytes) -> bool:
    """Whether `turned` exchanges the width and the height of an image."""
    return orientation(data) >= 5


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


@dataclass(frozen=True, slots=True)
class Mp3:
    """The sound of an MP3: the samples of one channel, those in a second, the channels, and its `frames` alone."""

    num_samples: int
    rate: int
    num_channels: int
    frames: bytes


def mp3_sound(data: bytes, max_s: int) -> Mp3 | None:
    """Return the sound of an MP3, at most a little more than `max_s` seconds of it; None if it has none.

    All its frames have the form of the first one. What is no frame is left out, and so is a frame that claims how long
    the sound is: a decoder would believe it, and allocate that.
    """
    place = 0
    for _ in range(_MAX_PARTS):
        if data[place : place + 3] != b"ID3" or len(data) < place + 10:
            break
        size = data[place + 6 : place + 10]
        is_footed = bool(data[place + 5] & 0x10)
        place += 10 + (size[0] << 21 | size[1] << 14 | size[2] << 7 | size[3]) + 10 * is_footed
    first: _Mp3Head | None = None
    frames: list[bytes] = []
    num_samples = num_lost = 0
    while num_lost < _MAX_PARTS and (place := data.find(b"\xff", place)) >= 0:
        head = _mp3_head(data, place)
        end = place + (0 if head is None else head.num_bytes)
        following = _mp3_head(data, end) if end < len(data) else head
        if head is None or end > len(data) or not (head.is_like(first or following) and head.is_like(following)):
            place, num_lost = place + 1, num_lost + 1
            continue
        first = first or head
        if not any(claim in data[place : place + _CLAIM_BYTES] for claim in (b"Xing", b"Info")):
            frames.append(data[place:end])
            num_samples += head.num_samples
        place = end
        if num_samples > max_s * first.rate:
            break
    return Mp3(num_samples, first.rate, first.num_channels, b"".join(frames)) if first is not None and frames else None


@dataclass(frozen=True, slots=True)
class _Mp3Head:
    """The header of a frame of layer III."""

    version: int
    rate: int
    num_channels: int
    num_samples: int
    num_bytes: int

    def is_like(self, other: _Mp3Head | None) -> bool:
        return other is not None and (self.version, self.rate) == (other.version, other.rate)


def _mp3_head(data: bytes, place: int) -> _Mp3Head | None:
    head = int.from_bytes(data[place : place + 4], "big") if place + 4 <= len(data) else 0
    version, layer, kbits, rate = head >> 19 & 3, head >> 17 & 3, head >> 12 & 15, head >> 10 & 3
    if head >> 21 != 0x7FF or version == 1 or layer != 1 or not 0 < kbits < 15 or rate == 3:
        return None
    is_first = version == 3
    num_samples, per_second = (1152 if is_first else 576), _MP3_RATES[version][rate]
    num_bytes = num_samples * 125 * _MP3_KBITS[is_first][kbits] // per_second + (head >> 9 & 1)
    return _Mp3Head(version, per_second, 1 if head >> 6 & 3 == 3 else 2, num_samples, num_bytes)


def flac_samples(data: bytes) -> int:
    """Return how many samples of one channel a FLAC has; 0 if that is unknown.

    A program that writes to a pipe leaves the number out of the header. Then the last frame says it.
    """
    if num_samples := int.from_bytes(data[_FLAC_NUMBER], "big") & _MAX_FLAC:
        return num_samples
    place = len(data)
    for _ in range(_MAX_PARTS):
        place = data.rfind(b"\xff", _FLAC_NUMBER.stop, place)
        if place < 0:
            return 0
        head = data[place : place + _FLAC_HEAD_BYTES].ljust(_FLAC_HEAD_BYTES, b"\0")
        if num_samples := _flac_frame_end(head, int.from_bytes(data[10:12], "big")):
            return num_samples
    return 0


def _flac_frame_end(head: bytes, usual_size: int) -> int:
    """Return the number of the sample behind a frame of a FLAC; 0 if `head` begins no frame.

    `usual_size`: how many samples a frame has if all but the last one have equally many.
    """
    if head[1] & 0xFE != 0xF8:
        return 0
    length = 8 - (head[4] ^ 0xFF).bit_length()  # the number is written like a character in UTF-8
    number, at = head[4] & (0x7F >> length), 4 + max(1, length)
    for byte in head[5:at]:
        number = number << 6 | byte & 0x3F
    code = head[2] >> 4
    match code:
        case 1:
            size = 192
        case 6:
            size, at = head[at] + 1, at + 1
        case 7:
            size, at = int.from_bytes(head[at : at + 2], "big") + 1, at + 2
        case _:
            size = 576 << (code - 2) if 1 < code < 6 else 256 << (code - 8) if code > 7 else 0
    at += {12: 1, 13: 2, 14: 2}.get(head[2] & 15, 0)
    if not size or length in (1, 8) or _crc_8(head[:at]) != head[at]:
        return 0
    return (number if head[1] & 1 else number * usual_size) + size


def _crc_8(data: bytes) -> int:
    value = 0
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = (value << 1 ^ (0x07 if value & 0x80 else 0)) & 0xFF
    return value


def without_claims(data: bytes, max_s: int) -> bytes:
    """Return a file that claims no other length than it has: a WAV or a FLAC with its length, an MP3 of frames alone.

    A file of another format is returned as it is. `max_s`: see mp3_sound.
    """
    if data.startswith(b"fLaC") and len(data) >= _FLAC_NUMBER.stop:
        known = int.from_bytes(data[_FLAC_NUMBER], "big") & ~_MAX_FLAC | min(flac_samples(data), _MAX_FLAC)
        return b"".join((data[: _FLAC_NUMBER.start], known.to_bytes(8, "big"), data[_FLAC_NUMBER.stop :]))
    if data.startswith((b"ID3", b"\xff")) and not data.startswith(b"\xff\xd8"):
        sound = mp3_sound(data, max_s)
        return data if sound is None else sound.frames
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
