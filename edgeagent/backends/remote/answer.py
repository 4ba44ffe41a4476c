"""Reads an answer: a stream of chat completion chunks, or of text completion chunks, which have `text`, not `delta`.

An answer is complete only if the protocol's end marker was seen. A stream that stops earlier is a Failure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from edgeagent.backends.remote.failures import Failure, Kind, failure_from
from edgeagent.remotes.check import is_model_name
from edgeagent.types import (
    Delta,
    FinishReason,
    ReasoningDelta,
    TextDelta,
    TokenLogprob,
    ToolCallDelta,
    ToolCallStarted,
    Usage,
)

MAX_EVENT_BYTES = 4 << 20
_BOM = b"\xef\xbb\xbf"
_MAX_CALLS = 128
# More than any model reads or writes. A remote's counts are limited to these, since budgets and memory depend on them.
MAX_PROMPT_TOKENS = 1 << 24
MAX_OUTPUT_TOKENS = 1 << 20
# Stands for the id of a remote model's token, which is unknown here.
NO_TOKEN = -1
# A repetition of this many characters is not a coincidence; a second "ha" after "ha" may be.
MIN_CERTAIN_CHARS = 16
Json = TypeVar("Json")

_DONE = b"[DONE]"
_MAX_NAMELESS_CHARS = 64 * 1024
_MAX_UNCOUNTED = 8
"""How many chunks with content a remote may send without more tokens by its own count."""
_FINISHES = {
    "stop": FinishReason.STOP,
    "eos": FinishReason.STOP,
    "content_filter": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    "tool_calls": FinishReason.TOOL_CALLS,
    "function_call": FinishReason.TOOL_CALLS,
}


class Event(Struct, frozen=True):
    """A server-sent event. `name` is its type; "" if it has none."""

    name: str
    data: bytes


class EventReader:
    """Reads the server-sent events of one stream, which arrives in arbitrary pieces.

    The format is WHATWG's: lines end with LF, CRLF or CR, an empty line ends an event, `data:` lines are joined by LF.
    `id:` and `retry:` are ignored, since a stream of tokens cannot be resumed. A line, and the data of an event, may
    have at most `max_event_bytes`.
    """

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_event_bytes = max_event_bytes
        self._rest = bytearray()
        self._name = ""
        self._data: list[bytes] = []
        self._num_data_bytes = 0
        self._is_at_start = True
        self._is_cr_last = False

    @property
    def has_half_an_event(self) -> bool:
        """Whether the bytes so far end in an unfinished line, or before the blank line after an event's data."""
        return bool(self._rest or self._data)

    def feed(self, chunk: bytes) -> Iterator[Event]:
        """Take the next bytes, and yield the events that they complete. Raise a Failure if one is too long."""
        if self._is_cr_last and chunk:
            # A CRLF was split between two chunks. Its LF does not end another line.
            chunk = chunk.removeprefix(b"\n")
            self._is_cr_last = False
        self._rest += chunk
        if self._is_at_start:
            if len(self._rest) < len(_BOM) and _BOM.startswith(self._rest):
                return
            if self._rest.startswith(_BOM):
                del self._rest[: len(_BOM)]
            self._is_at_start = False
            chunk = bytes(self._rest)
        # Search only the new bytes, since a long line may arrive byte by byte.
        if b"\n" in chunk or b"\r" in chunk:
            yield from self._events(self._split())
        if len(self._rest) > self._max_event_bytes:
            raise self._too_long()

    def _split(self) -> list[bytes]:
        text = bytes(self._rest)
        if b"\r" in text:
            self._is_cr_last = text.endswith(b"\r")
            text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, rest = text.split(b"\n")
        self._rest = bytearray(rest)
        return lines

    def _events(self, lines: list[bytes]) -> Iterator[Event]:
        for line in lines:
            if line:
                self._take(line)
                continue
            if self._data:
                yield Event(self._name, b"\n".join(self._data))
                self._data.clear()
            self._name, self._num_data_bytes = "", 0

    def _take(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._num_data_bytes += len(value)
            if self._num_data_bytes > self._max_event_bytes:
                raise self._too_long()
            self._data.append(value)
        elif name == b"event":
            self._name = value.decode("utf-8", errors="replace")

    def _too_long(self) -> Failure:
        return Failure(Kind.GARBLED, f"it sent an event of more than {self._max_event_bytes} bytes")


class _Function(Struct):
    name: str | None = None
    arguments: Any = None


class _Call(Struct):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class _Delta(Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[_Call] | None = None


class _Alternative(Struct):
    token: str = ""
    logprob: float | None = None
    bytes: list[int] | None = None


class _Token(_Alternative):
    top_logprobs: list[_Alternative] | None = None


class _Logprobs(Struct):
    """Log probabilities. Chat completions send `content`; text completions send the other three fields."""

    content: list[_Token] | None = None
    tokens: list[str] | None = None
    token_logprobs: list[float | None] | None = None
    top_logprobs: list[dict[str, float] | None] | None = None


class _Choice(Struct):
    """One choice. Only vLLM sends `token_ids`, the ids of the chunk's tokens."""

    delta: _Delta | None = None
    text: str | None = None
    finish_reason: str | None = None
    logprobs: _Logprobs | None = None
    token_ids: list[int] | None = None


class _PromptDetails(Struct):
    cached_tokens: int | None = None


class _OutputDetails(Struct):
    reasoning_tokens: int | None = None


class _Usage(Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: _OutputDetails | None = None


class _Timings(Struct):
    """Timings from llama-server. `predicted_n` is how many tokens the answer has so far."""

    predicted_n: int | None = None


class _Chunk(Struct):
    model: str | None = None
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    timings: _Timings | None = None
    error: Any = None
    object: str | None = None


class _OpenCall:
    """A tool call that is being streamed. `index` is its number in our answer; None until the call's name arrives.

    The remote's numbers may have gaps; ours have none. `pending` holds arguments that arrived before the name.
    """

    def __init__(self) -> None:
        self.id = ""
        self.index: int | None = None
        self.pending = ""
        self.has_arguments = False


class ChatReader:
    """Reads one answer in chat completion chunks or text completion chunks.

    `num_alternatives` is how many alternatives to return with each token's log probability. If it is None, no log
    probabilities are returned. `max_tokens` is the most tokens that the answer may have; None if there is no limit.
    `tools` are the names of the tools that the model may call; None if any.

    `feed` raises a Failure for an error in the stream, and for bytes that violate the protocol. If deltas precede the
    error in the same bytes, `feed` returns them and keeps the Failure in `fault`, and `end` raises it. Call `end` when
    no more bytes come.

    `model`, `usage` and `finish` are what the remote has stated so far. `num_events`, `num_tokens` and `num_chars`
    count what has arrived; `num_tokens` never decreases. `is_estimated`: some content came without the number of its
    tokens, which may be more than were counted. `has_end_marker`: the protocol's end marker was read.
    `is_cut`: the answer was ended here, because it had as many tokens as allowed, and the remote went on.
    """

    def __init__(
        self,
        num_alternatives: int | None = None,
        max_tokens: int | None = None,
        tools: frozenset[str] | None = None,
        before: str = "",
    ) -> None:
        """`before` is the text that another backend has delivered before, which the remote should continue."""
        self.model = ""
        self.usage: Usage | None = None
        self.finish: FinishReason | None = None
        self.fault: Failure | None = None
        self.has_end_marker = self.is_cut = self.is_estimated = False
        self.num_events = self.num_tokens = self.num_chars = 0
        self._num_calls = self._num_uncounted = 0
        self._num_chars_before = len(before)
        self._guard = EchoGuard(before)
        self._events = EventReader()
        self._max_tokens = max_tokens
        self._tools = tools
        self._num_alternatives = num_alternatives
        self._calls: dict[int, _OpenCall] = {}
        self._logprobs: list[TokenLogprob] = []

    def _is_full(self, stated: int | None) -> bool:
        """Whether the answer has all its tokens, so that no more content is taken. If so, end it.

        `stated` is the remote's number of tokens with this content. If the number is allowed, the content is the rest
        of a token that was counted before.
        """
        if self._max_tokens is None or self.num_tokens < self._max_tokens:
            return False
        if stated is not None and stated <= self._max_tokens and self._num_uncounted < _MAX_UNCOUNTED:
            return False
        self.finish = FinishReason.LENGTH
        self.has_end_marker = self.is_cut = True
        return True

    def feed(self, chunk: bytes) -> list[Delta]:
        """Take the next bytes; return the deltas that they add. Bytes after the answer's end are ignored."""
        deltas: list[Delta] = []
        try:
            for event in self._events.feed(chunk):
                if self.has_end_marker:
                    break
                self.num_events += 1
                self._read(event, deltas)
        except Failure as failure:
            self.fault = failure
            if not deltas:
                raise
        return self._guard.take(deltas)

    def end(self) -> list[Delta]:
        """Return the last deltas of a complete answer; raise a Failure if the answer is incomplete."""
        if self.fault is not None:
            raise self.fault
        if not self.has_end_marker:
            half = " within an event" if self._events.has_half_an_event else ""
            raise Failure(Kind.CUT, f"its stream ended{half} before the answer was complete")
        if self.finish is None:
            raise Failure(Kind.CUT, "its stream ended without a finish reason")
        return self._guard.take(self._last_deltas()) + self._guard.release()

    def _last_deltas(self) -> list[Delta]:
        if not self.is_cut and any(call.pending for call in self._calls.values()):
            raise Failure(Kind.GARBLED, "it sent the arguments of a tool call without the tool's name")
        if self._num_calls and self.finish is FinishReason.STOP:
            # vLLM's finish reason is "stop" if the request named the function.
            self.finish = FinishReason.TOOL_CALLS
        return [
            ToolCallDelta(call.index, "{}")
            for call in self._calls.values()
            if call.index is not None and not call.has_arguments
        ]

    def _read(self, event: Event, deltas: list[Delta]) -> None:
        if event.data == _DONE:
            self.has_end_marker = True
            return
        chunk = _read_json(event.data, _Chunk)
        if chunk.error is not None:
            raise failure_from(chunk.error)
        if chunk.object == "error" or event.name == "error":
            raise failure_from(_read_json(event.data, dict))
        if chunk.model and is_model_name(chunk.model):
            self.model = chunk.model
        if chunk.usage is not None:
            self.usage = _usage(chunk.usage)
        if chunk.choices:
            # A chunk may hold several tokens: a slow reader gets several steps at once, and the tokens of one character
            # come together.
            stated = chunk.timings.predicted_n if chunk.timings is not None else None
            if chunk.usage is not None:
                stated = max(stated or 0, chunk.usage.completion_tokens or 0)
            self._read_choice(chunk.choices[0], stated, deltas)

    def _read_choice(self, choice: _Choice, stated: int | None, deltas: list[Delta]) -> None:
        num_before = len(deltas)
        num_logprobs = self._take_logprobs(choice.logprobs)
        delta = choice.delta or _Delta(content=choice.text)
        has_content = delta.reasoning_content or delta.reasoning or delta.content or delta.refusal or delta.tool_calls
        if has_content and self._is_full(stated):
            return
        if reasoning := delta.reasoning_content or delta.reasoning:
            deltas.append(ReasoningDelta(reasoning))
        if text := delta.content or delta.refusal:
            deltas.append(self._text(text, tuple(self._logprobs)))
            self._logprobs.clear()
        for position, call in enumerate(delta.tool_calls or ()):
            self._read_call(position, call, deltas)
        if choice.finish_reason is not None:
            self._finish(choice.finish_reason)
        # The name of a call's tool is not counted: some servers send it apart from the token that begins the call.
        is_content = any(not isinstance(delta, ToolCallStarted) for delta in deltas[num_before:])
        num_new = num_logprobs or len(choice.token_ids or ())
        self.is_estimated = self.is_estimated or (is_content and not num_new and stated is None)
        self._note_tokens(stated, num_new or is_content)

    def _finish(self, reason: str) -> None:
        finish = _FINISHES.get(reason)
        if finish is None:
            raise Failure(Kind.SERVER_ERROR, "it ended the answer with an unknown finish reason")
        self.finish = finish

    def _read_call(self, position: int, said: _Call, deltas: list[Delta]) -> None:
        key = said.index if said.index is not None else position
        if key not in self._calls and len(self._calls) >= _MAX_CALLS:
            raise Failure(Kind.GARBLED, f"it started more than {_MAX_CALLS} tool calls")
        call = self._calls.setdefault(key, _OpenCall())
        call.id = call.id or said.id or ""
        function = said.function or _Function()
        if function.arguments is not None:
            call.pending += _as_text(function.arguments)
        if call.index is None and function.name:
            if self._tools is not None and function.name not in self._tools:
                raise Failure(Kind.GARBLED, "it called a tool that the request does not offer")
            started = self._start_call(call.id, function.name)
            call.index = started.index
            deltas.append(started)
        if call.index is not None and call.pending:
            deltas.append(ToolCallDelta(call.index, call.pending))
            call.pending, call.has_arguments = "", True
        if len(call.pending) > _MAX_NAMELESS_CHARS:
            raise Failure(Kind.GARBLED, "it sent the arguments of a tool call without the tool's name")

    def _take_logprobs(self, said: _Logprobs | None) -> int:
        if said is None:
            return 0
        tokens = _chat_tokens(said) if said.content is not None else _text_tokens(said)
        if self._num_alternatives is not None:
            most = self._num_alternatives
            self._logprobs += [msgspec.structs.replace(token, top=token.top[:most]) for token in tokens]
        return len(tokens)

    def _note_tokens(self, stated: int | None, num_new: int) -> None:
        """Note how many tokens the answer has so far, as the remote states it, or with `num_new` more.

        A number that does not grow is believed for a few chunks: several chunks may be parts of one token.
        """
        is_believed = stated is not None and (stated > self.num_tokens or self._num_uncounted < _MAX_UNCOUNTED)
        total = min(stated if is_believed and stated is not None else self.num_tokens + num_new, MAX_OUTPUT_TOKENS)
        self._num_uncounted = 0 if total > self.num_tokens else self._num_uncounted + bool(num_new)
        self.num_tokens = max(self.num_tokens, total)

    def _start_call(self, call_id: str, name: str) -> ToolCallStarted:
        """Return the delta that starts the next tool call, with an invented id if the remote gives none."""
        index = self._num_calls
        self._num_calls += 1
        return ToolCallStarted(index, call_id or f"call_{index}", name)

    def _text(self, text: str, logprobs: tuple[TokenLogprob, ...]) -> TextDelta:
        """Return the delta for more text. Each token's position is set to its offset in the answer's text."""
        start = self._num_chars_before + self.num_chars
        self.num_chars += len(text)
        placed = []
        for token in logprobs:
            placed.append(msgspec.structs.replace(token, start=start))
            start += len(token.piece.decode(errors="ignore"))
        return TextDelta(text, tuple(placed))


def _read_json(data: bytes, kind: type[Json]) -> Json:
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


def _as_text(arguments: Any) -> str:
    """Return arguments as JSON text; some servers send them as an object."""
    return arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()


def _usage(said: _Usage) -> Usage:
    cached = said.prompt_tokens_details.cached_tokens if said.prompt_tokens_details else 0
    reasoning = said.completion_tokens_details.reasoning_tokens if said.completion_tokens_details else 0
    return usage_of(said.prompt_tokens, cached, said.completion_tokens, reasoning)


def _chat_tokens(said: _Logprobs) -> list[TokenLogprob]:
    return [
        TokenLogprob(
            NO_TOKEN,
            _piece(token),
            _logprob(token.logprob),
            tuple(_alternative(each) for each in token.top_logprobs or ()),
        )
        for token in said.content or ()
    ]


def _alternative(said: _Alternative) -> TokenLogprob:
    return TokenLogprob(NO_TOKEN, _piece(said), _logprob(said.logprob))


def _piece(said: _Alternative) -> bytes:
    if said.bytes is None:
        return said.token.encode()
    try:
        return bytes(said.bytes)
    except ValueError:
        raise Failure(Kind.GARBLED, "it sent a token with invalid bytes") from None


def _logprob(value: float | None) -> float:
    return float("nan") if value is None else value


def _text_tokens(said: _Logprobs) -> list[TokenLogprob]:
    tokens, values = said.tokens or [], said.token_logprobs or []
    tops = said.top_logprobs or [None] * len(tokens)
    return [
        TokenLogprob(
            NO_TOKEN,
            token.encode(),
            _logprob(value),
            tuple(TokenLogprob(NO_TOKEN, text.encode(), logprob) for text, logprob in (top or {}).items()),
        )
        for token, value, top in zip(tokens, values, tops, strict=False)
    ]


class EchoGuard:
    """Removes the earlier answer from the start of its continuation, if the remote repeats it.

    It holds back text that may be a repetition of `before`, which is the answer so far. Some builds of llama-server
    send the unfinished message again before they continue it. A model that is asked in words to continue may do so too.
    The client already has that text and must not get it twice.
    """

    def __init__(self, before: str) -> None:
        self._before = before
        self._held: list[TextDelta] = []
        self._num_same = 0  # characters of `before` that were repeated so far
        self._is_decided = not before

    def take(self, deltas: list[Delta]) -> list[Delta]:
        """Return the deltas without repeated text.

        Raise a Failure if the text repeats `before`, but `before` is too short to exclude a coincidence.
        """
        if self._is_decided:
            return deltas
        passed: list[Delta] = []
        for delta in deltas:
            if self._is_decided:
                passed.append(delta)
            elif isinstance(delta, TextDelta):
                passed += self._judge(delta)
            else:
                passed += [*self.release(), delta]
        return passed

    def release(self) -> list[Delta]:
        """Return the deltas that are held back, and hold back no further ones.

        Call this once the held text is known not to repeat the answer so far, and at the end of the answer.
        """
        self._is_decided = True
        held, self._held = self._held, []
        return list(held)

    def _judge(self, delta: TextDelta) -> list[Delta]:
        self._held.append(delta)
        text, num_same = delta.text, self._num_same
        left = len(self._before) - num_same
        if len(text) < left and self._before.startswith(text, num_same):
            self._num_same += len(text)
            return []
        if not text.startswith(self._before[num_same:]):
            return self.release()
        if len(self._before) < MIN_CERTAIN_CHARS:
            raise Failure(Kind.REPEATED, "it is unclear whether it continued the answer or started it over")
        self.release()
        rest = text[left:]
        return [TextDelta(rest, delta.logprobs)] if rest else []
