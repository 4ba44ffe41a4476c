"""The state of an answer, and the failures that a remote's errors stand for."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from edgeagent.backends.remote.failures import Failure, Kind
from edgeagent.remotes.check import is_model_name
from edgeagent.types import FinishReason, TextDelta, TokenLogprob, ToolCallStarted, Usage

MAX_DETAIL_CHARS = 500
MAX_CALLS = 128
# More than any model reads or writes. A remote's counts are limited to these, since budgets and memory depend on them.
MAX_PROMPT_TOKENS = 1 << 24
MAX_OUTPUT_TOKENS = 1 << 20
Json = TypeVar("Json")
# Stands for the id of a remote model's token, which is unknown here.
NO_TOKEN = -1


class AnswerState:
    """What is known so far about an answer: its model, its token counts, its finish reason and its number of events.

    `has_end_marker`: the protocol's end marker was read. `is_cut`: the answer was ended here, because it had as many
    tokens as allowed, and the remote went on. `num_chars`: the length of its text. `fault`: an error in the stream, or
    None; the deltas before it are still delivered.
    """

    def __init__(self) -> None:
        self.model = ""
        self.usage: Usage | None = None
        self.finish: FinishReason | None = None
        self.has_end_marker = self.is_cut = False
        self.num_events = 0
        self.num_tokens = 0
        self.num_calls = 0
        self.fault: Failure | None = None
        self.num_chars = 0
        self._num_skipped = 0

    def note_model(self, name: str | None) -> None:
        """Note the name of the answering model; ignore an invalid name."""
        if name and is_model_name(name):
            self.model = name

    def note_tokens(self, total: int) -> None:
        """Note how many tokens the answer has so far, as reported by the remote or counted in its events.

        `num_tokens` never decreases, and is at most MAX_OUTPUT_TOKENS.
        """
        self.num_tokens = max(self.num_tokens, min(total, MAX_OUTPUT_TOKENS))

    def skip(self, num_chars: int) -> None:
        """Count characters that another backend has delivered, so that the positions of tokens begin after them."""
        self._num_skipped += num_chars

    def start_call(self, call_id: str, name: str) -> ToolCallStarted:
        """Return the delta that starts the next tool call, with an invented id if the remote gives none.

        Raise a Failure if the answer has too many calls.
        """
        if self.num_calls >= MAX_CALLS:
            raise Failure(Kind.GARBLED, f"it started more than {MAX_CALLS} tool calls")
        index = self.num_calls
        self.num_calls += 1
        return ToolCallStarted(index, call_id or f"call_{index}", name)

    def text(self, text: str, logprobs: tuple[TokenLogprob, ...] = ()) -> TextDelta:
        """Return the delta for more text. Each token's position is set to its offset in the answer's text."""
        start = self._num_skipped + self.num_chars
        self.num_chars += len(text)
        placed = []
        for token in logprobs:
            placed.append(msgspec.structs.replace(token, start=start))
            start += len(token.piece.decode(errors="ignore"))
        return TextDelta(text, tuple(placed))


def read_json(data: bytes, kind: type[Json]) -> Json:
    """Decode an event's JSON; raise a Failure if it is not valid JSON of the type `kind`."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (ValueError, RecursionError) as error:
        raise Failure(Kind.GARBLED, f"it sent an event that violates the protocol ({type(error).__name__})") from None


def usage_of(
    prompt: int | None = None, cached: int | None = None, output: int | None = None, reasoning: int | None = None
) -> Usage:
    """Return a remote's token counts, limited to plausible values because budgets and metrics add them up."""
    num_prompt = _held(prompt, MAX_PROMPT_TOKENS)
    return Usage(
        num_prompt, _held(cached, num_prompt), _held(output, MAX_OUTPUT_TOKENS), _held(reasoning, MAX_OUTPUT_TOKENS)
    )


def _held(count: int | None, most: int) -> int:
    return min(max(0, count or 0), most)


def failure_from(error: Any, status: int = 0, retry_after_s: float | None = None) -> Failure:
    """Return the Failure for an error object of any shape that a remote sent in a body or a stream.

    `status` is the HTTP status. If it is 0, the error object's code or type gives the status, or else it is 500.
    """
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
    """Return the Failure for an HTTP status. `detail` is the remote's own text, which may quote the request and key."""
    detail = detail[:MAX_DETAIL_CHARS]
    match status:
        case 401 | 403:
            return Failure(Kind.REFUSED_KEY, f"it refused the key (HTTP {status})", status=status)
        case 402:
            kind, message = Kind.OVERLOADED, "its operator wants a payment first (HTTP 402)"
        case 408 | 429 | 503:
            kind, message = Kind.OVERLOADED, f"it accepts no more requests now (HTTP {status})"
        case 404:
            kind, message = Kind.NO_MODEL, "it does not have the model, or the address is wrong (HTTP 404)"
        case _ if 300 <= status < 400:
            kind, message = Kind.REDIRECT, f"it redirects elsewhere (HTTP {status}), and redirects are not followed"
        case _ if 400 <= status < 500:
            kind, message = Kind.REJECTED, f"it rejected the request (HTTP {status})"
        case _:
            kind, message = Kind.SERVER_ERROR, f"it failed (HTTP {status})"
    return Failure(kind, message, status=status, retry_after_s=retry_after_s, detail=detail)


def failure_of_body(status: int, body: bytes, retry_after_s: float | None) -> Failure:
    """Return the Failure for a response without an answer. `body` may be OpenAI's error, plain text, HTML, or empty."""
    try:
        said = msgspec.json.decode(body)
    except (ValueError, RecursionError):
        said = None
    if isinstance(said, dict):
        return failure_from(said.get("error") or said, status, retry_after_s)
    text = body.decode("utf-8", errors="replace").strip()
    return failure_of_status(status, retry_after_s, "" if text.startswith("<") else text)
