"""F17: one daemon per state folder; the kernel holds the lock, so `kill -9` leaves none behind."""

from __future__ import annotations

import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import psutil
import pytest

from edgeagent.daemon.state import ExitCode, locked_state_dir
from edgeagent.runtime_file import find_daemon
from tests.patience import patient
from tests.robust.stub_daemon import command, stub_daemon

EXIT_S = patient(30.0)


def test_a_second_daemon_ends_and_names_the_first(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    with stub_daemon(folder) as first:
        ended = subprocess.run(command(folder), capture_output=True, text=True, timeout=EXIT_S, check=False)
        assert (ended.returncode, ended.stdout) == (ExitCode.ALREADY_RUNNING, "")
        assert f"process {first.process.pid}" in ended.stderr and "--state-dir" in ended.stderr
        found = find_daemon(folder)
        assert found is not None and found.pid == first.process.pid
        assert first.ask("answer 1") == "0 "


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
@pytest.mark.parametrize("num_kills", [1, pytest.param(100, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])])
def test_no_lock_is_left_behind(tmp_path: Path, num_kills: int) -> None:
    for _ in range(num_kills):
        with stub_daemon(tmp_path / "state") as daemon:
            daemon.process.kill()
            daemon.process.wait()
    with stub_daemon(tmp_path / "state") as daemon:
        assert daemon.ask("answer 1") == "0 "


@pytest.mark.parametrize(("kind", "is_told"), [("nfs4", True), ("cifs", True), ("ext4", False), ("", False)])
def test_a_folder_on_another_machine_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, kind: str, is_told: bool
) -> None:
    mount = namedtuple("mount", ["mountpoint", "fstype"])
    mounts = [mount("/", "ext4"), mount(str(tmp_path), kind)]
    monkeypatch.setattr(psutil, "disk_partitions", lambda **_: mounts)
    with locked_state_dir(tmp_path / "state"):
        pass
    assert ("network file system" in caplog.text) is is_told
