"""The instruments of the rows find planted faults, and do not blame the daemon for other programs' work."""

from __future__ import annotations

import asyncio
import hashlib
import os
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

from tests.robust import faults, lag
from tests.robust.faults import Stream, watched_health
from tests.robust.lag import MAX_LAG_S, assert_in_time, assert_never_late, watch
from tests.worker.support import eventually

# On a busy machine, up to 0.15 s of such a block were counted as waiting for a processor.
BLOCKED_S = MAX_LAG_S + 0.5


def sleep() -> None:
    time.sleep(BLOCKED_S)


def spin() -> None:
    until_s = time.thread_time() + BLOCKED_S
    while time.thread_time() < until_s:
        pass


def wait_for_a_lock() -> None:
    lock, has_it = threading.Lock(), threading.Event()

    def hold() -> None:
        with lock:
            has_it.set()
            time.sleep(BLOCKED_S)

    holder = threading.Thread(target=hold)
    holder.start()
    has_it.wait()
    with lock:
        holder.join()


def write_to_a_slow_disk() -> None:
    """Block the thread in the kernel, as fsync on a busy disk does: the pipe is read late."""
    read_end, write_end = os.pipe()
    reader = threading.Timer(BLOCKED_S, lambda: os.read(read_end, 1 << 20))
    reader.start()
    try:
        os.write(write_end, bytes(1 << 17))
    finally:
        reader.join()
        os.close(read_end)
        os.close(write_end)


def blocking(fault: Callable[[], None]) -> Callable[[], Awaitable[None]]:
    """Return an act that blocks the loop at intervals, like a handler that should have used a thread."""

    async def act() -> None:
        fault()
        await asyncio.sleep(0.05)

    return act


FAULTS: dict[str, Callable[[], None]] = {
    "sleep": sleep,
    "computing": spin,
    "lock": wait_for_a_lock,
    "disk": write_to_a_slow_disk,
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_what_blocks_the_loop_is_seen(fault: str) -> None:
    assert (await watch(blocking(FAULTS[fault]), 5)).max_s >= MAX_LAG_S


@pytest.mark.parametrize("check", [assert_in_time, assert_never_late])
async def test_the_rows_own_checks_fail_then(check: Callable[..., Awaitable[None]]) -> None:
    with pytest.raises(AssertionError, match="late by"):
        await check(blocking(sleep), 3)


async def test_what_blocks_it_at_once_and_never_again_is_seen() -> None:
    faults_left = [sleep]

    async def once() -> None:
        if faults_left:
            faults_left.pop()()
        await asyncio.sleep(0.01)

    assert (await watch(once, 20)).max_s >= MAX_LAG_S


async def test_what_others_took_from_the_machine_does_not_count() -> None:
    now_s = iter(range(1_000_000))
    # Each look seems to take a second. All of it was waiting for a processor, except in the fourth.
    waits = iter(range(1_000_000))

    def waited_s() -> float:
        number = next(waits)
        return float(number - (number > 6))

    seen = await watch(lambda: asyncio.sleep(0.02), 10, clock=lambda: float(next(now_s)), waited_s=waited_s)
    assert [index for index, late_s in enumerate(seen.late_s) if late_s > 0] == [3]


@pytest.mark.skipif(not Path("/proc/thread-self/schedstat").exists(), reason="Linux tells")
def test_the_kernel_tells_what_others_took() -> None:
    """More threads than one processor can run at a time: each of them waits, and none is blocked."""
    if not hasattr(os, "sched_setaffinity"):
        pytest.skip("threads cannot be kept on one processor")
    waited: list[float] = []
    start = threading.Barrier(2)

    def compute() -> None:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        start.wait()
        before_s = lag.waited_s()
        # This releases Python's lock; otherwise the threads would wait for each other instead of for the processor.
        hashlib.pbkdf2_hmac("sha256", b"", b"", 200_000)
        waited.append(lag.waited_s() - before_s)

    threads = [threading.Thread(target=compute) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(waited) > 0.0


def http(handle: Callable[[httpx.Request], Coroutine[None, None, httpx.Response]]) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.MockTransport(handle))


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (500, {"error": {"code": 500, "message": "Loading model"}}),
        (503, {"error": {"code": "internal_error", "message": "an internal error"}}),
        (503, "Service Unavailable"),
        (404, {"error": {"code": 404}}),
        (200, {"status": "dying"}),
    ],
)
async def test_a_health_that_is_wrong_is_seen(status: int, body: object) -> None:
    async def handle(_: httpx.Request) -> httpx.Response:
        return httpx.Response(status, json=body) if isinstance(body, dict) else httpx.Response(status, text=str(body))

    with pytest.raises(AssertionError, match=f"says {status}"):
        async with http(handle) as client, watched_health(client, "http://daemon/health"):
            await asyncio.sleep(0.01)


async def test_a_slow_health_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "MAX_HEALTH_S", 0.05)

    async def handle(_: httpx.Request) -> httpx.Response:
        await asyncio.sleep(0.1)
        return httpx.Response(200, json={"status": "ok"})

    with pytest.raises(AssertionError, match="took 0"):
        async with http(handle) as client, watched_health(client, "http://daemon/health"):
            await asyncio.sleep(0.2)


async def test_a_health_that_gives_no_answer_is_seen() -> None:
    async def handle(_: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    with pytest.raises(httpx.ConnectError):
        async with http(handle) as client, watched_health(client, "http://daemon/health"):
            await asyncio.sleep(0.01)


async def test_a_health_that_is_never_answered_is_seen() -> None:
    async def handle(_: httpx.Request) -> httpx.Response:
        await asyncio.Event().wait()
        raise AssertionError

    with pytest.raises(AssertionError):
        async with http(handle) as client, watched_health(client, "http://daemon/health"):
            await asyncio.sleep(0.01)


async def test_what_never_comes_about_is_not_waited_for() -> None:
    with pytest.raises(AssertionError, match=r"not so within 0\.01 s"):
        await eventually(lambda: False, within_s=0.01)


async def test_a_stream_that_falls_silent_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "EVENT_TIMEOUT_S", 0.01)
    silent = SimpleNamespace(recv=asyncio.Event().wait)
    with pytest.raises(TimeoutError):
        await Stream(silent).next()  # type: ignore[arg-type]
