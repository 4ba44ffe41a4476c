"""A chat completion while it is generated: the deltas of its choices as one body, or as the chunks of a stream.

It knows OpenAI's shapes, but neither sockets nor the source of the deltas.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NotRequired

from edgeagent.api.wire.delivery_time import DeliveryTime
from edgeagent.api.wire.llama_fields import Delivery
from edgeagent.api.wire.logprobs import ChatLogprobs, token_logprobs
from edgeagent.api.wire.progress import SoFar
from edgeagent.api.wire.shape import Json, Shape
from edgeagent.api.wire.usage import (
    ChatUsage,
    LlamaTimings,
    Run,
    chat_usage,
    edgeagent_body,
    placement_body,
    timings_body,
)
from edgeagent.errors import BackendUnavailable
from edgeagent.types import (
    Delta,
    Finished,
    FinishReason,
    Interrupted,
    PromptProgress,
    PromptText,
    ReasoningDelta,
    Started,
    Step,
    TextDelta,
    TokenLogprob,
    ToolCallDelta,
    ToolCallStarted,
    Usage,
)

Ending = Literal["stop", "length", "tool_calls"]
"""OpenAI's reasons for an answer's end, but for those of the older form of calls."""
_ENDINGS: dict[FinishReason, Ending] = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.TOOL_CALLS: "tool_calls",
}


class ChatFunction(Shape):
    """The function that the model calls; the arguments are JSON text."""

    name: str
    arguments: str


class ChatToolCall(Shape):
    """A call the model makes."""

    id: str
    type: Literal["function"]
    function: ChatFunction


class ChatReply(Shape):
    """The model's message."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[ChatToolCall]]
    function_call: NotRequired[ChatFunction]
    """The call, where the request has `functions` in place of tools."""


class ChatChoice(Shape):
    """One of the answers."""

    index: int
    message: ChatReply
    finish_reason: Ending | Literal["function_call"]
    logprobs: ChatLogprobs | None


class Measures(Shape):
    """What was measured of a generation."""

    timings: LlamaTimings
    edgeagent: Run


class ChatCompletion(Measures):
    """A whole chat completion. Streamed, it is server-sent events of `chat.completion.chunk`, and `[DONE]`."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: ChatUsage


@dataclass(slots=True)
class ChatSoFar:
    """One generation's answer so far."""

    texts: list[str] = field(default_factory=list)
    reasonings: list[str] = field(default_factory=list)
    calls: list[tuple[ToolCallStarted, list[str]]] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finished: Finished | None = None

    def message(self, *, has_functions: bool) -> ChatReply:
        """Return the assistant's message."""
        text = "".join(self.texts)
        message: ChatReply = {"role": "assistant", "content": text or None if self.calls else text, "refusal": None}
        if self.reasonings:
            message["reasoning_content"] = "".join(self.reasonings)
        if self.calls and has_functions:
            started, parts = self.calls[0]
            message["function_call"] = {"name": started.name, "arguments": "".join(parts)}
        elif self.calls:
            message["tool_calls"] = [_call(started, "".join(parts)) for started, parts in self.calls]
        return message


class ChatAnswer:
    """A completion so far: its choices, and how long steps took from the engine to the client.

    `has_functions`: calls are written in the older form, as functions.
    """

    def __init__(self, completion_id: str, model: str, num_choices: int, *, has_functions: bool = False) -> None:
        self.id = completion_id
        self.has_functions = has_functions
        self.model = model
        self.created = int(time.time())
        self.choices = [ChatSoFar() for _ in range(num_choices)]
        self._delivery_time = DeliveryTime()

    def add(self, index: int, delta: Delta) -> None:
        """Take a delta of one choice."""
        choice = self.choices[index]
        match delta:
            case TextDelta(text, logprobs):
                choice.texts.append(text)
                choice.logprobs.extend(logprobs)
            case ReasoningDelta(text):
                choice.reasonings.append(text)
            case ToolCallStarted():
                choice.calls.append((delta, []))
            case ToolCallDelta(_, arguments):
                choice.calls[-1][1].append(arguments)
            case Finished():
                choice.finished = delta
            case Started() | PromptProgress() | PromptText() | Interrupted():
                pass

    def take(self, index: int, step: Step) -> None:
        """Take a step of one choice."""
        for delta in step.deltas:
            self.add(index, delta)

    def delivered(self, step: Step) -> None:
        """Note that a step has been handed to the client."""
        self._delivery_time.add(step.at_s)

    def body(self) -> ChatCompletion:
        """Return the whole completion; raise BackendUnavailable if it was cut short."""
        choices: list[ChatChoice] = [
            {
                "index": index,
                "message": choice.message(has_functions=self.has_functions),
                "finish_reason": self.reason(_finished(choice)),
                "logprobs": logprobs_body(choice.logprobs) if choice.logprobs else None,
            }
            for index, choice in enumerate(self.choices)
        ]
        return {
            "id": self.id,
            "object": "chat.completion",
            "created": self.created,
            "model": self.model,
            "choices": choices,
            "usage": self.usage(),
            **self.measures(self.choices[0]),
        }

    def reason(self, finished: Finished) -> Ending | Literal["function_call"]:
        """Return a choice's finish_reason; raise BackendUnavailable if it was cut short."""
        is_function = self.has_functions and finished.reason is FinishReason.TOOL_CALLS
        return "function_call" if is_function else finish_reason(finished)

    def usage(self) -> ChatUsage:
        """Return the token counts of all choices together; their one prompt counts once."""
        usages = [_finished(choice).usage for choice in self.choices]
        return chat_usage(
            Usage(
                num_prompt_tokens=usages[0].num_prompt_tokens,
                num_cached_tokens=usages[0].num_cached_tokens,
                num_output_tokens=sum(usage.num_output_tokens for usage in usages),
                num_reasoning_tokens=sum(usage.num_reasoning_tokens for usage in usages),
            )
        )

    def measures(self, choice: ChatSoFar) -> Measures:
        """Return `timings` and `edgeagent` for one choice."""
        return measures_body(_finished(choice), self._delivery_time)


class Chunks:
    """The chunks of a streamed completion.

    Clients concatenate what is repeated and read only the first call of a chunk, so a role, a call's id and its name
    come once, one call to a chunk, and the chunk with the finish reason has an empty delta. A choice's first chunk
    comes with its first delta, since the kind of that decides `content`: "" before text, and null before anything else,
    as OpenAI has it, or clients would show an empty text beside a call.
    """

    def __init__(self, answer: ChatAnswer, delivery: Delivery) -> None:
        self._answer = answer
        self._is_usage_streamed = delivery.is_usage_streamed
        self._has_timings = delivery.has_timings
        self._so_far = [SoFar() for _ in answer.choices]
        self._is_open = [False for _ in answer.choices]
        self._head: Json = {
            "id": answer.id,
            "object": "chat.completion.chunk",
            "created": answer.created,
            "model": answer.model,
        }
        self._tail: Json = {"usage": None} if delivery.is_usage_streamed else {}

    def of(self, index: int, step: Step) -> list[Json]:
        """Return the chunks of one step; raise BackendUnavailable if the choice was cut short."""
        self._so_far[index].note(step)
        chunks = [chunk for delta in step.deltas for chunk in self._chunks(index, delta)]
        if chunks and not self._is_open[index]:
            self._is_open[index] = True
            first = next(delta for delta in step.deltas if not isinstance(delta, Started | PromptText))
            content = "" if isinstance(first, TextDelta | Finished) else None
            opening = self._chunk(index, {"role": "assistant", "content": content})
            place = self._so_far[index].placement
            chunks.insert(0, opening if place is None else {**opening, "edgeagent": placement_body(place)})
        if self._has_timings:
            timings = self._so_far[index].timings()
            return [{"timings": timings, **chunk} for chunk in chunks]
        return chunks

    def _chunks(self, index: int, delta: Delta) -> list[Json]:
        match delta:
            case TextDelta(text, logprobs):
                return [self._chunk(index, {"content": text}, logprobs=logprobs)]
            case ReasoningDelta(text):
                return [self._chunk(index, {"reasoning_content": text})]
            case ToolCallStarted(position) | ToolCallDelta(position) if self._answer.has_functions:
                return [self._chunk(index, {"function_call": _function(delta)})] if position == 0 else []
            case ToolCallStarted():
                return [self._chunk(index, {"tool_calls": [{"index": delta.index, **_call(delta, "")}]})]
            case ToolCallDelta(position, arguments):
                part = {"index": position, "function": {"arguments": arguments}}
                return [self._chunk(index, {"tool_calls": [part]})]
            case Finished():
                choice = self._answer.choices[index]
                choice.finished = delta
                end = self._chunk(index, {}, self._answer.reason(delta))
                return [end if self._is_usage_streamed else {**end, **self._answer.measures(choice)}]
            case PromptProgress():
                return [{**self._chunk(index, {}), "prompt_progress": self._so_far[index].progress(delta)}]
            case Started() | PromptText() | Interrupted():
                return []

    def closing(self) -> list[Json]:
        """Return the usage chunk if it was asked for: clients that index choices[0] do not expect it."""
        if not self._is_usage_streamed:
            return []
        measures = self._answer.measures(self._answer.choices[0])
        return [{**self._head, "choices": [], "usage": self._answer.usage(), **measures}]

    def _chunk(
        self, index: int, delta: Json, reason: str | None = None, *, logprobs: Sequence[TokenLogprob] = ()
    ) -> Json:
        choice: Json = {"index": index, "delta": delta, "finish_reason": reason}
        if logprobs:
            choice["logprobs"] = logprobs_body(logprobs)
        return {**self._head, "choices": [choice], **self._tail}


def _finished(choice: ChatSoFar) -> Finished:
    assert choice.finished is not None, "a backend's steps end with Finished"
    return choice.finished


def measures_body(finished: Finished, delivery_time: DeliveryTime) -> Measures:
    """Return llama-server's `timings` of a generation, and the object `edgeagent`."""
    return {
        "timings": timings_body(finished.usage, finished.timings),
        "edgeagent": edgeagent_body(finished.timings, delivery_time.mean_ms),
    }


def finish_reason(finished: Finished) -> Ending:
    """Return OpenAI's finish_reason; it has no word for an answer cut short, so raise BackendUnavailable."""
    if finished.reason is FinishReason.CANCELLED:
        raise BackendUnavailable(
            "the answer was cut short: the daemon is stopping, or the request was cancelled",
            num_delivered_tokens=finished.usage.num_output_tokens,
        )
    return _ENDINGS[finished.reason]


def logprobs_body(logprobs: Sequence[TokenLogprob]) -> ChatLogprobs:
    """Return a choice's `logprobs`."""
    return {"content": token_logprobs(logprobs), "refusal": None}


def _call(call: ToolCallStarted, arguments: str) -> ChatToolCall:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def _function(delta: ToolCallStarted | ToolCallDelta) -> Json:
    if isinstance(delta, ToolCallStarted):
        return {"name": delta.name, "arguments": ""}
    return {"arguments": delta.arguments}
