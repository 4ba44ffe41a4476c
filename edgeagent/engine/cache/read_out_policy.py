"""Decides if an idle prefix is read out of the cells while requests run. The decision compares predicted costs."""

from __future__ import annotations

from edgeagent.engine.cache.block import CachePriority, Importance
from edgeagent.engine.cache.transfer_rate import TransferRate
from edgeagent.engine.costs.cost_model import CostModel

_FIRST_HIT_RATE = 0.5  # before the first prompt
_WEIGHT = 0.05  # of one prompt in the average


class ReadOutPolicy:
    """Predicts the costs of copying an idle prefix from the cells into blocks, of leaving it there, and of losing it.

    Such a copy is called a read-out. In idle time, all prefixes are read out. While a client waits, these rules apply:

    1. A live sequence needs the prefix's cells. A pinned prefix is read out before it loses them. Any other prefix is
       read out if that takes no longer than p times the time to compute it again; otherwise it is lost. Here p is the
       probability that the prefix is requested again. It is estimated as the recent share of prompt tokens that were
       found cached. For instructions and for the latest response of a lane, p is 1.
    2. A prompt is about to be computed, and there are enough free cells. The prefix is read out first if that takes no
       longer than the time by which it would slow the prompt (`idle_cells_s`). Otherwise it stays until there is idle
       time, or until it has slowed steps by the time that a read-out takes (see `background`).
    3. A prefix that cannot be saved stays until it has slowed steps by p times the time to compute it again.
    4. Before the first measurement, the expected costs of a read-out and of leaving a prefix in the cells are 0.
    """

    def __init__(self, costs: CostModel) -> None:
        """`costs`: the measured costs of the runner's steps."""
        self._costs = costs
        self._rate = TransferRate()
        self._hit_rate = _FIRST_HIT_RATE

    def observe_read(self, num_bytes: int, seconds: float) -> None:
        """Note the seconds that it took to read out a block of `num_bytes` bytes and to add it to host memory."""
        self._rate.observe(num_bytes, seconds)

    def observe_prompt(self, num_tokens: int, num_cached: int) -> None:
        """Note how many tokens of a prompt were found cached."""
        self._hit_rate += _WEIGHT * (num_cached / max(1, num_tokens) - self._hit_rate)

    def read_s(self, num_bytes: float) -> float:
        """Return the expected seconds to read out this many bytes."""
        return self._rate.seconds(num_bytes)

    def idle_cells_s(self, num_tokens: int, num_idle: int) -> float:
        """Return the expected seconds that `num_idle` idle cells add to a step of `num_tokens`; 0 if never measured."""
        return self._costs.idle_cells_s(num_tokens, num_idle)

    def is_worth(self, seconds: float, start: int, end: int, priority: CachePriority) -> bool:
        """Whether to spend `seconds` to keep the tokens from `start` to `end` cached: rules 1 and 3 of this class.

        True if no step was measured yet.
        """
        if priority.importance is Importance.PINNED:
            return True
        again_s = self._costs.prefill_s(end - start, start)
        is_sure = bool(priority.lane) or start < priority.num_system
        return again_s is None or seconds <= (1.0 if is_sure else self._hit_rate) * again_s
