"""Gives memory back to the system after a request that took much of it."""

from __future__ import annotations

import asyncio

from edgeagent.process_settings import give_back_freed_memory

# Giving memory back takes milliseconds, so it is not done after less.
MUCH_BYTES = 4 << 20
DELAY_S = 1.0
# The request may still use the memory then, for example while its prompt is rendered.
AGAIN_S = 10.0


class FreedMemory:
    """Gives freed memory back some time after `plan`, and once more later. Call it in the event loop."""

    def __init__(self) -> None:
        self._timer: asyncio.TimerHandle | None = None
        self._num_due = 0

    def plan(self) -> None:
        """Give memory back after DELAY_S, and again after AGAIN_S. More calls meanwhile add at most one time more."""
        self._num_due = 2
        self._call_after(DELAY_S)

    def _call_after(self, delay_s: float) -> None:
        if self._timer is None and self._num_due:
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._give_back)

    def _give_back(self) -> None:
        self._timer = None
        self._num_due -= 1
        asyncio.get_running_loop().run_in_executor(None, give_back_freed_memory)
        self._call_after(AGAIN_S)
