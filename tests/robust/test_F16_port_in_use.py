"""F16: a port used by another program or daemon has its own exit status and text; no token is sent to it."""

from __future__ import annotations

import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from edgeagent.cli import main
from edgeagent.daemon.state import ExitCode
from edgeagent.runtime_file import find_daemon
from tests.patience import patient
from tests.robust.stub_daemon import command, stub_daemon

# A daemon needs a second; the rest is for a busy machine.
EXIT_S = patient(30.0)


def is_refused(folder: Path, port: int) -> None:
    """Assert that a daemon does not start on a port, says why, and uses no other port."""
    ended = subprocess.run(command(folder, port=port), capture_output=True, text=True, timeout=EXIT_S, check=False)
    assert (ended.returncode, ended.stdout) == (ExitCode.PORT_TAKEN, "")
    assert f"port {port} on 127.0.0.1 is taken" in ended.stderr and "--port" in ended.stderr
    assert find_daemon(folder) is None


def test_a_stranger_keeps_the_port_and_hears_nothing(tmp_path: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as stranger:
        stranger.setblocking(False)
        is_refused(tmp_path / "state", stranger.getsockname()[1])
        with pytest.raises(BlockingIOError):
            stranger.accept()


def test_another_daemon_keeps_the_port(tmp_path: Path) -> None:
    with stub_daemon(tmp_path / "first") as first:
        is_refused(tmp_path / "second", first.port)
        assert first.ask("answer 1") == "0 "


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
def test_a_squatter_on_a_dead_daemons_port_gets_no_token(tmp_path: Path) -> None:
    with stub_daemon(tmp_path / "state") as daemon:
        daemon.process.kill()
        daemon.process.wait()
        assert (tmp_path / "state" / "daemon.json").exists()
        with closing(socket.create_server(("127.0.0.1", daemon.port))) as squatter:
            squatter.setblocking(False)
            for word in ("status", "stop", "reload"):
                main([word, "--state-dir", str(tmp_path / "state")])
            with pytest.raises(BlockingIOError):
                squatter.accept()
