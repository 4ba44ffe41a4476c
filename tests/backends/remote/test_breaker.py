"""The circuit breaker of an endpoint, with a clock and a chance of the test."""

from __future__ import annotations

from edgeagent.backends.remote.endpoint import MAX_FAILURES, MAX_OPEN_S, OPEN_S, Breaker


def breaker() -> Breaker:
    """Return a breaker whose random pauses are as long as possible."""
    return Breaker(lambda: 1.0)


def fail(it: Breaker, first_s: float, number: int = MAX_FAILURES) -> None:
    """Let requests fail, one a second."""
    for second in range(number):
        it.fail(first_s + second, "cut")


def test_failures_in_a_row_open_it() -> None:
    it = breaker()
    fail(it, 0, MAX_FAILURES - 1)
    it.succeed(4)
    fail(it, 5, MAX_FAILURES - 1)
    assert it.accepts_requests(9)
    it.fail(9, "cut")
    assert it.state(9) == "open" and not it.accepts_requests(9) and it.seconds_left(19) == OPEN_S - 10
    it.fail(30, "late")
    assert it.seconds_left(30) == OPEN_S - 21, "the end of what had begun before changes nothing"
    it.succeed(31)
    assert it.accepts_requests(31) and not it.cause


def test_each_rest_is_twice_as_long_up_to_a_limit() -> None:
    it = breaker()
    fail(it, 0)
    now_s = 4.0
    for expected_s in (30, 60, 120, 240, 480, MAX_OPEN_S, MAX_OPEN_S):
        assert it.seconds_left(now_s) == expected_s
        now_s += expected_s
        assert it.state(now_s) == "half_open" and not it.accepts_requests(now_s)
        it.recover(now_s)
        assert it.accepts_requests(now_s)
        it.fail(now_s, "again")
    it.forgive()
    assert it.accepts_requests(now_s)


def test_failures_within_a_second_are_one() -> None:
    it = breaker()
    for number in range(20):
        it.fail(number / 100, "cut")
    assert it.state(1) == "closed"
    fail(it, 2, MAX_FAILURES - 1)
    assert it.state(6) == "open"


def test_failures_that_come_faster_than_one_a_second_open_it_too() -> None:
    it = breaker()
    for number in range(8):
        it.fail(number / 2, "cut")
    assert it.state(3.5) == "closed", "four of them count"
    it.fail(4, "cut")
    assert it.state(4) == "open"


def test_a_hang_opens_it_at_once_unless_another_answer_goes_on() -> None:
    it = breaker()
    it.hear(3)
    it.fail(5, "hung", hung=True, since_s=2)
    assert it.state(5) == "closed"
    it.fail(9, "hung", hung=True, since_s=4)
    assert it.state(9) == "open"


def test_an_answered_probe_counts_before_its_time_where_the_endpoint_was_down() -> None:
    it = breaker()
    it.fail(0, "hung", hung=True)
    it.recover(1)
    assert it.state(1) == "open", "it answered probes all the time"
    it.note_down()
    it.recover(2)
    assert it.state(2) == "closed"
    it.fail(3, "cut")
    it.recover(4)
    assert it.state(4) == "open", "it has been down once, not again"


def test_a_last_resort_may_be_tried_once_a_second() -> None:
    it = breaker()
    fail(it, -4)
    assert not it.accepts_last_resort(0.9) and it.accepts_last_resort(1) and not it.accepts_requests(1)
    it.begin(1)
    assert not it.accepts_last_resort(1.9) and it.accepts_last_resort(2)
    it.begin(2)
    it.fail(2.5, "refused")
    assert not it.accepts_last_resort(3.4) and it.accepts_last_resort(3.5)
    assert it.seconds_left(2) == OPEN_S - 2, "it costs other requests nothing"
    it.succeed(4)
    assert it.accepts_requests(4)
    it.fail(5, "hung", hung=True)
    assert not it.accepts_last_resort(9), "this one would cost a limit of time"
    assert it.accepts_last_resort(5 + OPEN_S)


def test_a_pause_is_no_longer_than_can_be_meant() -> None:
    it = breaker()
    it.pause(0, 10_000)
    assert it.pause_left_s(0) == 120 and not it.accepts_requests(0) and not it.accepts_last_resort(0)
    it.pause(1, 1)
    assert it.pause_left_s(1) == 119, "a shorter word does not shorten it"
    assert it.state(1) == "closed"
    it.pause(200, None)
    assert it.pause_left_s(200) == 2
