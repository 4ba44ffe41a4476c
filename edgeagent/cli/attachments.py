"""Images and sounds that are sent with a question of the terminal: found among its words, dropped, or named."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from edgeagent.config import with_home
from edgeagent.errors import InvalidRequest, PayloadTooLarge
from edgeagent.media_files import IMAGES, SOUNDS, mime_of
from edgeagent.types import MAX_MEDIA_BYTES

_HEAD_BYTES = 16
_SUFFIXES = frozenset((".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".wav", ".mp3", ".flac"))


def take_files(words: Sequence[str]) -> tuple[list[str], list[Path]]:
    """Return words without those at their end that are files of images or sounds, and these files.

    The first word stays, since it is the question.
    """
    kept = list(words)
    files: list[Path] = []
    while len(kept) > 1 and (path := _media_file(kept[-1])) is not None:
        files.insert(0, path)
        kept.pop()
    return kept, files


def looks_like_file(words: Sequence[str]) -> bool:
    """Whether the last of several words is named as an image or a sound, though `take_files` left it among the words.

    It is usually a file that is not there. A question that ends in such a name is one word, in quotes.
    """
    return len(words) > 1 and " " not in words[-1] and Path(words[-1]).suffix.lower() in _SUFFIXES


def dropped_file(line: str) -> Path | None:
    """Return the file of an image or a sound whose path is the whole line, as a terminal writes a dropped file.

    It may have quotes, or a backslash before a blank. None if the line is something else.
    """
    try:
        parts = shlex.split(line)
    except ValueError:
        return None
    candidates = [line.strip(), *(parts if len(parts) == 1 else [])]
    return next((path for text in candidates if (path := _media_file(text.removeprefix("file://"))) is not None), None)


def checked_file(text: str | Path) -> Path:
    """Return the path of an image or a sound that a user names. Raise InvalidRequest or PayloadTooLarge."""
    if str(text).startswith(("http:", "https:")):  # as a path, an address has lost a slash, so it is not repeated
        raise InvalidRequest("that is an address, and only files are sent: download it, and name the file")
    dropped = dropped_file(str(text)) if isinstance(text, str) else None
    path = dropped or with_home(Path(text))
    try:
        size = path.stat().st_size
        is_media = bool(_mime(path))
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no path"
        raise InvalidRequest(f"{path} cannot be read: {why}") from None
    if not is_media:
        raise InvalidRequest(f"{path} is neither an image ({IMAGES}) nor a sound ({SOUNDS})")
    if size > MAX_MEDIA_BYTES:
        raise PayloadTooLarge(f"{path} has {size} bytes, and at most {MAX_MEDIA_BYTES} can be sent; make it smaller")
    return path


def _media_file(text: str) -> Path | None:
    try:
        path = with_home(Path(text))
        return path if text and path.is_file() and _mime(path) else None
    except (OSError, ValueError, RuntimeError):
        return None


def _mime(path: Path) -> str:
    with path.open("rb") as file:
        return mime_of(file.read(_HEAD_BYTES))
