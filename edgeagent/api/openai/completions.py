"""POST /v1/chat/completions and /v1/completions: one or more generations as chunks of a stream, or as one body."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import TypeVar

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from starlette.responses import Response

from edgeagent.api.context import context_of
from edgeagent.api.gate.access import client_of
from edgeagent.api.openai import chat_body, text_body
from edgeagent.api.openai.answer import Answer, Chunks
from edgeagent.api.openai.chat_answer import ChatAnswer, ChatChunks
from edgeagent.api.openai.text_answer import TextAnswer, TextChunks
from edgeagent.api.wire.errors import error_body, to_client_error
from edgeagent.api.wire.json_body import read_body
from edgeagent.api.wire.known_fields import KnownFields
from edgeagent.api.wire.placement import put_headers, started_in
from edgeagent.api.wire.sse import EventStream, event, unless_disconnected
from edgeagent.errors import EdgeAgentError
from edgeagent.service.first_step import Stream, wait_for_first_step
from edgeagent.service.service import Service
from edgeagent.types import GenerateRequest, PromptText, Step, TextDelta

MAX_AT_ONCE = 8

NumberedStep = tuple[int, Step]
"""A step of one of several requests, and the index of this request."""


async def run_all(service: Service, requests: Sequence[GenerateRequest]) -> AsyncGenerator[NumberedStep, None]:
    """Yield the steps of all requests as they come, each with the index of its request.

    At most MAX_AT_ONCE requests run at a time. If one request fails, its error is raised, and the others are cancelled.
    """
    if len(requests) == 1:
        async with aclosing(service.generate(requests[0])) as steps:
            async for step in steps:
                yield 0, step
        return
    generators: list[AsyncGenerator[Step, None]] = []
    waiting: dict[asyncio.Future[Step], int] = {}
    done: set[asyncio.Future[Step]] = set()
    try:
        while waiting or len(generators) < len(requests):
            while len(generators) < len(requests) and len(waiting) < MAX_AT_ONCE:
                generators.append(service.generate(requests[len(generators)]))
                waiting[asyncio.ensure_future(anext(generators[-1]))] = len(generators) - 1
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                index = waiting.pop(task)
                try:
                    step = task.result()
                except StopAsyncIteration:
                    continue
                waiting[asyncio.ensure_future(anext(generators[index]))] = index
                yield index, step
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, *done, return_exceptions=True)
        for generator in generators:
            await generator.aclose()


# The log probabilities of a long prompt, with the alternatives, take tens of milliseconds to write.
_MAX_INLINE_LOGPROBS = 256


async def respond(
    request: Request,
    requests: Sequence[GenerateRequest],
    answer: Answer,
    chunks: Chunks | None,
    ping_interval_s: float | None,
    params: Mapping[str, str],
) -> Response:
    """Run the requests, and answer with a stream of `chunks`. If `chunks` is None, answer with `answer` as one body.

    If the client disconnects, the requests are cancelled. While a stream has nothing to send, it sends a comment every
    `ping_interval_s` seconds; None means the default interval. Errors of the worker name fields of the Responses API,
    such as `input`; `params` maps these names to the fields of this route.
    """

    def reworded(error: EdgeAgentError) -> EdgeAgentError:
        error.param = params.get(error.param or "", error.param)
        return error

    steps = run_all(context_of(request).service, requests)
    try:
        response: Response
        if chunks is None:
            body = await unless_disconnected(request.receive, _collect(steps, answer))
            response = Response(body, media_type="application/json")
            put_headers(response, answer.choices[0].started)
        else:
            begun = await unless_disconnected(request.receive, wait_for_first_step(steps))
            written = _events(begun, answer, chunks, reworded)
            response = EventStream(written) if ping_interval_s is None else EventStream(written, ping_interval_s)
            put_headers(response, None if begun.first is None else started_in(begun.first[1].deltas))
        return response
    except EdgeAgentError as error:
        raise reworded(error) from None


async def _collect(steps: Stream[NumberedStep], answer: Answer) -> bytes:
    """Read the steps to the end, and return the whole answer as JSON."""
    num_logprobs = 0
    async with aclosing(steps):
        async for index, step in steps:
            answer.take(index, step)
            answer.delivered(step)
            num_logprobs += _num_logprobs(step)
    return await _made(num_logprobs, lambda: bytes(JSONResponse(answer.body()).body))


def _num_logprobs(step: Step) -> int:
    return sum(len(delta.logprobs) for delta in step.deltas if isinstance(delta, TextDelta | PromptText))


async def _made(num_logprobs: int, make: Callable[[], bytes]) -> bytes:
    """Return `make()`. If it writes many log probabilities, run it in a thread, so that other streams go on."""
    return make() if num_logprobs <= _MAX_INLINE_LOGPROBS else await asyncio.to_thread(make)


async def _events(
    steps: Stream[tuple[int, Step]],
    answer: Answer,
    chunks: Chunks,
    reworded: Callable[[EdgeAgentError], EdgeAgentError],
) -> AsyncGenerator[bytes, None]:
    """Yield the events of a stream as bytes: the events of each step together, then the closing chunk or one error.

    A step without events yields nothing. The usage chunk, if the client asked for it, is yielded with the end mark.
    """
    try:
        async with aclosing(steps):
            async for index, step in steps:
                write = partial(_write, chunks, index, step)
                written = await _made(_num_logprobs(step), write)
                if written:
                    yield written
                answer.delivered(step)
        if closing := b"".join(map(event, chunks.closing())) + chunks.end_mark:
            yield closing
    except Exception as error:
        yield _error_event(reworded(to_client_error(answer.id, error)))


def _write(chunks: Chunks, index: int, step: Step) -> bytes:
    return b"".join(map(event, chunks.of(index, step)))


def _error_event(error: EdgeAgentError) -> bytes:
    detail = {"served_by": error.served_by, "num_delivered_tokens": error.num_delivered_tokens}
    return event({"error": error_body(error), "edgeagent": detail})


_CHAT_PARAMS = {"input": "messages", "text.format": "response_format"}
_TEXT_PARAMS = {"input": "prompt", "text.format": "json_schema"}

router = APIRouter()

T = TypeVar("T")


@router.post("/v1/chat/completions")
async def create_chat_completion(request: Request) -> Response:
    """Answer a conversation, as a stream or as one body. A client that disconnects cancels the request."""
    completion_id = f"chatcmpl-{secrets.token_hex(12)}"
    create = await _read(request, completion_id, chat_body.read_chat, chat_body.KNOWN)
    model, num_choices, delivery = create.requests[0].model, len(create.requests), create.delivery
    answer = ChatAnswer(completion_id, model, num_choices, has_functions=create.has_functions)
    chunks = ChatChunks(answer, delivery) if delivery.is_streamed else None
    return await respond(request, create.requests, answer, chunks, delivery.ping_interval_s, _CHAT_PARAMS)


@router.post("/v1/completions")
async def create_completion(request: Request) -> Response:
    """Complete one or more texts, as a stream or as one body. A client that disconnects cancels the request."""
    completion_id = f"cmpl-{secrets.token_hex(12)}"
    create = await _read(request, completion_id, text_body.read_completion, text_body.KNOWN)
    answer = TextAnswer(completion_id, create)
    chunks = TextChunks(answer) if create.delivery.is_streamed else None
    return await respond(request, create.requests, answer, chunks, create.delivery.ping_interval_s, _TEXT_PARAMS)


async def _read(request: Request, completion_id: str, read: Callable[..., T], known: KnownFields) -> T:
    default_model = context_of(request).service.models.default()
    reading = partial(read, completion_id=completion_id, default_model=default_model, partition=client_of(request))
    return await read_body(request, reading, known)
