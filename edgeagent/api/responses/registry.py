"""The responses that run or wait, on all connections, so that a request by id can read or cancel one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from edgeagent.api.responses.turn import Turn


@dataclass(slots=True)
class LiveTurn:
    """A turn that can be found by its id. `over` is set once it has ended and is stored."""

    turn: Turn
    cancel: Callable[[], None]
    over: asyncio.Event = field(default_factory=asyncio.Event)
    _change: asyncio.Event | None = None

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


class LiveTurns:
    """Turns by their response's id; only the credential that made a turn finds it."""

    def __init__(self) -> None:
        self._turns: dict[str, LiveTurn] = {}

    @contextmanager
    def holding(self, turn: Turn, cancel: Callable[[], None]) -> Iterator[LiveTurn]:
        """Make a turn visible for as long as it runs here."""
        live = self.add(turn, cancel)
        try:
            yield live
        finally:
            self.remove(turn.request.id)

    def add(self, turn: Turn, cancel: Callable[[], None]) -> LiveTurn:
        """Make a turn visible until it is removed; `cancel` begins its end. One that is visible already stays so."""
        return self._turns.setdefault(turn.request.id, LiveTurn(turn, cancel))

    def remove(self, response_id: str) -> None:
        """Remove a turn that is over; an unknown one is ignored."""
        if entry := self._turns.pop(response_id, None):
            entry.over.set()
            entry.note()

    def get(self, response_id: str, partition: str) -> Turn | None:
        """Return the turn of a response that runs or waits; None if there is none in this partition."""
        live = self.find(response_id, partition)
        return live.turn if live is not None else None

    def find(self, response_id: str, partition: str) -> LiveTurn | None:
        """Return the same turn with its progress, for a client that follows it; None as for `get`."""
        live = self._turns.get(response_id)
        return live if live is not None and live.turn.partition == partition else None

    async def cancel(self, response_id: str) -> None:
        """Cancel a turn, and return once it is over."""
        if entry := self._turns.get(response_id):
            entry.cancel()
            await entry.over.wait()
