"""Whether and when an ended worker is replaced, with numbers as time."""

from __future__ import annotations

import pytest

from edgeagent.worker.parent.supervision.live_requests import EndKind
from edgeagent.worker.parent.supervision.restarts import Quarantine, Restart, RestartPolicy, WorkerEnd
from edgeagent.worker.parent.supervision.watchdog import SupervisionLimits

LIMITS = SupervisionLimits()


def test_first_crash_after_service_restarts_at_once_then_with_delay_then_quarantine() -> None:
    policy = RestartPolicy(LIMITS)
    assert policy.on_crash(0.0, 5.0) == Restart(0.0)
    assert policy.on_crash(10.0, 5.0) == Restart(0.5)
    assert policy.on_crash(20.0, 5.0) == Quarantine(300.0)


def test_a_crash_before_ready_is_never_retried_at_once() -> None:
    assert RestartPolicy(LIMITS).on_crash(0.0, None) == Restart(0.5)


def test_delays_double_up_to_the_limit() -> None:
    policy = RestartPolicy(LIMITS)
    delays = [policy.on_crash(index * 31.0, None) for index in range(9)]
    assert delays == [Restart(delay) for delay in (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0)]


def test_one_try_after_a_quarantine() -> None:
    policy = RestartPolicy(LIMITS)
    for at_s in (0.0, 1.0, 2.0):
        policy.on_crash(at_s, None)
    assert policy.on_crash(302.0, None) == Quarantine(300.0)
    assert policy.on_crash(700.0, 59.0) == Quarantine(300.0)


def test_three_that_hang_before_a_step_ends_are_enough_however_long_that_takes() -> None:
    policy = RestartPolicy(LIMITS)
    assert policy.on_crash(0.0, 90.0, hung_at_once=True) == Restart(0.0)
    assert policy.on_crash(100.0, 90.0, hung_at_once=True) == Restart(0.0)
    assert policy.on_crash(200.0, 90.0) == Restart(0.0), "one that worked first is another matter"
    for at_s in (300.0, 400.0):
        assert policy.on_crash(at_s, 90.0, hung_at_once=True) == Restart(0.0)
    for at_s in (500.0, 900.0):
        assert policy.on_crash(at_s, 90.0, hung_at_once=True) == Quarantine(300.0)
    assert policy.on_crash(1300.0, 90.0) == Restart(0.0)


def test_long_service_clears_the_record() -> None:
    policy = RestartPolicy(LIMITS)
    for at_s in (0.0, 1.0, 2.0):
        policy.on_crash(at_s, None)
    assert policy.on_crash(1000.0, 60.0) == Restart(0.0)
    assert policy.on_crash(1001.0, None) == Restart(0.5)


def test_kills_from_outside_say_nothing_of_the_model_until_they_are_many() -> None:
    policy = RestartPolicy(LIMITS)
    decisions = [policy.on_kill(float(index), 0.5) for index in range(LIMITS.max_kills)]
    assert decisions[:9] == [Restart(delay) for delay in (0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0)]
    assert [isinstance(decision, Quarantine) for decision in decisions] == [False] * 19 + [True]
    fresh = RestartPolicy(LIMITS)
    for index in range(50):
        assert fresh.on_kill(index * 61.0, 60.0) == Restart(0.0)
    assert fresh.on_crash(4000.0, 5.0) == Restart(0.0), "they are no crashes"


def test_a_model_that_is_killed_while_it_loads_is_left_alone_as_one_that_crashes() -> None:
    policy = RestartPolicy(LIMITS)
    assert [policy.on_kill(at_s, None) for at_s in (0.0, 1.0, 2.0)] == [Restart(0.5), Restart(1.0), Quarantine(300.0)]


@pytest.mark.parametrize(
    ("kind", "is_hung_at_once"), [(EndKind.HUNG, True), (EndKind.CRASHED, False), (EndKind.KILLED, False)]
)
def test_an_end_is_judged_by_its_kind(kind: EndKind, is_hung_at_once: bool) -> None:
    policy = RestartPolicy(LIMITS)
    decisions = [policy.on_end(100.0 * index, WorkerEnd("", kind, 90.0), has_worked=False) for index in range(3)]
    assert isinstance(decisions[-1], Quarantine) == is_hung_at_once
