"""Fits a formula for the time of a step to measured steps:

    seconds = a·tokens + b·tokens·cells + c·pairs + d

StepShape describes tokens, cells and pairs. No coefficient is negative. There are two values of c: one for steps of at
least FLASH_TILE tokens, which flash attention computes in whole tiles, and one for smaller steps. A ratio for each size
of step corrects the formula: kernels work in tiles, so five tokens may cost as much as eight.

The measurements are kept as a table with one mean for each kind of step. Steps of one kind have the same size and
similar numbers of cells and pairs. So measurements of large steps are not lost during an hour of small ones. Recent
measurements weigh more. The fit minimizes the relative error, so a step of one token counts as much as a step with a
prompt.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence as Items
from dataclasses import dataclass
from operator import mul

import numpy as np

from edgeagent.engine.costs.step_shape import FLASH_TILE, StepShape

_Terms = tuple[float, float, float, float, float]
_NUM_TERMS = 5
# The order in which the fit changes the coefficients. Tokens come first: after a single measurement, all of its time is
# then attributed to its tokens, which overestimates larger steps. Pairs come before cells: a sequence that was always
# alone in the cells has as many pairs per token as cells. So other sequences' cells count as free until a step beside
# them was measured.
_ORDER = (0, 2, 3, 1, 4)
_THOUSAND = 1e3  # cells and pairs are counted in thousands, so that all terms have a similar size
_WEIGHT = 0.2  # the least weight of a new measurement in the mean of its kind
# In the fit, the weight of a mean halves with this many later measurements, but not below the least weight.
_HALF_LIFE = 128.0
_LEAST_WEIGHT = 0.05
_MAX_KINDS = 128
# Each fit starts from the previous coefficients, so few rounds suffice.
_NUM_ROUNDS = 60
# With fewer earlier tokens, attention takes too little of a step to be told from the rest.
_MANY_EARLIER = 256
_DOUBLING_DEPTHS = (256.0, 65536.0)
_MIN_S = 1e-4  # a shorter mean time is raised to this
# A mean that is so many times longer than a new measurement of its kind was disturbed: the first step of a model may
# wait for its weights to be read. It is replaced. A mean that is too short is corrected slowly, since the new
# measurement may be the disturbed one.
_DISTURBED = 4.0
# The most that a ratio of fewer than _SURE measurements corrects the formula. Kernel tiles need a factor of 10 at most,
# and a first step that was disturbed gave a ratio of 307.
_MAX_RATIO, _SURE = 16.0, 3


@dataclass(frozen=True, slots=True)
class _Mean:
    """The mean terms and the mean seconds of one kind of step.

    `num`: how many measurements of this kind there were. `measurement_number`: the number of the latest of them. The
    measurements of all kinds are numbered together, from 1.
    """

    terms: _Terms
    seconds: float
    measurement_number: int
    num: int


class CostFit:
    """Measured steps, and the formula of this module fitted to them.

    Each measurement changes the ratio of its size at once. Only `fit` changes the coefficients.
    """

    def __init__(self) -> None:
        # By size, then by the levels of cells and pairs.
        self._means: dict[int, dict[tuple[int, int], _Mean]] = {}
        self._coefficients = [0.0] * _NUM_TERMS
        self._ratios: dict[int, float] = {}
        self._num_observed = 0
        self.sizes: list[int] = []
        """The measured sizes (see `size_of`), in ascending order."""

    def observe(self, shape: StepShape, seconds: float) -> None:
        """Add a measured step, and update the ratio of its size. `seconds`: how long the step took."""
        self._num_observed += 1
        size, terms = size_of(shape.num_tokens), _terms(shape)
        if size not in self._means:
            bisect.insort(self.sizes, size)
        means = self._means.setdefault(size, {})
        key = (_level(shape.num_cells), _level(shape.num_pairs / shape.num_tokens))
        known, num = means.get(key), 1
        if known is not None and known.seconds <= _DISTURBED * seconds:
            num = known.num + 1
            weight = max(_WEIGHT, 1 / num)
            a, b, c, d, e = (old + weight * (new - old) for old, new in zip(known.terms, terms, strict=True))
            terms, seconds = (a, b, c, d, e), known.seconds + weight * (seconds - known.seconds)
        means[key] = _Mean(terms, max(seconds, _MIN_S), self._num_observed, num)
        self._forget()
        self._update_ratio(size)

    def fit(self) -> None:
        """Update the coefficients and all ratios.

        Coordinate descent minimizes the weighted squares of the relative errors.
        """
        means = [mean for means in self._means.values() for mean in means.values()]
        terms = np.array([mean.terms for mean in means])
        seconds = np.array([mean.seconds for mean in means])
        weights = np.array([self._weight(mean) for mean in means])
        scaled = terms / seconds[:, None]
        rows: list[list[float]] = (scaled.T @ (weights[:, None] * scaled)).tolist()
        target: list[float] = (weights @ scaled).tolist()
        found = self._coefficients
        for _ in range(_NUM_ROUNDS):
            for i in _ORDER:
                row = rows[i]
                if row[i] > 0:
                    rest = sum(map(mul, row, found)) - row[i] * found[i]
                    found[i] = max(0.0, (target[i] - rest) / row[i])
        for size in self.sizes:
            self._update_ratio(size)

    def sum_s(self, shape: StepShape) -> float:
        """Return the seconds that the formula gives for a step, without the ratio; 0 before the first fit."""
        num_tokens, num_cells, num_pairs = shape
        token_s, cell_s, small_s, tiled_s, step_s = self._coefficients
        pair_s = tiled_s if num_tokens >= FLASH_TILE else small_s
        return token_s * num_tokens + (cell_s * num_tokens * num_cells + pair_s * num_pairs) / _THOUSAND + step_s

    def cells_s(self, num_tokens: int, num_cells: int) -> float:
        """Return how many seconds of a step with `num_tokens` tokens are caused by `num_cells` cells in use."""
        return self._coefficients[1] * num_tokens * num_cells / _THOUSAND

    @property
    def doubling_depth(self) -> float:
        """The number of earlier tokens with which a token of a prompt takes twice as long as with none; 0 if unknown.

        It is limited to _DOUBLING_DEPTHS. It is unknown until a large step with many earlier tokens was measured.
        """
        terms = (mean.terms for size in self.sizes if size >= FLASH_TILE for mean in self._means[size].values())
        if not any(pairs * _THOUSAND >= _MANY_EARLIER * tokens for tokens, _, _, pairs, _ in terms):
            return 0.0
        # Plain attention multiplies a token with all used cells. So its cost may be in the coefficient of cells.
        tokens, cells, _, pairs, _ = self._coefficients
        least, most = _DOUBLING_DEPTHS
        return min(most, max(least, tokens * _THOUSAND / (cells + pairs))) if cells + pairs else most

    def ratio(self, num_tokens: int) -> float:
        """Return the factor that corrects the formula for this many tokens, interpolated between measured sizes.

        Return 1 if nothing was measured.
        """
        size = size_of(num_tokens)
        if size in self._ratios:
            return self._ratios[size]
        place = bisect.bisect_left(self.sizes, size)
        return interpolated([(each, self._ratios[each]) for each in self.sizes[max(0, place - 1) : place + 1]], size)

    def latest_measurement(self, num_tokens: int) -> int:
        """Return the number of the latest measurement of steps with this many tokens.

        If this size was never measured, use the next larger measured size, or else the largest one.
        """
        place = min(bisect.bisect_left(self.sizes, size_of(num_tokens)), len(self.sizes) - 1)
        return max(mean.measurement_number for mean in self._means[self.sizes[place]].values())

    def _sum(self, terms: _Terms) -> float:
        return math.fsum(map(mul, self._coefficients, terms))

    def _weight(self, mean: _Mean) -> float:
        return float(max(_LEAST_WEIGHT, 0.5 ** ((self._num_observed - mean.measurement_number) / _HALF_LIFE)))

    def _update_ratio(self, size: int) -> None:
        total = weights = 0.0
        for mean in self._means[size].values():
            fitted_s = self._sum(mean.terms)
            if fitted_s > 0:
                weight = self._weight(mean)
                total += weight * math.log(mean.seconds / fitted_s)
                weights += weight
        ratio = math.exp(total / weights) if weights else 1.0
        if sum(mean.num for mean in self._means[size].values()) < _SURE:
            ratio = min(max(ratio, 1 / _MAX_RATIO), _MAX_RATIO)
        self._ratios[size] = ratio

    def _forget(self) -> None:
        if sum(map(len, self._means.values())) <= _MAX_KINDS:
            return
        size, key = min(
            ((size, key) for size, means in self._means.items() for key in means),
            key=lambda each: self._means[each[0]][each[1]].measurement_number,
        )
        del self._means[size][key]
        if not self._means[size]:
            del self._means[size], self._ratios[size]
            self.sizes.remove(size)


def interpolated(ratios: Items[tuple[int, float]], num_tokens: int) -> float:
    """Return the ratio for `num_tokens`, interpolated between pairs of (size, ratio) in ascending order.

    Outside their range, return the ratio of the nearest size. Without pairs, return 1.
    """
    if not ratios:
        return 1.0
    place = bisect.bisect_left(ratios, num_tokens, key=lambda each: each[0])
    if place == len(ratios):
        return ratios[-1][1]
    size, ratio = ratios[place]
    if place == 0 or size == num_tokens:
        return ratio
    smaller_size, smaller_ratio = ratios[place - 1]
    return smaller_ratio + (ratio - smaller_ratio) * (num_tokens - smaller_size) / (size - smaller_size)


def size_of(num_tokens: int) -> int:
    """Return the size of a step: its number of tokens, rounded up to four significant bits.

    Measurements of the same size share a ratio. Steps of fewer than FLASH_TILE tokens never share a ratio with larger
    steps, for which llama.cpp uses another kernel.
    """
    shift = max(0, num_tokens.bit_length() - 4)
    size = max(1, -(-num_tokens >> shift) << shift)
    return FLASH_TILE - 1 if num_tokens < FLASH_TILE <= size else size


def _level(number: float) -> int:
    """Return the smallest k such that 2^k is at least the integer part of `number`; 0 if `number` is below 2."""
    return max(0, int(number) - 1).bit_length()


def _terms(shape: StepShape) -> _Terms:
    pairs = shape.num_pairs / _THOUSAND
    is_tiled = shape.num_tokens >= FLASH_TILE
    return (
        float(shape.num_tokens),
        shape.num_tokens * shape.num_cells / _THOUSAND,
        0.0 if is_tiled else pairs,
        pairs if is_tiled else 0.0,
        1.0,
    )
