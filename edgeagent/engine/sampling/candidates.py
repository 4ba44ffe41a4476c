"""The tokens that may be drawn in one step, and the functions that narrow the set. Nothing is drawn here."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgeagent.engine.sampling.truncation import Floats, Indices, largest, ranked
from edgeagent.errors import InternalError

# Up to this many of the likeliest tokens are sorted, so that a cut shortens the array.
MAX_RANKED = 256


@dataclass(frozen=True, slots=True)
class Candidates:
    """Tokens that may be drawn, and their logits (`values`). If `ids` is None: all tokens, in order.

    `peak` is the largest logit in the mask. Tokens outside the mask may not be drawn, nor may tokens with a logit below
    `lowest` (min-p). For top-p: `shifted` are the logits minus the peak, `weights` are the weights at temperature 1 (0
    outside the mask), and `target` is the sum that the nucleus must reach.
    """

    ids: Indices | None
    values: Floats
    peak: np.float32
    mask: NDArray[np.bool_] | None = None
    lowest: float = -math.inf
    shifted: Floats | None = None
    weights: Floats | None = None
    target: float = 0.0

    def taken(self, found: Indices) -> Candidates:
        """Return the tokens at the indices `found` that are in the mask."""
        if self.mask is not None:
            found = found.compress(self.mask.take(found))
        ids = found if self.ids is None else self.ids.take(found)
        weights = None if self.weights is None else self.weights.take(found)
        return Candidates(ids, self.values.take(found), self.peak, None, self.lowest, None, weights, self.target)

    @property
    def is_cut(self) -> bool:
        """Whether all cuts are made, so that each of the candidates may be drawn."""
        return self.mask is None and self.weights is None and self.lowest == -math.inf

    def first(self, length: int) -> Candidates:
        """Return the first `length` candidates, with no cuts left to make."""
        assert self.ids is not None and self.mask is None
        return Candidates(self.ids[:length], self.values[:length], self.peak)


def all_of(values: Floats, mask: NDArray[np.bool_] | None = None) -> Candidates:
    """Return all tokens as candidates; the likeliest must be in the mask."""
    return Candidates(None, values, peak_of(values), mask)


def likeliest(candidates: Candidates, k: int) -> Candidates:
    """Return the `k` likeliest tokens in the mask, or all if it has fewer. Up to MAX_RANKED, likeliest first."""
    values, mask = candidates.values, candidates.mask
    first = ranked if k <= MAX_RANKED else largest
    if mask is None:
        return candidates.taken(first(values, k))
    few = candidates.taken(first(values, 2 * k)) if 2 * k < len(values) else None
    if few is None or len(few.values) < k:
        few = candidates.taken(np.flatnonzero(mask))
        return few.taken(first(few.values, min(k, len(few.values))))
    return few if len(few.values) <= k else few.taken(first(few.values, k))


def peak_of(values: Floats) -> np.float32:
    """Return the largest logit; raise InternalError if it is not finite."""
    peak: np.float32 = values.max()
    if not math.isfinite(peak):
        raise InternalError(f"no token can be drawn: the largest logit is {peak}")
    return peak
