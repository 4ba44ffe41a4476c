"""Drafts that are made to learn: short at first, twice as long while all stands, and a small share of the time."""

from __future__ import annotations

from array import array

import pytest

from edgeagent.engine.sampling.params import ResolvedSampling
from edgeagent.engine.sampling.sampler import Sampler
from edgeagent.engine.sequence import Sequence, SequenceSpec
from edgeagent.engine.speculation.acceptance import NUM_FIRST, Acceptance, SharedAcceptance
from edgeagent.engine.speculation.allocation import Offer
from edgeagent.engine.speculation.trials import Candidate, Trial, Trials

TARGET_S = [0.010, *(0.011 + 0.0001 * number for number in range(64))]


def candidate(
    shared: SharedAcceptance, *, chance: float = 0.5, step_s: float = 0.001, catch_up_s: float = 0.0
) -> Candidate:
    sequence = Sequence(SequenceSpec("a", [5], Sampler(ResolvedSampling(), 50)), array("i", [5, 6]), 1, 200, 0)
    acceptance = Acceptance(shared)
    return Candidate(sequence, "any", acceptance, Offer((chance,) * 16, (0.0, step_s)), catch_up_s=catch_up_s)


def unknown() -> SharedAcceptance:
    return SharedAcceptance(16)


def refused() -> SharedAcceptance:
    shared = unknown()
    shared.add(1, 0)
    return shared


def test_an_unknown_source_is_tried_at_once_and_longer_while_all_stands() -> None:
    trials, shared = Trials(), unknown()
    lengths = []
    while (trial := trials.of_unknown([candidate(shared)], TARGET_S, 1)) is not None:
        lengths.append(trial.count)
        shared.add(trial.count, trial.count)
    assert lengths == [3, 7, 15]


def test_a_source_with_refused_tokens_is_tried_while_it_may_pay() -> None:
    shared, num_trials = refused(), 0
    half_as_long_again = [0.018, *[0.028] * 16]
    while (trial := Trials().of_unknown([candidate(shared)], half_as_long_again, 1)) is not None:
        assert trial.count == NUM_FIRST
        shared.add(1, 0)
        num_trials += 1
    assert 2 <= num_trials <= 7


def test_enough_verified_tokens_end_the_trials() -> None:
    shared = unknown()
    for _ in range(10):
        shared.add(2, 1)  # it would still pay
    assert shared.likely_rate == shared.rate
    assert Trials().of_unknown([candidate(shared)], TARGET_S, 1) is None


@pytest.mark.parametrize("wrong", [{"step_s": 0.5}, {"catch_up_s": 0.2}])
def test_what_cannot_pay_or_takes_long_is_not_tried_at_once(wrong: dict[str, float]) -> None:
    assert Trials().of_unknown([candidate(unknown(), **wrong)], TARGET_S, 1) is None


def test_trials_take_a_small_share_of_the_time() -> None:
    trials, each = Trials(), candidate(refused(), chance=0.01)
    each.acceptance.has_verified = True  # else there is more time for its first trial
    num_trials = sum(trials.next([each], TARGET_S, 1, 1) is not None for _ in range(2000))
    share = num_trials * (each.trial_s(NUM_FIRST, TARGET_S) - 0.03 * TARGET_S[0]) / (2000 * TARGET_S[0])
    assert 0.008 < share <= 0.01


def test_a_source_that_nearly_pays_is_tried_more_often_since_that_loses_little() -> None:
    half_as_long_again = [0.018, *[0.028] * 16]  # with the draft's 3 ms, a trial takes as long as 0.72 plain steps

    def num_trials(chance: float) -> int:
        trials, each = Trials(), candidate(refused(), chance=chance)
        each.acceptance.has_verified = True
        return sum(trials.next([each], half_as_long_again, 1, 1) is not None for _ in range(2000))

    assert 25 <= num_trials(0.01) <= 30
    assert 5 * num_trials(0.01) < num_trials(0.22) <= 2000 * 0.01 / (0.72 - 0.66) + 1
    assert num_trials(0.4) == pytest.approx(2000 * 0.01 / (0.05 * 0.72), rel=0.01)


def test_a_source_that_would_not_pay_at_twice_its_rate_gets_less_time() -> None:
    half_as_long_again = [0.018, *[0.028] * 16]

    def num_trials(rate: float) -> int:
        shared = unknown()
        for number in range(40):
            shared.add(1, number % 10 < 10 * rate)
        each, trials = candidate(shared), Trials()
        return sum(trials.next([each], half_as_long_again, 1, 1) is not None for _ in range(2000))

    assert num_trials(0.4) == pytest.approx(4 * num_trials(0.1), rel=0.1)


def test_a_sequence_without_any_draft_comes_first_else_the_one_that_waits_longest() -> None:
    trials, shared = Trials(), refused()
    verified, waiting, new = (candidate(shared, chance=0.01) for _ in range(3))
    verified.acceptance.has_verified = waiting.acceptance.has_verified = True
    waiting.acceptance.num_steps_since_draft = 7
    order = []
    for each in ([verified, waiting, new], [verified, waiting]):
        while (trial := trials.next(each, TARGET_S, 1, 1)) is None:
            pass
        order.append(trial)
    assert order == [Trial(new, NUM_FIRST), Trial(waiting, NUM_FIRST)]


def test_what_cannot_pay_is_tried_rarely_since_the_times_may_be_outdated() -> None:
    trials, slow = Trials(), candidate(refused(), step_s=0.5)
    slow.acceptance.has_verified = True
    trial_s = slow.trial_s(NUM_FIRST, TARGET_S)
    num_trials = sum(trials.next([slow], TARGET_S, 1, 100) is not None for _ in range(10_000))
    assert 0 < num_trials * trial_s < 0.005 * 10_000 * 100 * TARGET_S[0]
