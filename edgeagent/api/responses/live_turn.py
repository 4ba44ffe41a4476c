"""A response in flight: its turn, how to cancel it, and how the clients that follow it learn of its progress."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from edgeagent.api.responses.turn import Turn
from edgeagent.service.live_requests import LiveRequest, LiveRequests


class LiveTurn(LiveRequest):
    """A turn that runs or waits to run. `cancel` asks it to end. `on_hidden` sets `over` after the turn has ended.

    Set `cancel` before clients can find the turn by its id.
    """

    def __init__(self, turn: Turn, cancel: Callable[[], None] = lambda: None) -> None:
        super().__init__(turn.request.id, turn.partition)
        self.turn = turn
        self.cancel = cancel
        self.over = asyncio.Event()
        self._change: asyncio.Event | None = None

    def on_hidden(self) -> None:
        """Set `over`, and wake the clients that follow. From now on, clients find the response only in the store."""
        self.over.set()
        self.wake_followers()

    def wake_followers(self) -> None:
        """Set the event `change`, because the turn has made progress."""
        if self._change is not None:
            self._change.set()
            self._change = None

    @property
    def change(self) -> asyncio.Event:
        """An event that is set at the next progress of the turn."""
        if self._change is None:
            self._change = asyncio.Event()
        return self._change


def find_turn(live: LiveRequests, response_id: str, partition: str) -> LiveTurn | None:
    """Return a response that runs or waits, by its id; None if the client's partition has no such response."""
    found = live.find(response_id, partition)
    return found if isinstance(found, LiveTurn) else None
