"""The predicted chance that a draft token is accepted."""

from __future__ import annotations

from edgeagent.engine.speculation.acceptance import Acceptance, SharedAcceptance


def verified(shared: SharedAcceptance, num_drafted: int, num_accepted: int, times: int = 60) -> Acceptance:
    acceptance = Acceptance(shared)
    for _ in range(times):
        acceptance.observe(num_drafted, num_accepted)
    return acceptance


def test_chances_fall_with_the_position() -> None:
    chances = Acceptance(SharedAcceptance(8)).chances
    assert len(chances) == 8
    assert list(chances) == sorted(chances, reverse=True) and chances[0] < 1


def test_what_one_sequence_refuses_another_still_tries() -> None:
    shared = SharedAcceptance(3)
    good, bad = verified(shared, 3, 3), verified(shared, 3, 0)
    new = Acceptance(shared)
    assert bad.chances[0] < new.chances[0] < good.chances[0]
    assert bad.chances[0] < 0.1 and good.chances[2] > 0.7


def test_tokens_after_the_first_refusal_are_not_verified() -> None:
    six_of_seven, six_of_twelve = verified(SharedAcceptance(12), 7, 6), verified(SharedAcceptance(12), 12, 6)
    assert six_of_seven.chances == six_of_twelve.chances


def test_positions_are_told_apart() -> None:
    # The third draft token is never accepted.
    chances = verified(SharedAcceptance(6), 6, 2).chances
    assert chances[1] > 0.8
    assert chances[2] < 0.2


def test_a_change_is_noticed() -> None:
    acceptance = verified(SharedAcceptance(4), 4, 4, times=200)
    for _ in range(30):
        acceptance.observe(4, 0)
    assert acceptance.chances[0] < 0.35
