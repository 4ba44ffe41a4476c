"""Patience and restarts, with numbers for time."""

from __future__ import annotations

import pytest

from edgeagent.config import EngineConfig
from edgeagent.types import WorkerStatus
from edgeagent.worker.watchdog import LoadWatch, Patience, Quarantine, Restart, RestartPolicy, StepWatch

PATIENCE = Patience()


def tick_until_hang(watch: StepWatch, *, is_busy: bool, limit: int = 1000) -> tuple[int, str]:
    for count in range(1, limit):
        if hang := watch.tick(1.0, is_busy=is_busy):
            return count, hang
    raise AssertionError("it never hung")


def test_the_configured_times_are_taken() -> None:
    patience = Patience.from_config(EngineConfig(hang_timeout_s=7.0, load_timeout_s=8.0))
    assert (patience.hang_timeout_s, patience.load_timeout_s) == (7.0, 8.0)


def test_silence_is_a_hang() -> None:
    count, hang = tick_until_hang(StepWatch(PATIENCE), is_busy=False)
    assert count == PATIENCE.pong_timeout_s
    assert "no sign of life" in hang


def test_a_long_step_is_a_hang_though_pongs_come() -> None:
    watch = StepWatch(PATIENCE)
    for count in range(1, 100):
        watch.on_pong(WorkerStatus(num_steps=5 if count > 1 else 0))
        if hang := watch.tick(1.0, is_busy=True):
            break
    assert hang is not None and "one step" in hang
    assert count == PATIENCE.hang_timeout_s + 1


def test_a_prompt_in_preparation_for_ever_is_a_hang_though_steps_end() -> None:
    watch = StepWatch(PATIENCE)
    for index in range(1, 100):
        watch.on_pong(WorkerStatus(num_steps=index, preparing_since_s=50.0))
        if hang := watch.tick(1.0, is_busy=True):
            break
    assert hang is not None and "to prepare" in hang
    assert index == PATIENCE.hang_timeout_s


def test_one_prompt_after_the_other_is_progress() -> None:
    watch = StepWatch(PATIENCE)
    for index in range(1, 1000):
        watch.on_pong(WorkerStatus(num_steps=index, preparing_since_s=index // 20))
        assert watch.tick(1.0, is_busy=True) is None


def test_an_idle_worker_may_do_nothing_for_ever() -> None:
    watch = StepWatch(PATIENCE)
    for _ in range(1000):
        watch.on_pong(WorkerStatus(num_steps=5))
        assert watch.tick(1.0, is_busy=False) is None


def test_steps_are_progress_however_long_the_answer() -> None:
    watch = StepWatch(PATIENCE)
    for index in range(1000):
        watch.on_pong(WorkerStatus(num_steps=index))
        assert watch.tick(1.0, is_busy=True) is None


def test_answers_are_progress_without_pongs_of_steps() -> None:
    watch = StepWatch(PATIENCE)
    for _ in range(1000):
        watch.on_progress()
        assert watch.tick(1.0, is_busy=True) is None


def test_a_slow_model_gets_twenty_usual_steps() -> None:
    watch = StepWatch(PATIENCE)
    num_steps = 0
    for second in range(200):  # a step of four seconds
        num_steps += second % 4 == 0
        watch.on_pong(WorkerStatus(num_steps=num_steps))
        assert watch.tick(1.0, is_busy=True) is None
    assert watch.step_limit_s() == 80.0


@pytest.mark.parametrize("nap_s", [60.0, 8 * 3600.0])
def test_a_sleeping_laptop_condemns_nobody(nap_s: float) -> None:
    watch, load_watch = StepWatch(PATIENCE), LoadWatch(PATIENCE)
    for _ in range(3):
        assert watch.tick(nap_s, is_busy=True) is None
        assert load_watch.tick(nap_s) is None


def test_a_load_must_get_on() -> None:
    watch = LoadWatch(Patience(load_timeout_s=10.0))
    for percent in range(50):
        watch.advance(percent / 100)
        assert watch.tick(1.0) is None
    for _ in range(8):
        watch.advance(0.25)
        watch.advance(float("nan"))
        assert watch.tick(1.0) is None
    hang = watch.tick(1.0) or watch.tick(1.0)
    assert hang is not None and "49%" in hang
    watch.advance(7.0)
    assert watch.progress == 1.0


def test_first_crash_after_service_restarts_at_once_then_with_delay_then_quarantine() -> None:
    policy = RestartPolicy(PATIENCE)
    assert policy.on_crash(0.0, 5.0) == Restart(0.0)
    assert policy.on_crash(10.0, 5.0) == Restart(0.5)
    assert policy.on_crash(20.0, 5.0) == Quarantine(300.0)


def test_a_crash_before_ready_is_never_retried_at_once() -> None:
    assert RestartPolicy(PATIENCE).on_crash(0.0, None) == Restart(0.5)


def test_delays_double_up_to_the_limit() -> None:
    policy = RestartPolicy(PATIENCE)
    delays = [policy.on_crash(index * 31.0, None) for index in range(9)]
    assert delays == [Restart(delay) for delay in (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0)]


def test_one_try_after_a_quarantine() -> None:
    policy = RestartPolicy(PATIENCE)
    for at_s in (0.0, 1.0, 2.0):
        policy.on_crash(at_s, None)
    assert policy.on_crash(302.0, None) == Quarantine(300.0)
    assert policy.on_crash(700.0, 59.0) == Quarantine(300.0)


def test_three_that_hang_before_a_step_ends_are_enough_however_long_that_takes() -> None:
    policy = RestartPolicy(PATIENCE)
    assert policy.on_crash(0.0, 90.0, hung_at_once=True) == Restart(0.0)
    assert policy.on_crash(100.0, 90.0, hung_at_once=True) == Restart(0.0)
    assert policy.on_crash(200.0, 90.0) == Restart(0.0), "one that worked first is another matter"
    for at_s in (300.0, 400.0):
        assert policy.on_crash(at_s, 90.0, hung_at_once=True) == Restart(0.0)
    for at_s in (500.0, 900.0):
        assert policy.on_crash(at_s, 90.0, hung_at_once=True) == Quarantine(300.0)
    assert policy.on_crash(1300.0, 90.0) == Restart(0.0)


def test_long_service_clears_the_record() -> None:
    policy = RestartPolicy(PATIENCE)
    for at_s in (0.0, 1.0, 2.0):
        policy.on_crash(at_s, None)
    assert policy.on_crash(1000.0, 60.0) == Restart(0.0)
    assert policy.on_crash(1001.0, None) == Restart(0.5)
