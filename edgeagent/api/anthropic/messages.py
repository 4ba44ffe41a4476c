"""POST /v1/messages and /v1/messages/count_tokens: one generation as events or as one body, and a prompt's tokens."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from functools import partial
from typing import Literal, NotRequired

from fastapi import Request
from fastapi.responses import JSONResponse
from starlette.responses import Response

from edgeagent.api.anthropic.body import CountTokensBody, MessageCreate, MessagesBody, read_count, read_message
from edgeagent.api.context import context_of
from edgeagent.api.gate.access import client_of
from edgeagent.api.openai.answer import Answer, Ending, GenerationMetrics, finish_reason, reworded
from edgeagent.api.openai.chat_answer import ChatSoFar, arguments_of
from edgeagent.api.openai.completions import respond
from edgeagent.api.wire.answer_stream import AnswerWriter
from edgeagent.api.wire.body import read_body
from edgeagent.api.wire.errors import anthropic_refusal
from edgeagent.api.wire.generation import started_body
from edgeagent.api.wire.route import SSE, Routes
from edgeagent.api.wire.shape import Json, Shape
from edgeagent.api.wire.sse import event, unless_disconnected
from edgeagent.conversation.compaction import num_input_tokens
from edgeagent.credentials.keys import Scope
from edgeagent.errors import EdgeAgentError
from edgeagent.types import (
    ChoiceScores,
    Delta,
    Finished,
    Interrupted,
    PromptProgress,
    PromptText,
    Queued,
    ReasoningDelta,
    Started,
    Step,
    TextDelta,
    ToolCallDelta,
    ToolCallStarted,
    Usage,
)

# Clients drop reasoning that has no signature. It is not checked when it comes back.
SIGNATURE = "edgeagent"


class TextContent(Shape):
    """Text of the answer."""

    type: Literal["text"]
    text: str


class ThinkingContent(Shape):
    """The model's reasoning."""

    type: Literal["thinking"]
    thinking: str
    signature: str


class ToolUseContent(Shape):
    """A call the model makes."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: Json


class AnthropicUsage(Shape):
    """Token counts. The prompt's tokens are the sum of the three first.

    `cache_read_input_tokens` were reused. The others were computed, and are in the cache from then on. They are in
    `cache_creation_input_tokens` if the request has a `cache_control`, and otherwise in `input_tokens`.
    """

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: NotRequired[dict[str, int]]


StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]
_STOP_REASONS: dict[Ending, StopReason] = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class AnthropicAnswer(GenerationMetrics):
    """A whole message. A stream instead sends events, from `message_start` to `message_stop`."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[ThinkingContent | TextContent | ToolUseContent]
    stop_reason: StopReason
    stop_sequence: str | None
    usage: AnthropicUsage


class AnthropicTokens(Shape):
    """A prompt's number of tokens."""

    input_tokens: int


class MessageAnswer(Answer):
    """A message while it is generated."""

    choices: list[ChatSoFar]

    def __init__(self, create: MessageCreate) -> None:
        super().__init__(create.request.id, create.request.model, [ChatSoFar()], 1)
        self.create = create

    def body(self) -> AnthropicAnswer:
        [choice] = self.choices
        content: list[ThinkingContent | TextContent | ToolUseContent] = []
        if choice.reasonings:
            shown = "".join(choice.reasonings) if self.create.shows_thinking else ""
            content.append({"type": "thinking", "thinking": shown, "signature": SIGNATURE})
        if text := "".join(choice.texts):
            content.append({"type": "text", "text": text})
        for started, parts in choice.calls:
            if (arguments := arguments_of(parts)) is not None:
                content.append({"type": "tool_use", "id": started.id, "name": started.name, "input": arguments})
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            "stop_reason": self.stop_reason(),
            "stop_sequence": choice.end().stop or None,
            "usage": self.counts(choice.end().usage),
            **self.generation_metrics(choice),
        }

    def stop_reason(self) -> StopReason:
        """Return why the message ended; raise BackendUnavailable if it was cancelled."""
        finished = self.choices[0].end()
        reason = _STOP_REASONS[finish_reason(finished)]
        return "stop_sequence" if reason == "end_turn" and finished.stop else reason

    def counts(self, usage: Usage) -> AnthropicUsage:
        """Return token counts in Anthropic's form."""
        num_computed, is_marked = usage.num_prompt_tokens - usage.num_cached_tokens, self.create.is_cache_marked
        counts: AnthropicUsage = {
            "input_tokens": 0 if is_marked else num_computed,
            "cache_creation_input_tokens": num_computed if is_marked else 0,
            "cache_read_input_tokens": usage.num_cached_tokens,
            "output_tokens": usage.num_output_tokens,
        }
        if usage.num_reasoning_tokens:
            counts["output_tokens_details"] = {"thinking_tokens": usage.num_reasoning_tokens}
        return counts


class MessageEvents(AnswerWriter):
    """Writes a message as Anthropic's events.

    `message_start` comes once the prompt is looked up in the cache, so it has the prompt's counts. Reasoning, text and
    each call are content blocks.
    """

    ping = event({"type": "ping"}, "ping")

    def __init__(self, answer: MessageAnswer) -> None:
        self.id = answer.id
        self._answer = answer
        self._is_begun = False
        self._num_blocks = 0
        self._open = ""  # the type of the open block

    def write(self, index: int, step: Step) -> bytes:
        del index
        self._answer.delivery_time.add(step.at_s)
        return b"".join(event(each, each["type"]) for delta in step.deltas for each in self._events(delta))

    async def end(self) -> bytes:
        return event({"type": "message_stop"}, "message_stop")

    async def fail(self, error: EdgeAgentError) -> bytes:
        return event(anthropic_refusal(reworded(error, self.params)), "error")

    def _events(self, delta: Delta) -> Iterator[Json]:
        if not self._is_begun and not isinstance(delta, Queued | Interrupted):
            self._is_begun = True
            yield self._start(delta if isinstance(delta, Started) else Started(0, 0))
        match delta:
            case TextDelta(text):
                yield from self._in_block("text", text="")
                yield self._delta("text_delta", text=text)
            case ReasoningDelta(text):
                yield from self._in_block("thinking", thinking="", signature="")
                if self._answer.create.shows_thinking:
                    yield self._delta("thinking_delta", thinking=text)
            case ToolCallStarted():
                yield from self._close()
                yield from self._in_block("tool_use", id=delta.id, name=delta.name, input={})
            case ToolCallDelta(_, arguments):
                yield self._delta("input_json_delta", partial_json=arguments)
            case Finished():
                yield from self._close()
                yield self._last(delta)
            case Started() | Queued() | Interrupted() | PromptProgress() | PromptText() | ChoiceScores():
                pass

    def _start(self, started: Started) -> Json:
        message: Json = {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self._answer.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": self._answer.counts(Usage(started.num_prompt_tokens, started.num_cached_tokens)),
        }
        start: Json = {"type": "message_start", "message": message}
        return {**start, "edgeagent": place} if (place := started_body(started)) else start

    def _in_block(self, kind: str, **content: object) -> Iterator[Json]:
        """Open a block with this content, unless a block of its kind is open."""
        if self._open == kind:
            return
        yield from self._close()
        self._open = kind
        block = {"type": kind, **content}
        yield {"type": "content_block_start", "index": self._num_blocks, "content_block": block}

    def _delta(self, kind: str, **content: object) -> Json:
        return {"type": "content_block_delta", "index": self._num_blocks, "delta": {"type": kind, **content}}

    def _close(self) -> Iterator[Json]:
        """Close the open block, if there is one."""
        if not self._open:
            return
        if self._open == "thinking":
            yield self._delta("signature_delta", signature=SIGNATURE)
        yield {"type": "content_block_stop", "index": self._num_blocks}
        self._num_blocks += 1
        self._open = ""

    def _last(self, finished: Finished) -> Json:
        [choice] = self._answer.choices
        choice.finished = finished
        return {
            "type": "message_delta",
            "delta": {"stop_reason": self._answer.stop_reason(), "stop_sequence": finished.stop or None},
            "usage": self._answer.counts(finished.usage),
            **self._answer.generation_metrics(choice),
        }


_PARAMS = {"input": "messages", "text.format": "output_config.format", "stop": "stop_sequences"}

routes = Routes()


@routes.add("POST /v1/messages", Scope.INFER, "anthropic", body=MessagesBody, answer=AnthropicAnswer, streams=SSE)
async def create_message(request: Request) -> Response:
    """Answer a conversation, as events or as one body. A client that disconnects cancels the request."""
    read = partial(read_message, request_id=f"msg_{secrets.token_hex(16)}", partition=client_of(request))
    create = await read_body(request, read, MessagesBody)
    answer = MessageAnswer(create)
    events = MessageEvents(answer) if create.is_streamed else None
    return await respond(request, [create.request], answer, events, _PARAMS)


@routes.add("POST /v1/messages/count_tokens", Scope.INFER, "anthropic", body=CountTokensBody, answer=AnthropicTokens)
async def count_tokens(request: Request) -> Response:
    """Return how many tokens a conversation has as a prompt, with its tools."""
    counted = await read_body(request, read_count, CountTokensBody)
    counting = num_input_tokens(counted, context_of(request).service)
    try:
        num_tokens = await unless_disconnected(request.receive, counting)
    except EdgeAgentError as error:
        raise reworded(error, _PARAMS) from None
    return JSONResponse(AnthropicTokens(input_tokens=num_tokens))
