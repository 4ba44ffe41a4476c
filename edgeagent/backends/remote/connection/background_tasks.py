"""Runs work that must not be cancelled twice. Each piece of work has its own task.

httpcore awaits while it cleans up after a cancel. A second cancel, for example from a client that disconnects after a
timeout, would interrupt the cleanup. The connection would then never be closed, and the remote would continue to
generate.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from edgeagent.backends.remote.failures import Failure, Kind

Result = TypeVar("Result")


class BackgroundTasks:
    """Tracks the background tasks of one transport."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def begin(self, work: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
        """Start work in the background and return its task."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def run(
        self, work: Coroutine[Any, Any, Result], undo: Callable[[Result], Coroutine[Any, Any, Any]] | None = None
    ) -> Result:
        """Await work and return its result; raise the work's error, or a Failure if `finish` ended the work.

        If the caller is cancelled, cancel the work once and do not wait for it. If the work completes nevertheless,
        call `undo` with its result.
        """
        task = self.begin(work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            waiting = asyncio.current_task()
            if task.cancelled() and waiting is not None and not waiting.cancelling():
                raise Failure(Kind.CUT, "its connections were closed on this machine") from None
            task.cancel()
            if undo is not None:
                task.add_done_callback(lambda done: self._undo(done, undo))
            raise

    def _undo(self, done: asyncio.Task[Result], undo: Callable[[Result], Coroutine[Any, Any, Any]]) -> None:
        if not done.cancelled() and done.exception() is None:
            self.begin(undo(done.result()))

    async def finish(self) -> None:
        """Cancel all running work, and wait until it has ended."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
