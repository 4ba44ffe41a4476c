"""What a step costs, learned from the steps themselves.

The time of a decode call is not linear in its tokens (kernels work in tiles) and grows with depth, so it is kept as a
table: geometric buckets of batch tokens × context depth, each an exponentially weighted mean. Unknown buckets are
estimated from the nearest known one.
"""

from __future__ import annotations

_WEIGHT = 0.2  # of a new measurement
_NUM_DEPTHS = 24


def _bucket(value: int) -> int:
    """Return k with 2^(k-1) < value ≤ 2^k."""
    return max(0, value - 1).bit_length()


class CostModel:
    """Predicts seconds of a step from its number of tokens and the depth of its deepest sequence."""

    def __init__(self, max_batch: int) -> None:
        self._max_batch = max_batch
        self._table: dict[tuple[int, int], float] = {}

    def observe(self, num_tokens: int, depth: int, seconds: float) -> None:
        """Take in a measured step."""
        key = (_bucket(num_tokens), _bucket(depth))
        known = self._table.get(key)
        self._table[key] = seconds if known is None else known + _WEIGHT * (seconds - known)

    def predict(self, num_tokens: int, depth: int) -> float | None:
        """Return the expected seconds of a step; None if nothing near was ever measured."""
        size, level = _bucket(num_tokens), _bucket(depth)
        for distance in range(_NUM_DEPTHS):
            for near in (level - distance, level + distance):
                seconds = self._table.get((size, near))
                if seconds is not None:
                    return seconds
        # No step of this size at any depth: scale the nearest size linearly, which overestimates upwards.
        sizes = {known for known, _ in self._table}
        if not sizes:
            return None
        nearest = min(sizes, key=lambda known: abs(known - size))
        seconds = self.predict(1 << nearest, depth)
        return None if seconds is None else seconds * max(1.0, 2.0 ** (size - nearest))

    def max_tokens_within(self, seconds: float, depth: int, floor: int) -> int:
        """Return the largest power-of-two batch expected to take at most `seconds`, between `floor` and max_batch."""
        best = size = floor
        while size <= self._max_batch:
            expected = self.predict(size, depth)
            if expected is None or expected > seconds:
                break
            best = size
            size *= 2
        return min(best, self._max_batch)
