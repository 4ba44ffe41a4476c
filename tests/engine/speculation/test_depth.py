"""How many tokens are worth drafting for a sequence."""

from __future__ import annotations

from edgeagent.engine.cost_model import CostModel
from edgeagent.engine.speculation.depth import Acceptance, DraftLength


def measured(step_s: dict[int, float]) -> CostModel:
    costs = CostModel(512)
    for size, seconds in step_s.items():
        costs.observe(size, 10, seconds)
    return costs


def judged(length: DraftLength, num_drafted: int, num_accepted: int, times: int = 200) -> Acceptance:
    acceptance = length.begin()
    for _ in range(times):
        length.observe(acceptance, num_drafted, num_accepted)
    return acceptance


def test_cheap_verification_and_good_guesses_draft_deep() -> None:
    length = DraftLength(7, measured({1: 0.010, 2: 0.010, 4: 0.011, 8: 0.012}))
    length.observe_draft_step(0.0005)
    assert length.choose(judged(length, 3, 3), 1, 10) == 7


def test_bad_guesses_are_given_up_and_tried_again_later() -> None:
    length = DraftLength(7, measured({1: 0.010, 2: 0.015, 4: 0.025, 8: 0.045}))
    length.observe_draft_step(0.003)
    acceptance = judged(length, 1, 0)
    chosen = [length.choose(acceptance, 1, 10) for _ in range(128)]
    assert set(chosen) == {0, 1}
    assert chosen.count(1) == 2


def test_a_cold_first_step_does_not_make_drafting_look_cheap_for_ever() -> None:
    # While all steps carry drafts, none of one token is measured again.
    length = DraftLength(3, measured({1: 0.500, 4: 0.020}))
    length.observe_draft_step(0.005)
    acceptance = judged(length, 3, 0, times=30)
    assert {length.choose(acceptance, 1, 10) for _ in range(60)} == {0}


def test_what_was_measured_on_a_quiet_machine_says_nothing_of_a_busy_one() -> None:
    # Plain steps take a hundred times what steps with drafts took once: those would be as slow.
    costs = measured({2: 0.001, 4: 0.001})
    length = DraftLength(3, costs)
    length.observe_draft_step(0.0005)
    for _ in range(50):
        costs.observe(1, 10, 0.100)
    assert length.choose(judged(length, 3, 3), 1, 10) == 3
    assert length.choose(judged(length, 3, 0), 1, 10) == 0


def test_what_one_sequence_refuses_another_still_tries() -> None:
    length = DraftLength(3, measured({1: 0.010, 2: 0.010, 4: 0.010}))
    length.observe_draft_step(0.003)
    good, bad = judged(length, 3, 3), judged(length, 3, 0, times=30)
    assert length.choose(good, 1, 10) == 3
    assert length.choose(bad, 1, 10) == 0
    # A third begins with what was seen of all of them.
    assert bad.rate < length.begin().rate < good.rate


def test_tokens_after_the_first_refusal_are_not_judged() -> None:
    length = DraftLength(7, measured({1: 0.010, 2: 0.010, 4: 0.010, 8: 0.010}))
    # Seven drafted, six stood: one refusal among seven, however deep.
    assert length.choose(judged(length, 7, 6), 1, 10) == 7


def test_zero_allowed_means_never() -> None:
    length = DraftLength(0, measured({1: 0.01}))
    acceptance = length.begin()
    assert {length.choose(acceptance, 1, 10) for _ in range(200)} == {0}
