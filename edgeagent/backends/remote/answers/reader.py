"""What a reader of an answer collects on its way, whichever of OpenAI's protocols it comes in.

An answer is whole only when its protocol's end was seen: a stream that stops before is a Failure, never a success.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, TypeVar

import msgspec

from edgeagent.backends.remote.answers.sse import Event, EventReader
from edgeagent.backends.remote.failures import Failure, Kind
from edgeagent.remotes.check import is_model_name
from edgeagent.types import Delta, FinishReason, TextDelta, TokenLogprob, ToolCallStarted, Usage

MAX_DETAIL_CHARS = 500
MAX_CALLS = 128
# More than any model takes or gives. What a remote counts ends budgets, and takes memory here.
MAX_PROMPT_TOKENS = 1 << 24
MAX_OUTPUT_TOKENS = 1 << 20
Json = TypeVar("Json")
# The token's id in the vocabulary of a model that is elsewhere.
NO_TOKEN = -1


class Tally:
    """Counts and names that come with an answer's events, and the calls that it has begun.

    `fault`: what is wrong with the stream behind the deltas that were returned last.
    """

    def __init__(self) -> None:
        self.model = ""
        self.usage: Usage | None = None
        self.finish: FinishReason | None = None
        self.is_whole = False
        self.num_events = 0
        self.num_tokens = 0
        self.num_calls = 0
        self.fault: Failure | None = None
        self._num_chars = 0

    def note_model(self, name: str | None) -> None:
        """Take note of who answers; a name that no model can have is ignored."""
        if name and is_model_name(name):
            self.model = name

    def note_tokens(self, total: int) -> None:
        """Take note of how many tokens the answer has by now, as the remote says; the number never falls."""
        self.num_tokens = max(self.num_tokens, min(total, MAX_OUTPUT_TOKENS))

    def skip(self, num_chars: int) -> None:
        """Count this many characters of content before what follows; another place has delivered them."""
        self._num_chars += num_chars

    def start_call(self, call_id: str, name: str) -> ToolCallStarted:
        """Return the start of the next call; its id is made up where the remote gives none."""
        if self.num_calls >= MAX_CALLS:
            raise Failure(Kind.GARBLED, f"it began more than {MAX_CALLS} calls")
        index = self.num_calls
        self.num_calls += 1
        return ToolCallStarted(index, call_id or f"call_{index}", name)

    def text(self, text: str, logprobs: tuple[TokenLogprob, ...] = ()) -> TextDelta:
        """Return more text, with its tokens placed in the content."""
        start = self._num_chars
        self._num_chars += len(text)
        placed = []
        for token in logprobs:
            placed.append(msgspec.structs.replace(token, start=start))
            start += len(token.piece.decode(errors="ignore"))
        return TextDelta(text, tuple(placed))


class AnswerReader(ABC):
    """Turns the bytes of one stream into deltas.

    `feed` raises a Failure for an error in the stream, and for bytes that are none of the protocol; where deltas come
    before the fault they are returned, and the fault is in the tally. `end` is called when no more bytes come.
    """

    def __init__(self) -> None:
        self.tally = Tally()
        self._events = EventReader()

    def feed(self, chunk: bytes) -> list[Delta]:
        """Take the next bytes; return what they add to the answer. What comes after its end is ignored."""
        deltas: list[Delta] = []
        try:
            for event in self._events.feed(chunk):
                if self.tally.is_whole:
                    break
                self.tally.num_events += 1
                self._read(event, deltas)
        except Failure as failure:
            self.tally.fault = failure
            if not deltas:
                raise
        return deltas

    def end(self) -> list[Delta]:
        """Return what the answer's end adds; raise a Failure unless the answer is whole."""
        if self.tally.fault is not None:
            raise self.tally.fault
        if not self.tally.is_whole:
            half = " within an event" if self._events.has_half_an_event else ""
            raise Failure(Kind.CUT, f"its stream ended{half} before its end was said")
        if self.tally.finish is None:
            raise Failure(Kind.CUT, "its stream ended without a finish reason")
        return self._last_deltas()

    @abstractmethod
    def _read(self, event: Event, deltas: list[Delta]) -> None:
        """Add an event's deltas to those of its bytes."""

    def _last_deltas(self) -> list[Delta]:
        return []


def read_json(data: bytes, kind: type[Json]) -> Json:
    """Return an event's JSON; raise a Failure for half a value, or another than the protocol's."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (ValueError, RecursionError) as error:
        raise Failure(Kind.GARBLED, f"it sent an event that is not the protocol's ({type(error).__name__})") from None


def usage_of(
    prompt: int | None = None, cached: int | None = None, output: int | None = None, reasoning: int | None = None
) -> Usage:
    """Return a remote's counts, held within what can be: budgets and measurements are sums of them."""
    num_prompt = _held(prompt, MAX_PROMPT_TOKENS)
    return Usage(
        num_prompt, _held(cached, num_prompt), _held(output, MAX_OUTPUT_TOKENS), _held(reasoning, MAX_OUTPUT_TOKENS)
    )


def _held(count: int | None, most: int) -> int:
    return min(max(0, count or 0), most)


def failure_from(error: Any, status: int = 0, retry_after_s: float | None = None) -> Failure:
    """Return what an error object, in a body or in a stream, says; any shape will do."""
    said = error if isinstance(error, dict) else {"message": error}
    code = said.get("code")
    if not status and isinstance(code, int) and 400 <= code <= 599:
        status = code
    status = status or _status_of(said.get("type")) or _status_of(code) or 500
    message = said.get("message")
    return failure_of_status(status, retry_after_s, message if isinstance(message, str) else "")


def _status_of(word: Any) -> int:
    return _STATUS_OF_TYPE.get(word.lower().replace(" ", "_"), 0) if isinstance(word, str) else 0


_STATUS_OF_TYPE = {
    "service_unavailable": 503,
    "overloaded_error": 503,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "queue_full": 429,
    "server_is_overloaded": 503,
    "invalid_request_error": 400,
    "badrequesterror": 400,
    "authentication_error": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "model_not_found": 404,
}


def failure_of_status(status: int, retry_after_s: float | None = None, detail: str = "") -> Failure:
    """Return what an HTTP status means. The detail is cut; it may quote the request, with its key."""
    detail = detail[:MAX_DETAIL_CHARS]
    match status:
        case 401 | 403:
            return Failure(Kind.REFUSED_KEY, f"it refused the key (HTTP {status})", status=status)
        case 408 | 429 | 503:
            kind, message = Kind.OVERLOADED, f"it takes no more requests now (HTTP {status})"
        case 404:
            kind, message = Kind.NO_MODEL, "it does not have the model, or not this address (HTTP 404)"
        case _ if 300 <= status < 400:
            kind, message = Kind.REDIRECT, f"it points elsewhere (HTTP {status}), and redirects are not followed"
        case _ if 400 <= status < 500:
            kind, message = Kind.REJECTED, f"it rejected the request (HTTP {status})"
        case _:
            kind, message = Kind.SERVER_ERROR, f"it failed (HTTP {status})"
    return Failure(kind, message, status=status, retry_after_s=retry_after_s, detail=detail)


def failure_of_body(status: int, body: bytes, retry_after_s: float | None) -> Failure:
    """Return what a refusal says, whose body may be OpenAI's error, plain text, HTML, or nothing."""
    try:
        said = msgspec.json.decode(body)
    except (ValueError, RecursionError):
        said = None
    if isinstance(said, dict):
        return failure_from(said.get("error") or said, status, retry_after_s)
    text = body.decode("utf-8", errors="replace").strip()
    return failure_of_status(status, retry_after_s, "" if text.startswith("<") else text)
