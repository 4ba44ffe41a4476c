"""Predicts what a step costs from measured steps.

The time of a decode call is not linear in its tokens (kernels work in tiles) and grows with depth, so it is kept as a
table: buckets of batch tokens (each number up to 16, eight to sixteen for each doubling beyond) × doublings of context
depth, each an exponentially weighted mean. What lies between two known sizes is interpolated.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence as Items
from dataclasses import dataclass

import numpy as np

from edgeagent.engine.crowding import Crowding

_WEIGHT = 0.2  # of a new measurement, at least
_NUM_DEPTHS = 24
# A measurement is old after this many later ones. An old one is replaced if a later one contradicts it.
_OLD = 16
# With drafts, the step of one sequence may be so many times larger.
_SIMILAR = 8
# Of a measurement that replaces one that is old.
_WEIGHT_IF_OLD = 0.5


def _level(depth: int) -> int:
    """Return k with 2^(k-1) < depth ≤ 2^k."""
    return max(0, depth - 1).bit_length()


def _size(num_tokens: int) -> int:
    """Return the largest number of tokens of the same bucket: four bits of it count."""
    shift = max(0, num_tokens.bit_length() - 4)
    return max(1, -(-num_tokens >> shift) << shift)


@dataclass(frozen=True, slots=True)
class _Cost:
    """Seconds of a step, and when they were last measured, in measurements of any step before."""

    seconds: float
    order: int
    num: int = 1  # of measurements


class CostModel:
    """Predicts seconds of a step from its number of tokens and the depth of its deepest sequence."""

    def __init__(self, max_batch: int) -> None:
        self._max_batch = max_batch
        self._table: dict[tuple[int, int], _Cost] = {}
        self._sizes: list[int] = []  # of the table, rising
        self._num_observed = 0
        self._crowding = Crowding()

    def observe(self, num_tokens: int, depth: int, seconds: float, num_idle: int = 0) -> None:
        """Add a measured step. The time that `num_idle` cells of idle sequences added is subtracted."""
        expected_s = self.predict(num_tokens, depth) if num_idle else None
        if expected_s is not None:
            self._crowding.observe(num_tokens, num_idle, seconds - expected_s)
            seconds = max(seconds / 2, seconds - self.crowding_s(num_tokens, num_idle))
        key = (_size(num_tokens), _level(depth))
        known = self._table.get(key)
        num = 1
        if key[0] not in self._sizes:
            bisect.insort(self._sizes, key[0])
        if known is not None and not (2 * seconds < known.seconds and self._is_old(known)):
            # The first measurements get a plain mean, so that a cold start is forgotten soon. Old measurements are left
            # out: the machine may have been busy or asleep.
            num = known.num + 1
            weight = max(_WEIGHT, 1 / num, _WEIGHT_IF_OLD if self._is_old(known) else 0.0)
            seconds = known.seconds + weight * (seconds - known.seconds)
        self._num_observed += 1
        self._table[key] = _Cost(seconds, self._num_observed, num)

    def predict(self, num_tokens: int, depth: int) -> float | None:
        """Return the expected seconds of a step; None if no similar step was measured."""
        return self._find(num_tokens, _level(depth)).seconds if self._table else None

    def prefill_s(self, num_tokens: int, depth: int) -> float | None:
        """Return the expected seconds of computing this many prompt tokens from a depth on; None as `predict`."""
        per_step = min(num_tokens, self._max_batch)
        step_s = self.predict(per_step, depth + num_tokens // 2)
        return None if step_s is None else step_s * num_tokens / max(1, per_step)

    def crowding_s(self, num_tokens: int, num_idle: int) -> float:
        """Return the expected seconds that idle sequences' cells add to a step of this many tokens."""
        return self._crowding.seconds(num_tokens, num_idle)

    def measured(self, num_tokens: int, depth: int) -> float | None:
        """Return the expected seconds of a step of this many tokens, or a few times more; None if none was measured."""
        place = bisect.bisect_left(self._sizes, _size(num_tokens))
        if place == len(self._sizes) or self._sizes[place] > _SIMILAR * num_tokens:
            return None
        return self._at(self._sizes[place], _level(depth)).seconds

    def compare(self, sizes: Items[int], depth: int) -> list[float] | None:
        """Return the expected seconds of steps of these ascending numbers of tokens; None if nothing was ever measured.

        No size costs less than a smaller one. If two measurements contradict that, one is out of date (a cold start, a
        machine that was busy then or is now), and the later one is used. Otherwise a step that was slow once would be
        avoided, and never be measured again.
        """
        if not self._table:
            return None
        level = _level(depth)
        # The measured sizes up to the largest one asked for, and one more.
        known = self._sizes[: bisect.bisect_left(self._sizes, sizes[-1]) + 1]
        costs = [self._at(size, level) for size in known]
        expected: dict[int, float] = {}  # by place
        for place in sorted(range(len(costs)), key=lambda place: -costs[place].order):
            floor = max((seconds for other, seconds in expected.items() if other < place), default=0.0)
            ceiling = min((seconds for other, seconds in expected.items() if other > place), default=math.inf)
            expected[place] = min(max(costs[place].seconds, floor), ceiling)
        found = np.interp(sizes, known, [expected[place] for place in range(len(costs))]).tolist()
        # Beyond the largest one, in proportion.
        last = bisect.bisect_right(sizes, known[-1])
        found[last:] = [max(found[-1], costs[-1].seconds * size / known[-1]) for size in sizes[last:]]
        return [float(seconds) for seconds in found]

    def _at(self, size: int, level: int) -> _Cost:
        """Return the cost of a measured size at the nearest depth."""
        for distance in range(_NUM_DEPTHS):
            for near in (level - distance, level + distance):
                cost = self._table.get((size, near))
                if cost is not None:
                    return cost
        raise AssertionError("a size of the table has a depth")

    def _find(self, num_tokens: int, level: int) -> _Cost:
        """Return the cost of a step; something must have been measured."""
        size = _size(num_tokens)
        place = bisect.bisect_left(self._sizes, size)
        if place == len(self._sizes):
            # Larger than all: in proportion, which overestimates.
            cost = self._at(self._sizes[-1], level)
            return _Cost(cost.seconds * size / self._sizes[-1], cost.order)
        larger = self._at(self._sizes[place], level)
        if self._sizes[place] == size or place == 0:
            return larger
        smaller = self._at(self._sizes[place - 1], level)
        share = (size - self._sizes[place - 1]) / (self._sizes[place] - self._sizes[place - 1])
        seconds = smaller.seconds + share * (larger.seconds - smaller.seconds)
        return _Cost(seconds, min(smaller.order, larger.order))

    def max_tokens_within(
        self, seconds: float, depth: int, floor: int, *, at_first: float | None = None, max_growth: int = 2
    ) -> int:
        """Return the largest batch expected to take at most `seconds`; `floor` if there is none.

        It is `floor`, twice, four times … as much, or max_batch. More tokens cost no less, and twice as many no more
        than twice as much: if two sizes contradict that, the one measured later is used. A size that was never measured
        may be expected to take `at_first` seconds (None: `seconds`), and is at most `max_growth` times the largest one
        measured.
        """
        if not self._table:
            return min(floor, self._max_batch)
        largest = min(self._max_batch, max_growth * self._sizes[-1])
        best = floor
        smaller: _Cost | None = None
        for size in _doubling(floor, largest):
            cost = self._find(size, _level(depth))
            if smaller is not None and smaller.order > cost.order:
                seconds_now = max(cost.seconds, smaller.seconds)
                if smaller.order - cost.order >= _OLD:
                    seconds_now = min(seconds_now, 2 * smaller.seconds)
                cost = _Cost(seconds_now, smaller.order)
            if cost.seconds <= (seconds if at_first is None or size <= self._sizes[-1] else at_first):
                best = size
            smaller = cost
        return min(best, self._max_batch)

    def _is_old(self, cost: _Cost) -> bool:
        return self._num_observed - cost.order >= _OLD


def _doubling(first: int, last: int) -> list[int]:
    """Return first, twice, four times … as much, and last."""
    sizes = [first]
    while sizes[-1] < last:
        sizes.append(min(2 * sizes[-1], last))
    return sizes
