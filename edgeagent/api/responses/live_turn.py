"""A response in flight: the request's turn, how to cancel it, and how its followers learn of its progress."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from edgeagent.api.responses.turn import Turn
from edgeagent.service.live_requests import LiveRequest, LiveRequests


class LiveTurn(LiveRequest):
    """A turn that runs or waits. `cancel` begins its end; `over` is set once it has ended and is stored.

    `cancel` must be set before the turn is visible.
    """

    def __init__(self, turn: Turn, cancel: Callable[[], None] = lambda: None) -> None:
        super().__init__(turn.request.id, turn.partition)
        self.turn = turn
        self.cancel = cancel
        self.over = asyncio.Event()
        self._change: asyncio.Event | None = None

    def hidden(self) -> None:
        """Wake those who wait for its end: from here on the store has it."""
        self.over.set()
        self.note()

    def note(self) -> None:
        """Wake its followers: it has made progress."""
        if self._change is not None:
            self._change.set()
            self._change = None

    @property
    def change(self) -> asyncio.Event:
        """Set at its next progress after this call."""
        if self._change is None:
            self._change = asyncio.Event()
        return self._change


def find_turn(live: LiveRequests, response_id: str, partition: str) -> LiveTurn | None:
    """Return a response that runs or waits; only the credential that made it finds it."""
    found = live.find(response_id, partition)
    return found if isinstance(found, LiveTurn) else None
