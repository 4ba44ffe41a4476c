"""Files of images and sounds, made by rule: the smallest that a decoder takes, and their form on the wires."""

from __future__ import annotations

import base64
import hashlib
import struct
import wave
import zlib
from io import BytesIO

from edgeagent.types import Media, MediaKind


def png(width: int = 1, height: int = 1, color: tuple[int, int, int] = (255, 0, 0), seed: bytes | None = None) -> bytes:
    """Return a PNG of one color; with `seed`, of bytes that do not compress."""
    row = bytes(color) * width
    if seed is not None:
        row = hashlib.shake_256(seed).digest(3 * width)
    rows = b"".join(b"\0" + row for _ in range(height))

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = (chunk(b"IHDR", head), chunk(b"IDAT", zlib.compress(rows, 0)), chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def wav(num_samples: int = 16) -> bytes:
    """Return a WAV file of silence: 16 kHz, mono, 16 bit."""
    file = BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(16_000)
        sound.writeframes(bytes(2 * num_samples))
    return file.getvalue()


def media(data: bytes, kind: MediaKind = "image") -> Media:
    return Media(kind, data, hashlib.sha256(data).digest())


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def data_url(data: bytes, mime: str = "image/png") -> str:
    return f"data:{mime};base64,{b64(data)}"


RED, BLUE = png(), png(color=(0, 0, 255))
SILENCE = wav()
