"""Files of images and sounds: their kind by their first bytes, and their form as text. Nothing here decodes one."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Sequence
from itertools import pairwise

import msgspec

from edgeagent.types import MAX_MEDIA_BYTES, ChatPrompt, Media, MediaKind, MediaPlace, Message, replace

IMAGES, SOUNDS = "PNG, JPEG, WebP, GIF or BMP", "WAV, MP3 or FLAC"
# Base64 is decoded in pieces of this many characters, a multiple of 4, between which other threads may run.
_PIECE_CHARS = 1 << 20


def mime_of(data: bytes) -> str:
    """Return the media type of a file, by its first bytes; "" if it is no known image or sound."""
    match data[:4]:
        case b"\x89PNG" if data.startswith(b"\x89PNG\r\n\x1a\n"):
            return "image/png"
        case b"GIF8":
            return "image/gif"
        case b"RIFF":
            return {b"WEBP": "image/webp", b"WAVE": "audio/wav"}.get(data[8:12], "")
        case b"fLaC":
            return "audio/flac"
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if data.startswith(b"BM"):
        return "image/bmp"
    # The beginning of an MP3's frame, of layer III. A text in UTF-16 may begin with FF FE.
    is_frame = len(data) > 1 and data[0] == 0xFF and data[1] & 0xE6 == 0xE2
    return "audio/mpeg" if is_frame or data.startswith(b"ID3") else ""


def medium(kind: MediaKind, data: bytes) -> Media:
    """Return the medium of a file. Raise ValueError if it is not of this kind, by its first bytes."""
    if not mime_of(data).startswith(f"{kind}/"):
        raise ValueError(f"is no {IMAGES}" if kind == "image" else f"is no {SOUNDS}")
    return Media(kind, data, hashlib.sha256(data).digest())


def from_base64(kind: MediaKind, text: str) -> Media:
    """Return the medium of a file in base64. Raise ValueError if it is malformed, too large, or not of this kind."""
    if len(text) // 4 * 3 > MAX_MEDIA_BYTES + 3:
        raise ValueError(f"is larger than {MAX_MEDIA_BYTES >> 20} MiB")
    # msgspec decodes five times as fast as binascii, and sees one piece at a time.
    if len(text) % 4 or "=" in text[:-2]:
        raise ValueError("is not base64")
    try:
        starts = range(0, len(text) + _PIECE_CHARS, _PIECE_CHARS)
        data = b"".join([msgspec.convert(text[a:b], bytes) for a, b in pairwise(starts)])
    except msgspec.ValidationError as error:
        raise ValueError("is not base64") from error
    return medium(kind, data)


def as_base64(media: Media) -> str:
    return base64.b64encode(media.data).decode()


def as_data_url(media: Media) -> str:
    return f"data:{mime_of(media.data)};base64,{as_base64(media)}"


def sound_format(media: Media) -> str:
    """Return OpenAI's name of a sound's format: wav, mp3 or flac."""
    return {"audio/mpeg": "mp3"}.get(mime := mime_of(media.data), mime.removeprefix("audio/"))


def spliced(text: str, offsets: Sequence[int]) -> list[str]:
    """Return the pieces of a text before, between and behind media at these ascending offsets; some may be empty."""
    return [text[a:b] for a, b in pairwise((0, *offsets, len(text)))]


def with_notes(prompt: ChatPrompt, note_for: Callable[[Message, Media], str]) -> ChatPrompt:
    """Return a conversation in which notes stand for some media. `note_for` returns a medium's note; "" if it stays."""
    messages = [_with_notes(message, prompt, note_for) if message.media else message for message in prompt.messages]
    return replace(prompt, messages=tuple(messages))


def _with_notes(message: Message, prompt: ChatPrompt, note_for: Callable[[Message, Media], str]) -> Message:
    text, *pieces = spliced(message.content, [place.offset for place in message.media])
    places: list[MediaPlace] = []
    for place, piece in zip(message.media, pieces, strict=True):
        note = note_for(message, prompt.media[place.index])
        if not note:
            places.append(MediaPlace(len(text), place.index))
        text += note + piece
    return replace(message, content=text, media=tuple(places))
