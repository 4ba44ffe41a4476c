"""Predicts how long a step takes, from measured steps.

CostFit fits a formula for the time of a step to measured steps:

    seconds = a·tokens + b·tokens·cells + c·pairs + d

StepShape describes tokens, cells and pairs. No coefficient is negative. There are two values of c: one for steps of at
least FLASH_TILE tokens, which flash attention computes in whole tiles, and one for smaller steps. A ratio for each size
of step corrects the formula: kernels work in tiles, so five tokens may cost as much as eight.

The measurements are kept as a table with one mean for each kind of step. Steps of one kind have the same size and
similar numbers of cells and pairs. So measurements of large steps are not lost during an hour of small ones. Recent
measurements weigh more. The fit minimizes the relative error, so a step of one token counts as much as a step with a
prompt.

CostModel multiplies this time by the pace. The pace is one factor for steps of all sizes: it rises while the machine
is slower than usual.
"""

from __future__ import annotations

import bisect
import math
import statistics
from collections import deque
from collections.abc import Iterable
from collections.abc import Sequence as Items
from dataclasses import dataclass
from operator import mul
from typing import NamedTuple

import numpy as np

# The part of the streams' budget that is planned for media and beside side contexts, and of their target for drafts.
# The rest is a reserve, since steps and graph nodes differ in length. With a budget of 300 ms, 95 % of the streams'
# gaps took at most 279 ms at 0.9, and 309 ms at 0.97.
PLANNED_SHARE = 0.92


class TimeShare:
    """Saves up a share of the time that passes, until it is spent."""

    def __init__(self, share: float) -> None:
        self._share = share
        self.saved_s = 0.0
        """The seconds that may be spent now. Negative after work that took longer than what was saved."""

    def add(self, seconds: float, max_s: float) -> None:
        """Save the share of `seconds` that have passed. At most `max_s` are saved up."""
        self.saved_s = min(max_s, self.saved_s + self._share * seconds)

    def spend(self, seconds: float) -> None:
        self.saved_s -= seconds


# A retrial may cost this share of the time since the last one, and comes after at least _LEAST_USES uses.
_SHARE = 0.02
_LEAST_USES = 8


class Retrials:
    """Says when to use the value of a choice that seems slower, so that its time is measured again.

    A value may have been rejected for a single disturbed measurement, or before the machine changed. Without retrials
    it would never be measured again.
    """

    def __init__(self) -> None:
        self._saved_s = 0.0
        self._num_uses = 0

    def record(self, used_s: float) -> None:
        """Record that the better value was used, which took `used_s` seconds."""
        self._saved_s += _SHARE * used_s
        self._num_uses += 1

    def is_due(self, extra_s: float) -> bool:
        """Whether to try the other value now, which is expected to take `extra_s` seconds more."""
        return self._num_uses >= _LEAST_USES and self._saved_s >= extra_s

    def reset(self) -> None:
        """Record that the other value was tried."""
        self._saved_s, self._num_uses = 0.0, 0


FLASH_TILE = 64
"""Steps of at least this many tokens are computed in whole tiles by ggml's flash attention on a CPU (GGML_FA_TILE_Q).
Each pair (see StepShape) then takes several times less time."""


class StepShape(NamedTuple):
    """The size of a step: its tokens, the KV cells in use before it, and the pairs that attention computes.

    A pair is a token of the step and an earlier token of the same sequence that was computed before the step. Plain
    attention on a CPU multiplies each token with all cells in use, including those of other sequences. Flash attention
    skips the cells of other sequences, so pairs determine its time.

    `num_extra`: the pairs that flash attention computes in addition if it computes whole tiles (see FLASH_TILE). For
    each token of a tile, it computes the cells of all sequences that have a token in the tile. Beside eight streams
    with 300 tokens each, a prompt of 64 tokens so takes as many pairs as one with 2,400 earlier tokens.
    """

    num_tokens: int = 0
    num_cells: int = 0
    num_pairs: float = 0.0
    num_extra: float = 0.0

    @classmethod
    def of(cls, parts: Iterable[tuple[int, float]], num_cells: int) -> StepShape:
        """Return the shape of a step with `parts`: for each sequence, how many tokens, and with how many earlier."""
        num_tokens, num_pairs, num_extra = 0, 0.0, 0.0
        for size, depth in parts:
            num_tokens += size
            num_pairs += size * depth
            num_extra += max(0, FLASH_TILE - size) * depth
        return cls(num_tokens, num_cells, num_pairs, num_extra)

    @classmethod
    def alone(cls, num_tokens: int, depth: int) -> StepShape:
        """Return the shape of a step with `num_tokens` of one sequence, which has `depth` earlier tokens.

        No other sequence has used cells.
        """
        return cls(0, depth, 0.0).plus(num_tokens, depth)

    def plus(self, num_tokens: int, depth: float) -> StepShape:
        """Return this shape with `num_tokens` more of one sequence, which has `depth` earlier tokens.

        The number of used cells stays the same.
        """
        num_pairs, num_extra = num_tokens * depth, max(0, FLASH_TILE - num_tokens) * depth if num_tokens else 0.0
        return StepShape(
            self.num_tokens + num_tokens, self.num_cells, self.num_pairs + num_pairs, self.num_extra + num_extra
        )


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

    def __init__(self, tile: int = 0) -> None:
        """`tile`: see Runner.attention_tile."""
        self._tile = tile
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
        size, terms = size_of(shape.num_tokens), self._terms(shape)
        if size not in self._means:
            bisect.insort(self.sizes, size)
        means = self._means.setdefault(size, {})
        key = (_level(shape.num_cells), _level(_THOUSAND * (terms[2] + terms[3]) / shape.num_tokens))
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
        return self._sum(self._terms(shape))

    def cells_s(self, num_tokens: int, num_cells: int) -> float:
        """Return how many seconds of a step with `num_tokens` tokens are caused by `num_cells` cells in use."""
        return self._coefficients[1] * num_tokens * num_cells / _THOUSAND

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

    def _terms(self, shape: StepShape) -> _Terms:
        num_tokens, num_cells, num_pairs, num_extra = shape
        is_large = num_tokens >= FLASH_TILE
        pairs = (num_pairs + num_extra if is_large and self._tile else num_pairs) / _THOUSAND
        small, large = (0.0, pairs) if is_large else (pairs, 0.0)
        return float(num_tokens), num_tokens * num_cells / _THOUSAND, small, large, 1.0

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


_PACE_WEIGHT = 0.3
MAX_ERROR_FACTOR = 2.0
"""A measured time counts as longer than predicted by this factor at most, since the machine may have slept. A step
changes the pace by this factor at most, in both directions."""
# Each of the first _NUM_FIRST measurements is followed by a fit, and does not change the pace. Later, a fit follows
# _PER_FIT measurements, or _PER_FIT_IF_FAR_OFF if the last prediction was off by more than the share _FAR_OFF.
_NUM_FIRST = 16
_PER_FIT, _PER_FIT_IF_FAR_OFF = 32, 4
_FAR_OFF = 0.3
# After this many further measurements a measurement is old. If a later one contradicts it, the later one is used.
_OLD = 16
# `predict_if_reliable` uses steps at most this many times as large. Steps with drafts are often up to that large.
_SIMILAR = 8
# A step with a prompt chunk has a multiple of this many tokens, since kernels compute whole tiles.
TILE = 32
# A batch is padded if that is expected to save at least this share of its time.
_PADDING_GAIN = 0.1
# If a retrial takes more than _MUCH_SLOWER times as long and breaks a stream's target, its extra time counts
# _LATE_PRICE times. So it comes more rarely, but it does come.
_MUCH_SLOWER, _LATE_PRICE = 2.0, 10.0
# Steps of up to 1 / _SMALL of a tile take about as long as a padded one, or less.
_SMALL = 4
_NUM_ERRORS = 200
_ENOUGH_ERRORS = 20


@dataclass(frozen=True, slots=True)
class PredictionError:
    """The error of the latest predictions, as a share of the measured time."""

    median: float
    p95: float


class CostModel:
    """Predicts the seconds of a step from its shape."""

    def __init__(self, max_batch: int, tile: int = 0) -> None:
        """`tile`: see Runner.attention_tile."""
        self._max_batch = max_batch
        self._tile = tile
        self._fit = CostFit(tile)
        self._pace = 1.0
        self._num_observed = self._fitted_at = 0
        self._is_far_off = True  # the last prediction
        self._errors: deque[float] = deque(maxlen=_NUM_ERRORS)
        self._padding_retrials = Retrials()

    @property
    def error(self) -> PredictionError | None:
        """The error of the predictions of the latest 200 steps; None if fewer than 20 steps were predicted."""
        if len(self._errors) < _ENOUGH_ERRORS:
            return None
        errors = sorted(self._errors)
        return PredictionError(statistics.median(errors), errors[int(0.95 * (len(errors) - 1))])

    def observe(self, shape: StepShape, seconds: float) -> None:
        """Add a measured step, and update the fit if that is due. `seconds`: how long the step took."""
        self.record(shape, seconds)
        self.fit_if_due()

    def record(self, shape: StepShape, seconds: float) -> None:
        """Add a measured step, and update the pace. Call `fit_if_due` later, since a fit takes some tenths of a ms.

        Each of the first measurements is followed by a fit at once.
        """
        expected_s = self.predict(shape)
        self._num_observed += 1
        self._is_far_off = True
        if expected_s is not None:
            self._errors.append(abs(expected_s - seconds) / max(seconds, 1e-9))
            self._is_far_off = abs(expected_s - seconds) > _FAR_OFF * seconds
            if self._num_observed > _NUM_FIRST:
                self._pace *= _clipped(seconds / max(expected_s, 1e-9), MAX_ERROR_FACTOR) ** _PACE_WEIGHT
                seconds = min(seconds, MAX_ERROR_FACTOR * expected_s)
        self._fit.observe(shape, seconds)
        if self._num_observed <= _NUM_FIRST:
            self._fit.fit()
            self._fitted_at = self._num_observed

    def fit_if_due(self) -> None:
        """Update the fit if enough steps were measured since the last one."""
        if self._num_observed - self._fitted_at >= (_PER_FIT_IF_FAR_OFF if self._is_far_off else _PER_FIT):
            self._fit.fit()
            self._fitted_at = self._num_observed

    @property
    def largest(self) -> int:
        """The largest measured size of a step; 0 if none was measured."""
        return self._fit.sizes[-1] if self._fit.sizes else 0

    def is_outdated(self, num_tokens: int) -> bool:
        """Whether steps of this many tokens were not measured for a while; False if nothing was measured."""
        return bool(self._fit.sizes) and self._num_observed - self._fit.latest_measurement(num_tokens) >= _HALF_LIFE

    def predict(self, shape: StepShape) -> float | None:
        """Return the expected seconds of a step; None if nothing was measured."""
        if not self._fit.sizes:
            return None
        if size_of(shape.num_tokens) < self._fit.sizes[0]:
            # A step that is smaller than all measured ones is predicted to take as long as the smallest of them.
            shape = shape._replace(num_tokens=self._fit.sizes[0])
        return self._fit.sum_s(shape) * self._fit.ratio(shape.num_tokens) * self._pace

    def padded(self, shape: StepShape, span: int, *, is_urgent: bool = False, target_s: float = math.inf) -> StepShape:
        """Return the shape in which to compute a step: its own shape, or that of a step padded to a whole tile.

        `span`: how many cells the step's sequences have, all together. A tile computes attention for each of its tokens
        with each of these cells.

        Flash attention on a CPU computes a tile of 64 tokens in the time of 10 to 30 single ones. At a depth of
        2,000 tokens, attention is most of a step. But the padding tokens are multiplied with the weights too. The
        slower of both shapes is returned at times, so that its time is measured again, but not if the step `is_urgent`.
        It is returned a tenth as often if it takes twice as long and breaks the streams' `target_s`: such a step took
        0.9 s beside 16 streams. Call this once for each step.
        """
        if not 1 < shape.num_tokens < self._tile <= self.largest:
            return shape
        # If no step of at least this size (and smaller than a tile) was measured, the expected time is a guess. Then a
        # small step is computed as it is.
        at = bisect.bisect_left(self._fit.sizes, size_of(shape.num_tokens))
        if shape.num_tokens <= self._tile // _SMALL and self._fit.sizes[at] >= self._tile:
            return shape
        tiled = StepShape(self._tile, shape.num_cells, float(self._tile * span))
        seconds, tiled_s = self.predict(shape), self.predict(tiled)
        if seconds is None or tiled_s is None:
            return shape
        is_padded = tiled_s <= (1 - _PADDING_GAIN) * seconds
        better_s, slower_s = sorted((seconds, tiled_s))
        price = _LATE_PRICE if slower_s > max(target_s, _MUCH_SLOWER * better_s) else 1.0
        if not is_urgent and self._padding_retrials.is_due(price * (slower_s - better_s)):
            self._padding_retrials.reset()
            is_padded = not is_padded
        else:
            self._padding_retrials.record(better_s)
        return tiled if is_padded else shape

    def prefill_s(self, num_tokens: int, depth: int) -> float | None:
        """Return the expected seconds of computing `num_tokens` prompt tokens alone, after `depth` earlier tokens.

        None if nothing was measured.
        """
        per_step = max(1, min(num_tokens, self._max_batch))
        step_s = self.predict(StepShape.alone(per_step, depth + (num_tokens - per_step) // 2))
        return None if step_s is None else step_s * num_tokens / per_step

    def idle_cells_s(self, num_tokens: int, num_idle: int) -> float:
        """Return the expected seconds that `num_idle` cells of idle sequences add to a step of `num_tokens`."""
        return self._fit.cells_s(num_tokens, num_idle) * self._pace

    def predict_if_reliable(self, shape: StepShape) -> float | None:
        """Return the expected seconds of a step, like `predict`, but None if that would be a guess.

        A prediction needs a measured step of at least the same size, but at most 8 times as large.
        """
        place = bisect.bisect_left(self._fit.sizes, size_of(shape.num_tokens))
        if place == len(self._fit.sizes) or self._fit.sizes[place] > _SIMILAR * shape.num_tokens:
            return None
        return self.predict(shape)

    def predict_added(self, shape: StepShape, counts: Items[int], depth: float) -> list[float] | None:
        """For each count n in `counts`, return the expected seconds of a step of `shape` with n more tokens.

        `counts` must ascend. `depth`: to how many earlier tokens each added token attends. Return None if nothing was
        measured.

        The results never decrease. If a smaller step was measured slower than a larger one, the newer of the two
        measurements counts. Otherwise a step that was slow once would be avoided, and never measured again.
        """
        if not self._fit.sizes:
            return None
        shapes = [shape.plus(count, depth) for count in counts]
        fitted = [self._fit.sum_s(each) * self._pace for each in shapes]
        ratios = self._monotonic_ratios(shape, shapes[-1].num_tokens, depth)
        found: list[float] = []
        for each, fitted_s in zip(shapes, fitted, strict=True):
            found.append(max(fitted_s * interpolated(ratios, each.num_tokens), found[-1] if found else 0.0))
        if shape.num_tokens == 1 and 1 < self._tile <= self.largest:
            # One sequence: with drafts, its batch may be padded.
            tiled = StepShape(self._tile, shape.num_cells, self._tile * depth)
            tiled_s = self.predict(tiled) or math.inf
            limits = [tiled_s if 1 < each.num_tokens < self._tile else math.inf for each in shapes]
            found = [max(found[0], min(pair)) for pair in zip(found, limits, strict=True)]
        return found

    def _monotonic_ratios(self, shape: StepShape, most: int, depth: float) -> list[tuple[int, float]]:
        """Return (size, ratio) for each measured size below `most` tokens, and for the next larger one.

        The ratios are adjusted so that no step costs less than a smaller one. Later measurements are changed least.
        """
        sizes = self._fit.sizes[: bisect.bisect_left(self._fit.sizes, most) + 1]
        fitted = [self._fit.sum_s(shape.plus(size - shape.num_tokens, depth)) for size in sizes]
        costs = _renewed(
            [
                (size, max(0.0, each) * self._fit.ratio(size), self._fit.latest_measurement(size))
                for size, each in zip(sizes, fitted, strict=True)
            ]
        )
        expected: dict[int, float] = {}  # by place
        for place in sorted(range(len(sizes)), key=lambda place: -self._fit.latest_measurement(sizes[place])):
            floor = max((seconds for other, seconds in expected.items() if other < place), default=0.0)
            ceiling = min((seconds for other, seconds in expected.items() if other > place), default=math.inf)
            expected[place] = min(max(costs[place], floor), ceiling)
        return [
            (size, expected[place] / each if each > 0 else 1.0)
            for place, (size, each) in enumerate(zip(sizes, fitted, strict=True))
        ]

    def max_tokens_within(
        self,
        seconds: float,
        shape: StepShape,
        depth: int,
        floor: int,
        *,
        most: int | None = None,
        at_first: float | None = None,
        max_growth: int = 2,
    ) -> int:
        """Return how many tokens to add to a step. The step is then expected to take at most `seconds`.

        - The tokens belong to a sequence with `depth` earlier tokens.
        - At least `floor` tokens are added, if they fit into a batch. If every number of tokens takes too long, return
          the fastest one. If nothing was measured, return `floor`.
        - The result is never more than `most`, or than fits into a batch, but at least 1.
        - A large step gets whole tiles of tokens.
        - A step larger than all measured ones may take `at_first` seconds (`seconds` if None). It has at most
          `max_growth` times as many tokens as the largest measured size.
        - An old measurement may be outdated. If a later measurement of fewer tokens suggests a shorter time, in
          proportion to the tokens, that time is used.
        """
        room = max(1, self._max_batch - shape.num_tokens)
        if most is not None:
            room = max(1, min(room, most))
        if not self._fit.sizes:
            return min(floor, room)
        largest = max(floor, min(room, max_growth * self._fit.sizes[-1] - shape.num_tokens))
        best, quickest, quickest_s = 0, floor, math.inf
        counts = self._chunks(floor, largest, shape.num_tokens)
        shapes = [shape.plus(count, depth) for count in counts]
        times = [
            (each.num_tokens, self.predict(each) or 0.0, self._fit.latest_measurement(each.num_tokens))
            for each in shapes
        ]
        for count, expected_s in zip(counts, _renewed(times), strict=True):
            is_new = shape.num_tokens + count > self._fit.sizes[-1]
            if expected_s <= (at_first if is_new and at_first is not None else seconds):
                best = count
            if expected_s <= quickest_s:
                quickest, quickest_s = count, expected_s
        best = best or quickest
        return min(best, room)

    def _chunks(self, floor: int, most: int, num_tokens: int) -> list[int]:
        """Return the numbers of additional tokens to try, ascending from `floor` to `most`.

        Small numbers double up to half a tile. Larger ones fill whole tiles together with the `num_tokens` of the step.
        `most` itself is always tried, and so is what makes the step one token smaller than those with attention in
        tiles.
        """
        chunks = [floor]
        while chunks[-1] < TILE // 2 and 2 * chunks[-1] <= most:
            chunks.append(2 * chunks[-1])
        first = TILE - num_tokens % TILE
        larger = {*range(first, most + 1, TILE), most}
        if self._tile:
            larger.add(min(most, FLASH_TILE - 1 - num_tokens))
        return chunks + sorted(count for count in larger if count > chunks[-1])


def _renewed(times: Items[tuple[int, float, int]]) -> list[float]:
    """Return the expected seconds of steps, of which old ones may be outdated.

    `times`: for each step, in ascending order, its tokens, its seconds as measured, and the number of the latest
    measurement. A step that was measured long before a smaller one takes at most the time of the smaller one, in
    proportion to the tokens. Otherwise a step that was slow once would be avoided, and never measured again.
    """
    found = []
    later_tokens, later_s, later_number = 1, math.inf, 0
    for num_tokens, seconds, number in times:
        if later_number - number >= _OLD:
            seconds = min(seconds, later_s * num_tokens / later_tokens)
        elif number >= later_number:
            later_tokens, later_s, later_number = num_tokens, seconds, number
        found.append(seconds)
    return found


def _clipped(ratio: float, most: float) -> float:
    return min(max(ratio, 1 / most), most)
