"""L1: a thousand idle WebSockets use at most 64 KiB each, and the daemon still answers."""

from __future__ import annotations

import socket
import sys
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from tests.patience import patient
from tests.robust.fake_serve import serving
from tests.robust.raw import KEY_HEADERS

NUM_SOCKETS = 1000
MAX_BYTES = 64 << 10


@pytest.mark.skipif(sys.platform == "win32", reason="its descriptors have no such limit to raise")
def test_idle_sockets_are_cheap(tmp_path: Path) -> None:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 4 * NUM_SOCKETS:
        pytest.skip(f"only {hard} descriptors are allowed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4 * NUM_SOCKETS), hard))
    try:
        with serving(tmp_path / "state") as daemon, ExitStack() as sockets:
            port = daemon.runtime.port
            process = psutil.Process(daemon.process.pid)
            # The first connections pay for lazy loading.
            for _ in range(20):
                sockets.enter_context(open_socket(port))
            before = process.memory_info().rss
            for _ in range(NUM_SOCKETS):
                sockets.enter_context(open_socket(port))
            # A request is answered as usual.
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=patient(10)) as reply:
                assert reply.status == 200
            grown = process.memory_info().rss - before
            assert grown <= NUM_SOCKETS * MAX_BYTES, f"{grown / NUM_SOCKETS / 1024:.1f} KiB each"
            sockets.close()
            deadline = time.monotonic() + patient(10)
            while len(process.net_connections()) > 5:
                assert time.monotonic() < deadline, "sockets stay open"
                time.sleep(0.05)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def open_socket(port: int) -> socket.socket:
    """Return a connected WebSocket that sends nothing."""
    opened = socket.create_connection(("127.0.0.1", port), timeout=patient(10))
    head = f"GET /v1/responses HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    opened.sendall(f"{head}{KEY_HEADERS}\r\n\r\n".encode())
    assert opened.recv(4096).startswith(b"HTTP/1.1 101")
    return opened
