"""The tokens that may still be drawn in one step, and how the sets are narrowed. Values only; nothing is drawn here."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgeagent.engine.truncation import Floats, Indices, largest
from edgeagent.errors import InternalError


@dataclass(frozen=True, slots=True)
class Candidates:
    """Tokens (None: all, in order) that may be drawn, and their logits; `peak` is the largest of those in the mask.

    With a mask: those outside it may not be drawn. With min-p: nor those whose logit is below `lowest`. With top-p:
    weights at temperature 1 (0 outside the mask), and the sum that its nucleus must reach.
    """

    ids: Indices | None
    values: Floats
    peak: np.float32
    mask: NDArray[np.bool_] | None = None
    lowest: float = -math.inf
    weights: Floats | None = None
    target: float = 0.0

    def taken(self, found: Indices) -> Candidates:
        """Return those found that are in the mask."""
        if self.mask is not None:
            found = found.compress(self.mask.take(found))
        ids = found if self.ids is None else self.ids.take(found)
        weights = None if self.weights is None else self.weights.take(found)
        return Candidates(ids, self.values.take(found), self.peak, None, self.lowest, weights, self.target)


def all_of(values: Floats, mask: NDArray[np.bool_] | None = None) -> Candidates:
    """Return all tokens as candidates; the likeliest must be in the mask."""
    return Candidates(None, values, peak_of(values), mask)


def likeliest(candidates: Candidates, k: int) -> Candidates:
    """Return the `k` likeliest in the mask, fewer if it does not hold so many."""
    values, mask = candidates.values, candidates.mask
    if mask is None:
        return candidates.taken(largest(values, k))
    few = candidates.taken(largest(values, 2 * k)) if 2 * k < len(values) else None
    if few is None or len(few.values) < k:
        few = candidates.taken(np.flatnonzero(mask))
    return few if len(few.values) <= k else few.taken(largest(few.values, k))


def peak_of(values: Floats) -> np.float32:
    """Return the largest logit; raise InternalError where it is no finite number."""
    peak: np.float32 = values.max()
    if not math.isfinite(peak):
        raise InternalError(f"no token can be drawn: the largest logit is {peak}")
    return peak
