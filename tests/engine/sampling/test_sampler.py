"""The sampler draws from the same distribution as llama.cpp's own sampler chain."""

from __future__ import annotations

import ctypes
import dataclasses
import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from llama_cpp import llama_cpp as llama
from numpy.typing import NDArray

from edgeagent.engine.sampling.params import ResolvedSampling, resolve
from edgeagent.engine.sampling.sampler import Sampler, draw_rows, score
from edgeagent.errors import InternalError, InvalidRequest
from edgeagent.types import SamplingParams
from tests.examples import examples

Floats = NDArray[np.float32]
PLAIN = ResolvedSampling(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)


class SetConstraint:
    """A grammar that allows the same tokens at every position."""

    def __init__(self, allowed: Sequence[int], num_vocab: int) -> None:
        self.allowed = set(allowed)
        self.num_masks = 0
        self.accepted: list[int] = []
        self._mask = np.zeros(num_vocab, np.bool_)
        self._mask[list(allowed)] = True

    def allows(self, token: int) -> bool:
        return token in self.allowed

    def mask(self, likeliest: int | None = None) -> NDArray[np.bool_] | None:
        self.num_masks += 1
        return self._mask

    def accept(self, token: int) -> None:
        self.accepted.append(token)

    def instead_of(self, token: int) -> int | None:
        return None

    def forced(self) -> Sequence[int]:
        return tuple(self.allowed) if len(self.allowed) == 1 else ()


def llama_distribution(logits: Floats, params: ResolvedSampling, history: Sequence[int] = ()) -> dict[int, float]:
    """Return the probability of each token after llama.cpp's default chain."""
    num_vocab = len(logits)
    rows = (llama.llama_token_data(token, float(logits[token]), 0.0) for token in range(num_vocab))
    table = (llama.llama_token_data * num_vocab)(*rows)
    array = llama.llama_token_data_array(data=table, size=num_vocab, selected=-1, sorted=False)
    chain = llama.llama_sampler_chain_init(llama.llama_sampler_chain_default_params())
    biases = (llama.llama_logit_bias * len(params.logit_bias))(
        *(llama.llama_logit_bias(*bias) for bias in params.logit_bias)
    )
    for part in (
        llama.llama_sampler_init_logit_bias(num_vocab, len(biases), biases),
        llama.llama_sampler_init_penalties(
            num_vocab,
            params.repeat_last_n if params.repeat_last_n >= 0 else max(len(history), 1),
            params.repeat_penalty,
            params.frequency_penalty,
            params.presence_penalty,
        ),
        llama.llama_sampler_init_top_k(params.top_k),
        llama.llama_sampler_init_top_p(params.top_p, 0),
        llama.llama_sampler_init_min_p(params.min_p, 0),
        llama.llama_sampler_init_temp(params.temperature),
        llama.llama_sampler_init_dist(1),
    ):
        llama.llama_sampler_chain_add(chain, part)
    for token in history:
        llama.llama_sampler_accept(chain, token)
    llama.llama_sampler_apply(chain, ctypes.byref(array))
    result = {int(array.data[i].id): float(array.data[i].p) for i in range(array.size)}
    llama.llama_sampler_free(chain)
    return {token: prob for token, prob in result.items() if prob > 0}


def our_distribution(
    logits: Floats,
    params: ResolvedSampling,
    history: Sequence[int] = (),
    constraint: SetConstraint | None = None,
) -> dict[int, float]:
    kept = logits.copy()
    kept.setflags(write=False)
    sampler = Sampler(params, len(logits), history=history, constraint=constraint)
    ids, probs = sampler.distribution(kept)
    assert list(ids) == sorted(set(ids.tolist()))
    assert probs.sum() == pytest.approx(1.0)
    return {int(token): float(prob) for token, prob in zip(ids, probs, strict=True) if prob > 0}


def assert_same(ours: dict[int, float], theirs: dict[int, float]) -> None:
    """Compare two distributions. At the edge of top-p, rounding may add or remove one token or a tiny tail."""
    longer, shorter = (ours, theirs) if len(ours) >= len(theirs) else (theirs, ours)
    extra = sorted(longer[token] for token in longer.keys() - shorter.keys())
    assert longer.keys() >= shorter.keys()
    assert sum(extra[:-1]) < 1e-5
    assert not extra or extra[-1] <= min(longer[token] for token in shorter)
    common = ours.keys() & theirs.keys()
    ours_total, theirs_total = (sum(which[token] for token in common) for which in (ours, theirs))
    for token in common:
        assert ours[token] / ours_total == pytest.approx(theirs[token] / theirs_total, rel=2e-4, abs=1e-7)


@st.composite
def mixes(draw: st.DrawFn) -> ResolvedSampling:
    return ResolvedSampling(
        temperature=draw(st.sampled_from([0.0, 0.05, 0.3, 0.8, 1.0, 1.7])),
        top_k=draw(st.sampled_from([0, 1, 2, 5, 40, 300, 10_000])),
        top_p=draw(st.sampled_from([0.0, 0.1, 0.5, 0.9, 0.95, 0.999, 1.0])),
        min_p=draw(st.sampled_from([0.0, 0.001, 0.05, 0.3, 1.0])),
        repeat_penalty=draw(st.sampled_from([1.0, 1.0, 0.7, 1.3])),
        repeat_last_n=draw(st.sampled_from([0, 1, 8, 64, -1])),
        presence_penalty=draw(st.sampled_from([0.0, 0.0, 1.5, -0.5])),
        frequency_penalty=draw(st.sampled_from([0.0, 0.0, 0.4, -0.3])),
        logit_bias=draw(st.sampled_from([(), ((3, 2.5),), ((0, -100.0), (7, 100.0), (9, 1.0))])),
    )


@st.composite
def cases(draw: st.DrawFn) -> tuple[Floats, list[int]]:
    """Return distinct logits (so that there are no ties) and a history."""
    num_vocab = draw(st.sampled_from([10, 33, 300, 6000]))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    deviation = draw(st.sampled_from([0.5, 3.0, 8.0]))
    logits = random.normal(draw(st.sampled_from([-20.0, 0.0])), deviation, num_vocab).astype(np.float32)
    if draw(st.booleans()):
        logits[random.integers(0, num_vocab, num_vocab // 4)] = -np.inf
    assume(len(np.unique(logits)) >= np.count_nonzero(np.isfinite(logits)))
    history = random.integers(0, min(num_vocab, 40), draw(st.sampled_from([0, 5, 100]))).tolist()
    return logits, history


@settings(max_examples=examples(150))
@given(mixes(), cases())
def test_same_distribution_as_llama_cpp(params: ResolvedSampling, case: tuple[Floats, list[int]]) -> None:
    logits, history = case
    theirs = llama_distribution(logits, params, history)
    assert_same(our_distribution(logits, params, history), theirs)


@pytest.mark.parametrize("peak", [0.3, 9.1, 19.1, 31.9])
def test_a_logit_just_at_the_edge_of_min_p_counts_whatever_the_other_cuts(peak: float) -> None:
    edge = np.float32(peak) + np.float32(math.log(0.05))
    logits = np.array([peak, edge, np.nextafter(edge, np.float32(-np.inf)), -30.0], np.float32)
    for top_k in (0, 3):
        assert our_distribution(logits, dataclasses.replace(PLAIN, min_p=0.05, top_k=top_k)).keys() == {0, 1}


@settings(max_examples=examples(150))
@given(mixes(), cases(), st.integers(0, 2**32), st.sampled_from([0.02, 0.5, 0.98]))
def test_a_constraint_is_a_mask_before_everything(
    params: ResolvedSampling, case: tuple[Floats, list[int]], seed: int, share: float
) -> None:
    logits, history = case
    random = np.random.default_rng(seed)
    allowed = np.flatnonzero(random.random(len(logits)) < share).tolist()
    assume(any(np.isfinite(logits[allowed])))
    masked = np.full_like(logits, -np.inf)
    masked[allowed] = logits[allowed]
    theirs = llama_distribution(masked, params, history)
    assert_same(our_distribution(logits, params, history, SetConstraint(allowed, len(logits))), theirs)


@pytest.mark.parametrize(
    ("deviation", "top_p", "top_k"),
    [
        # Each pair of values once; the slow tests have every combination.
        pytest.param(deviation, top_p, top_k, marks=[] if (x + y + z) % 3 == 0 else pytest.mark.slow(seconds=1))
        for x, deviation in enumerate((1.0, 3.0, 10.0))
        for y, top_p in enumerate((0.3, 0.95, 0.9999))
        for z, top_k in enumerate((0, 40, 20_000))
    ],
)
def test_same_distribution_at_a_real_vocabulary(deviation: float, top_p: float, top_k: int) -> None:
    logits = np.random.default_rng(7).normal(0.0, deviation, 50_000).astype(np.float32)
    params = ResolvedSampling(temperature=0.7, top_k=top_k, top_p=top_p, min_p=0.0)
    ours, theirs = our_distribution(logits, params), llama_distribution(logits, params)
    # llama.cpp sums thousands of probabilities in float32, so its cut may be elsewhere in the tail.
    difference = sum(abs(ours.get(token, 0.0) - theirs.get(token, 0.0)) for token in ours.keys() | theirs.keys())
    assert difference < 2e-4
    wide = np.sort(np.exp(logits.astype(np.float64) - logits.max()))[::-1][: top_k or None]
    running = np.cumsum(wide / wide.sum())[: len(ours)]
    assert set(ours) == set(np.argsort(-logits)[: len(ours)].tolist())
    assert running[-1] >= top_p - 1e-6
    assert len(ours) == 1 or running[-2] < top_p + 1e-6


def test_draws_follow_the_distribution() -> None:
    logits = np.array([2.0, 1.0, 0.0, -1.0, -np.inf], np.float32)
    sampler = Sampler(dataclasses.replace(PLAIN, seed=3), 5)
    ids, probs = sampler.distribution(logits)
    drawn = Counter(sampler.sample(logits).token for _ in range(8_000))
    assert set(drawn) == set(ids.tolist()) == {0, 1, 2, 3}
    assert chi_square(drawn, dict(zip(ids.tolist(), probs.tolist(), strict=True)), 8_000) < 16.3  # p = 0.001, 3 d.o.f.


def chi_square(drawn: Counter[int], probs: dict[int, float], total: int) -> float:
    return sum((drawn[token] - total * prob) ** 2 / (total * prob) for token, prob in probs.items())


@pytest.mark.daily(3, seconds=0.3)
@pytest.mark.parametrize(
    ("params", "allowed"),
    [
        (PLAIN, [1, 2, 3, 5]),
        (PLAIN, [0, 2, 3, 5]),
        (dataclasses.replace(PLAIN, min_p=0.2), [0, 2, 3, 4]),
        (dataclasses.replace(PLAIN, min_p=0.2), [2, 3, 4, 5]),
        (dataclasses.replace(PLAIN, top_k=3), [1, 2, 4, 5]),
        (dataclasses.replace(PLAIN, top_k=3, top_p=0.8, temperature=1.4), [0, 2, 4, 5]),
        (dataclasses.replace(PLAIN, top_p=0.6), [0, 1, 4, 5]),
    ],
)
def test_shortcuts_under_a_constraint_keep_the_distribution(params: ResolvedSampling, allowed: list[int]) -> None:
    logits = np.array([2.0, 1.4, 1.0, 0.5, 0.2, -0.5], np.float32)
    sampler = Sampler(dataclasses.replace(params, seed=11), 6, constraint=SetConstraint(allowed, 6))
    ids, probs = sampler.distribution(logits)
    drawn = Counter(sampler.sample(logits).token for _ in range(8_000))
    assert set(drawn) == set(ids.tolist())
    assert chi_square(drawn, dict(zip(ids.tolist(), probs.tolist(), strict=True)), 8_000) < 16.3


@pytest.mark.daily(1, seconds=0.5)
@pytest.mark.parametrize(
    "params",
    [
        ResolvedSampling(temperature=1.5, top_k=0, top_p=0.9, min_p=0.0, seed=1),
        ResolvedSampling(temperature=0.8, top_k=0, top_p=1.0, min_p=0.0001, seed=2),
        ResolvedSampling(temperature=1.5, top_k=200, top_p=0.99, min_p=0.01, seed=3),
    ],
)
def test_a_mask_of_nearly_all_tokens_keeps_the_distribution(params: ResolvedSampling) -> None:
    logits = np.random.default_rng(5).normal(0, 2, 9000).astype(np.float32)
    ranked = np.argsort(-logits)
    allowed = np.delete(np.arange(9000), ranked[1:1000:7]).tolist()
    sampler = Sampler(params, 9000, constraint=SetConstraint(allowed, 9000))
    ids, probs = sampler.distribution(logits)
    groups = np.minimum((np.cumsum(probs) * 10).astype(int), 9)
    group_of = dict(zip(ids.tolist(), groups.tolist(), strict=True))
    expected = dict(enumerate(np.bincount(groups, weights=probs).tolist()))
    drawn = Counter(group_of[sampler.sample(logits).token] for _ in range(3_000))
    assert chi_square(drawn, expected, 3_000) < 27.9  # p = 0.001 at 9 degrees of freedom


@pytest.mark.parametrize("top_k", [0, 20])
@pytest.mark.parametrize("num_refused", [5, 500])
def test_refused_tokens_take_no_part_in_the_cuts(top_k: int, num_refused: int) -> None:
    logits = np.random.default_rng(6).normal(0, 2, 9000).astype(np.float32)
    refused = np.argsort(-logits)[1 : 1 + num_refused]
    masked = logits.copy()
    masked[refused] = -np.inf
    constraint = SetConstraint(np.delete(np.arange(9000), refused).tolist(), 9000)
    params = ResolvedSampling(temperature=0.9, top_k=top_k, top_p=0.97, min_p=0.0)
    assert_same(our_distribution(logits, params, (), constraint), llama_distribution(masked, params))


def test_the_mask_is_asked_for_only_where_it_matters() -> None:
    logits = np.array([9.0, 1.0, 0.5, 0.0], np.float32)
    allowing, refusing = SetConstraint([0, 1], 4), SetConstraint([1, 2], 4)
    for params in (ResolvedSampling(temperature=0.0), ResolvedSampling(seed=1)):
        assert Sampler(params, 4, constraint=allowing).sample(logits).token == 0
        assert allowing.num_masks == 0
        assert Sampler(params, 4, constraint=refusing).sample(logits).token in (1, 2)
    assert refusing.num_masks == 2


def test_a_constraint_follows_accepted_tokens_and_forces() -> None:
    constraint = SetConstraint([2], 4)
    sampler = Sampler(PLAIN, 4, constraint=constraint)
    assert list(sampler.forced()) == [2]
    sampler.accept(2)
    assert constraint.accepted == [2]
    assert list(Sampler(PLAIN, 4).forced()) == []


@pytest.mark.parametrize(
    "params", [PLAIN, dataclasses.replace(PLAIN, temperature=0.0), dataclasses.replace(PLAIN, top_k=3, top_p=0.9)]
)
def test_a_constraint_may_name_what_comes_instead_of_the_likeliest(params: ResolvedSampling) -> None:
    class Naming(SetConstraint):
        def instead_of(self, token: int) -> int | None:
            return {0: 2, 1: None}[token]

    allowed = [1, 2, 3]
    named, unnamed = np.array([9, 5, 0, 1], np.float32), np.array([0, 9, 5, 1], np.float32)
    sampler = Sampler(dataclasses.replace(params, seed=3), 4, constraint=Naming(allowed, 4))
    for _ in range(20):
        sampled = sampler.sample(named)
        assert sampled.token == 2
        sampler.accept(2)
    ids, probs = sampler.distribution(named)
    assert (ids.tolist(), probs.tolist()) == ([2], [1.0])
    refusing = Sampler(dataclasses.replace(params, seed=3), 4, constraint=Naming([2, 3], 4))
    assert refusing.sample(unnamed).token in (2, 3)


def test_a_constraint_without_a_way_out_is_an_error() -> None:
    sampler = Sampler(PLAIN, 4, constraint=SetConstraint([], 4))
    with pytest.raises(InternalError, match="allows no token"):
        sampler.sample(np.zeros(4, np.float32))


def test_a_seed_repeats_its_draws_and_another_does_not() -> None:
    logits = np.random.default_rng(0).normal(size=1000).astype(np.float32)

    def draws(seed: int | None) -> list[int]:
        sampler = Sampler(dataclasses.replace(PLAIN, seed=seed), 1000)
        return [sampler.sample(logits).token for _ in range(20)]

    assert draws(5) == draws(5)
    assert draws(-5) == draws(-5)
    assert len({tuple(draws(seed)) for seed in (5, 6, -5, None, None)}) == 5


def test_penalties_follow_accepted_tokens() -> None:
    logits = np.array([1.0, 0.9, 0.8, -5.0], np.float32)
    params = ResolvedSampling(temperature=0.0, presence_penalty=0.25, repeat_last_n=2)
    sampler = Sampler(params, 4)
    output = []
    for _ in range(6):
        output.append(sampler.sample(logits).token)
        sampler.accept(output[-1])
    assert output == [0, 1, 2, 0, 1, 2]
    replayed = Sampler(params, 4, history=output)
    assert replayed.sample(logits) == sampler.sample(logits)


@settings(max_examples=examples(60))
@given(st.lists(st.integers(0, 9), max_size=200), st.sampled_from([1, 3, 64, -1]))
def test_a_long_penalty_window_slides_as_llama_cpps(history: list[int], window: int) -> None:
    logits = np.linspace(-2, 2, 10).astype(np.float32)
    params = dataclasses.replace(PLAIN, repeat_penalty=1.2, frequency_penalty=0.1, repeat_last_n=window)
    sampler = Sampler(params, 10)
    for token in history:
        sampler.accept(token)
    ids, probs = sampler.distribution(logits)
    theirs = llama_distribution(logits, params, history)
    assert_same(dict(zip(ids.tolist(), probs.tolist(), strict=True)), theirs)


@pytest.mark.parametrize("top_k", [0, 2, 5])
@pytest.mark.parametrize("size", [6, 9000])
def test_ties_go_to_the_lower_token(top_k: int, size: int) -> None:
    params = dataclasses.replace(PLAIN, top_k=top_k)
    flat = np.zeros(size, np.float32)
    assert list(our_distribution(flat, params)) == list(range(top_k or size))
    assert Sampler(dataclasses.replace(params, temperature=0.0), size).sample(flat).token == 0
    halved = our_distribution(flat, dataclasses.replace(params, top_p=0.5))
    assert list(halved) == list(range(math.ceil((top_k or size) / 2)))


@pytest.mark.parametrize(
    "params",
    [
        dataclasses.replace(PLAIN, top_k=1),
        dataclasses.replace(PLAIN, top_p=0.0),
        dataclasses.replace(PLAIN, top_p=1e-9),
        dataclasses.replace(PLAIN, min_p=1.0),
        dataclasses.replace(PLAIN, temperature=1e-30),
        dataclasses.replace(PLAIN, temperature=0.0),
        dataclasses.replace(PLAIN, logit_bias=((3, 100.0),)),
    ],
)
@pytest.mark.parametrize("size", [50, 9000])
def test_extreme_parameters_leave_the_likeliest(params: ResolvedSampling, size: int) -> None:
    logits = np.random.default_rng(size).normal(size=size).astype(np.float32)
    best = 3 if params.logit_bias else int(logits.argmax())
    assert our_distribution(logits, params)[best] == pytest.approx(1.0)
    assert Sampler(params, size).sample(logits).token == best


def test_a_bias_of_minus_100_bans_and_the_logits_stay_as_they_were() -> None:
    logits = np.array([5.0, 4.0, 3.0], np.float32)
    logits.setflags(write=False)
    params = ResolvedSampling(temperature=0.0, logit_bias=((0, -100.0),), repeat_penalty=2.0)
    assert Sampler(params, 3, history=[2]).sample(logits).token == 1
    assert logits.tolist() == [5.0, 4.0, 3.0]


@pytest.mark.parametrize("params", [PLAIN, ResolvedSampling(), ResolvedSampling(temperature=0.0)])
@pytest.mark.parametrize("logits", [[0.0, math.nan, 1.0], [-math.inf] * 3, [0.0, math.inf, 0.0]])
def test_logits_that_are_no_numbers_are_an_error(params: ResolvedSampling, logits: list[float]) -> None:
    with pytest.raises(InternalError, match="no token can be drawn"):
        Sampler(params, 3).sample(np.array(logits, np.float32))


def test_a_row_of_the_wrong_length_is_an_error() -> None:
    with pytest.raises(InternalError, match="3 logits came for a vocabulary of 4"):
        Sampler(PLAIN, 4).sample(np.zeros(3, np.float32))


@settings(max_examples=examples(50))
@given(cases(), st.integers(0, 20))
def test_logprobs_are_of_the_unmodified_logits(case: tuple[Floats, list[int]], num_top: int) -> None:
    logits, history = case
    sampled = Sampler(
        ResolvedSampling(seed=1, repeat_penalty=1.5, logit_bias=((2, 5.0),)),
        len(logits),
        history=history,
        num_logprobs=num_top,
    ).sample(logits)
    assert sampled.logprob is not None
    wide = logits.astype(np.float64)
    expected = wide - wide.max() - math.log(np.exp(wide - wide.max()).sum())
    assert sampled.logprob.token == sampled.token
    assert sampled.logprob.logprob == pytest.approx(expected[sampled.token], abs=1e-4)
    best = np.sort(expected)[::-1][:num_top]
    assert [top.logprob for top in sampled.logprob.top] == pytest.approx(best.tolist(), abs=1e-4)
    assert sampled.logprob == score(logits, sampled.token, num_top)


def test_no_logprob_unless_asked_for() -> None:
    assert Sampler(PLAIN, 3).sample(np.zeros(3, np.float32)).logprob is None


DEFAULTS = SamplingParams(
    temperature=0.8,
    top_k=40,
    top_p=0.95,
    min_p=0.05,
    repeat_penalty=1.0,
    repeat_last_n=64,
    presence_penalty=0.0,
    frequency_penalty=0.0,
)


def test_resolve_fills_from_the_defaults() -> None:
    asked = SamplingParams(temperature=0.0, seed=9, logit_bias=((1, -1.0),))
    expected = ResolvedSampling(temperature=0.0, seed=9, logit_bias=((1, -1.0),))
    assert resolve(asked, DEFAULTS) == expected
    assert resolve(SamplingParams(), DEFAULTS) == ResolvedSampling()


@pytest.mark.parametrize(
    ("params", "field"),
    [
        (SamplingParams(temperature=-0.1), "temperature"),
        (SamplingParams(temperature=math.nan), "temperature"),
        (SamplingParams(temperature=math.inf), "temperature"),
        (SamplingParams(top_k=-2), "top_k"),
        (SamplingParams(top_p=1.1), "top_p"),
        (SamplingParams(min_p=-0.1), "min_p"),
        (SamplingParams(repeat_penalty=0.0), "repeat_penalty"),
        (SamplingParams(repeat_last_n=-2), "repeat_last_n"),
        (SamplingParams(presence_penalty=math.nan), "presence_penalty"),
        (SamplingParams(frequency_penalty=1e9), "frequency_penalty"),
        (SamplingParams(logit_bias=((1, 101.0),)), "logit_bias"),
        (SamplingParams(logit_bias=((1, math.nan),)), "logit_bias"),
    ],
)
def test_resolve_names_the_field_out_of_range(params: SamplingParams, field: str) -> None:
    with pytest.raises(InvalidRequest, match=field) as caught:
        resolve(params, DEFAULTS)
    assert caught.value.param == field


@settings(max_examples=examples(100))
@given(st.lists(mixes(), min_size=1, max_size=6), st.sampled_from([10, 5_000, 20_001]), st.integers(0, 2**32))
def test_rows_drawn_together_give_what_each_alone_gives(
    params: list[ResolvedSampling], num_vocab: int, seed: int
) -> None:
    random = np.random.default_rng(seed)
    rows = random.normal(0.0, random.choice([0.3, 3.0]), (len(params), num_vocab)).astype(np.float32)
    if seed % 2:
        rows = rows.round()  # ties
    if seed % 3 == 0:
        rows[:, 1:][random.random((len(params), num_vocab - 1)) < 0.5] = -np.inf
    seeded = [dataclasses.replace(each, seed=seed + place) for place, each in enumerate(params)]
    together, alone = ([Sampler(each, num_vocab) for each in seeded] for _ in range(2))
    are_several = sum(sampler.num_ranked > 0 for sampler in together) > 1
    for _ in range(4):
        drawn = draw_rows(together, rows)
        for place, row in enumerate(rows):
            token = alone[place].sample(row).token
            assert drawn[place] == (token if are_several and together[place].num_ranked else None)
            assert together[place].sample(row, drawn[place]).token == token
            together[place].accept(token)
            alone[place].accept(token)


def test_rows_are_drawn_one_by_one_if_one_has_no_maximum() -> None:
    rows = np.zeros((3, 9_000), np.float32)
    rows[1, 8_999] = np.nan
    samplers = [Sampler(ResolvedSampling(), 9_000) for _ in rows]
    assert draw_rows(samplers, rows) == [None, None, None]
    assert None not in draw_rows(samplers, np.zeros((3, 9_000), np.float32))


@pytest.mark.parametrize("token", [-1, 3])
def test_a_bias_on_an_unknown_token_is_refused(token: int) -> None:
    with pytest.raises(InvalidRequest, match=f"token {token}") as caught:
        Sampler(ResolvedSampling(logit_bias=((token, 1.0),)), 3)
    assert caught.value.param == "logit_bias"
