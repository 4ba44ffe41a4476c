"""The watchdog's limits, with numbers as time."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest

from edgeagent.config import EngineConfig
from edgeagent.types import CacheStatus, WorkerStatus
from edgeagent.worker.parent.supervision.watchdog import (
    Elapsed,
    LoadWatch,
    PendingWork,
    Pulse,
    Signs,
    StepWatch,
    SupervisionLimits,
)

LIMITS = SupervisionLimits()
BUSY = PendingWork(is_busy=True)
SECOND = Elapsed(1.0, 1.0)  # of computing
IDLE_SECOND = Elapsed(1.0, 0.0)  # in which the worker was stopped, or waited for a device


def tick_until_hang(tick: Callable[[], str | None], limit: int = 1000) -> tuple[int, str]:
    for count in range(1, limit):
        if hang := tick():
            return count, hang
    raise AssertionError("it never hung")


def test_the_configured_times_are_taken() -> None:
    limits = SupervisionLimits.from_config(EngineConfig(hang_timeout_s=7.0))
    assert limits.hang_timeout_s == 7.0


@pytest.mark.parametrize(("second", "factor"), [(SECOND, 1), (IDLE_SECOND, 3)])
def test_silence_is_a_hang(second: Elapsed, factor: int) -> None:
    watch = StepWatch(LIMITS)
    count, hang = tick_until_hang(lambda: watch.tick(second, PendingWork()))
    assert count == factor * LIMITS.pong_timeout_s
    assert "no sign of life" in hang


@pytest.mark.parametrize(("second", "factor"), [(SECOND, 1), (IDLE_SECOND, 3)])
def test_a_long_step_is_a_hang_though_pongs_come(second: Elapsed, factor: int) -> None:
    watch = StepWatch(LIMITS)
    watch.on_pong(WorkerStatus(num_steps=5))

    def tick() -> str | None:
        watch.on_pong(WorkerStatus(num_steps=5))
        return watch.tick(second, BUSY)

    count, hang = tick_until_hang(tick)
    assert "one step" in hang
    assert count == factor * LIMITS.hang_timeout_s


def test_a_prompt_in_preparation_for_ever_is_a_hang_though_steps_end() -> None:
    watch, steps = StepWatch(LIMITS), itertools.count()

    def tick() -> str | None:
        watch.on_pong(WorkerStatus(num_steps=next(steps), preparing_since_s=50.0))
        return watch.tick(SECOND, BUSY)

    count, hang = tick_until_hang(tick)
    assert "preparing one prompt" in hang
    assert count == LIMITS.hang_timeout_s


def test_one_prompt_after_the_other_is_progress() -> None:
    watch = StepWatch(LIMITS)
    for index in range(1, 1000):
        watch.on_pong(WorkerStatus(num_steps=index, preparing_since_s=index // 20))
        assert watch.tick(SECOND, BUSY) is None


def status(since_s: float, own_mib: int, cache_mib: int = 0) -> WorkerStatus:
    cache = CacheStatus(num_bytes=cache_mib << 20)
    return WorkerStatus(preparing_since_s=since_s, preparing_id="r1", own_bytes=own_mib << 20, memory_cache=cache)


def test_a_prompt_that_takes_too_much_memory_is_ended() -> None:
    watch = StepWatch(LIMITS)
    for own_mib in (5000, 5500, 6024):  # at the check, with the prompt prepared, at the limit
        watch.on_pong(status(50.0 if own_mib > 5000 else 0.0, own_mib))
        assert watch.tick(SECOND, BUSY) is None
    watch.on_pong(status(50.0, 6025))
    assert watch.tick(SECOND, BUSY) == "preparing one prompt took more than 1024 MiB of memory"
    assert watch.culprit == "r1"


def test_memory_that_is_there_before_or_kept_as_cache_counts_for_no_prompt() -> None:
    watch = StepWatch(LIMITS)
    for since_s in range(1, 100):  # each prompt takes less than the limit
        watch.on_pong(status(float(since_s), 1000 * since_s))
        assert watch.tick(SECOND, PendingWork()) is None
    for cache_mib in range(0, 5000, 200):  # one prompt, while blocks are cached
        watch.on_pong(status(1000.0, 99_000 + cache_mib, cache_mib))
        assert watch.tick(SECOND, PendingWork()) is None


def test_a_purge_beside_a_prompt_counts_for_no_prompt() -> None:
    watch = StepWatch(LIMITS)
    for cache_mib in (2000, 0):  # the process keeps freed memory
        watch.on_pong(status(1000.0, 3000, cache_mib))
        assert watch.tick(SECOND, PendingWork()) is None
    watch.on_pong(status(1000.0, 4025))
    assert watch.tick(SECOND, PendingWork()) == "preparing one prompt took more than 1024 MiB of memory"


def test_a_question_that_takes_too_much_memory_is_ended() -> None:
    watch = StepWatch(LIMITS)
    watch.on_pong(status(0.0, 500))
    assert watch.tick(SECOND, PendingWork(asked_at_s=7.0)) is None
    watch.on_pong(status(0.0, 1525))
    hang = watch.tick(SECOND, PendingWork(asked_at_s=7.0))
    assert hang == "a question about text took more than 1024 MiB of memory"
    assert watch.culprit == ""


def test_an_idle_worker_may_do_nothing_for_ever() -> None:
    watch = StepWatch(LIMITS)
    for _ in range(1000):
        watch.on_pong(WorkerStatus(num_steps=5))
        assert watch.tick(SECOND, PendingWork()) is None


def test_steps_are_progress_however_long_the_answer() -> None:
    watch = StepWatch(LIMITS)
    for index in range(1000):
        watch.on_pong(WorkerStatus(num_steps=index))
        assert watch.tick(SECOND, BUSY) is None


def test_answers_are_progress_without_pongs_of_steps() -> None:
    watch = StepWatch(LIMITS)
    for _ in range(1000):
        watch.on_progress()
        assert watch.tick(SECOND, BUSY) is None


def test_a_slow_model_gets_twenty_usual_steps() -> None:
    watch = StepWatch(LIMITS)
    num_steps = 0
    for second in range(200):  # a step of four seconds
        num_steps += second % 4 == 0
        watch.on_pong(WorkerStatus(num_steps=num_steps))
        assert watch.tick(SECOND, BUSY) is None
    assert watch.step_limit_s() == 80.0


@pytest.mark.parametrize(
    ("told_s", "limit_s"), [(0.0, 30.0), (1.0, 30.0), (3.0, 60.0), (1e9, 1200.0), (math.nan, 30.0), (-math.inf, 30.0)]
)
def test_a_step_gets_twenty_times_what_it_is_expected_to_take(told_s: float, limit_s: float) -> None:
    watch = StepWatch(LIMITS)
    watch.on_pong(WorkerStatus(step_expected_s=told_s))
    assert watch.step_limit_s() == limit_s


def test_a_worker_that_gets_a_tenth_of_a_core_is_not_hung() -> None:
    """A worker at two tokens per second that is mostly stopped: a step with 16 s of computing takes minutes."""
    watch = StepWatch(SupervisionLimits(hang_timeout_s=60.0))
    for second in range(1, 1000):
        watch.on_pong(WorkerStatus(num_steps=second // 160, step_expected_s=2.0))
        assert watch.tick(Elapsed(1.0, 0.1), BUSY) is None


def test_a_busy_loop_in_a_step_of_a_second_is_a_hang() -> None:
    watch = StepWatch(LIMITS)

    def tick() -> str | None:
        watch.on_pong(WorkerStatus(num_steps=1, step_expected_s=1.0))
        return watch.tick(SECOND, BUSY)

    assert tick_until_hang(tick)[0] == LIMITS.hang_timeout_s


@pytest.mark.parametrize(
    ("pending", "words"),
    [(PendingWork(cancelled_at_s=7.0), "cancelled request"), (PendingWork(asked_at_s=7.0), "question")],
)
def test_what_is_owed_is_waited_for_in_ticks(pending: PendingWork, words: str) -> None:
    """The machine may have slept since, so the time of a cancel is not compared with the clock."""
    watch, steps = StepWatch(LIMITS), itertools.count()

    def tick(pending: PendingWork = pending) -> str | None:
        watch.on_pong(WorkerStatus(num_steps=next(steps)))
        return watch.tick(SECOND, pending)

    for _ in range(20):
        assert tick() is None
    assert tick(PendingWork()) is None, "it was answered"
    count, hang = tick_until_hang(tick)
    assert words in hang
    assert count == LIMITS.hang_timeout_s


@pytest.mark.parametrize("nap_s", [60.0, 8 * 3600.0])
def test_a_sleeping_laptop_condemns_nobody(nap_s: float) -> None:
    watch, load_watch, pulse = StepWatch(LIMITS), LoadWatch(LIMITS), Pulse(LIMITS)
    for _ in range(3):
        assert (
            watch.tick(pulse.beat(nap_s, None), PendingWork(is_busy=True, cancelled_at_s=1.0, asked_at_s=1.0)) is None
        )
        assert load_watch.tick(pulse.beat(nap_s, None)) is None


def test_computing_is_what_the_process_used_of_the_time() -> None:
    pulse = Pulse(LIMITS)
    assert pulse.beat(1.0, Signs(cpu_s=50.0)) == Elapsed(1.0, 0.0), "before it was first looked at"
    assert pulse.beat(1.0, Signs(cpu_s=50.25)) == Elapsed(1.0, 0.25)
    assert pulse.beat(1.0, Signs(cpu_s=54.25)) == Elapsed(1.0, 1.0), "several threads"
    assert pulse.beat(600.0, Signs(cpu_s=54.25)) == Elapsed(2.0, 0.0), "the machine slept"
    assert pulse.beat(1.0, None) == Elapsed(1.0, 1.0), "where the system does not tell"


def test_a_load_must_get_on() -> None:
    watch = LoadWatch(SupervisionLimits(load_timeout_s=10.0))
    for percent in range(50):
        watch.advance(percent / 100)
        assert watch.tick(SECOND) is None
    for _ in range(8):
        watch.advance(0.25)
        watch.advance(float("nan"))
        assert watch.tick(SECOND) is None
    hang = watch.tick(SECOND) or watch.tick(SECOND)
    assert hang is not None and "49%" in hang
    watch.advance(7.0)
    assert watch.progress == 1.0


def test_a_load_from_a_slow_disk_gets_on_while_memory_fills() -> None:
    watch = LoadWatch(SupervisionLimits(load_timeout_s=10.0))
    for second in range(200):
        assert watch.tick(IDLE_SECOND, Signs(rss_bytes=second << 20)) is None
    count, hang = tick_until_hang(lambda: watch.tick(IDLE_SECOND, Signs(rss_bytes=200 << 20)))
    assert "hung while loading" in hang
    assert 22 <= count <= 30
