"""A rate limit for what a client does: a burst at once, then a fixed number per second."""

from __future__ import annotations

import time
from collections.abc import Callable


class Pace:
    """A rate limiter: it allows `burst` operations at once, and then `per_s` operations a second."""

    def __init__(self, per_s: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval_s = 1 / per_s
        self._most_ahead_s = burst / per_s
        self._clock = clock
        self._due_s = clock()  # when all counted operations would be done at the even rate

    def take(self, num: int = 1) -> float:
        """Count operations. Return how many seconds the caller must wait before the next; 0 for no wait."""
        now_s = self._clock()
        self._due_s = max(self._due_s, now_s) + num * self._interval_s
        return max(0.0, self._due_s - now_s - self._most_ahead_s)
