"""Runs work that must not be cancelled twice, each in a task of its own.

httpcore awaits while it cleans up after a cancel. A second cancel, as of a client that leaves after a limit of time,
would interrupt that: the connection would be lost without being closed, and the answer would run on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from edgeagent.backends.remote.failures import Failure, Kind

Result = TypeVar("Result")


class Errands:
    """The running work of one transport."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def begin(self, work: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
        """Begin work in the background."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def run(
        self, work: Coroutine[Any, Any, Result], undo: Callable[[Result], Coroutine[Any, Any, Any]] | None = None
    ) -> Result:
        """Return what work returns. If the caller is cancelled, the work is cancelled once and not waited for.

        If the work completes nevertheless, `undo` gets its result. Raise a Failure where `finish` ended the work.
        """
        task = self.begin(work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            waiting = asyncio.current_task()
            if task.cancelled() and waiting is not None and not waiting.cancelling():
                raise Failure(Kind.CUT, "its connections were closed here") from None
            task.cancel()
            if undo is not None:
                task.add_done_callback(lambda done: self._undo(done, undo))
            raise

    def _undo(self, done: asyncio.Task[Result], undo: Callable[[Result], Coroutine[Any, Any, Any]]) -> None:
        if not done.cancelled() and done.exception() is None:
            self.begin(undo(done.result()))

    async def finish(self) -> None:
        """Cancel what runs, and wait for its end."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
