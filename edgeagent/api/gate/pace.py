"""How often a client may do something: a burst first, then a rate per second."""

from __future__ import annotations

import time
from collections.abc import Callable


class Pace:
    """Allows a burst, and then a rate per second."""

    def __init__(self, per_s: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval_s = 1 / per_s
        self._most_ahead_s = burst / per_s
        self._clock = clock
        self._due_s = clock()  # when all that was taken would be done at an even pace

    def take(self) -> float:
        """Count one thing; return how many seconds to wait before doing it."""
        now_s = self._clock()
        self._due_s = max(self._due_s, now_s) + self._interval_s
        return max(0.0, self._due_s - now_s - self._most_ahead_s)
