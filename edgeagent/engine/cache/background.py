"""Decides when prefixes are read out of the KV cells into blocks: all of them in idle time, a few while requests run.

While requests run, read-outs take a hundredth of the steps' time, so they hardly lower the token rate. Read-outs
follow one step in 25, so few gaps between tokens become longer. A step that takes 100 times as long as a read-out may
also be followed by a read-out. These read-outs stop while a client waits for a first token.

Idle prefixes may slow every step, since plain attention multiplies each token with all cells in use. The time lost to
them is counted as a debt. Read-outs may take as much time as the debt, even while a client waits for a first token.
This is the ski rental problem. There are two choices: read a prefix out at once, or leave it in the cells for good. The
lost time and the read-outs together take at most twice as long as the better choice.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from edgeagent.engine.cache.saver import Saver

_SHARE_OF_STEPS = 0.01  # of the time of steps
_NUM_STEPS_BETWEEN = 25  # so that at most one gap in 25 is longer, which does not change the 95th percentile
# A smaller debt is no reason to pause: it may be rounding.
_LEAST_S = 0.0001
_IDLE_BUDGET_S = 0.003  # per call of `run_when_idle`; then commands are read


class BackgroundWork:
    """Tells one saver when to read prefixes out: in idle time, or for a short time between steps."""

    def __init__(self, saver: Saver, clock: Callable[[], float] = time.monotonic) -> None:
        self._saver = saver
        self._clock = clock
        self._credit_s = 0.0
        self._debt_s = 0.0  # time lost to idle prefixes, less the time of read-outs
        self._num_steps = 0
        self._is_ready = not saver.needs_memory  # whether memory for the next block is ready

    @property
    def is_done(self) -> bool:
        """Whether there is no background work to do now."""
        return self._is_ready and self._is_saved

    @property
    def _is_saved(self) -> bool:
        return not self._saver.has_unsaved or self._saver.is_blocked_by_writes

    def run_after_step(self, step_s: float, num_tokens: int, *, pause_s: float, is_awaited: bool) -> None:
        """Do the background work that is allowed after a step of `step_s` seconds with `num_tokens` tokens.

        `pause_s`: how many seconds the next step may be delayed at most to pay off the debt, which is the time lost to
        idle prefixes. Only the first block may take longer. `is_awaited`: whether a client waits for a first token.
        """
        self._saver.charge_unsavable(num_tokens)
        if not self._saver.has_work:
            self._credit_s = self._debt_s = self._num_steps = 0
            return
        self._num_steps += 1
        is_rare = self._num_steps >= _NUM_STEPS_BETWEEN
        self._debt_s += self._saver.idle_cells_s(num_tokens)
        # While a first token is awaited, a step has prompt tokens and is long anyway.
        if is_rare or is_awaited:
            self._pay(pause_s)
        if is_awaited:
            return
        self._credit_s += step_s * _SHARE_OF_STEPS
        for _ in range(self._num_saves(self._credit_s if is_rare else step_s * _SHARE_OF_STEPS, is_rare=is_rare)):
            if self._saver.has_work and not self._saver.is_blocked_by_writes:
                self._credit_s = max(0.0, self._credit_s - self._saver.next_save_s)
                self._save_one()
        if is_rare:
            self._credit_s = self._num_steps = 0

    def _pay(self, most_s: float) -> None:
        """Read out idle prefixes. Spend at most as much time as they have cost steps, and at most `most_s` seconds.

        Only the first block may take longer than `most_s`.
        """
        left_s = most_s
        while not self._is_saved and (save_s := max(_LEAST_S, self._saver.next_save_s)) <= self._debt_s:
            if save_s > left_s and left_s < most_s:
                return
            started_s = self._clock()
            self._save_one()
            took_s = self._clock() - started_s
            self._debt_s = max(0.0, self._debt_s - took_s)
            left_s -= took_s
            if left_s <= 0:
                return

    def _num_saves(self, budget_s: float, *, is_rare: bool) -> int:
        save_s = self._saver.next_save_s
        return int(budget_s / save_s) if save_s > 0 else int(is_rare)

    def _save_one(self) -> None:
        self._saver.save_one()
        self._is_ready = False

    def run_when_idle(self) -> None:
        """Do background work for about 3 ms. Call it when there is no other work."""
        started_s = self._clock()
        while not self._is_saved and self._clock() - started_s < _IDLE_BUDGET_S:
            self._save_one()
        if not self._saver.has_unsaved:
            self._saver.compact()
        if self._is_saved and not self._is_ready:
            self._is_ready = not self._saver.prepare()
