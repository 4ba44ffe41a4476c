"""Drives a turn to its end, for answers over HTTP: whole, streamed or in the background.

A WebSocket's session drives its turns itself, because it sends the events of several lanes.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from pydantic_core import to_json

from edgeagent.api.context import Context
from edgeagent.api.responses.frontend import Responses
from edgeagent.api.responses.generation import TurnSteps
from edgeagent.api.responses.live_turn import LiveTurn
from edgeagent.api.responses.turn import Turn
from edgeagent.api.wire.errors import to_client_error
from edgeagent.api.wire.shape import Json
from edgeagent.errors import EdgeAgentError


async def drive(live: LiveTurn, steps: TurnSteps, context: Context) -> AsyncGenerator[tuple[list[Json], float], None]:
    """Run a turn. For each step, yield its events and the time (time.monotonic) when an engine computed the step.

    The time is 0 if no engine did. A failure does not raise an error: the last event reports the failure. While the
    turn runs, clients find it by its id. The response is stored before the terminal event is yielded.
    """
    failure: EdgeAgentError | None = None
    turn, events, requests = live.turn, live.turn.events, context.service.live
    requests.show(live)
    try:
        if not events.has_begun:
            yield events.created(), 0.0
        try:
            async with aclosing(steps):
                async for step in steps:
                    begun = events.in_progress() if events.is_queued else []
                    made = events.step(step.deltas)
                    live.wake_followers()
                    if events.is_over:
                        await _keep(turn, context)
                    yield [*begun, *made] if begun else made, step.at_s
        except Exception as error:
            failure = to_client_error(turn.request.id, error)
        if failure is not None and not events.is_over:
            made = events.fail(failure)
            await _keep(turn, context)
            yield made, 0.0
    finally:
        requests.hide(live)


async def _keep(turn: Turn, context: Context) -> None:
    """Store the response of a turn that is over, if no request in its chain of responses forbids it.

    Afterwards a response that has not failed can be continued, also after a restart if responses are in a file.
    """
    await context.frontends.get(Responses).store.add(turn.stored(), to_json(turn.events.response))
