"""Whether and when an ended worker is replaced."""

from __future__ import annotations

import pytest

from edgeagent.worker.parent.supervision.model_requests import EndKind
from edgeagent.worker.parent.supervision.watchdog import SupervisionLimits
from edgeagent.worker.parent.supervision.worker_run import RestartPolicy, WorkerEnd

LIMITS = SupervisionLimits()


def ends(policy: RestartPolicy, num: int, ready_for_s: float | None, **fields: object) -> list[float | None]:
    """Let this many workers end in the same way; return what follows each."""
    has_worked = bool(fields.pop("has_worked", True))
    end = WorkerEnd("", ready_for_s=ready_for_s, **fields)  # type: ignore[arg-type]
    return [policy.on_end(end, has_worked=has_worked) for _ in range(num)]


def test_the_first_crash_is_followed_by_a_restart_at_once_others_by_a_delay_and_then_quarantine() -> None:
    assert ends(RestartPolicy(LIMITS), 3, 5.0) == [0.0, 0.5, None]


def test_a_crash_before_ready_is_never_retried_at_once() -> None:
    assert ends(RestartPolicy(LIMITS), 3, None) == [0.5, 1.0, None]


def test_one_try_after_a_quarantine() -> None:
    policy = RestartPolicy(LIMITS)
    ends(policy, 3, None)
    assert ends(policy, 1, None) == [None]
    assert ends(policy, 1, 59.0) == [None]


def test_long_service_makes_up_for_earlier_crashes() -> None:
    policy = RestartPolicy(LIMITS)
    ends(policy, 3, None)
    assert ends(policy, 1, 60.0) == [0.0]
    assert ends(policy, 1, None) == [1.0]


def test_a_long_wait_for_a_first_step_is_no_service() -> None:
    policy = RestartPolicy(LIMITS)
    assert ends(policy, 2, 90.0, kind=EndKind.HUNG, has_worked=False) == [0.0, 0.5]
    assert ends(policy, 2, 90.0, kind=EndKind.HUNG) == [0.0, 0.0], "these worked first"
    assert ends(policy, 3, 90.0, kind=EndKind.HUNG, has_worked=False)[-1] is None


@pytest.mark.parametrize("fields", [{"kind": EndKind.KILLED}, {"kind": EndKind.HUNG, "has_culprit": True}])
def test_what_is_not_the_models_fault_is_counted_apart(fields: dict[str, object]) -> None:
    policy = RestartPolicy(LIMITS)
    delays = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0)
    expected = [*delays, None]
    assert ends(policy, LIMITS.max_kills, 0.5, has_worked=False, **fields) == expected
    fresh = RestartPolicy(LIMITS)
    ends(fresh, LIMITS.max_kills - 1, 0.5, **fields)
    assert ends(fresh, 1, 5.0) == [0.0], "they are no crashes"


def test_a_model_that_is_killed_while_it_loads_is_left_alone_as_one_that_crashes() -> None:
    killed = ends(RestartPolicy(LIMITS), 3, None, kind=EndKind.KILLED)
    assert killed == [0.5, 1.0, None]
