"""Background responses run to their end without a connection and are stored. Any number of clients may follow one.

A follower is a client that streams a response's events. The events are made from the response itself (see
`api.responses.replay`), so a slow follower, or one that disconnects, affects nothing else.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import suppress
from functools import partial

from fastapi.responses import JSONResponse
from starlette.responses import Response

from edgeagent.api.context import Context
from edgeagent.api.responses.driver import drive
from edgeagent.api.responses.event_json import ResponseBody
from edgeagent.api.responses.events import TERMINAL, ResponseState
from edgeagent.api.responses.frontend import Responses
from edgeagent.api.responses.generation import steps_of
from edgeagent.api.responses.live_turn import LiveTurn
from edgeagent.api.responses.replay import events_after, last_number
from edgeagent.api.responses.turn import Turn
from edgeagent.api.wire import sse
from edgeagent.credentials.grants import until_revoked
from edgeagent.errors import InvalidRequest, Unauthorized
from edgeagent.service.first_step import last_of


def start(turn: Turn, context: Context, *, is_streamed: bool) -> Response:
    """Start a background response. Return its queued state or, if `is_streamed`, a stream of all of its events.

    Raise InvalidRequest if the response must not be stored.
    """
    if not turn.events.response["store"]:
        raise InvalidRequest("a background response is asked for by its id, so it must be stored", param="store")
    turn.events.response["background"] = True
    turn.events.created(is_queued=True)
    # Clients may ask for the response by its id before the task below has started.
    live = LiveTurn(turn, partial(context.service.cancel, turn.request.id))
    context.service.live.show(live)
    context.frontends.get(Responses).carry_on(last_of(drive(live, steps_of(turn, context.service), context)))
    return follow(live, -1) if is_streamed else JSONResponse(turn.events.so_far())


def follow(live: LiveTurn, after: int) -> Response:
    """Stream a live response's events with a number greater than `after` (-1: all), until the response ends.

    Raise InvalidRequest if it is not a background response, or if `after` is greater than its last number so far.
    """
    _check(live.turn.events.state, after)
    return sse.EventStream(_follow(live, after))


def stream_finished(response: ResponseBody, after: int) -> Response:
    """Stream a finished response's events with a number greater than `after` (-1: all).

    Raise InvalidRequest if it is not a background response, or if `after` is greater than its last event's number.
    """
    state = ResponseState(response, response["output"])
    _check(state, after)
    return sse.EventStream(_replay(state, after))


async def _follow(live: LiveTurn, after: int) -> AsyncGenerator[bytes, None]:
    """Yield the events until the response is over, or until the follower's token is revoked.

    The response may have been created with another token. A stream that ends before the response has no terminal
    event. The client gets the reason when it asks for the remaining events.
    """
    is_over = is_revoked = False

    def end() -> None:
        nonlocal is_revoked
        is_revoked = True
        live.wake_followers()

    with suppress(Unauthorized), until_revoked(end):
        while not is_over:
            change = live.change
            for event in events_after(live.turn.events.state, after):
                is_over = event["type"] in TERMINAL
                if is_over:
                    # A client that has received the end may continue the response at once.
                    await live.over.wait()
                if is_revoked:
                    return
                yield sse.event(event, event["type"])
                after = event["sequence_number"]
            if is_over:
                yield sse.DONE
            elif is_revoked or live.over.is_set():
                return  # the token has ended, or the response ended without a terminal event (the daemon stops)
            else:
                await change.wait()


async def _replay(state: ResponseState, after: int) -> AsyncGenerator[bytes, None]:
    for event in events_after(state, after):
        yield sse.event(event, event["type"])
    yield sse.DONE


def _check(state: ResponseState, after: int) -> None:
    if not state.response["background"]:
        raise InvalidRequest(
            "only a background response can be streamed by its id; ask for this one without stream", param="stream"
        )
    last = last_number(state)
    if after > last:
        raise InvalidRequest(f"starting_after is {after}, but the last event so far is {last}", param="starting_after")
