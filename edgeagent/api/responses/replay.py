"""Recreates the events of a background response from the response itself, after any given event.

No events are stored, because the number of each event can be computed from the response. An event's number is the
number of the event before it plus 1. For a delta, the length of the delta in characters is added instead of 1, so the
number tells how much text was sent. A client sends the number of the last event that it received, and gets the later
events. Their text may be split into deltas at other places: a client that reads slowly gets fewer and longer deltas.
The events are made from the live response while it is generated, and from the stored response afterwards.
"""

from __future__ import annotations

from typing import cast

from edgeagent.api.responses.event_json import Notes, ResponseBody, ServerEvent
from edgeagent.api.responses.events import ResponseState, response_event
from edgeagent.api.responses.items.as_json import ItemStatus
from edgeagent.api.responses.open_items import OpenItem, closed_item
from edgeagent.api.wire.shape import Json

_NOT_BEGUN = ("response.created", "response.queued")
_TERMINAL = {"completed": "response.completed", "failed": "response.failed"}


def events_after(state: ResponseState, after: int) -> list[Json]:
    """Return the events so far with a number greater than `after` (-1: all of them)."""
    return _Replayer(after).replay(state)


def last_number(state: ResponseState) -> int:
    """Return the number of the latest event so far."""
    replayer = _Replayer(-1)
    replayer.replay(state)
    return replayer.number - 1


class _Replayer:
    def __init__(self, after: int) -> None:
        self.number = 0
        self._after = after
        self._events: list[Json] = []

    def replay(self, state: ResponseState) -> list[Json]:
        response = state.response
        for kind in _NOT_BEGUN:
            self._emit_begun(kind, response, "queued")
        if response["status"] == "queued":
            return self._events
        self._emit_begun("response.in_progress", response, "in_progress")
        for index, body in enumerate(state.output):
            status = "completed" if body["type"] == "compaction" else body["status"]
            self._replay_item(closed_item(body, index, self._emit), status)
        if state.open is not None:
            self._replay_item(state.open.copy_for(self._emit), None)
        if state.is_over:
            self._emit(response_event(_TERMINAL.get(response["status"], "response.incomplete"), response))
        return self._events

    def _replay_item(self, item: OpenItem, status: ItemStatus | None) -> None:
        """Emit the events of an item that the client lacks. `status`: the item's final status; None: it is open."""
        num_closing = 0 if status is None else item.num_closing
        before = self.number + item.num_opening - 1  # the number of the last opening event
        if before + item.num_chars + num_closing <= self._after:
            self.number = before + item.num_chars + num_closing + 1
            return
        item.open()
        num_sent = max(0, self._after - before)
        if item.num_chars:
            self.number = before + item.num_chars
            if item.num_chars > num_sent:
                item.emit_tail(item.num_chars - num_sent)
            else:
                self.number += 1
        if status is not None:
            item.close(status)

    def _emit_begun(self, kind: str, response: ResponseBody, status: str) -> None:
        if self.number > self._after:
            self._emit(response_event(kind, _as_begun(response, status)))
        else:
            self.number += 1

    def _emit(self, event: ServerEvent) -> None:
        if self.number > self._after:
            event["sequence_number"] = self.number
            self._events.append(cast("Json", event))
        self.number += 1


def _as_begun(response: ResponseBody, status: str) -> Json:
    """Return the response object as it was before the first output, but with the status `status`."""
    begun = {name: value for name, value in response.items() if name not in ("timings", "edgeagent")}
    notes = cast("Json", response.get("edgeagent", {}))
    if known := {name: notes[name] for name in Notes.__annotations__ if name in notes}:
        begun["edgeagent"] = known
    nothing = dict.fromkeys(("completed_at", "error", "incomplete_details", "usage"))
    return begun | nothing | {"status": status, "output": []}
