"""POST /v1/responses: one response over HTTP, whole or as server-sent events. A WebSocket uses the same turns."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from edgeagent.api.context import Context, context_of
from edgeagent.api.gate.access import client_of
from edgeagent.api.responses import background
from edgeagent.api.responses.body import KNOWN, ResponseCreate, read_create
from edgeagent.api.responses.driver import drive
from edgeagent.api.responses.events import TERMINAL, set_delivery
from edgeagent.api.responses.frontend import Responses
from edgeagent.api.responses.generation import TurnSteps, steps_of
from edgeagent.api.responses.live_turn import LiveTurn
from edgeagent.api.responses.turn import Turn, begin_turn
from edgeagent.api.wire import sse
from edgeagent.api.wire.json_body import read_body
from edgeagent.api.wire.placement import PlacementHeaders
from edgeagent.api.wire.usage import DeliveryTime
from edgeagent.conversation.history import ConnectionHistory
from edgeagent.service.first_step import last_of, wait_for_first_step

router = APIRouter()


@router.post("/v1/responses")
async def create_response(request: Request) -> Response:
    """Create one response, streamed or whole. It is cancelled if the client disconnects, unless `background` is set."""
    create = await read_body(request, read_create, KNOWN)
    is_streamed = bool(create.body.stream)
    context = context_of(request)
    turn = await open_turn(create, context, client_of(request))
    if turn.create.body.background:
        return background.start(turn, context, is_streamed=is_streamed)
    live = LiveTurn(turn, partial(context.service.cancel, turn.request.id))
    placement = PlacementHeaders()
    steps = placement.noting(steps_of(turn, context.service))
    response: Response
    steps = await sse.unless_disconnected(request.receive, wait_for_first_step(steps))
    if is_streamed:
        response = sse.EventStream(_stream(live, steps, context))
    else:
        await sse.unless_disconnected(request.receive, _collect(live, steps, context))
        response = JSONResponse(turn.events.response)
    placement.put(response)
    return response


async def open_turn(create: ResponseCreate, context: Context, partition: str) -> Turn:
    """Begin a turn for a create over HTTP, and return it. The create can continue only stored responses.

    Raise what `begin_turn` raises.
    """
    history = ConnectionHistory()
    found = await context.frontends.get(Responses).store.find(
        history.missing(create.previous_id, create.items), partition
    )
    return begin_turn(create, context.service, history, found, partition=partition)


async def _collect(live: LiveTurn, steps: TurnSteps, context: Context) -> None:
    """Drive a turn to its end. Raise its error if it failed."""
    await last_of(drive(live, steps, context))
    if live.turn.events.failure is not None:
        raise live.turn.events.failure


async def _stream(live: LiveTurn, steps: TurnSteps, context: Context) -> AsyncGenerator[bytes, None]:
    """Yield the events of a turn as they come. A failure is an event too.

    The delivery time of a step ends when the consumer asks for the event after those of the step.
    """
    delivery_time = DeliveryTime()
    async with aclosing(drive(live, steps, context)) as driven:
        async for events, at_s in driven:
            for event in events:
                if event["type"] in TERMINAL and delivery_time.num:
                    set_delivery(event, delivery_time.mean_ms)
                yield sse.event(event, event["type"])
            delivery_time.add(at_s)
    yield sse.DONE
