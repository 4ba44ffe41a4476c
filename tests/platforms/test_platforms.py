"""A daemon under each platform's name starts, answers, loses a worker, answers the command line, and stops."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from tests.integration.conftest import Daemon, start_daemon
from tests.patience import patient

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
QUESTION = {"messages": [{"role": "user", "content": "Hello!"}], "temperature": 0}


@pytest.fixture(params=[pytest.param("darwin", marks=pytest.mark.slow(seconds=11)), "win32"])
def platform(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The platform name for every Python process of the test."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE / request.param), str(ROOT)]))
    return str(request.param)


@pytest.fixture
def daemon(platform: str, tmp_path: Path) -> Iterator[Daemon]:
    running = start_daemon(tmp_path / "state", "builtin")
    yield running
    if running.process.poll() is None:
        running.process.kill()
        running.process.wait()


def edgeagent(daemon: Daemon, *arguments: str) -> str:
    command = [sys.executable, "-m", "edgeagent", *arguments, "--state-dir", str(daemon.state_dir)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patient(60))
    assert done.returncode == 0, done.stderr
    return done.stdout


def answer(daemon: Daemon) -> str:
    said = httpx.post(f"{daemon.url}/v1/chat/completions", json=QUESTION, timeout=patient(60))
    assert said.status_code == 200, said.text
    text: str = said.json()["choices"][0]["message"]["content"]
    return text


@pytest.mark.skipif(sys.platform != "linux", reason="the names are lent to Linux")
def test_a_daemon_by_another_name_serves_and_recovers(daemon: Daemon) -> None:
    first = answer(daemon)
    assert first
    (model,) = json.loads(edgeagent(daemon, "status", "--json"))["models"]
    assert model["info"]["sandbox"] == [], "the branch for Linux was taken"
    worker = psutil.Process(daemon.worker_pid())
    worker.kill()
    worker.wait(patient(10))
    assert answer(daemon) == first
    assert edgeagent(daemon, "run", "Hello!", "--temperature", "0").strip() == first
    edgeagent(daemon, "stop")
    assert daemon.process.wait(patient(20)) == 0, daemon.log.read_text()


@pytest.mark.parametrize("platform", ["win32"], indirect=True)
@pytest.mark.skipif(sys.platform != "linux", reason="the name is lent to Linux")
def test_a_unix_socket_on_windows_is_refused_in_words(platform: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "edgeagent", "serve", "--port", "0", "--unix", str(tmp_path / "socket")]
    done = subprocess.run([*command, "--state-dir", str(tmp_path)], capture_output=True, text=True, timeout=patient(60))
    assert done.returncode == 2
    assert "no Unix sockets on Windows" in done.stderr
