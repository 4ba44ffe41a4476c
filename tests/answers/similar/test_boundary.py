"""The boundary as a pure machine: what it answers from what it observed."""

from __future__ import annotations

from random import Random

import pytest

from edgeagent.answers.similar.boundary import MAX_OBSERVATIONS, Boundary, Observation


def taught(num: int, error: float, seed: int = 0, num_entries: int = 50) -> Boundary:
    """Return a boundary after `num` questions of a similarity of 0.8 to 1, with this share of wrong answers."""
    random = Random(seed)
    boundary = Boundary()
    for _ in range(num):
        entry = b"%d" % random.randrange(num_entries)
        boundary.observe(entry, random.uniform(0.8, 1.0), is_right=random.random() >= error)
    return boundary


def test_at_first_it_is_sure_of_nothing() -> None:
    assert Boundary().error(b"x", 0.99) > 0.03


def test_the_more_it_saw_the_surer_it_is() -> None:
    errors = [taught(num, 0.0).error(b"new", 0.95) for num in (0, 10, 50, 200)]
    assert errors == sorted(errors, reverse=True) and errors[-1] < 0.005


def test_as_many_right_ones_are_needed_as_show_that_not_one_of_ten_is_wrong() -> None:
    """Where one of ten is wrong, 5 % of the streams begin with 28 right comparisons."""
    boundary = Boundary()
    for number in range(28):
        boundary.observe(b"%d" % number, 0.98, is_right=True)
    assert boundary.error(b"new", 0.98) > 0.03
    for number in range(28, 80):
        boundary.observe(b"%d" % number, 0.98, is_right=True)
    assert boundary.error(b"new", 0.98) < 0.01


def test_an_entry_that_was_right_excludes_only_half_of_what_may_be_wrong() -> None:
    """Where texts have answers of their own, the next question may be such a text, as entries were."""
    boundary = Boundary()
    for number in range(50):
        is_right = number % 5 >= 2
        for _ in range(1 if is_right else 3):
            boundary.observe(b"%d" % number, 0.99, is_right=is_right)
    for _ in range(3):
        boundary.observe(b"proven", 0.99, is_right=True)
    assert 0.1 < boundary.error(b"proven", 0.99) < boundary.error(b"new", 0.99)


@pytest.mark.parametrize("error", [0.02, 0.1, 0.3])
def test_errors_that_similarity_does_not_show_are_expected_again(error: float) -> None:
    boundary = taught(500, error, seed=1)
    for similarity in (0.85, 0.95, 0.99):
        assert boundary.error(b"new", similarity) > error / 3


def test_less_similar_questions_are_less_sure() -> None:
    random = Random(2)
    boundary = Boundary()
    for number in range(300):
        similarity = random.uniform(0.7, 1.0)
        boundary.observe(b"%d" % (number % 40), similarity, is_right=similarity > 0.85)
    errors = [boundary.error(b"new", similarity) for similarity in (0.75, 0.85, 0.95)]
    assert errors == sorted(errors, reverse=True)
    assert errors[0] > 0.5 and errors[-1] < 0.02


def test_an_entry_whose_answer_was_wrong_is_less_sure_than_others() -> None:
    boundary = taught(300, 0.0)
    before = boundary.error(b"trap", 0.95)
    boundary.observe(b"trap", 0.95, is_right=False)
    assert boundary.error(b"trap", 0.95) > 20 * before
    assert boundary.error(b"trap", 0.95) > 10 * boundary.error(b"other", 0.95)
    boundary.forget(b"trap")
    assert boundary.error(b"trap", 0.95) == pytest.approx(boundary.error(b"other", 0.95))


def test_a_new_entry_begins_with_what_its_own_question_showed_and_the_others_learn_nothing_twice() -> None:
    boundary = taught(300, 0.05)
    new, num = boundary.error(b"new", 0.9), boundary.num_observed
    for entry, is_right in ((b"right", True), (b"wrong", False)):
        boundary.begin(entry, Observation(0.85, is_right), b"unknown")
    assert boundary.error(b"right", 0.9) < new < boundary.error(b"wrong", 0.9)
    assert (boundary.error(b"new", 0.9), boundary.num_observed) == (new, num)


def test_entries_with_the_same_answer_know_what_was_observed_of_each() -> None:
    boundary = taught(300, 0.0)
    boundary.observe(b"one", 0.9, is_right=True)
    boundary.begin(b"same", Observation(0.9, is_right=True), b"one")
    boundary.begin(b"another", Observation(0.9, is_right=False), b"one")
    before = [boundary.error(entry, 0.9) for entry in (b"one", b"another")]
    boundary.observe(b"same", 0.9, is_right=False)
    after = [boundary.error(entry, 0.9) for entry in (b"one", b"another")]
    assert after[0] == boundary.error(b"same", 0.9) > 1.5 * before[0]
    assert (len(boundary.observations(b"one")), len(boundary.observations(b"another"))) == (2, 1)
    boundary.forget(b"one")
    assert boundary.observations(b"one") == () and len(boundary.observations(b"same")) == 2


def test_what_an_entry_keeps_is_bounded() -> None:
    boundary = Boundary()
    for _ in range(3 * MAX_OBSERVATIONS):
        boundary.observe(b"x", 0.9, is_right=True)
    assert len(boundary.observations(b"x")) == MAX_OBSERVATIONS
    assert 0.0 < boundary.error(b"x", 0.9) < 0.01


def test_it_continues_from_its_state() -> None:
    first, second = taught(100, 0.05), Boundary()
    entries = {b"%d" % number: first.observations(b"%d" % number) for number in range(50)}
    assert second.restore(first.state(), {(entry,): known for entry, known in entries.items()})
    for entry in (b"1", b"new"):
        assert second.error(entry, 0.9) == pytest.approx(first.error(entry, 0.9))
    assert (second.num_observed, second.num_wrong) == (first.num_observed, first.num_wrong)
    assert not second.restore({"evidence": b"12345678", "counts": bytes(16)}, {})
    assert not second.restore({}, {})
