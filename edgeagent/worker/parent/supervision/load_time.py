"""Predicts how long a model takes to load: from its last load, or the progress of the first, or the file sizes."""

from __future__ import annotations

from collections.abc import Callable

from edgeagent.types import WorkerState

# The rest of a load is predicted as at least this share of the whole load, unless it is computed from the progress.
_SOON = 0.1
_TELLING_PROGRESS = 0.1  # the fraction that must be loaded before the rest can be predicted from it
# Guesses for a model that was never loaded: how long a worker's start takes, and how fast a disk reads.
_START_S = 0.7
_BYTES_PER_S = 700 << 20


def guessed_s(num_bytes: int) -> float:
    return _START_S + num_bytes / _BYTES_PER_S


class LoadTime:
    """Measures and predicts the load times of one model, in seconds.

    `guess_s` is the prediction before the first load; None if unknown.
    """

    def __init__(self, clock: Callable[[], float], guess_s: float | None = None) -> None:
        self._clock = clock
        self._began_s = clock()
        self._last_s: float | None = None
        self.guess_s = guess_s

    def begin(self) -> None:
        self._began_s = self._clock()

    def end(self) -> None:
        self._last_s = self._clock() - self._began_s

    @property
    def whole_s(self) -> float | None:
        """The predicted seconds for a whole load; None if unknown."""
        return self.guess_s if self._last_s is None else self._last_s

    def ready_in_s(self, state: WorkerState, progress: float) -> float | None:
        """Return in how many seconds a model in this state could be ready; None if unknown.

        For a model without a worker, this is the time that a whole load takes.
        """
        match state:
            case WorkerState.READY:
                return 0.0
            case WorkerState.STARTING:
                return self.left_s(progress)
        return self.whole_s

    def left_s(self, progress: float) -> float | None:
        """Return how many more seconds the running load should take; None if unknown."""
        elapsed_s = self._clock() - self._began_s
        if self._last_s is None and progress >= _TELLING_PROGRESS:
            return elapsed_s * (1 - progress) / progress
        whole_s = self.whole_s
        return None if whole_s is None else max(_SOON * whole_s, whole_s - elapsed_s)
