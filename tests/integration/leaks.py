"""What a daemon and its worker hold: memory, descriptors, threads, connections, KV cells; measured from outside."""

from __future__ import annotations

import asyncio
import json
import sys
import urllib.request
from dataclasses import astuple, dataclass
from typing import Any

import psutil

from tests.integration.conftest import Daemon
from tests.patience import patient

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Holdings:
    """One measurement. Memory is in MiB; descriptors are handles on Windows."""

    daemon_mib: float
    worker_mib: float
    daemon_descriptors: int
    worker_descriptors: int
    daemon_threads: int
    worker_threads: int
    num_connections: int
    num_live: int
    num_cells_used: int


def status_of(url: str) -> dict[str, Any]:
    """Return the daemon's status."""
    with urllib.request.urlopen(f"{url}/edgeagent/status", timeout=patient(30)) as response:
        status: dict[str, Any] = json.load(response)
    return status


def holdings(daemon: Daemon) -> Holdings:
    """Measure what the daemon and its worker hold now."""
    status = status_of(daemon.url)
    (model,) = status["models"]
    process, worker = psutil.Process(daemon.process.pid), psutil.Process(model["pid"])
    return Holdings(
        daemon_mib=process.memory_info().rss / MIB,
        worker_mib=worker.memory_info().rss / MIB,
        daemon_descriptors=_num_descriptors(process),
        worker_descriptors=_num_descriptors(worker),
        daemon_threads=process.num_threads(),
        worker_threads=worker.num_threads(),
        # The status request itself uses one.
        num_connections=status["num_connections"] - 1,
        num_live=status["num_live_requests"],
        # The number is unknown before the worker's first pong.
        num_cells_used=model["worker"]["num_cells_used"] if model["worker"] else 0,
    )


async def idle(daemon: Daemon) -> None:
    """Wait until no connection is open and no request is live."""
    while True:
        await asyncio.sleep(0.1)
        now = await asyncio.to_thread(holdings, daemon)
        if now.num_connections <= 0 and now.num_live == 0:
            return


async def settled(daemon: Daemon) -> Holdings:
    """Measure once no connection is open, no request is live, and the worker has reported it."""
    await idle(daemon)
    # The worker's numbers are as old as its last pong, up to four seconds, and the connection of a measurement may stay
    # open for a moment.
    await asyncio.sleep(5.0)
    looks = [await asyncio.to_thread(holdings, daemon) for _ in range(5)]
    return Holdings(*map(min, zip(*(astuple(look) for look in looks), strict=True)))


def _num_descriptors(process: psutil.Process) -> int:
    number: int = process.num_handles() if sys.platform == "win32" else process.num_fds()
    return number
