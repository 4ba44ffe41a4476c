"""Row F7, the runtime file: a disk that is full when the daemon starts costs no answer, and is reported.

A file size limit of 0 stands in for the full disk: files can be created, but nothing can be written.
"""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from edgeagent.cache_folder import ensure_secret
from edgeagent.cli import main
from edgeagent.credentials.keys import ensure_token
from edgeagent.errors import ConfigError
from edgeagent.runtime_file import find_daemon, read_token
from tests.patience import patient

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the limit of another process is lifted, /proc/locks")

START = """
import resource, sys
from edgeagent.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
sys.exit(main())
"""


def _eventually(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "state"
    folder.mkdir(mode=0o700)
    ensure_token(folder)
    ensure_secret(folder)
    return folder


@pytest.fixture
def daemon(folder: Path) -> Iterator[subprocess.Popen[str]]:
    arguments = ["serve", "--port", "0", "--state-dir", str(folder), "--threads", "1"]
    command = [sys.executable, "-c", START, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def test_a_full_disk_costs_no_answer_and_the_file_comes_when_there_is_room(
    folder: Path, daemon: subprocess.Popen[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert daemon.stdout is not None and daemon.stderr is not None
    url = daemon.stdout.readline().split(" on ")[1].split()[0]
    headers = {"authorization": f"Bearer {read_token(folder)}"}
    with httpx.Client(base_url=url, headers=headers, timeout=patient(60)) as client:
        chat = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
        assert client.post("/v1/chat/completions", json=chat).status_code == 200
        response = client.post("/v1/responses", json={"input": "hi", "max_output_tokens": 4})
        assert (response.status_code, response.json()["status"]) == (200, "incomplete")
        trouble = client.get("/edgeagent/status").json()["trouble"]
        assert "daemon.json: File too large" in trouble and "do not find it" in trouble
        waits = client.get("/edgeagent/status").json()["response_trouble"]
        assert waits.startswith("1 stored response in memory only: ")
        assert find_daemon(folder) is None
        for command in (["status"], ["stop"], ["cache", "stats"]):
            assert main([*command, "--state-dir", str(folder)]) == 1
            message = capsys.readouterr().err
            assert f"process {daemon.pid} holds the state folder {folder}, but daemon.json" in message

        psutil.Process(daemon.pid).rlimit(psutil.RLIMIT_FSIZE, (psutil.RLIM_INFINITY, psutil.RLIM_INFINITY))
        _eventually(lambda: find_daemon(folder) is not None)
        assert client.get("/edgeagent/status").json()["trouble"] is None
    assert main(["status", "--json", "--state-dir", str(folder)]) == 0
    assert json.loads(capsys.readouterr().out)["trouble"] is None
    assert main(["stop", "--state-dir", str(folder)]) == 0
    log = daemon.stderr.read()
    assert log.count("the command line and other programs do not find this daemon") == 1
    assert "programs find this daemon again" in log
    assert daemon.wait(patient(60)) == 0
    assert not (folder / "daemon.json").exists()


def test_a_secret_for_which_the_disk_has_no_room_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fsync(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(ConfigError, match=r"cannot write .*: No space left on device"):
        ensure_secret(tmp_path)
