"""A chat completion while it is generated: the deltas of its choices as one body, or as the chunks of a stream.

The module has OpenAI's shapes. It does not use sockets, and does not depend on where the deltas come from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NotRequired

from pydantic_core import to_json

from edgeagent.api.openai.answer import Answer, ChoiceSoFar, Chunks, Ending, GenerationMetrics, finish_reason
from edgeagent.api.wire.generation import ChatLogprobs, ChatUsage, started_body, token_logprobs
from edgeagent.api.wire.latency import ServiceTier, service_tier_of
from edgeagent.api.wire.llama_fields import AnswerForm
from edgeagent.api.wire.shape import Json, Shape
from edgeagent.api.wire.sse import event
from edgeagent.strict_json import load_generated
from edgeagent.types import (
    ChoiceScores,
    Delta,
    Finished,
    FinishReason,
    Interrupted,
    PromptProgress,
    PromptText,
    Queued,
    ReasoningDelta,
    Started,
    Step,
    TextDelta,
    TokenLogprob,
    ToolCallDelta,
    ToolCallStarted,
)


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
    """The call, if the request has `functions` instead of `tools`."""


class ChatChoice(Shape):
    """One of the answers."""

    index: int
    message: ChatReply
    finish_reason: Ending | Literal["function_call"]
    logprobs: ChatLogprobs | None


class ChatCompletion(GenerationMetrics):
    """A whole chat completion. A stream instead sends `chat.completion.chunk` objects as events, then `[DONE]`."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: ChatUsage
    service_tier: NotRequired[ServiceTier]
    """The tier at which the request ran. A stream has it in the first and the last chunk."""


@dataclass(slots=True)
class ChatSoFar(ChoiceSoFar):
    """One choice of a chat completion while it is generated: its text, reasoning, calls and log probabilities.

    `calls`: for each call its first delta, and the pieces of its arguments.
    """

    texts: list[str] = field(default_factory=list)
    reasonings: list[str] = field(default_factory=list)
    calls: list[tuple[ToolCallStarted, list[str]]] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)

    def message(self, *, has_functions: bool) -> ChatReply:
        """Return the assistant's message. `has_functions`: it has only the first call, in the field `function_call`."""
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

    def take(self, step: Step) -> None:
        for delta in step.deltas:
            self.add(delta)

    def add(self, delta: Delta) -> None:
        """Add a delta to the choice."""
        match delta:
            case TextDelta(text, logprobs):
                self.texts.append(text)
                self.logprobs.extend(logprobs)
            case ReasoningDelta(text):
                self.reasonings.append(text)
            case ToolCallStarted():
                self.calls.append((delta, []))
            case ToolCallDelta(_, arguments):
                self.calls[-1][1].append(arguments)
            case Finished():
                self.finished = delta
            case Started():
                self.started = self.started or delta
            case PromptProgress() | PromptText() | ChoiceScores() | Queued() | Interrupted():
                pass


class ChatAnswer(Answer):
    """A chat completion while it is generated.

    `has_functions`: only the first call is sent, in the older form `function_call`.
    """

    choices: list[ChatSoFar]

    def __init__(self, completion_id: str, model: str, num_choices: int, *, has_functions: bool = False) -> None:
        super().__init__(completion_id, model, [ChatSoFar() for _ in range(num_choices)], num_choices)
        self.has_functions = has_functions

    def body(self) -> ChatCompletion:
        choices: list[ChatChoice] = [
            {
                "index": index,
                "message": choice.message(has_functions=self.has_functions),
                "finish_reason": self.reason(choice.end()),
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
            **_service_tier(self.choices[0].started),
            **self.generation_metrics(self.choices[0]),
        }

    def reason(self, finished: Finished) -> Ending | Literal["function_call"]:
        """Return a choice's finish_reason; raise BackendUnavailable if the choice was cancelled."""
        is_function = self.has_functions and finished.reason is FinishReason.TOOL_CALLS
        return "function_call" if is_function else finish_reason(finished)


_SAMPLE = "\0"


class ChatChunks(Chunks):
    """The chunks of a streamed chat completion.

    - Clients concatenate the values of a repeated field. So the role, and each call's id and name, are sent once.
    - Some clients read only the first call of a chunk. So a chunk has at most one call.
    - The chunk with the finish reason has an empty delta.
    - The first chunk has the role. Its `content` is "" if text or the end follows, and otherwise null, because clients
      would show "" as an empty text next to a call. So it is not sent before it is known what follows.
    """

    _answer: ChatAnswer

    def __init__(self, answer: ChatAnswer, delivery: AnswerForm) -> None:
        super().__init__(answer, delivery, "chat.completion.chunk")
        self._is_open = [False for _ in answer.choices]
        count: Json = {"timings": {"predicted_n": _SAMPLE}} if delivery.counts_tokens else {}
        # The bytes around the JSON of a text, and of the number of tokens: most chunks differ only there.
        samples = [{**count, **self._chunk(index, {"content": _SAMPLE})} for index in range(len(answer.choices))]
        self._around = [event(sample).split(to_json(_SAMPLE)) for sample in samples]

    def write(self, index: int, step: Step) -> bytes:
        match step.deltas:
            case (TextDelta(text, ()),) if self._is_open[index] and not self._delivery.has_timings:
                self._answer.delivery_time.add(step.at_s)
                *counted, before, behind = self._around[index]
                if counted:
                    self._progress[index].add_step(step)
                    before = b"%s%d%s" % (counted[0], self._progress[index].num_tokens, before)
                return b"%s%s%s" % (before, to_json(text), behind)
        return super().write(index, step)

    def of(self, index: int, step: Step) -> list[Json]:
        self._progress[index].add_step(step)
        chunks = [chunk for delta in step.deltas for chunk in self._chunks(index, delta)]
        if chunks and not self._is_open[index]:
            self._is_open[index] = True
            first = next(delta for delta in step.deltas if not isinstance(delta, Started | PromptText))
            content = "" if isinstance(first, TextDelta | Finished) else None
            opening = self._chunk(index, {"role": "assistant", "content": content})
            if started := started_body(self._progress[index].started):
                opening["edgeagent"] = started
            opening |= _service_tier(self._progress[index].started)
            chunks.insert(0, opening)
        return self.timed(index, chunks)

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
                last = self._chunk(index, {}, self._answer.reason(delta)) | _service_tier(self._progress[index].started)
                return [self._ended(last, choice)]
            case PromptProgress():
                return [{**self._chunk(index, {}), "prompt_progress": self._progress[index].prompt_progress(delta)}]
            case Started() | PromptText() | ChoiceScores() | Queued() | Interrupted():
                return []

    def _chunk(
        self, index: int, delta: Json, reason: str | None = None, *, logprobs: Sequence[TokenLogprob] = ()
    ) -> Json:
        choice: Json = {"index": index, "delta": delta, "finish_reason": reason}
        if logprobs:
            choice["logprobs"] = logprobs_body(logprobs)
        return {**self._head, "choices": [choice], **self._tail}


class _Tier(Shape):
    service_tier: NotRequired[ServiceTier]


def _service_tier(started: Started | None) -> _Tier:
    """Return the field `service_tier`; empty if the tier is unknown."""
    if started is None or started.tier is None:
        return {}
    return {"service_tier": service_tier_of(started.tier)}


def logprobs_body(logprobs: Sequence[TokenLogprob]) -> ChatLogprobs:
    """Return the object `logprobs` of a choice or a chunk."""
    return {"content": token_logprobs(logprobs), "refusal": None}


def arguments_of(parts: Sequence[str]) -> Json | None:
    """Return a call's arguments; None if they are not a JSON object, for example if the answer ended inside them."""
    try:
        value = load_generated("".join(parts) or "{}")
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _call(call: ToolCallStarted, arguments: str) -> ChatToolCall:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def _function(delta: ToolCallStarted | ToolCallDelta) -> Json:
    if isinstance(delta, ToolCallStarted):
        return {"name": delta.name, "arguments": ""}
    return {"arguments": delta.arguments}
