"""A load is predicted to take as long as the last one."""

from __future__ import annotations

import pytest

from edgeagent.types import WorkerState
from edgeagent.worker.parent.supervision.load_time import LoadTime
from tests.fakes import FakeClock


def test_the_first_load_is_judged_by_its_progress_and_others_by_the_last() -> None:
    clock = FakeClock()
    load = LoadTime(clock)
    load.begin()
    clock.advance(2.0)
    assert load.left_s(0.05) is None
    assert load.left_s(0.5) == pytest.approx(2.0)
    clock.advance(2.0)
    load.end()
    load.begin()
    assert load.left_s(0.0) == pytest.approx(4.0)
    clock.advance(1.0)
    assert load.left_s(0.0) == pytest.approx(3.0)
    clock.advance(9.0)
    assert load.left_s(0.9) == pytest.approx(0.4)


def test_a_model_without_a_worker_is_ready_after_a_whole_load() -> None:
    clock = FakeClock()
    load = LoadTime(clock, guess_s=5.0)
    clock.advance(4.0)
    for state in (WorkerState.STOPPED, WorkerState.FAILED, WorkerState.QUARANTINED, WorkerState.STOPPING):
        assert load.ready_in_s(state, 0.9) == 5.0
    assert load.ready_in_s(WorkerState.STARTING, 0.0) == pytest.approx(1.0)
    assert load.ready_in_s(WorkerState.READY, 1.0) == 0.0
