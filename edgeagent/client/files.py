"""A user's message with images and sounds, for the Responses API."""

from __future__ import annotations

import base64
import mimetypes
from pathlib import Path
from typing import Any

_IMAGES = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF87a", b"GIF89a")
_LAYER_III = (0xE2, 0xE3, 0xF2, 0xF3, 0xFA, 0xFB)  # second bytes of an MP3's frames
_SOUNDS = {b"fLaC": "flac", b"ID3": "mp3"} | {bytes((0xFF, second)): "mp3" for second in _LAYER_III}


def user_message(text: str, *files: str | Path | bytes) -> dict[str, Any]:
    """Return a user's message as an input item: the files, then the text. Raise OSError if a file cannot be read.

    A file is given by its path or its content: an image (PNG, JPEG, GIF ...) or a sound (WAV, MP3, FLAC).
    """
    parts = [content_part(file) for file in files]
    if text or not parts:
        parts.append({"type": "input_text", "text": text})
    return {"type": "message", "role": "user", "content": parts}


def content_part(file: str | Path | bytes) -> dict[str, Any]:
    """Return the part of a message, or of a tool's output, with a file; see user_message."""
    data = file if isinstance(file, bytes) else Path(file).read_bytes()
    encoded = base64.b64encode(data).decode()
    if sound := sound_format(data):
        return {"type": "input_audio", "input_audio": {"data": encoded, "format": sound}}
    mime = None if isinstance(file, bytes) else mimetypes.guess_type(str(file))[0]
    return {"type": "input_image", "image_url": f"data:{mime or 'image/png'};base64,{encoded}", "detail": "auto"}


def is_media(data: bytes) -> bool:
    is_image = data.startswith(_IMAGES) or (data[:4] == b"RIFF" and data[8:12] == b"WEBP")
    return is_image or sound_format(data) is not None


def sound_format(data: bytes) -> str | None:
    """Return the format of a sound, by its first bytes; None if it is none that can be sent."""
    if data[:4] == b"RIFF" and data[8:12] == b"WAVE":
        return "wav"
    return next((name for beginning, name in _SOUNDS.items() if data.startswith(beginning)), None)
