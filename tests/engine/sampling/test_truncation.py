"""The cuts are exact at any size, with ties, and for any guess; draws agree with the tables."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from edgeagent.engine.sampling.params import ResolvedSampling
from edgeagent.engine.sampling.sampler import Sampler
from edgeagent.engine.sampling.truncation import ahead_of, around_nucleus, index_at, largest, nucleus
from tests.examples import examples

Floats = NDArray[np.float32]


@st.composite
def arrays(draw: st.DrawFn) -> Floats:
    """Return values of several sizes and shapes; coarse ones have many ties."""
    size = draw(st.sampled_from([2, 50, 4096, 4097, 20_000]))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    values = random.normal(0, draw(st.sampled_from([0.3, 3.0])), size)
    match draw(st.sampled_from(["fine", "coarse", "equal", "holes", "ordered"])):
        case "coarse":
            values = values.round()
        case "equal":
            values[:] = 1.0
        case "holes":
            values[1:][random.random(size - 1) < 0.5] = -np.inf
        case "ordered":
            values = np.sort(values)
    return values.astype(np.float32)


def by_rank(values: Floats) -> NDArray[np.intp]:
    return np.argsort(-values, kind="stable")


@settings(max_examples=examples(80))
@given(arrays(), st.floats(0, 1))
def test_largest_are_the_first_by_rank(values: Floats, share: float) -> None:
    k = max(1, min(len(values) - 1, int(share * len(values))))
    assert sorted(largest(values, k).tolist()) == sorted(by_rank(values)[:k].tolist())


@settings(max_examples=examples(80))
@given(arrays(), st.sampled_from([1e-6, 0.3, 0.9, 0.99, 0.9999]))
def test_few_weights_are_found_to_hold_the_nucleus(values: Floats, share: float) -> None:
    weights = np.exp(values - values.max())
    total = float(weights.sum())
    inside = nucleus(weights, share * total)
    found = around_nucleus(weights, total, share)
    assert found is None or set(found.tolist()) >= set(inside.tolist())


def test_a_peaked_distribution_is_narrowed_down() -> None:
    values = np.random.default_rng(0).normal(0, 2, 100_000).astype(np.float32)
    values[::10_000] += 20
    weights = np.exp(values - values.max())
    found = around_nucleus(weights, float(weights.sum()), 0.95)
    assert found is not None
    assert len(found) < 5_000


def test_a_sample_that_misleads_is_noticed() -> None:
    weights = np.full(64 * 200, 0.5, np.float32)
    weights[::64] = 0.0
    weights[:128:64] = 1.0
    assert around_nucleus(weights, float(weights.sum()), 0.9) is None


@settings(max_examples=examples(60))
@given(arrays(), st.sampled_from([1e-6, 0.3, 0.9, 0.99]), st.integers(0, 2**32))
def test_a_weight_is_in_the_nucleus_if_those_ahead_miss_the_target(values: Floats, share: float, seed: int) -> None:
    weights = np.exp(values - values.max())
    target = share * float(weights.sum(dtype=np.float64))
    inside = set(nucleus(weights, target).tolist())
    for index in np.random.default_rng(seed).integers(0, len(weights), 20).tolist():
        mass = float(weights[ahead_of(weights, index)].sum(dtype=np.float64))
        if mass != pytest.approx(target, rel=1e-5):
            assert (index in inside) == (mass < target)


@settings(max_examples=examples(60))
@given(arrays(), st.floats(0, 1, exclude_max=True))
def test_index_at_is_where_the_running_sum_exceeds(values: Floats, fraction: float) -> None:
    weights = np.exp(values - values.max())
    running = np.cumsum(weights, dtype=np.float64)
    target = fraction * running[-1]
    index = index_at(weights, fraction)
    assert weights[index] > 0
    slack = 1e-6 * running[-1]
    assert running[index] > target - slack
    assert index == 0 or running[index - 1] <= target + slack


def test_index_at_never_names_a_weight_of_zero() -> None:
    weights = np.zeros(5000, np.float32)
    weights[[700, 3000]] = 1.0
    assert [index_at(weights, fraction) for fraction in (0.0, 0.49, 0.5, 1 - 2**-53)] == [700, 700, 3000, 3000]


CUTS = (
    ResolvedSampling(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=1),
    ResolvedSampling(temperature=1.5, top_k=0, top_p=0.5, min_p=0.0, seed=2),
    ResolvedSampling(temperature=0.7, top_k=0, top_p=0.97, min_p=0.0, seed=3),
    ResolvedSampling(temperature=1.5, top_k=0, top_p=0.99, min_p=0.0001, seed=5),
    ResolvedSampling(temperature=1.5, top_k=0, top_p=1.0, min_p=0.001, seed=6),
    ResolvedSampling(temperature=2.0, top_k=5000, top_p=0.8, min_p=0.001, seed=4),
)


@pytest.mark.daily(2, seconds=0.6)
@pytest.mark.parametrize(
    ("params", "deviation"),
    [
        pytest.param(params, deviation, marks=[] if (x + y) % 2 == 0 else pytest.mark.slow(seconds=1))
        for x, params in enumerate(CUTS)
        for y, deviation in enumerate((0.2, 3.0))
    ],
)
def test_draws_from_a_large_vocabulary_follow_the_distribution(params: ResolvedSampling, deviation: float) -> None:
    num_vocab, num_draws, num_bins = 20_000, 4_000, 20
    logits = np.random.default_rng(5).normal(0, deviation, num_vocab).astype(np.float32)
    sampler = Sampler(params, num_vocab)
    ids, probs = sampler.distribution(logits)
    # bins of about equal probability, so that the count of each is meaningful
    bins = np.minimum((np.cumsum(probs) * num_bins).astype(int), num_bins - 1)
    bin_of = dict(zip(ids.tolist(), bins.tolist(), strict=True))
    expected = np.bincount(bins, weights=probs, minlength=num_bins) * num_draws
    drawn = Counter(bin_of[sampler.sample(logits).token] for _ in range(num_draws))
    counts = np.array([drawn[index] for index in range(num_bins)])
    filled = expected > 5
    statistic = float(((counts - expected)[filled] ** 2 / expected[filled]).sum())
    assert statistic < 43.8  # p = 0.001 at 19 degrees of freedom
