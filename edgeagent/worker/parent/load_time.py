"""Predicts how long a model takes to load, from its last load or from the progress of the first."""

from __future__ import annotations

from collections.abc import Callable

# A load that takes longer than the last one may end at any time.
_SOON = 0.1
_TELLING_PROGRESS = 0.1  # how much must be loaded before the rest can be predicted


class LoadTime:
    """Times the loads of one model."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began_s = clock()
        self._last_s: float | None = None

    def begin(self) -> None:
        """A worker starts."""
        self._began_s = self._clock()

    def end(self) -> None:
        """The worker is ready."""
        self._last_s = self._clock() - self._began_s

    def left_s(self, progress: float) -> float | None:
        """Return how long the running load should still take; None where that is not known."""
        elapsed_s = self._clock() - self._began_s
        if self._last_s is not None:
            return max(_SOON * self._last_s, self._last_s - elapsed_s)
        return elapsed_s * (1 - progress) / progress if progress >= _TELLING_PROGRESS else None
