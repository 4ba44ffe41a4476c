"""The test of the measured error: how often it fires by mistake, and how soon it fires if it must."""

from __future__ import annotations

from random import Random

import pytest

from edgeagent.answers.similar.measured import FALSE_ALARM, MIN_CHECKED, ErrorTest


def checks_until_above(true_error: float, max_error: float, seed: int, num_checks: int) -> int | None:
    random = Random(seed)
    test = ErrorTest(max_error)
    for number in range(num_checks):
        test.observe(is_right=random.random() >= true_error, probability=1.0)
        if test.is_above:
            return number
    return None


def test_a_bound_that_holds_is_contradicted_as_seldom_as_stated() -> None:
    """At an error of exactly the bound, the most that it allows."""
    num_streams = 400
    alarms = sum(checks_until_above(0.03, 0.03, seed, 1000) is not None for seed in range(num_streams))
    # At a rate of 1 %, more than ten alarms in 400 streams have a probability of 0.3 %. The seeds are fixed.
    assert alarms <= 10 and FALSE_ALARM == 0.01


def sure_and_unsure(errors: tuple[float, float], max_error: float, seed: int, num_given: int) -> int | None:
    """Give answers by turns that are expected to be right, and to be wrong with twice the bound.

    `errors`: how often they are wrong. Return after how many answers the test says that the error is above the bound.
    """
    random = Random(seed)
    test = ErrorTest(max_error)
    for number in range(num_given):
        probability = (MIN_CHECKED, 1.0)[number % 2]
        if random.random() < probability:
            test.observe(is_right=random.random() >= errors[number % 2], probability=probability)
        if test.is_above:
            return number
    return None


def test_answers_above_the_bound_are_no_alarm_while_the_mean_keeps_it() -> None:
    num_streams = 200
    alarms = sum(sure_and_unsure((0.0, 0.06), 0.03, seed, 1000) is not None for seed in range(num_streams))
    # At a rate of 1 %, more than six alarms in 200 streams have a probability of 0.5 %. The seeds are fixed.
    assert alarms <= 6


def test_a_mean_above_the_bound_is_noticed_though_each_answer_is_within_twice_the_bound() -> None:
    assert sure_and_unsure((0.01, 0.02), 0.01, 0, 200_000) is not None
    ends = [sure_and_unsure((0.1, 0.2), 0.1, seed, 20_000) for seed in range(5)]
    assert all(end is not None for end in ends)


@pytest.mark.parametrize(("max_error", "at_most"), [(0.005, 150), (0.01, 120), (0.03, 80)])
def test_an_error_of_ten_times_the_bound_is_noticed(max_error: float, at_most: int) -> None:
    ends = [checks_until_above(10 * max_error, max_error, seed, 2000) for seed in range(20)]
    assert all(end is not None and end <= 5 * at_most for end in ends)
    assert sorted(end for end in ends if end is not None)[10] <= at_most


def test_it_stays_off() -> None:
    test = ErrorTest(0.01)
    for _ in range(20):
        test.observe(is_right=False, probability=1.0)
    assert test.is_above
    for _ in range(5000):
        test.observe(is_right=True, probability=1.0)
    assert test.is_above


def test_a_seldom_checked_answer_stands_for_several() -> None:
    test = ErrorTest(0.5)
    assert test.measured is None
    test.observe(is_right=False, probability=1.0)
    test.observe(is_right=True, probability=0.25)
    assert (test.num_checked, test.num_wrong) == (2, 1)
    assert test.measured == pytest.approx(1 / 5)
