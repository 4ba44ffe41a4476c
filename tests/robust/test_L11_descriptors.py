"""L11: without free file descriptors the daemon neither spins nor crashes, and serves again once there are some."""

from __future__ import annotations

import socket
import sys
import time
from pathlib import Path

import httpx
import psutil
import pytest

from tests.patience import patient
from tests.robust.fake_serve import Process, serving

pytestmark = [pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's prlimit"), pytest.mark.alone]

MAX_DESCRIPTORS = 64
WATCH_S = 1.5
# A daemon that spins uses a whole core.
MAX_LOAD = 0.2
RECOVERY_S = 1.0
NUM_TRIES = 3


def test_accepting_pauses_and_goes_on(tmp_path: Path) -> None:
    with serving(tmp_path / "state") as daemon:
        process = psutil.Process(daemon.process.pid)
        process.rlimit(psutil.RLIMIT_NOFILE, (MAX_DESCRIPTORS, MAX_DESCRIPTORS))
        recovered_s: list[float] = []
        while not recovered_s or (min(recovered_s) > RECOVERY_S and len(recovered_s) < NUM_TRIES):
            recovered_s.append(exhaust(daemon, process))
        assert min(recovered_s) <= RECOVERY_S


def exhaust(daemon: Process, process: psutil.Process) -> float:
    """Use up all descriptors for a while; return how many seconds later a client was served."""
    sockets = [socket.create_connection(("127.0.0.1", daemon.runtime.port)) for _ in range(2 * MAX_DESCRIPTORS)]
    try:
        time.sleep(0.2)
        before, started_s = sum(process.cpu_times()[:2]), time.monotonic()
        time.sleep(WATCH_S)
        spent_s = sum(process.cpu_times()[:2]) - before
        assert process.num_fds() == MAX_DESCRIPTORS, "none is left"
        assert spent_s / (time.monotonic() - started_s) <= MAX_LOAD
        assert daemon.process.poll() is None
    finally:
        for each in sockets:
            each.close()
    released_s = time.monotonic()
    assert httpx.get(f"{daemon.runtime.url}/health", timeout=patient(30)).status_code == 200
    took_s = time.monotonic() - released_s
    assert process.num_fds() < MAX_DESCRIPTORS
    return took_s
