"""The steers of one connection: which are accepted, which wait for the results of tool calls, and which are refused.

A steer is an input that a client sends to a response that is under way. The session sends the events about steers. The
module `steering` reads and writes their JSON.
"""

from __future__ import annotations

from typing import cast

from edgeagent.api.responses.events import NewId
from edgeagent.api.responses.socket import steering
from edgeagent.api.responses.socket.lanes import Lane, LaneTurn
from edgeagent.api.responses.socket.steering import MAX_STEERS, Steer, SteerRefused
from edgeagent.api.wire.shape import Json
from edgeagent.conversation.history import ConnectionHistory


class Steers:
    """The steers of one connection. `history`: the responses of the connection that are over."""

    def __init__(self, history: ConnectionHistory, make_id: NewId) -> None:
        self._history = history
        self._make_id = make_id
        self._waiting: dict[str, tuple[Lane, tuple[Steer, ...]]] = {}
        self._num_failures = 0

    def read(self, live: LaneTurn | None, previous_id: object, raw: object) -> Steer:
        """Return the steer that a client sends to the response `previous_id`; raise SteerRefused if it is not accepted.

        `live` is this response if it is under way, else None.
        """
        if live is None:
            raise self._unsteerable(previous_id)
        items = steering.read_steer_input(raw)
        if live.is_cancelled:
            raise SteerRefused(steering.NOT_ACTIVE, f"the response '{live.id}' is being cancelled")
        if live.turn.request.prefill_only:
            raise SteerRefused(steering.NOT_SUPPORTED, "a response that generates nothing cannot be steered")
        if live.turn.create.compact_threshold is not None:
            raise SteerRefused(steering.NOT_SUPPORTED, "a response with context_management cannot be steered")
        if len(live.steers) >= MAX_STEERS:
            raise SteerRefused(
                steering.TOO_MANY_STEERS, f"{MAX_STEERS} inputs wait for the response's successor already"
            )
        if len(self._waiting) >= MAX_STEERS:
            raise SteerRefused(
                steering.TOO_MANY_STEERS,
                f"the inputs of {MAX_STEERS} responses wait for the results of their calls already; send the results",
            )
        return Steer(self._make_id("steer"), live.id, raw, items)

    def keep_waiting(self, live: LaneTurn) -> None:
        """Keep the steers of a response that ended in calls, until a create on its lane brings their results."""
        self._waiting[live.id] = (live.lane, tuple(live.steers))

    def waiting_for(self, previous_id: str | None, lane: Lane) -> tuple[Steer, ...]:
        """Return the steers that wait for the create that continues `previous_id` on this lane.

        Return an empty tuple if no steers wait, or if they wait on another lane.
        """
        waiting_lane, steers = self._waiting.get(previous_id or "", (None, ()))
        return steers if waiting_lane is lane else ()

    def release(self, previous_id: str | None, lane: Lane) -> None:
        """Forget the steers that `waiting_for` returns, because the create that they waited for has begun."""
        if self.waiting_for(previous_id, lane):
            del self._waiting[previous_id or ""]

    def refused(
        self, refusal: SteerRefused, lane: Lane | None, previous_id: object, raw: object, steer_id: str | None = None
    ) -> Json:
        """Return the event which tells the client that its input was refused. The event contains the input."""
        event = steering.failed(refusal, previous_id, raw, steer_id)
        event["sequence_number"] = self._num_failures
        if lane is not None and lane.name is not None:
            event["stream_id"] = lane.name
        self._num_failures += 1
        return cast("Json", event)

    def _unsteerable(self, previous_id: object) -> SteerRefused:
        shown = repr(previous_id[:128]) if isinstance(previous_id, str) else "without an id"
        if isinstance(previous_id, str) and self._history.remembers(previous_id):
            return SteerRefused(steering.ALREADY_COMPLETED, f"the response {shown} is over; create another")
        return SteerRefused(steering.NOT_FOUND, f"no response {shown} is under way on this connection")
