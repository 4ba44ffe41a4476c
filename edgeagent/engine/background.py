"""When idle prefixes are read out of the cells: all at once while nothing else is to do, else beside live streams.

A block takes about a millisecond. Beside live streams one is read out in so few steps that neither the rate nor the
tail of the gaps between tokens shows it. If conversations end faster than that, a few are read out at once, since a
prefix that stays in the cells slows every step.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from edgeagent.engine.saver import Saver

_SHARE = 0.01  # of the time of steps
_NUM_STEPS_BETWEEN = 25  # so that at most one gap in 25 is longer: the 95th percentile is not
# More waiting tokens than this slow ten steps by as much as reading a block of them out takes.
_MAX_UNSAVED_TOKENS = 1024
_MAX_SAVES_AT_ONCE = 4
_IDLE_BUDGET_S = 0.003  # until commands are looked at again


class BackgroundWork:
    """Spends spare time on one saver's work."""

    def __init__(self, saver: Saver, clock: Callable[[], float] = time.monotonic) -> None:
        self._saver = saver
        self._clock = clock
        self._credit_s = 0.0
        self._num_steps = 0

    @property
    def is_done(self) -> bool:
        """Whether there is nothing to use a moment for now."""
        return not self._saver.has_unsaved or self._saver.is_waiting

    def run_beside(self, step_s: float) -> None:
        """Do as much as is allowed after a step that took so long."""
        if not self._saver.has_unsaved:
            self._credit_s = self._num_steps = 0
            return
        self._credit_s += step_s * _SHARE
        self._num_steps += 1
        if self._num_steps < _NUM_STEPS_BETWEEN:
            return
        is_due = self._credit_s >= self._saver.next_save_s
        if is_due or self._is_crowded:
            self._saver.save_one()
            self._credit_s = self._num_steps = 0
        for _ in range(_MAX_SAVES_AT_ONCE - 1):
            if self._is_crowded:
                self._saver.save_one()

    @property
    def _is_crowded(self) -> bool:
        return self._saver.num_unsaved_tokens > _MAX_UNSAVED_TOKENS

    def run_idle(self) -> None:
        """Use a moment in which nothing is to be computed."""
        started_s = self._clock()
        while not self.is_done and self._clock() - started_s < _IDLE_BUDGET_S:
            self._saver.save_one()
        if not self._saver.has_unsaved:
            self._saver.compact()
