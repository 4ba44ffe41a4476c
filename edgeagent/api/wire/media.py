"""Images and sounds in clients' messages: how each API sends them, and how they get into a prompt.

A client sends the file itself. What it sends is decoded from base64 and its first bytes are looked at, no more. The
address of an image is fetched only if the owner allows its host; see `addresses`.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NotRequired, final

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

# pydantic makes no schema of typing's TypedDict before Python 3.12.
from typing_extensions import TypedDict

from edgeagent.api.wire.addresses import ADDRESSES, HASH, NO_FILE, NOT_FETCHED, is_address, is_readable
from edgeagent.api.wire.body import NOT_SUPPORTED
from edgeagent.errors import InvalidRequest, PayloadTooLarge
from edgeagent.media_files import from_base64, medium
from edgeagent.types import MAX_MEDIA, MAX_MEDIA_BYTES, Media, MediaKind, MediaPlace

_SEND = "send the file itself: as a data URL (data:image/png;base64,...), or as a source of the type base64"
_BASE64 = ";base64"
# Stands for an image that is not fetched yet.
_UNKNOWN = Media("image", b"", bytes(32))


@final
class ImageAddress(TypedDict):
    """An image, as a data URL or an address. `detail` has no effect: the model's own projector decides."""

    url: str
    detail: NotRequired[Any]


@final
class ImagePart(TypedDict):
    """An image: PNG, JPEG, WebP, GIF or BMP, as a data URL or an address. File ids are refused."""

    type: Literal["image_url", "input_image"]
    image_url: NotRequired[ImageAddress | str | None]
    detail: NotRequired[Any]
    file_id: NotRequired[Any]


@final
class Sound(TypedDict):
    """A sound file in base64, or on a WebSocket the name of one.

    Its first bytes say which format it has, so `format` has no effect.
    """

    data: str
    format: NotRequired[Any]


@final
class SoundPart(TypedDict):
    """A sound: WAV, MP3 or FLAC."""

    type: Literal["input_audio"]
    input_audio: NotRequired[Sound | None]


@final
class FilePart(TypedDict):
    """A file of an image or a sound, as a data URL. Documents are refused."""

    type: Literal["input_file"]
    file_data: NotRequired[str | None]
    filename: NotRequired[Any]
    file_id: NotRequired[Any]
    file_url: NotRequired[Any]


def _read(kind: MediaKind, text: str) -> Media:
    try:
        return from_base64(kind, text)
    except ValueError as error:
        raise PydanticCustomError("media", "{error}", {"error": str(error)}) from None


def of_url(url: str, kinds: Container[str] = ("image",)) -> Media:
    """Return the medium in a data URL; raise PydanticCustomError, also for every other URL."""
    if is_address(url) and "audio" not in kinds:
        return _of_address("image", url)
    if not url.startswith("data:"):
        raise PydanticCustomError(NOT_SUPPORTED, "is no data URL; " + _SEND)
    head, comma, data = url.partition(",")
    if not comma or not head.lower().endswith(_BASE64):
        raise PydanticCustomError("media", "is no data URL with base64; " + _SEND)
    return _read("audio" if head.startswith("data:audio/") and "audio" in kinds else "image", data)


def _of_address(kind: MediaKind, url: str) -> Media:
    addresses = ADDRESSES.get()
    why_none = NO_FILE if url.startswith(HASH) else NOT_FETCHED
    found = why_none if addresses is None else addresses.find(url)
    if isinstance(found, str):
        raise PydanticCustomError(NOT_SUPPORTED, "{why}; " + _SEND, {"why": found})
    try:
        return _UNKNOWN if found is None else medium(kind, found)
    except ValueError as error:
        raise PydanticCustomError("media", "leads to a file that {error}", {"error": str(error)}) from None


def _of_image(part: ImagePart) -> Media:
    image = part.get("image_url")
    url = image.get("url") if isinstance(image, dict) else image
    if not url:
        raise PydanticCustomError(NOT_SUPPORTED, "has no image_url, and there are no uploaded files here; " + _SEND)
    return of_url(url)


def _of_sound(part: SoundPart) -> Media:
    if not (sound := part.get("input_audio")):
        raise PydanticCustomError(NOT_SUPPORTED, "has no input_audio: send a whole file (WAV, MP3 or FLAC) as its data")
    data = sound["data"]
    return _of_address("audio", data) if data.startswith(HASH) else _read("audio", data)


def _of_file(part: FilePart) -> Media:
    if not (data := part.get("file_data")):
        raise PydanticCustomError(NOT_SUPPORTED, "has no file_data, and there are no uploaded files here; " + _SEND)
    if data.startswith("data:") and not data.startswith(("data:image/", "data:audio/")):
        raise PydanticCustomError(NOT_SUPPORTED, "is a file that is neither an image nor a sound; send its text")
    return of_url(data, ("image", "audio"))


def medium_of(part: object) -> Media | None:
    """Return the image or the sound that a part of a tool's result holds, in the form of any API or of MCP.

    None if it holds none, or none that can be read: a tool's result says what it has, and is no reason for an error.
    """
    try:
        match part:
            case {"type": "image_url" | "input_image", "image_url": str(url) | {"url": str(url)}}:
                return of_url(url)
            case {"type": "image", "source": {"type": "url", "url": str(url)}}:
                return of_url(url)
            case {"type": "image", "source": {"type": "base64", "data": str(text)}}:
                return _read("image", text)
            case {"type": "image", "data": str(text)}:  # MCP's
                return _read("image", text)
            case {"type": "input_file", "file_data": str(url)}:
                return of_url(url, ("image", "audio"))
            case {"type": "input_audio", "input_audio": {"data": str(text)}} | {"type": "audio", "data": str(text)}:
                return _read("audio", text)
    except PydanticCustomError:
        return None
    return None


ReadImage = Annotated[ImagePart, AfterValidator(_of_image)]
ReadSound = Annotated[SoundPart, AfterValidator(_of_sound)]
ReadFile = Annotated[FilePart, AfterValidator(_of_file)]


def is_enclosed(part: object) -> bool:
    """Whether a part of a message holds the image or the sound itself, and not only its address."""
    match part:
        case {"type": "image_url" | "input_image", "image_url": str(url) | {"url": str(url)}}:
            return url.startswith("data:") or is_readable(url)
        case {"type": "input_file", "file_data": str(url)}:
            return url.startswith(("data:image/", "data:audio/"))
        case {"type": "input_audio", "input_audio": {"data": str()}}:
            return True
        case {"type": "image", "source": {"type": "base64"}}:  # Anthropic's
            return True
        case {"type": "image", "source": {"type": "url", "url": str(url)}}:
            return is_readable(url)
    return False


@dataclass(frozen=True, slots=True)
class Said:
    """What a user says: a text, and the media in it, each with its offset in the text. The offsets ascend."""

    text: str
    media: tuple[tuple[int, Media], ...] = ()


def said_of(pieces: Iterable[str | Media], separator: str = "") -> Said:
    """Return texts and media as one. The separator stands between two texts."""
    text = ""
    media: list[tuple[int, Media]] = []
    is_first = True
    for piece in pieces:
        if isinstance(piece, Media):
            media.append((len(text), piece))
        else:
            text += piece if is_first else separator + piece
            is_first = False
    return Said(text, tuple(media))


class Gathered:
    """The media of a prompt, in the order in which its messages name them."""

    def __init__(self) -> None:
        self._media: list[Media] = []

    def add(self, media: Iterable[tuple[int, Media]]) -> tuple[MediaPlace, ...]:
        """Add the media of the next message, and return their places."""
        places: list[MediaPlace] = []
        for offset, each in media:
            places.append(MediaPlace(offset, len(self._media)))
            self._media.append(each)
        return tuple(places)

    def checked(self, param: str) -> tuple[Media, ...]:
        """Return all media; raise InvalidRequest or PayloadTooLarge if they are too many or too large together."""
        return checked_media(tuple(self._media), param)


def checked_media(media: tuple[Media, ...], param: str) -> tuple[Media, ...]:
    """Return the media of a prompt; raise InvalidRequest or PayloadTooLarge if they are too many or too large."""
    if len(media) > MAX_MEDIA:
        raise InvalidRequest(
            f"{param} holds {len(media)} images and sounds, at most {MAX_MEDIA} are possible", param=param
        )
    num_bytes = sum(len(each.data) for each in media)
    if num_bytes > MAX_MEDIA_BYTES:
        raise PayloadTooLarge(
            f"the images and sounds in {param} have {num_bytes} bytes, at most {MAX_MEDIA_BYTES} are possible; "
            "send smaller ones, or begin another conversation",
            param=param,
        )
    return media
