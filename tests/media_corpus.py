"""Files of images and sounds made by rule, and mutations of them, for the checks and the decoders."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from io import BytesIO

import numpy as np

from edgeagent.types import MediaKind
from tests.projectors import flac, gif, jpeg, mp3, png, wav

File = tuple[MediaKind, bytes]
NUMBERS = (b"\xff\xff\xff\xff", bytes(4), b"\x7f\xff\xff\xff", b"\0\1\0\0", b"\0\0\0\1")


def bmp(width: int = 20, height: int = -10, num_bits: int = 24) -> bytes:
    """Return a BMP. A height below 0 says that its rows begin at the top."""
    colors = bytes(range(256)) * 4 if num_bits == 8 else b""
    rows = np.random.default_rng(0).integers(0, 256, ((width * num_bits + 31) // 32 * 4 * abs(height),), np.uint8)
    start = 54 + len(colors)
    head = struct.pack("<2sIII", b"BM", start + len(rows), 0, start)
    head += struct.pack("<IiiHHIIiiII", 40, width, height, 1, num_bits, 0, len(rows), 0, 0, 0, 0)
    return head + colors + rows.tobytes()


def exif(how: int, order: str = "<") -> bytes:
    """Return an Exif that says how a photo lies, behind another tag."""
    mark = {"<": b"II*\0", ">": b"MM\0*"}[order]
    tags = struct.pack(f"{order}HHIHH", 0x0100, 3, 1, 9, 0) + struct.pack(f"{order}HHIHH", 0x0112, 3, 1, how, 0)
    return mark + struct.pack(f"{order}IH", 8, 2) + tags + bytes(4)


def with_exif(photo: bytes, exif: bytes) -> bytes:
    """Return a JPEG that has this Exif behind a part for JFIF."""
    content = b"Exif\0\0" + exif
    jfif = b"\xff\xe0\x00\x10JFIF\0\1\1\0\0\1\0\1\0\0"
    return photo[:2] + jfif + b"\xff\xe1" + struct.pack(">H", len(content) + 2) + content + photo[2:]


def webp_by_rule(width: int = 1, height: int = 1, *, exif: bytes = b"") -> bytes:
    """Return a lossless WebP of one colour: each of its five codes has one symbol, so its pixels take no bits."""
    bits = [(0x2F, 8), (width - 1, 14), (height - 1, 14), (0, 1), (0, 3), (0, 1), (0, 1), (0, 1)]
    for symbol in (200, 100, 50, 255, 0):  # green, red, blue, alpha, distance
        bits += [(1, 1), (0, 1), (symbol > 1, 1), (symbol, 8 if symbol > 1 else 1)]
    number = place = 0
    for value, num_bits in bits:
        number |= int(value) << place
        place += num_bits
    image = number.to_bytes((place + 7) // 8 + 8, "little")
    parts = [(b"VP8L", image), *([(b"EXIF", exif)] if exif else [])]
    if exif:
        sizes = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
        parts.insert(0, (b"VP8X", b"\x08\0\0\0" + sizes))
    body = b"WEBP" + b"".join(name + struct.pack("<I", len(data)) + data + bytes(len(data) % 2) for name, data in parts)
    return b"RIFF" + struct.pack("<I", len(body)) + body


def by_rule() -> list[File]:
    """Return one file of each format."""
    turned, webp = with_exif(jpeg(), exif(6)), webp_by_rule(30, 20, exif=exif(8))
    images = (png(), gif(), jpeg(), turned, bmp(), bmp(33, 5, 8), webp)
    sounds = (wav(seconds=0.1), mp3(), flac())
    return [*(("image", data) for data in images), *(("audio", data) for data in sounds)]


def by_pillow() -> list[File]:
    """Return files in forms that cameras and programs write, made by Pillow."""
    from PIL import Image

    noise = np.random.default_rng(1).integers(0, 256, (48, 64, 3), np.uint8)
    smooth = np.add.outer(np.arange(48), np.arange(64))[..., None].repeat(3, 2).astype(np.uint8)
    files: list[File] = []

    def add(image: Image.Image, form: str, **options: object) -> None:
        file = BytesIO()
        image.save(file, form, **options)
        files.append(("image", file.getvalue()))

    for pixels in (noise, smooth):
        image = Image.fromarray(pixels)
        for quality in (30, 95):
            add(image, "JPEG", quality=quality, exif=b"Exif\0\0" + exif(5, ">"))
            add(image, "JPEG", quality=quality, progressive=True, subsampling=0)
            add(image, "WEBP", quality=quality, exif=exif(6))
        add(image, "WEBP", lossless=True)
        add(image, "WEBP", save_all=True, append_images=[image.rotate(90)], duration=50)
        add(image.convert("RGBA"), "WEBP", quality=50)
        add(image.convert("CMYK"), "JPEG")
        add(image.convert("L"), "JPEG", progressive=True)
        add(image.convert("P"), "PNG")
        add(image.convert("1"), "PNG")
        add(image.convert("RGBA"), "PNG")
        add(image.convert("I;16"), "PNG")
        add(image.convert("P"), "GIF", save_all=True, append_images=[image.rotate(90).convert("P")], interlace=True)
        add(image.convert("1"), "BMP")
    return files


def mutated(data: bytes, chance: random.Random, others: Sequence[bytes] = ()) -> bytes:
    """Return a file with a few wrong bytes, numbers or lengths, or with a part of another one."""
    changed = bytearray(data)
    for _ in range(chance.randrange(1, 8)):
        place = chance.randrange(1 + min(len(changed), chance.choice((40, 200, len(changed)))))
        match chance.randrange(6 if others else 5):
            case 0:
                changed[place : place + 1] = bytes([chance.randrange(256)])
            case 1:
                changed[place : place + 4] = chance.choice(NUMBERS)
            case 2:
                del changed[place : place + chance.randrange(1, 50)]
            case 3:
                changed[place:place] = changed[place : place + chance.randrange(1, 50)]
            case 4 if changed:
                changed[min(place, len(changed) - 1)] ^= 1 << chance.randrange(8)
            case _:
                other = chance.choice(others) if others else b""
                start = chance.randrange(1 + len(other))
                changed[place : place + 30] = other[start : start + chance.randrange(1, 200)]
    return bytes(changed)
