"""The responses that are being generated, on whichever connection, for those who look at one or cancel it elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from edgeagent.api.turn import Turn


class LiveTurns:
    """Turns by their response's id; each is seen by the credential that made it alone."""

    def __init__(self) -> None:
        self._turns: dict[str, tuple[Turn, asyncio.Event]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @contextmanager
    def holding(self, turn: Turn) -> Iterator[None]:
        """Show a turn for as long as it is carried on here."""
        over = asyncio.Event()
        self._turns[turn.request.id] = (turn, over)
        try:
            yield
        finally:
            del self._turns[turn.request.id]
            over.set()

    def carry_on(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something that no connection waits for."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def get(self, response_id: str, partition: str) -> Turn | None:
        """Return a turn of this partition."""
        turn, _ = self._turns.get(response_id, (None, None))
        return turn if turn is not None and turn.partition == partition else None

    async def wait_over(self, response_id: str) -> None:
        """Return once a turn is over."""
        if response_id in self._turns:
            await self._turns[response_id][1].wait()
