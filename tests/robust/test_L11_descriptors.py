"""L11: out of file descriptors, the daemon neither spins nor falls, and serves again once there are some."""

from __future__ import annotations

import socket
import sys
import time
from pathlib import Path

import httpx
import psutil
import pytest

from tests.robust.fake_serve import serving

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's prlimit")

MAX_DESCRIPTORS = 64
WATCH_S = 1.5
# The list of attacks says 0.2 of a core; one that spins takes all of it.
MAX_LOAD = 0.5


def test_accepting_pauses_and_goes_on(tmp_path: Path) -> None:
    with serving(tmp_path / "state") as daemon:
        process = psutil.Process(daemon.process.pid)
        process.rlimit(psutil.RLIMIT_NOFILE, (MAX_DESCRIPTORS, MAX_DESCRIPTORS))
        sockets = [socket.create_connection(("127.0.0.1", daemon.runtime.port)) for _ in range(2 * MAX_DESCRIPTORS)]
        try:
            time.sleep(0.2)
            before, started_s = sum(process.cpu_times()[:2]), time.monotonic()
            time.sleep(WATCH_S)
            spent_s = sum(process.cpu_times()[:2]) - before
            assert spent_s / (time.monotonic() - started_s) <= MAX_LOAD
            assert daemon.process.poll() is None
        finally:
            for each in sockets:
                each.close()
        # A client that waits in the queue is served.
        assert httpx.get(f"{daemon.runtime.url}/health", timeout=30).status_code == 200
        assert process.num_fds() < MAX_DESCRIPTORS
