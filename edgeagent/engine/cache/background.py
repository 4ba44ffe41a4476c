"""Decides when prefixes are read out of the cells: all of them in idle time, a few while streams run.

While streams run, reading out takes a hundredth of the steps' time, so that it does not affect the rate. It follows a
long step, compared with which a block is short, or one step in many, so that it does not affect the tail of the gaps
between tokens. Nothing is read out while a client waits for a first token. If conversations end faster than that, a few
blocks are still read out at once, since a prefix that stays in the cells slows every step.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from edgeagent.engine.cache.saver import Saver

_SHARE = 0.01  # of the time of steps
_NUM_STEPS_BETWEEN = 25  # so that at most one gap in 25 is longer: the 95th percentile is not
# More unsaved tokens than this slow ten steps by as much as reading out a block of them takes.
_MAX_UNSAVED_TOKENS = 1024
_MIN_SAVES_IF_CROWDED = 4
_IDLE_BUDGET_S = 0.003  # then commands are read again


class BackgroundWork:
    """Spends spare time on one saver's work."""

    def __init__(self, saver: Saver, clock: Callable[[], float] = time.monotonic) -> None:
        self._saver = saver
        self._clock = clock
        self._credit_s = 0.0
        self._num_steps = 0
        self._is_ready = not saver.blocks.token_bytes  # whether memory for the next block is ready

    @property
    def is_done(self) -> bool:
        """Whether there is nothing to use a moment for now."""
        return self._is_ready and self._is_saved

    @property
    def _is_saved(self) -> bool:
        return not self._saver.has_unsaved or self._saver.is_waiting

    def run_beside(self, step_s: float, *, is_awaited: bool) -> None:
        """Do the work allowed after a step of this length; `is_awaited`: a client waits for a first token."""
        if not self._saver.has_something:
            self._credit_s = self._num_steps = 0
            return
        self._num_steps += 1
        if is_awaited and not self._is_crowded:
            return
        self._credit_s += step_s * _SHARE
        is_rare = self._num_steps >= _NUM_STEPS_BETWEEN
        for _ in range(self._num_saves(self._credit_s if is_rare else step_s * _SHARE, is_rare=is_rare)):
            if self._saver.has_something and not self._saver.is_waiting:
                self._credit_s = max(0.0, self._credit_s - self._saver.next_save_s)
                self._saver.save_one()
                self._is_ready = False
        if is_rare:
            self._credit_s = self._num_steps = 0

    def _num_saves(self, budget_s: float, *, is_rare: bool) -> int:
        save_s = self._saver.next_save_s
        num_saves = int(budget_s / save_s) if save_s > 0 else int(is_rare)
        return max(num_saves, _MIN_SAVES_IF_CROWDED) if is_rare and self._is_crowded else num_saves

    @property
    def _is_crowded(self) -> bool:
        return self._saver.num_unsaved_tokens > _MAX_UNSAVED_TOKENS

    def run_idle(self) -> None:
        """Use a moment without other work."""
        started_s = self._clock()
        while not self._is_saved and self._clock() - started_s < _IDLE_BUDGET_S:
            self._saver.save_one()
            self._is_ready = False
        if not self._saver.has_unsaved:
            self._saver.compact()
        if self._is_saved and not self._is_ready:
            self._is_ready = not self._saver.prepare()
