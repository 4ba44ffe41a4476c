"""Percentiles and ratios, checked against hand-made numbers, numpy's quantiles and mathematical properties."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeagent.bench.stats import (
    Change,
    Ratio,
    paired_change,
    quantile,
    ratio,
    summarize,
    unpaired_change,
    verdict,
)

finite = st.floats(min_value=1e-3, max_value=1e6)


@pytest.mark.parametrize(
    ("samples", "q", "expected"),
    [([5.0], 0.99, 5.0), ([1.0, 3.0], 0.5, 2.0), ([4.0, 1.0, 3.0, 2.0], 0.25, 1.75), ([1.0, 2.0, 9.0], 1.0, 9.0)],
)
def test_quantiles_by_hand(samples: list[float], q: float, expected: float) -> None:
    assert quantile(samples, q) == expected


@given(st.lists(finite, min_size=1, max_size=40), st.floats(min_value=0, max_value=1))
def test_quantiles_are_those_of_numpy(samples: list[float], q: float) -> None:
    assert quantile(samples, q) == pytest.approx(float(np.quantile(samples, q)))


def test_percentiles_are_promises() -> None:
    """The p95 of a time is what 95 % do not exceed; that of a rate is what 95 % reach."""
    samples = [float(value) for value in range(1, 102)]
    slow, fast = summarize(samples, "lower"), summarize(samples, "higher")
    assert slow is not None and fast is not None
    assert (slow.p50, slow.p95, slow.p99) == (51, 96, 100)
    assert (fast.p50, fast.p95, fast.p99) == pytest.approx((51, 6, 2))
    assert (fast.num_samples, fast.lowest, fast.highest) == (101, 1, 101)


def test_no_samples_no_summary() -> None:
    assert summarize([], "lower") is None


def test_a_ratio_is_taken_pair_by_pair() -> None:
    """On a machine that slows down tenfold meanwhile, each pair still gives 2; a ratio of medians might not."""
    theirs = [[1.0, 1.0], [10.0], [100.0, 100.0, 100.0]]
    ours = [[2.0], [20.0, 20.0], [200.0]]
    assert ratio(ours, theirs) == Ratio(3, 2.0, 2.0, 2.0)


def test_the_spread_of_a_ratio() -> None:
    compared = ratio([[1.0], [2.0], [3.0], [4.0], [5.0]], [[1.0]] * 5)
    assert compared == Ratio(5, 3.0, 2.0, 4.0)


def test_within_a_round_its_median_counts() -> None:
    compared = ratio([[1.0, 2.0, 900.0]], [[4.0]])
    assert compared is not None
    assert compared.median == 0.5


def test_a_round_that_only_one_side_has_makes_no_pair() -> None:
    """A round is missing on one side after Ctrl-C between the two servers, or if an answer has no rate."""
    compared = ratio([[1.0], [], [6.0], [9.0]], [[2.0], [5.0], []])
    assert compared == Ratio(1, 0.5, 0.5, 0.5)
    assert ratio([[1.0]], []) is None
    assert ratio([[]], [[1.0]]) is None


@given(st.lists(st.tuples(finite, finite), min_size=1, max_size=20))
def test_turned_round_a_ratio_is_its_reciprocal(pairs: list[tuple[float, float]]) -> None:
    ours, theirs = [[mine] for mine, _ in pairs], [[other] for _, other in pairs]
    there, back = ratio(ours, theirs), ratio(theirs, ours)
    assert there is not None and back is not None
    assert there.first_quartile <= there.median <= there.third_quartile
    if len(pairs) % 2:  # between two middle values, the mean of the reciprocals differs from the reciprocal of the mean
        assert there.median == pytest.approx(1 / back.median)


def test_a_quantile_does_not_disturb_its_samples() -> None:
    samples = [3.0, 1.0, 2.0]
    assert quantile(samples, 0.5) == 2.0
    assert samples == [3.0, 1.0, 2.0]


def test_an_interval_holds_the_truth_95_times_in_100() -> None:
    draws = random.Random(1)
    num_hits = {"paired": 0, "unpaired": 0}
    for _ in range(2000):
        noise = [draws.gauss(0, 0.5) for _ in range(5)]  # disturbs both values of a pair
        first = [math.exp(each + draws.gauss(0, 0.05)) for each in noise]
        second = [1.2 * math.exp(each + draws.gauss(0, 0.05)) for each in noise]
        changes = {
            "paired": paired_change(list(zip(first, second, strict=True))),
            "unpaired": unpaired_change(first, second),
        }
        for name, change in changes.items():
            assert change is not None
            num_hits[name] += change.low <= 1.2 <= change.high
    assert num_hits["paired"] / 2000 == pytest.approx(0.95, abs=0.015)
    assert num_hits["unpaired"] / 2000 >= 0.935, "Welch's degrees of freedom are rounded down"


def test_pairs_show_a_change_that_a_drift_would_hide() -> None:
    first = [1.0, 2.0, 4.0, 8.0]
    second = [1.09, 2.22, 4.38, 8.85]
    change = paired_change(list(zip(first, second, strict=True)))
    assert change is not None and change.is_shown
    assert (change.is_better("higher"), change.is_better("lower"), change.is_better("neither")) == (True, False, False)
    apart = unpaired_change(first, second)
    assert apart is not None and not apart.is_shown
    assert apart.ratio == pytest.approx(change.ratio)


def test_the_verdict_in_words() -> None:
    assert verdict(Change(0.9, 0.85, 0.95), "lower") == "-10.0 % (-15.0 to -5.0 %): better"
    assert verdict(Change(0.9, 0.85, 0.95), "higher") == "-10.0 % (-15.0 to -5.0 %): worse"
    assert verdict(Change(1.1, 0.9, 1.3), "higher") == "no difference shown (-10.0 to +30.0 %)"
    assert verdict(paired_change([(1.0, 2.0)]), "higher") == "too few rounds to tell"
    assert verdict(Change(1.1, 0.1, 300.0), "higher") == "too few rounds to tell"
    assert verdict(None, "neither") == ""
    assert unpaired_change([1.0], [2.0, 3.0]) is None
    assert paired_change([(1.0, 2.0)] * 3) == Change(2.0, 2.0, 2.0)
