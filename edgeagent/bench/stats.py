"""The statistics of samples: percentiles, how two servers compare round by round, and whether a change is chance."""

from __future__ import annotations

import math
import statistics
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
    rounds = [(mine, other) for mine, other in zip(ours, theirs, strict=False) if mine and other]
    medians = [(statistics.median(mine), statistics.median(other)) for mine, other in rounds]
    ratios = [mine / other for mine, other in medians if other > 0]
    if not ratios:
        return None
    return Ratio(len(ratios), statistics.median(ratios), quantile(ratios, 0.25), quantile(ratios, 0.75))


# The two-sided 95 % quantiles of Student's t distribution for 1 to 30 degrees of freedom; more are treated as 30, which
# widens an interval by at most 4 %.
_T: tuple[float, ...] = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
_T += (2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086)
_T += (2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042)


@dataclass(frozen=True, slots=True)
class Change:
    """How many times larger the second of two values is than the first, with the 95 % interval of this ratio."""

    ratio: float
    low: float
    high: float

    @property
    def is_shown(self) -> bool:
        """Whether the interval leaves out 1, so that the two values differ by more than chance explains."""
        return not self.low <= 1 <= self.high

    def is_better(self, better: Better) -> bool:
        return self.is_shown and better != "neither" and (self.ratio > 1) == (better == "higher")


def paired_change(pairs: Sequence[tuple[float, float]]) -> Change | None:
    """Return the change from the first to the second values of pairs; None with fewer than two pairs above 0.

    The interval is that of Student's t for the mean of the logarithms of the ratios. What disturbs both values of a
    pair alike, such as a drifting clock of the processor, does not widen it.
    """
    logs = [math.log(second / first) for first, second in pairs if first > 0 and second > 0]
    if len(logs) < 2:
        return None
    return _change(statistics.fmean(logs), statistics.variance(logs) / len(logs), len(logs) - 1)


def unpaired_change(first: Sequence[float], second: Sequence[float]) -> Change | None:
    """Return the change from the mean of some values to that of others, measured at other times (Welch's t interval).

    Return None if one of them has fewer than two values above 0.
    """
    logs = [[math.log(value) for value in values if value > 0] for values in (first, second)]
    if min(map(len, logs)) < 2:
        return None
    shares = [statistics.variance(each) / len(each) for each in logs]
    weights = sum(share**2 / (len(each) - 1) for share, each in zip(shares, logs, strict=True))
    freedom = sum(shares) ** 2 / weights if weights else math.inf
    return _change(statistics.fmean(logs[1]) - statistics.fmean(logs[0]), sum(shares), freedom)


def _change(mean: float, variance: float, freedom: float) -> Change:
    half = _T[max(1, min(len(_T), int(min(freedom, len(_T))))) - 1] * math.sqrt(variance)
    return Change(math.exp(mean), math.exp(mean - half), math.exp(mean + half))


# An interval from a third to three times the value tells nothing: rounds of one version differ by less.
_TOO_WIDE = 10.0


def verdict(change: Change | None, better: Better) -> str:
    """Return in words what a change says, such as "-4.1 % (-6.2 to -2.0 %): better"."""
    if better == "neither" and (change is None or not change.is_shown):
        return ""
    if change is None or (not change.is_shown and change.high > _TOO_WIDE * change.low):
        return "too few rounds to tell"
    low, high = (100 * (value - 1) for value in (change.low, change.high))
    if not change.is_shown:
        return f"no difference shown ({low:+.1f} to {high:+.1f} %)"
    word = "" if better == "neither" else f": {'better' if change.is_better(better) else 'worse'}"
    return f"{100 * (change.ratio - 1):+.1f} % ({low:+.1f} to {high:+.1f} %){word}"
