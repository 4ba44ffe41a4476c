"""F4: `kill -9` of the daemon: its worker ends by itself, whatever it is doing, and a new daemon starts."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import psutil
import pytest

from tests.integration.conftest import start_daemon
from tests.patience import patient
from tests.robust.stub_daemon import is_gone, stub_daemon

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
GONE_S = patient(5.0)


@pytest.mark.parametrize("num_kills", [2, pytest.param(100, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])])
def test_the_worker_goes_with_it_and_the_next_daemon_starts(tmp_path: Path, num_kills: int) -> None:
    for _ in range(num_kills):
        with stub_daemon(tmp_path / "state") as daemon:
            assert daemon.ask("answer 2") == "0 1 "
            worker = daemon.worker
            with daemon.stream("stream"):
                daemon.process.kill()
                daemon.process.wait()
                assert is_gone(worker, GONE_S)


def test_a_real_worker_goes_with_it_even_when_it_is_stopped(tmp_path: Path) -> None:
    daemon = start_daemon(tmp_path / "state", "builtin")
    worker = psutil.Process(daemon.worker_pid())
    if sys.platform == "linux":  # elsewhere the end of the pipe reports it, which a stopped process does not read
        worker.send_signal(signal.SIGSTOP)
    daemon.process.kill()
    daemon.process.wait()
    assert is_gone(worker, GONE_S)
