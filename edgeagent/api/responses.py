"""POST /v1/responses: one response over HTTP, whole or as server-sent events, from the WebSocket's turns."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from edgeagent.api import sse
from edgeagent.api.context import context_of
from edgeagent.api.events import TERMINAL, set_delivery
from edgeagent.api.first_step import begun
from edgeagent.api.history import ConnectionHistory
from edgeagent.api.limits import read_json_object
from edgeagent.api.service import Service
from edgeagent.api.turn import Turn, begin_turn, unexpected, unrun
from edgeagent.errors import EdgeAgentError, InternalError
from edgeagent.types import FinishReason, Step

Steps = AsyncGenerator[Step, None]

router = APIRouter()


@router.post("/v1/responses")
async def create_response(request: Request) -> Response:
    """Answer one create, streamed or whole; the client's leaving cancels it."""
    fields = await read_json_object(request)
    context = context_of(request)
    # Of this request alone: without a connection, only what is stored can be continued.
    history = ConnectionHistory(context.history)
    turn = begin_turn(fields, context.service, history)
    steps = _steps(turn, context.service)
    if fields.get("stream") is True:
        steps = await sse.unless_disconnected(request.receive, begun(steps))
        return sse.EventStream(_stream(turn, steps, history))
    await sse.unless_disconnected(request.receive, _collect(turn, steps, history))
    return JSONResponse(turn.events.response)


async def _steps(turn: Turn, service: Service) -> Steps:
    if turn.is_empty:
        yield Step((unrun(FinishReason.STOP, "empty prompt"),))
        return
    async with aclosing(service.generate(turn.request)) as steps:
        async for step in steps:
            yield step
    if not turn.events.is_over:
        raise InternalError("the backend ended without finishing")


async def _collect(turn: Turn, steps: Steps, history: ConnectionHistory) -> None:
    turn.events.created()
    async with aclosing(steps):
        async for step in steps:
            turn.events.step(step.deltas)
    history.add(turn.stored(), None, is_stored=turn.create.is_stored)


async def _stream(turn: Turn, steps: Steps, history: ConnectionHistory) -> AsyncGenerator[bytes, None]:
    """Yield the events as they come, the failure too; the delivery counts up to where the next one is asked for."""
    delivery_s, num_steps = 0.0, 0
    for event in turn.events.created():
        yield sse.event(event, event["type"])
    try:
        async with aclosing(steps):
            async for step in steps:
                for event in turn.events.step(step.deltas):
                    if event["type"] in TERMINAL and num_steps:
                        set_delivery(event, 1000.0 * delivery_s / num_steps)
                    yield sse.event(event, event["type"])
                delivery_s += max(0.0, time.monotonic() - step.at_s) if step.at_s else 0.0
                num_steps += 1
        history.add(turn.stored(), None, is_stored=turn.create.is_stored)
    except EdgeAgentError as error:
        yield _failure(turn, error)
    except Exception as error:
        yield _failure(turn, unexpected(turn.request.id, error))
    yield sse.DONE


def _failure(turn: Turn, error: EdgeAgentError) -> bytes:
    return b"".join(sse.event(event, event["type"]) for event in turn.events.fail(error))
