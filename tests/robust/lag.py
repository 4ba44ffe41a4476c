"""How late the event loop is, measured in the loop itself every few milliseconds.

Anything that blocks the loop counts: computing, sleeping, waiting for a lock or for a disk. Time that other programs
took does not count: Linux reports how long a thread was ready to run but waited for a processor, and this time is
subtracted. Objects of earlier tests are excluded from garbage collection from then on.
"""

from __future__ import annotations

import asyncio
import gc
import http.client
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from tests.patience import patient

MAX_LAG_S = 0.25
MAX_P99_S = 0.05
STEP_S = 0.005
# With this many looks, one in a hundred is significant. The maximum alone needs few: a body or a frame blocks the loop
# each time that it is sent.
MANY_LOOKS = 300
FEW_LOOKS = 60
FEWEST_LOOKS = 10
NUM_TRIES = 4
_SCHEDSTAT = Path("/proc/thread-self/schedstat")


@dataclass(frozen=True, slots=True)
class Lag:
    """The lateness of each look, in seconds."""

    late_s: tuple[float, ...]

    @property
    def max_s(self) -> float:
        return max(self.late_s)

    @property
    def p99_s(self) -> float:
        return sorted(self.late_s)[len(self.late_s) * 99 // 100]


def waited_s() -> float:
    """Return how many seconds this thread was ready to run but waited for a processor; 0 if unknown."""
    try:
        return int(_SCHEDSTAT.read_text(encoding="ascii").split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


async def watch(
    act: Callable[[], Awaitable[None]],
    min_looks: int,
    *,
    clock: Callable[[], float] = time.monotonic,
    waited_s: Callable[[], float] = waited_s,
) -> Lag:
    """Measure how late the loop is while `act` runs again and again."""
    late_s: list[float] = []

    async def look() -> None:
        while True:
            began_s, before_s = clock(), waited_s()
            await asyncio.sleep(STEP_S)
            others_s = waited_s() - before_s  # before the clock: what is taken in between must not hide a block
            late_s.append(max(0.0, clock() - began_s - STEP_S - others_s))

    looking = asyncio.create_task(look())
    await asyncio.sleep(0)  # The first look starts before `act`.
    try:
        while len(late_s) < min_looks:
            await act()
        await asyncio.sleep(2 * STEP_S)  # This includes a block at the very end.
    finally:
        looking.cancel()
    return Lag(tuple(late_s))


async def assert_in_time(act: Callable[[], Awaitable[None]], min_looks: int = MANY_LOOKS) -> None:
    """Fail if the row's maximum or p99 is exceeded while `act` runs."""
    await _assert(act, min_looks, lambda lag: lag.max_s <= MAX_LAG_S and lag.p99_s <= MAX_P99_S)


async def assert_never_late(act: Callable[[], Awaitable[None]], min_looks: int = FEWEST_LOOKS) -> None:
    """Fail if the loop is ever later than the row's maximum while `act` runs."""
    await _assert(act, min_looks, lambda lag: lag.max_s <= MAX_LAG_S)


async def _assert(act: Callable[[], Awaitable[None]], min_looks: int, is_short: Callable[[Lag], bool]) -> None:
    lags: list[Lag] = []
    gc.collect()
    gc.freeze()
    # One run in time shows that `act` itself does not make the loop late; otherwise the machine did.
    while not lags or (not is_short(lags[-1]) and len(lags) < NUM_TRIES):
        lags.append(await watch(act, min_looks))
    assert is_short(lags[-1]), f"late by {[(round(lag.p99_s, 3), round(lag.max_s, 3)) for lag in lags]} s (p99, max)"


def post(port: int, path: str, body: bytes) -> int:
    """Send a body, in a separate thread; return the status."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=patient(60))
    try:
        connection.request("POST", path, body, {"content-type": "application/json"})
        response = connection.getresponse()
        response.read()
        return response.status
    finally:
        connection.close()
