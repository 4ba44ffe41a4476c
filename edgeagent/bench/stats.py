"""The statistics of samples: percentiles, and how two servers compare round by round."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Better = Literal["lower", "higher", "neither"]
"""Which values of a metric are better. With "neither", it only explains other metrics."""


@dataclass(frozen=True, slots=True)
class Summary:
    """Summary of samples. 95 % of the samples are as good as `p95` or better; likewise for `p50` and `p99`."""

    num_samples: int
    p50: float
    p95: float
    p99: float
    lowest: float
    highest: float


@dataclass(frozen=True, slots=True)
class Ratio:
    """How the first server compares with the second.

    Each round gives a ratio: the first server's value divided by the second's. `num_pairs` is the number of these
    ratios. The other fields are their median and their quartiles.
    """

    num_pairs: int
    median: float
    first_quartile: float
    third_quartile: float


def quantile(samples: Sequence[float], q: float) -> float:
    """Return the q-quantile (0 to 1) of at least one sample, interpolated linearly (Hyndman and Fan's type 7)."""
    ordered = sorted(samples)
    position = q * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def median(samples: Sequence[float]) -> float:
    """Return the median of at least one sample."""
    return quantile(samples, 0.5)


def summarize(samples: Sequence[float], better: Better) -> Summary | None:
    """Return the summary of samples; None if there are none.

    If higher values are better, 95 % of the samples are at least p95; otherwise 95 % are at most p95.
    """
    if not samples:
        return None
    p50, p95, p99 = (quantile(samples, 1 - q if better == "higher" else q) for q in (0.5, 0.95, 0.99))
    return Summary(len(samples), p50, p95, p99, min(samples), max(samples))


def ratio(ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]]) -> Ratio | None:
    """Return the median and the quartiles of the rounds' ratios; None if no round can be used.

    The ratio of a round is the median of our samples divided by the median of theirs. A machine's speed drifts, but
    neighbouring rounds drift alike, so their ratio is stable. A round is skipped if one side has no samples, or if
    the median of theirs is 0.
    """
    medians = [(median(mine), median(other)) for mine, other in zip(ours, theirs, strict=False) if mine and other]
    ratios = [mine / other for mine, other in medians if other > 0]
    if not ratios:
        return None
    return Ratio(len(ratios), median(ratios), quantile(ratios, 0.25), quantile(ratios, 0.75))
