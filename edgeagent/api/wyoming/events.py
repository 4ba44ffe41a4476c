"""Wyoming's events: how one is read within limits, and what the daemon says of itself and of a failure.

The package `wyoming` has the types of events, and writes them. It reads lines and blocks of any length, so it does not
read here.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass

from wyoming.event import Event
from wyoming.info import Attribution, HandleModel, HandleProgram, Info

from edgeagent import __version__
from edgeagent.api.wire.shape import Json
from edgeagent.errors import (
    ContextLengthExceeded,
    EdgeAgentError,
    InvalidRequest,
    ModelLoading,
    Overloaded,
    RequestTimeout,
    TokenBudgetExceeded,
)
from edgeagent.strict_json import kind_of, parse_json

# For the line, and again for the data behind it. Both together are parsed in 10 ms, whatever is in them.
MAX_EVENT_BYTES = 16 << 10
# Two minutes of speech.
MAX_TEXT_CHARS = 2048
MAX_ID_CHARS = 128
_LANGUAGE = re.compile(r"[A-Za-z]{2,8}([-_][A-Za-z0-9]{1,8}){0,4}")
# The bundled model, which speaks only English. GGUF files do not say reliably which languages a model speaks.
_LANGUAGES = {"builtin": ["en"]}

NOTHING_HEARD = "I did not hear anything."
NO_ANSWER = "I have no answer to that."
STOPPING = "I am being stopped. Please ask me again later."
_BUSY = "I am busy right now. Please ask me again in a moment."
_TOO_LONG = "That is too much for me. Please say it in fewer words."
_FAILED = "Sorry, I cannot answer right now."


@dataclass(frozen=True, slots=True)
class Heard:
    """What a transcript says. `language` and `conversation_id` are empty if it does not say them."""

    text: str
    language: str = ""
    conversation_id: str = ""


async def read_event(reader: asyncio.StreamReader, first: bytes = b"") -> Event | None:
    """Return the next event, without its payload; None if the stream ends before it is whole.

    `first`: what has been read of it. The limit of `reader` is that of a line. Raise InvalidRequest if the bytes are no
    event; it is then unknown where the next event begins.
    """
    try:
        head = _object(first if first == b"\n" else first + await reader.readuntil(b"\n"), "an event")
        length = _length(head, "data_length")
        data = _object(await reader.readexactly(length), "data") if length else {}
        await reader.readexactly(_length(head, "payload_length"))
    except asyncio.IncompleteReadError:
        return None
    except asyncio.LimitOverrunError:
        raise InvalidRequest(f"a line has more than {MAX_EVENT_BYTES} bytes; send the data behind it") from None
    match head:
        case {"type": str(kind), "data": dict(inline)}:
            return Event(kind, {**inline, **data})
        case {"type": str(kind)} if head.get("data") is None:
            return Event(kind, data)
    raise InvalidRequest('an event is an object with a "type", a string, and may have "data", an object')


def _object(raw: bytes, what: str) -> Json:
    value = parse_json(raw)
    if not isinstance(value, dict):
        raise InvalidRequest(f"{what} must be a JSON object, not {kind_of(value)}")
    return value


def _length(head: Json, field: str) -> int:
    length = head.get(field)
    if length is None:
        return 0
    if isinstance(length, bool) or not isinstance(length, int) or not 0 <= length <= MAX_EVENT_BYTES:
        raise InvalidRequest(f"{field} must be a whole number of 0 to {MAX_EVENT_BYTES}", param=field)
    return length


def read_transcript(data: Json) -> Heard:
    """Return what a transcript says; raise InvalidRequest, which names the field that is wrong."""
    text, language, context = data.get("text"), data.get("language") or "", data.get("context") or {}
    if not isinstance(text, str) or len(text) > MAX_TEXT_CHARS:
        raise InvalidRequest(f"text must be a string of at most {MAX_TEXT_CHARS} characters", param="text")
    if language and not (isinstance(language, str) and _LANGUAGE.fullmatch(language)):
        raise InvalidRequest('language must be a language tag, as in "en" or "pt-BR"', param="language")
    if not isinstance(context, dict):
        raise InvalidRequest(f"context must be an object, not {kind_of(context)}", param="context")
    conversation_id = context.get("conversation_id") or ""
    if not isinstance(conversation_id, str) or len(conversation_id) > MAX_ID_CHARS:
        raise InvalidRequest(
            f"context.conversation_id must be a string of at most {MAX_ID_CHARS} characters",
            param="context.conversation_id",
        )
    return Heard(text.strip(), language, conversation_id)


def describe(model: str) -> Event:
    """Return the answer to `describe`: one program, which answers text with a model."""
    about = Attribution("edgeagent", "")
    described = HandleModel(
        name=model,
        attribution=about,
        installed=True,
        description=f"The language model {model}",
        version=None,
        languages=_LANGUAGES.get(model, []),
    )
    program = HandleProgram(
        name="edgeagent",
        attribution=about,
        installed=True,
        description="Answers with a language model of this machine",
        version=__version__,
        models=[described],
        supports_handled_streaming=True,
    )
    return Info(handle=[program]).event()


def sentence_for(error: EdgeAgentError) -> str:
    """Return what is said aloud in place of an answer."""
    match error:
        case Overloaded() | ModelLoading() | RequestTimeout():
            return _BUSY
        case ContextLengthExceeded() | TokenBudgetExceeded():
            return _TOO_LONG
    return _FAILED
