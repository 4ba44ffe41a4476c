"""Decides about idle prefixes that are not in blocks while others need cells or time. Pure predictions, no action."""

from __future__ import annotations

import math

from edgeagent.engine.cache.block import CachePriority, Importance
from edgeagent.engine.cache.transfer_rate import TransferRate
from edgeagent.engine.costs.cost_model import CostModel

# Of a prompt's predicted seconds, for others' prefixes. Measured on an 8B model's KV, two cores, flash attention: a
# prefix as long as the prompt slows it by 7 % if it stays in the cells, and takes 1 to 7 % to read out.
_SHARE = 0.03
_FIRST_HIT_RATE = 0.5  # before the first prompt
_WEIGHT = 0.05  # of a prompt's


class ReadOutPolicy:
    """The costs of one runner's idle prefixes: of reading one out, of leaving it in the cells, of losing it.

    In idle time everything is read out, without rules. Otherwise a client waits:

    1. A live sequence needs the cells. The prefix must go. It is read out first if it is pinned, or if reading takes no
       longer than computing it again would, times the probability that it is asked for again. That is the share of
       prompts' tokens that were found cached lately; it is 1 for instructions and for the latest response of a lane.
    2. A prompt is about to be computed, and the cells suffice. The prefix is read out first if that takes no longer
       than a small share of the prompt's own time, or than the time by which the prefix would slow the prompt.
       Otherwise it stays until there is time, or until it has slowed steps by as much (see background).
    3. What was never measured counts as free.
    """

    def __init__(self, costs: CostModel) -> None:
        """`costs` are those of the runner's steps."""
        self._costs = costs
        self._rate = TransferRate()
        self._hit_rate = _FIRST_HIT_RATE

    def observe_read(self, num_bytes: int, seconds: float) -> None:
        """Note how long reading out a block took, with all related work."""
        self._rate.observe(num_bytes, seconds)

    def observe_prompt(self, num_tokens: int, num_cached: int) -> None:
        """Note how much of a prompt was found cached."""
        self._hit_rate += _WEIGHT * (num_cached / max(1, num_tokens) - self._hit_rate)

    def read_s(self, num_bytes: float) -> float:
        """Return the expected seconds of reading out this many bytes."""
        return self._rate.seconds(num_bytes)

    def crowding_s(self, num_tokens: int, num_idle: int) -> float:
        """Return the expected seconds that this many idle cells add to a step; 0 where that was never measured."""
        return self._costs.crowding_s(num_tokens, num_idle)

    def is_worth_reading(self, num_bytes: float, start: int, end: int, priority: CachePriority) -> bool:
        """Whether to read out tokens from `start` to `end` that must leave the cells now, instead of dropping them."""
        if priority.importance is Importance.PINNED:
            return True
        again_s = self._costs.prefill_s(end - start, start)
        is_sure = bool(priority.lane) or start < priority.num_system
        return again_s is None or self.read_s(num_bytes) <= (1.0 if is_sure else self._hit_rate) * again_s

    def allowance_s(self, num_tokens: int, depth: int, num_idle: int) -> float:
        """Return how long to read out `num_idle` tokens before a prompt's next `num_tokens`, from a depth on."""
        prompt_s = self._costs.prefill_s(num_tokens, depth)
        if prompt_s is None:
            return math.inf
        return max(_SHARE * prompt_s, self._costs.crowding_s(num_tokens, num_idle))
