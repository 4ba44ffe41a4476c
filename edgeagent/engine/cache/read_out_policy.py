"""Decides whether to read out idle prefixes while other sequences need cells or time. It only predicts costs."""

from __future__ import annotations

from edgeagent.engine.cache.block import CachePriority, Importance
from edgeagent.engine.cache.transfer_rate import TransferRate
from edgeagent.engine.costs.cost_model import CostModel

_FIRST_HIT_RATE = 0.5  # before the first prompt
_WEIGHT = 0.05  # of one prompt in the average


class ReadOutPolicy:
    """The costs of one runner's idle prefixes: of reading one out, of leaving it in the cells, of losing it.

    In idle time all prefixes are read out. These rules are for the time when a client waits:

    1. If a live sequence needs the cells, the prefix must leave them. It is read out first if it is pinned, or if
       reading takes no longer than the time to compute it again times the probability that it is requested again. The
       probability is the recent share of prompt tokens that were found cached. For instructions and for the latest
       response of a lane it is 1.
    2. If a prompt is about to be computed and the cells suffice, the prefix is read out first if that takes no longer
       than the time by which the prefix would slow the prompt (`crowding_s`). Otherwise it stays until there is time,
       or until it has slowed steps by as much time (see `background`).
    3. Before a first measurement, reading out counts as free, and so does leaving a prefix in the cells.
    """

    def __init__(self, costs: CostModel) -> None:
        """`costs` are those of the runner's steps."""
        self._costs = costs
        self._rate = TransferRate()
        self._hit_rate = _FIRST_HIT_RATE

    def observe_read(self, num_bytes: int, seconds: float) -> None:
        """Note how long reading out a block took, including all related work."""
        self._rate.observe(num_bytes, seconds)

    def observe_prompt(self, num_tokens: int, num_cached: int) -> None:
        """Note how much of a prompt was found cached."""
        self._hit_rate += _WEIGHT * (num_cached / max(1, num_tokens) - self._hit_rate)

    def read_s(self, num_bytes: float) -> float:
        """Return the expected seconds of reading out this many bytes."""
        return self._rate.seconds(num_bytes)

    def crowding_s(self, num_tokens: int, num_idle: int) -> float:
        """Return the expected seconds that this many idle cells add to a step; 0 if that was never measured."""
        return self._costs.crowding_s(num_tokens, num_idle)

    def is_worth_reading(self, num_bytes: float, start: int, end: int, priority: CachePriority) -> bool:
        """Whether to read out tokens from `start` to `end` that must leave the cells now, instead of dropping them."""
        if priority.importance is Importance.PINNED:
            return True
        again_s = self._costs.prefill_s(end - start, start)
        is_sure = bool(priority.lane) or start < priority.num_system
        return again_s is None or self.read_s(num_bytes) <= (1.0 if is_sure else self._hit_rate) * again_s
