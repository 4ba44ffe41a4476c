"""POST /v1/chat/completions: steps of one or more generations as chunks of a stream, or as one body at the end."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from starlette.responses import Response

from edgeagent.api.completion import Answer, Chunks
from edgeagent.api.context import context_of
from edgeagent.api.errors import error_body
from edgeagent.api.first_step import begun
from edgeagent.api.limits import read_json_object
from edgeagent.api.schemas import ChatCompletion, read_chat
from edgeagent.api.service import Service
from edgeagent.api.sse import DONE, EventStream, event, unless_disconnected
from edgeagent.errors import EdgeAgentError, InternalError
from edgeagent.types import GenerateRequest, Step

logger = logging.getLogger(__name__)
router = APIRouter()

Fields = dict[str, Any]
Steps = AsyncGenerator[tuple[int, Step], None]


@router.post("/v1/chat/completions")
async def create_chat_completion(request: Request) -> Response:
    """Answer a conversation, streamed or whole; the client's leaving cancels it."""
    service = context_of(request).service
    completion_id = f"chatcmpl-{secrets.token_hex(12)}"
    completion = read_chat(
        await read_json_object(request), completion_id=completion_id, default_model=service.default_model()
    )
    answer = Answer(completion_id, completion.requests[0].model, len(completion.requests))
    steps = _run(service, completion.requests)
    try:
        if completion.is_streamed:
            steps = await unless_disconnected(request.receive, begun(steps))
            return EventStream(_events(steps, answer, completion))
        return JSONResponse(await unless_disconnected(request.receive, _collect(steps, answer)))
    except EdgeAgentError as error:
        raise _in_chats_words(error) from None


async def _run(service: Service, requests: Sequence[GenerateRequest]) -> Steps:
    """Yield the steps of all requests as they come, each with the index of its choice."""
    if len(requests) == 1:
        async with aclosing(service.generate(requests[0])) as steps:
            async for step in steps:
                yield 0, step
        return
    generators = [service.generate(request) for request in requests]
    waiting: dict[asyncio.Future[Step], int] = {
        asyncio.ensure_future(anext(steps)): index for index, steps in enumerate(generators)
    }
    done: set[asyncio.Future[Step]] = set()
    try:
        while waiting:
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


async def _collect(steps: Steps, answer: Answer) -> Fields:
    async with aclosing(steps):
        async for index, step in steps:
            for delta in step.deltas:
                answer.add(index, delta)
            answer.delivered(step)
    return answer.body()


async def _events(steps: Steps, answer: Answer, completion: ChatCompletion) -> AsyncGenerator[bytes, None]:
    """Yield the events of a stream: one string of bytes for each step, and at the end [DONE] or one error."""
    chunks = Chunks(answer, completion.is_usage_streamed)
    try:
        async with aclosing(steps):
            yield b"".join(map(event, chunks.opening()))
            async for index, step in steps:
                written = b"".join(event(chunk) for delta in step.deltas for chunk in chunks.of(index, delta))
                if written:
                    yield written
                answer.delivered(step)
        yield b"".join(map(event, chunks.closing())) + DONE
    except EdgeAgentError as error:
        yield _error_event(_in_chats_words(error))
    except Exception as error:
        logger.error("%s failed in its stream: %s", answer.id, type(error).__name__)
        yield _error_event(InternalError("unhandled"))


def _in_chats_words(error: EdgeAgentError) -> EdgeAgentError:
    # The worker calls what the model reads `input`, as the Responses API does.
    if error.param == "input":
        error.param = "messages"
    return error


def _error_event(error: EdgeAgentError) -> bytes:
    detail = {"served_by": error.served_by, "num_delivered_tokens": error.num_delivered_tokens}
    return event({"error": error_body(error), "edgeagent": detail})
