"""POST /api/chat and /api/generate: the steps of one generation as lines of a stream, or as one body at the end."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import partial

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from starlette.responses import Response

from edgeagent.api.context import Context, context_of
from edgeagent.api.gate.access import client_of, is_owners
from edgeagent.api.ollama.answer import OllamaAnswer, ToFields, chat_fields, generate_fields
from edgeagent.api.ollama.body import KNOWN_CHAT, KNOWN_GENERATE, OllamaRequest, read_chat, read_generate
from edgeagent.api.ollama.models import capabilities
from edgeagent.api.ollama.wire import LineStream, guarded, known_name, line
from edgeagent.api.wire.json_body import read_body
from edgeagent.api.wire.known_fields import KnownFields
from edgeagent.api.wire.placement import PlacementHeaders
from edgeagent.api.wire.shape import Json
from edgeagent.api.wire.sse import unless_disconnected
from edgeagent.errors import Forbidden, NotSupported
from edgeagent.service.first_step import wait_for_first_step
from edgeagent.service.inventory import find_known
from edgeagent.service.service import status_of
from edgeagent.types import Step

router = APIRouter()

Steps = AsyncGenerator[Step, None]


@router.post("/api/chat")
async def chat(request: Request) -> Response:
    """Answer a conversation, as a stream unless `stream` is false. A client that disconnects cancels the request."""
    return await _answer(request, read_chat, KNOWN_CHAT, chat_fields)


@router.post("/api/generate")
async def generate(request: Request) -> Response:
    """Answer a prompt, as a stream unless `stream` is false. A client that disconnects cancels the request."""
    return await _answer(request, read_generate, KNOWN_GENERATE, generate_fields)


async def _answer(
    request: Request, read: Callable[..., OllamaRequest], known: KnownFields, to_fields: ToFields
) -> Response:
    context = context_of(request)
    request_id = f"ollama-{secrets.token_hex(12)}"
    served = partial(known_name, context.service)
    reading = partial(
        read, request_id=request_id, served=served, partition=client_of(request), may_keep=is_owners(request)
    )
    parsed = await read_body(request, reading, known)
    model = await context.service.models.locate(parsed.served_model)
    answer = OllamaAnswer(request_id, parsed.model, to_fields)
    if parsed.request is None:
        await unless_disconnected(request.receive, _load_or_unload(request, parsed, model, request_id))
        return JSONResponse(answer.loaded(is_unload=parsed.is_unload))
    if parsed.is_thinking:
        await _check_thinking(context, model, parsed.model)
    placement = PlacementHeaders()
    steps = placement.noting(context.service.generate(parsed.request))
    response: Response
    if parsed.is_streamed:
        steps = await unless_disconnected(request.receive, wait_for_first_step(steps))
        response = LineStream(guarded(_lines(steps, answer), request_id))
    else:
        response = JSONResponse(await unless_disconnected(request.receive, _collect(steps, answer)))
    placement.put(response)
    return response


async def _lines(steps: Steps, answer: OllamaAnswer) -> AsyncGenerator[bytes, None]:
    """Yield the lines of a stream as bytes: the lines of each step together."""
    async with aclosing(steps):
        async for step in steps:
            written = b"".join(line(each) for delta in step.deltas for each in answer.lines(delta))
            if written:
                yield written
            answer.delivered(step)


async def _collect(steps: Steps, answer: OllamaAnswer) -> Json:
    async with aclosing(steps):
        async for step in steps:
            for delta in step.deltas:
                answer.add(delta)
            answer.delivered(step)
    return answer.body()


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
    status = status_of(context.service.models, model)
    if status is not None and status.info is not None:
        is_supported = status.info.supports_reasoning
    else:
        known = await asyncio.to_thread(find_known, context.config, context.service.models.statuses(), model, str)
        is_supported = known.header is None or "thinking" in capabilities(known)
    if not is_supported:
        raise NotSupported(f'"{name}" does not support thinking', param="think")
