"""Which images and sounds of a request a model reads, and the notes that stand for those that it does not read.

What is new must be read: it is in the last message, if that is the user's. What was said before may be replaced by a
note, so that a conversation is not lost by an image in it, and so may what a tool returned. A client may join a message
that was refused and the next one, so a medium between two texts is not new.
"""

from __future__ import annotations

from collections.abc import Collection

from edgeagent.errors import NotSupported
from edgeagent.media_files import with_notes
from edgeagent.types import ChatPrompt, GenerateRequest, MediaKind, MediaPlace, Message, replace

NOTES: dict[MediaKind, str] = {
    "image": "[image left out: the model reads only text]",
    "audio": "[audio left out: the model reads no sound]",
}
WORDS: dict[MediaKind, str] = {"image": "images", "audio": "sounds"}


def kinds(request: GenerateRequest, *, of_tools: bool = True) -> frozenset[MediaKind]:
    """Return the kinds of media in a request. `of_tools`: those in the results of tools count too."""
    prompt = request.prompt
    if not isinstance(prompt, ChatPrompt) or not prompt.media:
        return frozenset()
    shown = [message for message in prompt.messages if of_tools or message.role != "tool"]
    return frozenset(prompt.media[place.index].kind for message in shown for place in message.media)


def new_kinds(request: GenerateRequest) -> frozenset[MediaKind]:
    """Return the kinds of the media that are new in a request."""
    prompt = request.prompt
    if not isinstance(prompt, ChatPrompt) or not prompt.media or not prompt.messages:
        return frozenset()
    last = prompt.messages[-1]
    if last.role == "tool":
        return frozenset()
    return frozenset(prompt.media[place.index].kind for place in last.media if not _is_between_texts(last, place))


def _is_between_texts(message: Message, place: MediaPlace) -> bool:
    return bool(message.content[: place.offset].strip()) and bool(message.content[place.offset :].strip())


def not_read(model: str, missing: Collection[MediaKind], takes: Collection[MediaKind], why: str = "") -> NotSupported:
    """Return the error of a model that does not read what is new in a request. `why` its projector is left out."""
    what = words(missing)
    reads = f"text and {words(takes)}" if takes else "only text"
    small = " or ".join(f"`edgeagent pull {SMALL_MODELS[kind]}`" for kind in sorted(missing, reverse=True))
    options = " ".join(_OPTIONS[kind] for kind in sorted(missing, reverse=True))
    own = f" ({why.removesuffix('.')})" if why else "" if takes else " (no mmproj-*.gguf lies beside it)"
    return NotSupported(
        f"{model} reads {reads}{own}, and the last message has {what}: name a model that reads {what} ({small} gets a "
        f"small one), or add a remote that does (`edgeagent remote add ... {options}`)",
        param="input",
    )


SMALL_MODELS: dict[MediaKind, str] = {"image": "smolvlm-500m", "audio": "ultravox-1b"}
"""Names of the catalog, for errors."""


def words(found: Collection[MediaKind]) -> str:
    """Return kinds of media in words: "images and sounds"."""
    return " and ".join(WORDS[kind] for kind in sorted(found, reverse=True))


_OPTIONS: dict[MediaKind, str] = {"image": "--images", "audio": "--audio"}


def readable(request: GenerateRequest, takes: Collection[MediaKind]) -> tuple[GenerateRequest, str]:
    """Return a request for a model that takes these kinds, and a warning; "" if nothing is changed.

    Notes stand for media that the model does not take.
    """
    prompt = request.prompt
    if not isinstance(prompt, ChatPrompt) or kinds(request) <= frozenset(takes):
        return request, ""
    shown = with_notes(prompt, lambda _, medium: "" if medium.kind in takes else NOTES[medium.kind])
    left_out = kinds(request) - frozenset(takes)
    if not any(message.media for message in shown.messages):
        shown = replace(shown, media=())
    where = "earlier messages" if kinds(request, of_tools=False) & left_out else "tools' results"
    warning = f"{words(left_out)} of {where} are left out, because the model does not read them"
    return replace(request, prompt=shown), warning


def missing_at_remote(request: GenerateRequest, *, images: bool, audio: bool) -> str:
    """Return the option that a remote lacks for what a user shows; "" if it takes all of it."""
    lacking = kinds(request, of_tools=False) - taken_by_remote(images=images, audio=audio)
    return "images" if "image" in lacking else "audio" if lacking else ""


def taken_by_remote(*, images: bool, audio: bool) -> frozenset[MediaKind]:
    """Return the kinds of media that a remote with these options takes."""
    takes: dict[MediaKind, bool] = {"image": images, "audio": audio}
    return frozenset(kind for kind, is_taken in takes.items() if is_taken)
