"""F19: SIGTERM with open streams: they may finish for a while, then end properly; a second signal ends them at once."""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path

import pytest

from edgeagent.daemon.state import ExitCode
from tests.patience import patient
from tests.robust.stub_daemon import is_gone, stub_daemon

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows cannot send these signals to a process")
# Added to the drain time, for a busy machine; the daemon itself needs a second.
MARGIN_S = patient(10.0)
NEVER_S = 3600.0


@pytest.mark.daily(1, seconds=1)
@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_what_outlasts_the_drain_is_cancelled_and_has_its_end(tmp_path: Path, name: str) -> None:
    with stub_daemon(tmp_path / "state", drain_s=0.5) as daemon:
        worker = daemon.worker
        with daemon.stream("stream") as answer:
            daemon.process.send_signal(getattr(signal, name))
            lines = [line for line in answer.read().decode().splitlines() if line.startswith("data: ")]
        events = [json.loads(line.removeprefix("data: ")) for line in lines]
        assert ["error" in event for event in events] == [False] * (len(events) - 1) + [True]
        last_word = events[-2]["choices"][0]["delta"]["content"].split()[-1]
        assert events[-1]["edgeagent"]["num_delivered_tokens"] == int(last_word) + 1
        assert daemon.process.wait(0.5 + MARGIN_S) == ExitCode.OK
        assert is_gone(worker, 1)
    assert not (tmp_path / "state" / "daemon.json").exists()


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    with stub_daemon(tmp_path / "state", drain_s=NEVER_S) as daemon:
        worker = daemon.worker
        with daemon.stream("stream"):
            daemon.process.send_signal(signal.SIGTERM)
            while b"a second signal" not in daemon.log.read_bytes():
                time.sleep(0.02)
            assert daemon.process.poll() is None
            daemon.process.send_signal(signal.SIGTERM)
            assert daemon.process.wait(MARGIN_S) == ExitCode.OK
        assert is_gone(worker, MARGIN_S)


def test_a_worker_that_hangs_does_not_hold_the_end_up(tmp_path: Path) -> None:
    with stub_daemon(tmp_path / "state", drain_s=0.0) as daemon:
        worker = daemon.worker
        worker.suspend()
        daemon.process.send_signal(signal.SIGTERM)
        assert daemon.process.wait(2 * MARGIN_S) == ExitCode.OK
        assert is_gone(worker, 1)
