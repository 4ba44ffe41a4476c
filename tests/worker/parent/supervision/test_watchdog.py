"""What a worker owes, and when it counts as hung, with numbers as time."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Callable, Iterator

import pytest

from edgeagent.config import EngineConfig
from edgeagent.types import WorkerStatus
from edgeagent.worker.parent.supervision.watchdog import Hang, Owed, Signs, SupervisionLimits, Watchdog
from edgeagent.worker.parent.supervision.worker_run import PendingWork, WorkerRun
from edgeagent.worker.protocol import LoadProgress, Pong

LIMITS = SupervisionLimits()
BUSY = PendingWork(is_busy=True)


def tick_until_hang(tick: Callable[[], Hang | None], limit: int = 2000) -> tuple[int, Hang]:
    for count in range(1, limit):
        if hang := tick():
            return count, hang
    raise AssertionError("it never hung")


class Worker:
    """A worker whose time passes in ticks of a second, in each of which it computes for `busy_s` seconds."""

    def __init__(self, limits: SupervisionLimits = LIMITS, busy_s: float = 1.0) -> None:
        self.run = WorkerRun(limits)
        self._busy_s = busy_s
        self._cpu_s = 7.0
        self.run.tick(0.0, Signs(self._cpu_s), None)

    def tick(self, pending: PendingWork | None, rss_bytes: int = 0) -> Hang | None:
        self._cpu_s += self._busy_s
        return self.run.tick(1.0, Signs(self._cpu_s, rss_bytes), pending)

    def pong(self, status: WorkerStatus) -> None:
        self.run.ready_at_s = 0.0
        ping = self.run.ping()
        assert ping is not None
        self.run.on_pong(Pong(ping.nonce, status))


@pytest.fixture(autouse=True)
def loop() -> Iterator[None]:
    """A WorkerRun has a future, which needs a loop."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield
    asyncio.set_event_loop(None)
    loop.close()


def test_the_configured_times_are_taken() -> None:
    limits = SupervisionLimits.from_config(EngineConfig(hang_timeout_s=7.0))
    assert limits.hang_timeout_s == 7.0


@pytest.mark.parametrize(("busy_s", "limit_s"), [(1.0, 10.0), (0.0, 30.0)])
def test_silence_is_a_hang(busy_s: float, limit_s: float) -> None:
    worker = Worker(busy_s=busy_s)
    count, hang = tick_until_hang(lambda: worker.tick(PendingWork()))
    assert count == limit_s
    assert hang.why.startswith(f"hung: no sign of life for {limit_s:g} s")


@pytest.mark.parametrize(("busy_s", "factor"), [(1.0, 1), (0.0, 3)])
def test_a_long_step_is_a_hang_though_pongs_come(busy_s: float, factor: int) -> None:
    worker = Worker(busy_s=busy_s)
    worker.pong(WorkerStatus(num_steps=5))

    def tick() -> Hang | None:
        worker.pong(WorkerStatus(num_steps=5, step_started_at_s=4.0))
        return worker.tick(BUSY)

    count, hang = tick_until_hang(tick)
    assert "one step" in hang.why and not hang.culprit
    assert count == factor * LIMITS.hang_timeout_s


@pytest.mark.parametrize("has_streams", [True, False])
def test_a_prompt_in_preparation_for_ever_is_a_hang_with_and_without_other_streams(has_streams: bool) -> None:
    worker, steps = Worker(), itertools.count() if has_streams else itertools.repeat(0)
    worker.tick(BUSY)  # the worker says later than the request was sent that it prepares it

    def tick() -> Hang | None:
        worker.pong(WorkerStatus(num_steps=next(steps), preparing_since_s=50.0, preparing_id="r1"))
        return worker.tick(BUSY)

    count, hang = tick_until_hang(tick)
    assert "preparing one prompt" in hang.why
    assert (count, hang.culprit) == (LIMITS.hang_timeout_s, "r1")


def test_a_step_that_hangs_beside_a_preparation_is_the_fault_of_no_prompt() -> None:
    worker, since = Worker(), itertools.count(1)

    def tick() -> Hang | None:
        worker.pong(WorkerStatus(step_started_at_s=4.0, preparing_since_s=float(next(since)), preparing_id="r1"))
        return worker.tick(BUSY)

    _, hang = tick_until_hang(tick)
    assert "one step" in hang.why and not hang.culprit


def test_one_prompt_after_the_other_is_progress() -> None:
    worker = Worker()
    for index in range(1, 1000):
        worker.pong(WorkerStatus(num_steps=index, preparing_since_s=index // 20))
        assert worker.tick(BUSY) is None


def test_an_idle_worker_may_do_nothing_for_ever() -> None:
    worker = Worker()
    for _ in range(1000):
        worker.pong(WorkerStatus(num_steps=5))
        assert worker.tick(PendingWork()) is None


def test_steps_are_progress_however_long_the_answer() -> None:
    worker = Worker()
    for index in range(1000):
        worker.pong(WorkerStatus(num_steps=index))
        assert worker.tick(BUSY) is None


def test_answers_are_progress_without_pongs() -> None:
    worker = Worker()
    for _ in range(1000):
        worker.run.on_progress()
        assert worker.tick(BUSY) is None


@pytest.mark.parametrize(
    ("told_s", "limit_s"), [(0.0, 30.0), (1.0, 30.0), (3.0, 60.0), (1e9, 1200.0), (math.nan, 30.0), (-math.inf, 30.0)]
)
def test_a_step_gets_twenty_times_what_it_is_expected_to_take(told_s: float, limit_s: float) -> None:
    worker = Worker()

    def tick() -> Hang | None:
        worker.pong(WorkerStatus(step_expected_s=told_s))
        return worker.tick(BUSY)

    assert tick_until_hang(tick)[0] == limit_s


def test_a_worker_that_gets_a_tenth_of_a_core_is_not_hung() -> None:
    """A worker at two tokens per second that is mostly stopped: a step with 16 s of computing takes minutes."""
    worker = Worker(SupervisionLimits(hang_timeout_s=60.0), busy_s=0.1)
    for second in range(1, 1000):
        worker.pong(WorkerStatus(num_steps=second // 160, step_expected_s=2.0))
        assert worker.tick(BUSY) is None


@pytest.mark.parametrize(
    ("pending", "words"),
    [(PendingWork(cancelled_at_s=7.0), "cancelled request"), (PendingWork(asked_at_s=7.0), "question")],
)
def test_what_is_owed_is_waited_for_in_ticks(pending: PendingWork, words: str) -> None:
    """The machine may have slept since, so the time of a cancel is not compared with the clock."""
    worker, steps = Worker(), itertools.count()

    def tick(pending: PendingWork = pending) -> Hang | None:
        worker.pong(WorkerStatus(num_steps=next(steps)))
        return worker.tick(pending)

    for _ in range(20):
        assert tick() is None
    assert tick(PendingWork()) is None, "it was answered"
    count, hang = tick_until_hang(tick)
    assert words in hang.why
    assert count == LIMITS.hang_timeout_s


@pytest.mark.parametrize("nap_s", [60.0, 8 * 3600.0])
def test_a_sleeping_laptop_condemns_nobody(nap_s: float) -> None:
    ready, loading = WorkerRun(LIMITS), WorkerRun(LIMITS)
    for _ in range(3):
        assert ready.tick(nap_s, None, PendingWork(is_busy=True, cancelled_at_s=1.0, asked_at_s=1.0)) is None
        assert loading.tick(nap_s, None, None) is None


@pytest.mark.parametrize(
    ("cpu_s", "limit_s"),
    [([50.0] * 99, 30), ([50.0 + index for index in range(99)], 11), ([4 * index for index in range(99)], 11)],
    ids=["idle", "busy", "several threads"],
)
def test_computing_is_what_the_process_used_of_the_time(cpu_s: list[float], limit_s: int) -> None:
    """In the first tick the process has not been looked at before."""
    watchdog, used_s = Watchdog(LIMITS.ping_interval_s), iter(cpu_s)
    tick = lambda: watchdog.tick(1.0, Signs(next(used_s)), [Owed("it took", "key", 10.0)])  # noqa: E731
    assert tick_until_hang(tick)[0] == limit_s


def test_where_the_system_does_not_tell_all_time_counts_as_computing() -> None:
    watchdog = Watchdog(LIMITS.ping_interval_s)
    count, hang = tick_until_hang(lambda: watchdog.tick(1.0, None, [Owed("it took", "key", 10.0)]))
    assert (count, hang) == (10, Hang("it took 10 s"))


def test_a_load_must_get_on() -> None:
    worker = Worker(SupervisionLimits(load_timeout_s=10.0))
    for percent in range(50):
        worker.run.on_load_progress(LoadProgress(percent / 100))
        assert worker.tick(None) is None
    for _ in range(8):
        worker.run.on_load_progress(LoadProgress(0.25))
        worker.run.on_load_progress(LoadProgress(float("nan")))
        assert worker.tick(None) is None
    hang = worker.tick(None) or worker.tick(None)
    assert hang is not None and hang.why == "hung while loading: no progress for 10 s at 49%"
    worker.run.on_load_progress(LoadProgress(7.0))
    assert worker.run.progress == 1.0


def test_a_load_from_a_slow_disk_gets_on_while_memory_fills() -> None:
    worker = Worker(SupervisionLimits(load_timeout_s=10.0), busy_s=0.0)
    for second in range(200):
        assert worker.tick(None, second << 20) is None
    count, hang = tick_until_hang(lambda: worker.tick(None, 200 << 20))
    assert "hung while loading" in hang.why
    assert 22 <= count <= 30
