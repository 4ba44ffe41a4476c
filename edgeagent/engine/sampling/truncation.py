"""Finds the largest values or the nucleus of an array, and draws an index by weight, without sorting a vocabulary.

These are pure functions. Returned indices are ascending if not stated otherwise. The functions guess a floor from every
64th value, check the guess, and look only at the values above it. A wrong guess costs time but does not change the
result. The code calls methods of arrays instead of numpy's functions of the same names. Numpy's functions add several
frames of Python, which are slow because the processor's caches are cold after a step.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Indices = NDArray[np.intp]

_STRIDE = 64
# Up to this many values are sorted or summed without taking samples.
_MAX_WHOLE = 4096
_BLOCK = 512
_FOLD = 16
# Picking more than this share of an array's elements costs more than using all of them.
_MAX_DENSITY = 0.05


def largest(values: Floats, k: int) -> Indices:
    """Return the indices of the `k` largest values. Of equal values, those with lower indices are chosen.

    `k` must be from 1 to len(values).
    """
    if k == len(values):
        return np.arange(k)
    found = _at_least(values, _guess_floor(values, k))
    if len(found) < k:
        found = _at_least(values, _kth_largest(values, k))
    if len(found) == k:
        return found
    kept = values.take(found)
    floor = _kth_largest(kept, k)
    return found.take(_with_ties(kept, floor, k - int(np.count_nonzero(kept > floor))))


def ranked(values: Floats, k: int) -> Indices:
    """Return the same indices as `largest`, but sorted by value, the largest first. Use this only for a small `k`.

    Return no index if the largest value is not finite.
    """
    rows = values[np.newaxis]
    floors = _floors(_folded(rows) if k <= len(values) // _FOLD else rows, k)
    if floors is None:
        return np.empty(0, np.intp)
    # To look at columns only, as `ranked_rows` does, takes more calls of numpy: a tenth more time just after a step.
    found = _at_least(values, floors[0, 0])
    return found.take((-values.take(found)).argsort(kind="stable")[:k])


def ranked_rows(rows: Floats, k: int) -> tuple[Indices, Floats] | None:
    """Return `ranked` of each row, and the values at these indices, both of shape (num_rows, k).

    Return None if the largest value of a row is not finite.
    """
    num_rows, num_values = rows.shape
    length = num_values // _FOLD
    maxima = _folded(rows) if k <= length else rows
    floors = _floors(maxima, k)
    if floors is None:
        return None
    if maxima is rows:
        found = _at_least(rows.ravel(), floors.repeat(num_values))
    else:  # look only at columns whose maximum reaches the floor, and at the values behind the last whole line
        row, column = np.divmod((maxima[:, :length] >= floors).ravel().nonzero()[0], length)
        places = (row * num_values + column)[:, np.newaxis] + np.arange(0, _FOLD * length, length)
        found = places[rows.ravel().take(places) >= floors.take(row)[:, np.newaxis]]
        row, column = (maxima[:, length:] >= floors).nonzero()
        found = np.concatenate((found, row * num_values + column + _FOLD * length))
        found.sort()
    row, values = found // num_values, rows.ravel().take(found)
    order = np.lexsort((-values, row))  # stable
    order = order.take(row.searchsorted(np.arange(num_rows))[:, np.newaxis] + np.arange(k))
    return found.take(order) % num_values, values.take(order)


def _floors(maxima: Floats, k: int) -> Floats | None:
    """Return for each row a number that at least `k` of its values reach, shape (num_rows, 1).

    `maxima`: the rows, or what `_folded` returned for them. Each maximum is another value of the row, so `k` values of
    the row reach the k-th largest maximum. Numpy finds maxima of columns with SIMD instructions. Return None if the
    largest value of a row is not finite.
    """
    few = _folded(maxima) if 2 * k <= maxima.shape[1] // _FOLD else maxima.copy()
    if not np.isfinite(few.max(axis=1)).all():
        return None
    place = few.shape[1] - k
    few.partition(place, axis=1)
    return few[:, place, np.newaxis]


def _folded(rows: Floats) -> Floats:
    """Return the maxima of each row's columns, if it is folded into _FOLD lines, and then the values that are left."""
    num_rows, num_values = rows.shape
    length = num_values // _FOLD
    maxima = np.empty((num_rows, length + num_values % _FOLD), np.float32)
    lines = rows[:, : _FOLD * length].reshape(num_rows, _FOLD, length)
    np.maximum.reduce(lines, axis=1, out=maxima[:, :length])
    maxima[:, length:] = rows[:, _FOLD * length :]
    return maxima


def _guess_floor(values: Floats, k: int) -> float:
    """Guess a floor that at least `k` values reach, but few more. The guess may be wrong."""
    if len(values) <= _MAX_WHOLE:
        return _kth_largest(values, k)
    sample = values[::_STRIDE]
    expected = k / _STRIDE
    # How many of the k largest values are in the sample is Poisson distributed. Four deviations make a retry rare.
    return _kth_largest(sample, min(int(expected + 4 * expected**0.5 + 4), len(sample)))


def _kth_largest(values: Floats, k: int) -> float:
    place, copy = len(values) - k, values.copy()
    copy.partition(place)
    return float(copy[place])


def nucleus(weights: Floats, target: float) -> Indices:
    """Return the indices of the largest weights whose sum reaches `target`: as few as possible, but at least one.

    The largest weight comes first. Of equal weights, the one with the lower index comes first. If the sum of all
    weights is below `target`, return all.
    """
    order = (-weights).argsort(kind="stable")
    running = weights.take(order).cumsum(dtype=np.float64)
    return order[: int(running.searchsorted(target)) + 1]


def is_sparse(mask: NDArray[np.bool_]) -> bool:
    """Whether it is faster to pick out the elements that are set in `mask` than to compute with all elements."""
    return len(mask) <= _MAX_WHOLE or int(np.count_nonzero(mask)) <= _MAX_DENSITY * len(mask)


def few_at_least(values: Floats, floor: float) -> Indices | None:
    """Return the indices of the values that are at least `floor`; None if they are too many to pick out quickly."""
    reach = values >= floor
    return reach.nonzero()[0] if is_sparse(reach) else None


def total_of(weights: Floats) -> float:
    """Return the sum of the weights. Blocks are summed first, which takes a quarter of the time of numpy's sum."""
    if len(weights) <= _BLOCK:
        return float(weights.sum())
    return float(block_sums(weights).sum())


def total_within(weights: Floats, mask: NDArray[np.bool_]) -> float:
    return total_of(weights.take(mask.nonzero()[0]) if is_sparse(mask) else np.multiply(weights, mask))


def ahead_of(weights: Floats, index: int) -> NDArray[np.bool_]:
    """Return a mask of the weights that rank before the one at `index`: larger ones, and equal ones with a lower index.

    The weight at `index` belongs to the nucleus if these weights sum to less than the target.
    """
    weight = weights[index]
    ahead: NDArray[np.bool_] = weights > weight
    ahead[:index] |= weights[:index] == weight
    return ahead


def around_nucleus(weights: Floats, total: float, share: float) -> Indices | None:
    """Return the indices of a few large weights that include the whole nucleus; None if they are not found quickly.

    The nucleus is the largest weights that sum to at least `share` of `total`, the sum of all weights. The sum of the
    small weights is estimated from a sample. There are many of them, so the estimate is good.
    """
    if len(weights) <= _MAX_WHOLE:
        return None
    sample = np.sort(weights[::_STRIDE])
    tail = sample.cumsum(dtype=np.float64) * _STRIDE
    num_left_out = int(tail.searchsorted(0.8 * (1.0 - share) * total))
    if num_left_out < (1.0 - _MAX_DENSITY) * len(sample):
        return None
    found = _at_least(weights, float(sample[num_left_out - 1]))
    return found if total_of(weights.take(found)) >= share * total else None


def _with_ties(values: Floats, floor: float, num_ties: int) -> Indices:
    """Return the indices of the values above `floor` and of the first `num_ties` that equal it."""
    mask = values >= floor
    ties = (values == floor).nonzero()[0]
    mask[ties[num_ties:]] = False
    return mask.nonzero()[0]


def _at_least(values: Floats, floor: float | Floats) -> Indices:
    return (values >= floor).nonzero()[0]


def index_at(weights: Floats, fraction: float, sums: NDArray[np.float64] | None = None) -> int:
    """Return the first index at which the running sum of the weights exceeds `fraction` of their total.

    `fraction` is in [0, 1). The weight at the returned index is never zero. Blocks are summed first, so that only one
    block must be searched. `sums`: the `block_sums` of the weights, if they are known.
    """
    if len(weights) <= 2 * _BLOCK:
        running = weights.cumsum(dtype=np.float64)
        return _first_above(running, fraction * running[-1], weights)
    if sums is None:
        sums = block_sums(weights)
    running = sums.cumsum()
    target = fraction * running[-1]
    chosen = _first_above(running, target, sums)
    before = running[chosen - 1] if chosen else 0.0
    start = chosen * _BLOCK
    block = weights[start : start + _BLOCK]
    return start + _first_above(block.cumsum(dtype=np.float64), target - before, block)


def block_sums(weights: Floats) -> NDArray[np.float64]:
    """Return the sum of each block's weights. The last block may be shorter."""
    num_whole = len(weights) // _BLOCK
    sums = np.empty(num_whole + 1)
    whole = weights[: num_whole * _BLOCK].reshape(num_whole, _BLOCK)
    sums[:num_whole] = np.einsum("ij->i", whole)  # uses SIMD instructions; `sum` over rows does not
    sums[num_whole] = weights[num_whole * _BLOCK :].sum()
    return sums


def _first_above(running: NDArray[np.float64], target: float, weights: NDArray[Any]) -> int:
    index = int(running.searchsorted(target, side="right"))
    # Because of rounding, the sum may be slightly below the target.
    return index if index < len(running) else int(np.flatnonzero(weights)[-1])
