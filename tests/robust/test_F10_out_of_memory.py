"""F10: when memory runs out, the kernel kills the worker, not the daemon; the cause is reported, and streams continue.

The tests do what the kernel does: they send SIGKILL at any moment of a worker's life.
"""

from __future__ import annotations

import itertools
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.integration.conftest import Daemon, start_daemon, stop_daemon
from tests.robust.faults import faulty
from tests.worker.support import eventually

CAUSE = "SIGKILL (killed from outside; out of memory?)"
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")


def badness(pid: int) -> int:
    """Return the kernel's OOM score adjustment of a process: 0 by default, 1000 at most."""
    return int(Path(f"/proc/{pid}/oom_score_adj").read_text(encoding="ascii"))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can be told whom to kill")
def test_the_worker_goes_before_the_daemon(tmp_path: Path) -> None:
    daemon: Daemon = start_daemon(tmp_path / "state", "builtin")
    worker = daemon.worker_pid()
    assert badness(worker) >= min(1000, badness(daemon.process.pid) + 500)
    psutil.Process(worker).send_signal(signal.SIGKILL)
    while CAUSE not in daemon.log.read_text():
        time.sleep(0.02)
    assert daemon.process.poll() is None
    stop_daemon(daemon)


async def test_a_stream_goes_on_and_the_cause_is_told(tmp_path: Path) -> None:
    async with faulty(tmp_path) as victim:
        stream = await victim.ask("die SIGKILL 2 | answer 4")
        assert (stream.response["status"], stream.text) == ("completed", "0 1 2 3 ")
        assert [move["reason"] for move in stream.handovers] == ["worker_killed"]
        assert victim.model.cause == CAUSE


async def test_where_the_kernel_says_so_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = itertools.count()
    monkeypatch.setattr("edgeagent.worker.parent.supervision.channel.num_oom_kills", lambda: next(counts))
    async with faulty(tmp_path) as victim:
        assert (await victim.ask("die SIGKILL 2 | answer 4")).text == "0 1 2 3 "
        assert "out of memory: the kernel ended it" in (victim.model.cause or "")


async def test_a_request_that_needs_more_than_there_is_ends_and_takes_nobody_along(tmp_path: Path) -> None:
    async with faulty(tmp_path) as victim, victim.socket() as socket:
        bystander = await (await victim.say(socket, " | ".join(["linger 1"] * 3 + ["answer 9"] * 12))).until(1)
        hungry = await victim.ask("die SIGKILL")
        assert hungry.response["status"] == "failed"
        assert hungry.response["edgeagent"]["reason"] == "worker_crashed"
        assert CAUSE in hungry.response["error"]["message"]
        assert (await bystander.end()).text == "0 1 2 3 4 5 6 7 8 "


async def test_a_model_that_does_not_fit_is_left_alone(tmp_path: Path) -> None:
    async with faulty(tmp_path, *["die SIGKILL"] * 4, serves_after=False) as victim:
        await eventually(lambda: victim.model.state == "quarantined")
        assert victim.num_lives == 3
        assert CAUSE in (victim.model.cause or "")
        assert (await victim.daemon.http.get(f"{victim.daemon.url}/health")).status_code == 503
