"""Reads a stream of the Responses API's events. Event types that add nothing to an answer are ignored."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

from edgeagent.backends.remote.answers.reader import NO_TOKEN, AnswerReader, failure_from, read_json, usage_of
from edgeagent.backends.remote.answers.sse import Event
from edgeagent.backends.remote.failures import Failure, Kind
from edgeagent.types import Delta, FinishReason, ReasoningDelta, TokenLogprob, ToolCallDelta

_DONE = b"[DONE]"
_TEXT = ("response.output_text.delta", "response.refusal.delta")
_REASONING = ("response.reasoning_text.delta", "response.reasoning_summary_text.delta")
_TOO_LONG = ("max_output_tokens", "max_tokens")


class _Item(Struct):
    type: str = ""
    id: str | None = None
    call_id: str | None = None
    name: str | None = None


class _Alternative(Struct):
    token: str = ""
    logprob: float = 0.0
    bytes: list[int] | None = None


class _Token(_Alternative):
    top_logprobs: list[_Alternative] = field(default_factory=list)


class _Details(Struct):
    cached_tokens: int = 0
    reasoning_tokens: int = 0


class _Usage(Struct):
    input_tokens: int = 0
    output_tokens: int = 0
    input_tokens_details: _Details | None = None
    output_tokens_details: _Details | None = None


class _Incomplete(Struct):
    reason: str | None = None


class _Response(Struct):
    model: str | None = None
    usage: _Usage | None = None
    error: Any = None
    incomplete_details: _Incomplete | None = None


class _Event(Struct):
    type: str = ""
    delta: Any = None
    arguments: str | None = None
    output_index: int = 0
    item: _Item | None = None
    logprobs: list[_Token] | None = None
    response: _Response | None = None
    error: Any = None


class _OpenCall(Struct):
    index: int
    has_arguments: bool = False


class ResponsesReader(AnswerReader):
    """Reads one answer in events of the Responses API.

    `num_alternatives` is how many alternatives to return with each token's log probability. If it is None, no log
    probabilities are returned.
    """

    def __init__(self, num_alternatives: int | None = None) -> None:
        super().__init__()
        self._num_alternatives = num_alternatives
        self._calls: dict[int, _OpenCall] = {}

    def _read(self, event: Event, deltas: list[Delta]) -> None:
        if event.data == _DONE:
            return
        said = read_json(event.data, _Event)
        num_before = len(deltas)
        self._note(said.response)
        match said.type:
            case "error" | "response.failed":
                nested = said.response.error if said.response is not None else None
                raise failure_from(said.error or nested or read_json(event.data, dict))
            case "response.output_item.added" if said.item is not None and said.item.type == "function_call":
                started = self.answer.start_call(said.item.call_id or said.item.id or "", said.item.name or "")
                self._calls[said.output_index] = _OpenCall(started.index)
                deltas.append(started)
            case "response.function_call_arguments.delta" | "response.function_call_arguments.done":
                self._read_arguments(said, deltas)
            case kind if kind in _TEXT and said.delta:
                deltas.append(self.answer.text(_text(said.delta), self._logprobs_of(said)))
            case kind if kind in _REASONING and said.delta:
                deltas.append(ReasoningDelta(_text(said.delta)))
            case "response.completed":
                self._finish(FinishReason.TOOL_CALLS if self._calls else FinishReason.STOP)
            case "response.incomplete":
                details = said.response.incomplete_details if said.response is not None else None
                is_length = details is None or details.reason in _TOO_LONG
                self._finish(FinishReason.LENGTH if is_length else FinishReason.STOP)
        self.answer.note_tokens(self.answer.num_tokens + (len(said.logprobs or ()) or (len(deltas) > num_before)))

    def _note(self, response: _Response | None) -> None:
        if response is None:
            return
        self.answer.note_model(response.model)
        if (usage := response.usage) is not None:
            cached = usage.input_tokens_details.cached_tokens if usage.input_tokens_details else 0
            reasoning = usage.output_tokens_details.reasoning_tokens if usage.output_tokens_details else 0
            self.answer.usage = usage_of(usage.input_tokens, cached, usage.output_tokens, reasoning)

    def _finish(self, reason: FinishReason) -> None:
        self.answer.finish, self.answer.has_end_marker = reason, True

    def _read_arguments(self, said: _Event, deltas: list[Delta]) -> None:
        call = self._calls.get(said.output_index)
        if call is None:
            raise Failure(Kind.GARBLED, "it sent the arguments of a tool call that it did not start")
        is_delta = said.type.endswith(".delta")
        text = _text(said.delta) if is_delta else said.arguments or "{}"
        if text and (is_delta or not call.has_arguments):
            deltas.append(ToolCallDelta(call.index, text))
            call.has_arguments = True

    def _logprobs_of(self, said: _Event) -> tuple[TokenLogprob, ...]:
        most = self._num_alternatives
        if most is None:
            return ()
        return tuple(
            TokenLogprob(
                NO_TOKEN,
                _piece(token),
                token.logprob,
                tuple(_alternative(each) for each in token.top_logprobs[:most]),
            )
            for token in said.logprobs or ()
        )


def _text(delta: Any) -> str:
    if not isinstance(delta, str):
        raise Failure(Kind.GARBLED, "it sent a delta whose text is not a string")
    return delta


def _alternative(said: _Alternative) -> TokenLogprob:
    return TokenLogprob(NO_TOKEN, _piece(said), said.logprob)


def _piece(said: _Alternative) -> bytes:
    try:
        return said.token.encode() if said.bytes is None else bytes(said.bytes)
    except ValueError:
        raise Failure(Kind.GARBLED, "it sent a token with invalid bytes") from None
