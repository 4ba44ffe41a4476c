"""Predicts how long a step takes, from measured steps.

The time that `cost_fit` predicts is multiplied by the pace. The pace is one factor for steps of all sizes: it rises
while the machine is slower than usual.
"""

from __future__ import annotations

import bisect
import math
import statistics
from collections import deque
from collections.abc import Sequence as Items
from dataclasses import dataclass

from edgeagent.engine.costs.cost_fit import CostFit, interpolated, size_of
from edgeagent.engine.costs.retrials import Retrials
from edgeagent.engine.costs.step_shape import StepShape

_PACE_WEIGHT = 0.3
MAX_ERROR_FACTOR = 2.0
"""A measured time counts as longer or shorter than predicted by this factor at most: the machine may have slept."""
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
# Steps of up to 1 / _SMALL of a tile take about as long as a padded one, or less.
_SMALL = 4
_USUAL_DOUBLING_DEPTH = 4096.0  # as long as none was measured
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
        self._fit = CostFit()
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
                off = _clipped(seconds / max(expected_s, 1e-9), MAX_ERROR_FACTOR)
                self._pace *= off**_PACE_WEIGHT
                seconds = off * expected_s
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

    def predict(self, shape: StepShape) -> float | None:
        """Return the expected seconds of a step; None if nothing was measured."""
        if not self._fit.sizes:
            return None
        if size_of(shape.num_tokens) < self._fit.sizes[0]:
            # A step that is smaller than all measured ones is predicted to take as long as the smallest of them.
            shape = shape._replace(num_tokens=self._fit.sizes[0])
        return self._fit.sum_s(shape) * self._fit.ratio(shape.num_tokens) * self._pace

    def padded(self, shape: StepShape, span: int) -> StepShape:
        """Return the shape in which to compute a step: its own shape, or that of a step padded to a whole tile.

        `span`: how many cells the step's sequences have, all together. A tile computes attention for each of its tokens
        with each of these cells.

        Flash attention on a CPU computes a tile of 64 tokens in the time of 10 to 30 single ones. At a depth of
        2,000 tokens, attention is most of a step. But the padding tokens are multiplied with the weights too. The
        slower of both shapes is returned at times, so that its time is measured again. So call this once for each step.
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
        if self._padding_retrials.is_due(abs(tiled_s - seconds)):
            self._padding_retrials.reset()
            is_padded = not is_padded
        else:
            self._padding_retrials.record(min(tiled_s, seconds))
        return tiled if is_padded else shape

    def prefill_s(self, num_tokens: int, depth: int) -> float | None:
        """Return the expected seconds of computing `num_tokens` prompt tokens alone, after `depth` earlier tokens.

        None if nothing was measured.
        """
        per_step = max(1, min(num_tokens, self._max_batch))
        step_s = self.predict(StepShape.alone(per_step, depth + (num_tokens - per_step) // 2))
        return None if step_s is None else step_s * num_tokens / per_step

    @property
    def doubling_depth(self) -> float:
        """The number of earlier tokens at which attention to them takes as much time as a token's other work.

        While this is unknown, it is 4096.
        """
        return self._fit.doubling_depth or _USUAL_DOUBLING_DEPTH

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
        costs = [max(0.0, each) * self._fit.ratio(size) for size, each in zip(sizes, fitted, strict=True)]
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
        at_first: float | None = None,
        max_growth: int = 2,
    ) -> int:
        """Return how many tokens to add to a step. The step is then expected to take at most `seconds`.

        - The tokens belong to a sequence with `depth` earlier tokens.
        - At least `floor` tokens are added, if they fit into a batch. If every number of tokens takes too long, return
          the fastest one. If nothing was measured, return `floor`.
        - The result is never more than fits into a batch, but at least 1.
        - A large step gets whole tiles of tokens.
        - A step larger than all measured ones may take `at_first` seconds (`seconds` if None). It has at most
          `max_growth` times as many tokens as the largest measured size.
        - An old measurement may be outdated. If a later measurement of fewer tokens suggests a shorter time, in
          proportion to the tokens, that time is used.
        """
        room = max(1, self._max_batch - shape.num_tokens)
        if not self._fit.sizes:
            return min(floor, room)
        largest = max(floor, min(room, max_growth * self._fit.sizes[-1] - shape.num_tokens))
        best, quickest, quickest_s = 0, floor, math.inf
        later_tokens, later_s, later_number = 1, math.inf, 0
        for count in _chunks(floor, largest, shape.num_tokens):
            larger = shape.plus(count, depth)
            expected_s = self.predict(larger) or 0.0
            number = self._fit.latest_measurement(larger.num_tokens)
            if later_number - number >= _OLD:
                expected_s = min(expected_s, later_s * larger.num_tokens / later_tokens)
            elif number >= later_number:
                later_tokens, later_s, later_number = larger.num_tokens, expected_s, number
            is_new = larger.num_tokens > self._fit.sizes[-1]
            if expected_s <= (at_first if is_new and at_first is not None else seconds):
                best = count
            if expected_s <= quickest_s:
                quickest, quickest_s = count, expected_s
        best = best or quickest
        return min(best, room)


def _chunks(floor: int, most: int, num_tokens: int) -> list[int]:
    """Return the numbers of additional tokens to try, ascending from `floor` to `most`.

    Small numbers double up to half a tile. Larger ones fill whole tiles together with the `num_tokens` of the step.
    `most` itself is always tried.
    """
    chunks = [floor]
    while chunks[-1] < TILE // 2 and 2 * chunks[-1] <= most:
        chunks.append(2 * chunks[-1])
    first = TILE - num_tokens % TILE
    chunks += [count for count in range(first, most + 1, TILE) if count > chunks[-1]]
    if most > chunks[-1]:
        chunks.append(most)
    return chunks


def _clipped(ratio: float, most: float) -> float:
    return min(max(ratio, 1 / most), most)
