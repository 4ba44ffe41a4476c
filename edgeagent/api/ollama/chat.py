"""POST /api/chat and /api/generate: the steps of one generation as lines of a stream, or as one body at the end."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, NotRequired, Protocol, cast

from fastapi import Request
from fastapi.responses import JSONResponse
from starlette.responses import Response

from edgeagent.api.context import Context, context_of
from edgeagent.api.gate.access import client_of, is_owners
from edgeagent.api.ollama.body import (
    OllamaChatBody,
    OllamaGenerateBody,
    OllamaRequest,
    known_name,
    line,
    read_chat,
    read_generate,
    rfc3339,
)
from edgeagent.api.ollama.models import capabilities
from edgeagent.api.openai.answer import Answer, finish_reason
from edgeagent.api.openai.chat_answer import ChatSoFar, arguments_of, logprobs_body
from edgeagent.api.openai.completions import respond
from edgeagent.api.wire.answer_stream import AnswerWriter
from edgeagent.api.wire.body import Body, read_body
from edgeagent.api.wire.errors import ollama_refusal
from edgeagent.api.wire.generation import Run, RunsAt, Scored, started_body
from edgeagent.api.wire.route import LINES, Routes
from edgeagent.api.wire.shape import Json, Shape
from edgeagent.api.wire.sse import unless_disconnected
from edgeagent.credentials.keys import Scope
from edgeagent.errors import EdgeAgentError, Forbidden, NotSupported
from edgeagent.service.inventory import find_known
from edgeagent.service.service import info_of
from edgeagent.types import (
    Delta,
    Finished,
    FinishReason,
    Queued,
    ReasoningDelta,
    Started,
    Step,
    TextDelta,
    TokenLogprob,
    ToolCallDelta,
)


class OllamaCalledFunction(Shape):
    """The function that the model calls."""

    index: int
    name: str
    arguments: Json


class OllamaCall(Shape):
    """A call the model makes."""

    id: str
    function: OllamaCalledFunction


class OllamaChatMessage(Shape):
    """The model's message."""

    role: Literal["assistant"]
    content: str
    thinking: NotRequired[str]
    tool_calls: NotRequired[list[OllamaCall]]


class OllamaStart(RunsAt):
    """Where a generation runs and why, and what of its request is not observed."""

    warnings: NotRequired[list[str]]


class OllamaLine(Shape):
    """The fields of a line except its content. `done` is false before the last line.

    Only the last line has the reason for the end, the counts, and the durations, which are in nanoseconds. `edgeagent`
    is in the first line of a stream and in the last one. `model` is the name that the client used.
    """

    model: str
    created_at: str
    done: bool
    done_reason: NotRequired[str]
    total_duration: NotRequired[int]
    load_duration: NotRequired[int]
    prompt_eval_count: NotRequired[int]
    prompt_eval_duration: NotRequired[int]
    eval_count: NotRequired[int]
    eval_duration: NotRequired[int]
    edgeagent: NotRequired[Run | OllamaStart]
    logprobs: NotRequired[list[Scored]]


class OllamaChat(OllamaLine):
    """A whole answer of /api/chat, or a line of its stream.

    The counts and the durations, in nanoseconds, are in the whole answer and in the last line (`done` is true).
    """

    message: OllamaChatMessage


class OllamaGeneration(OllamaLine):
    """A whole answer of /api/generate, or a line of its stream.

    The counts and the durations, in nanoseconds, are in the whole answer and in the last line (`done` is true).
    """

    response: str
    thinking: NotRequired[str]


class ToFields(Protocol):
    """Returns the content of a line, or of the whole body, as an endpoint's fields."""

    def __call__(self, text: str = "", thinking: str = "", calls: Sequence[OllamaCall] = ()) -> Json: ...


def chat_fields(text: str = "", thinking: str = "", calls: Sequence[OllamaCall] = ()) -> Json:
    message: OllamaChatMessage = {"role": "assistant", "content": text}
    if thinking:
        message["thinking"] = thinking
    if calls:
        message["tool_calls"] = list(calls)
    return {"message": message}


def generate_fields(text: str = "", thinking: str = "", calls: Sequence[OllamaCall] = ()) -> Json:
    del calls  # a prompt offers no tools
    return {"response": text, "thinking": thinking} if thinking else {"response": text}


class OllamaAnswer(Answer):
    """One answer while it is generated. `model` is the name that the client used.

    `to_fields`: chat_fields or generate_fields. `total_duration` counts from the creation of this object.
    """

    choices: list[ChatSoFar]

    def __init__(self, request_id: str, model: str, to_fields: ToFields) -> None:
        super().__init__(request_id, model, [ChatSoFar()], 1)
        self.to_fields = to_fields
        self._began_ns = time.monotonic_ns()

    def body(self) -> Json:
        [choice] = self.choices
        return self.last(
            self.to_fields("".join(choice.texts), "".join(choice.reasonings), self.calls()), choice.logprobs
        )

    def loaded(self, *, is_unload: bool) -> Json:
        """Return the answer to a request that only loads the model, or only unloads it."""
        reason = "unload" if is_unload else "load"
        return {**self.head(), **self.to_fields(), "done": True, "done_reason": reason}

    def calls(self, first: int = 0) -> list[OllamaCall]:
        """Return the calls from the one at `first` on."""
        called = ((started, arguments_of(parts)) for started, parts in self.choices[0].calls[first:])
        return [
            {"id": started.id, "function": {"index": started.index, "name": started.name, "arguments": arguments}}
            for started, arguments in called
            if arguments is not None
        ]

    def head(self) -> Json:
        """Return what each line has."""
        return {"model": self.model, "created_at": rfc3339()}

    def last(self, content: Json, logprobs: Sequence[TokenLogprob] = ()) -> Json:
        """Return the last line, with this content; raise BackendUnavailable if the answer was cancelled."""
        finished = self.choices[0].end()
        reason = finish_reason(finished)
        usage, timings = finished.usage, finished.timings
        line: OllamaLine = {
            "model": self.model,
            "created_at": rfc3339(),
            "done": True,
            # Ollama has no `done_reason` of its own for an answer that ends in calls.
            "done_reason": "stop" if finished.reason is FinishReason.TOOL_CALLS else reason,
            "total_duration": time.monotonic_ns() - self._began_ns,
            "load_duration": _ns(timings.load_ms),
            "prompt_eval_count": usage.num_prompt_tokens,
            "prompt_eval_duration": _ns(timings.prefill_ms),
            "eval_count": usage.num_output_tokens,
            "eval_duration": _ns(timings.decode_ms),
            "edgeagent": self.generation_metrics(self.choices[0])["edgeagent"],
        }
        return {**cast("Json", line), **content, **_logprobs(logprobs)}


class OllamaLines(AnswerWriter):
    """Writes the lines of each step together."""

    media_type = LINES
    ping_interval_s = None

    def __init__(self, answer: OllamaAnswer) -> None:
        self.id = answer.id
        self._answer = answer
        self._num_calls_sent = 0
        self._started: Json | None = None  # what the first line says of the start; empty once it is sent

    def queued(self, queued: Queued) -> bytes:
        del queued  # lines of JSON have no comments; the header says it
        return b""

    def write(self, index: int, step: Step) -> bytes:
        del index
        self._answer.delivery_time.add(step.at_s)
        return b"".join(line(each) for delta in step.deltas for each in self._lines(delta))

    async def end(self) -> bytes:
        return b""

    async def fail(self, error: EdgeAgentError) -> bytes:
        return line(ollama_refusal(error))

    def _lines(self, delta: Delta) -> list[Json]:
        """Add a delta, and return the lines that it completes; raise BackendUnavailable if the answer was cancelled.

        A call is complete as soon as another delta follows its last arguments. Each call is sent in a line of its own.
        """
        [choice], to_fields = self._answer.choices, self._answer.to_fields
        if isinstance(delta, Started) and self._started is None:
            self._started = started_body(delta)
        if isinstance(delta, ToolCallDelta | Started):
            choice.add(delta)
            return []
        calls, self._num_calls_sent = self._answer.calls(self._num_calls_sent), len(choice.calls)
        lines = [self._line(to_fields(calls=calls))] if calls else []
        choice.add(delta)
        match delta:
            case TextDelta(text, logprobs):
                lines.append(self._line(to_fields(text), logprobs))
            case ReasoningDelta(text):
                lines.append(self._line(to_fields(thinking=text)))
            case Finished():
                lines.append(self._answer.last(to_fields()))
        if lines and self._started:
            lines[0] = {**lines[0], "edgeagent": {**self._started, **lines[0].get("edgeagent", {})}}
            self._started = {}
        return lines

    def _line(self, content: Json, logprobs: Sequence[TokenLogprob] = ()) -> Json:
        return {**self._answer.head(), **content, "done": False, **_logprobs(logprobs)}


def _logprobs(logprobs: Sequence[TokenLogprob]) -> Json:
    return {"logprobs": logprobs_body(logprobs)["content"]} if logprobs else {}


def _ns(milliseconds: float) -> int:
    return round(milliseconds * 1e6)


routes = Routes()


@routes.add("POST /api/chat", Scope.INFER, "ollama", body=OllamaChatBody, answer=OllamaChat, streams=LINES)
async def chat(request: Request) -> Response:
    """Answer a conversation, as a stream unless `stream` is false. A client that disconnects cancels the request."""
    return await _answer(request, read_chat, OllamaChatBody, chat_fields)


@routes.add(
    "POST /api/generate", Scope.INFER, "ollama", body=OllamaGenerateBody, answer=OllamaGeneration, streams=LINES
)
async def generate(request: Request) -> Response:
    """Answer a prompt, as a stream unless `stream` is false. A client that disconnects cancels the request."""
    return await _answer(request, read_generate, OllamaGenerateBody, generate_fields)


async def _answer(
    request: Request, read: Callable[..., OllamaRequest], warns_as: type[Body], to_fields: ToFields
) -> Response:
    context = context_of(request)
    request_id = f"ollama-{secrets.token_hex(12)}"
    served = partial(known_name, context.service)
    reading = partial(
        read, request_id=request_id, served=served, partition=client_of(request), may_keep=is_owners(request)
    )
    parsed = await read_body(request, reading, warns_as)
    model = await context.service.models.locate(parsed.served_model)
    answer = OllamaAnswer(request_id, parsed.model, to_fields)
    if parsed.request is None:
        await unless_disconnected(request.receive, _load_or_unload(request, parsed, model, request_id))
        return JSONResponse(answer.loaded(is_unload=parsed.is_unload))
    if parsed.is_thinking:
        await _check_thinking(context, model, parsed.model)
    lines = OllamaLines(answer) if parsed.is_streamed else None
    return await respond(request, [parsed.request], answer, lines, {})


async def _load_or_unload(request: Request, parsed: OllamaRequest, model: str, request_id: str) -> None:
    service = context_of(request).service
    if not parsed.is_unload:
        await service.load(model, request_id, parsed.keep_alive_s)
    elif is_owners(request):
        await service.models.unload(model)
    else:
        raise Forbidden("unloading a model is the owner's; without a keep_alive it stays as the owner set it")


async def _check_thinking(context: Context, model: str, name: str) -> None:
    """Raise NotSupported if the model does not reason. Its file is read if it is not loaded."""
    if (info := info_of(context.service.models, model)) is not None:
        is_supported = info.supports_reasoning
    else:
        known = await asyncio.to_thread(find_known, context.config, context.service.models.statuses(), model, str)
        is_supported = known.header is None or "thinking" in capabilities(known)
    if not is_supported:
        raise NotSupported(f'"{name}" does not support thinking', param="think")
