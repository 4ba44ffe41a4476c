"""A real daemon as users start it: `python -m edgeagent serve`, with its own process, port and state folder."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import pytest

from edgeagent.cli import main
from edgeagent.runtime_file import find_daemon
from tests.patience import patient

START_TIMEOUT_S = patient(60.0)
KILLED = -signal.SIGKILL if os.name == "posix" else 1
USERS_OWN = ("-m", "edgeagent")
# For tests of kept answers; see the module.
PATIENT = ("-m", "tests.patient_daemon")
_WORKERS = {"edgeagent.worker.child.process", "tests.slow_worker"}


@dataclass(frozen=True, slots=True)
class Daemon:
    """A running daemon, ready to answer."""

    process: subprocess.Popen[bytes]
    state_dir: Path
    port: int
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def wyoming_port(self) -> int:
        """The port at which it speaks Wyoming, if it was started so."""
        found = re.search(r"tcp://127\.0\.0\.1:(\d+)", self.log.read_text())
        assert found is not None, self.log.read_text()
        return int(found[1])

    def worker_pid(self) -> int:
        """Return the pid of the model's process."""
        children = psutil.Process(self.process.pid).children()
        (worker,) = [child for child in children if _WORKERS & {*child.cmdline()}]
        return int(worker.pid)

    def run(self, *words: str) -> str:
        """Run a command on this daemon, in this process; return its output."""
        return run_command(*words, "--state-dir", str(self.state_dir))

    def kill(self) -> None:
        """End the daemon and its worker with SIGKILL; wait until the lock is free and the worker has ended."""
        self.process.kill()
        self.process.wait()

    def kill_worker(self) -> None:
        """End the model's process with SIGKILL."""
        psutil.Process(self.worker_pid()).kill()

    def wait_until_idle(self) -> None:
        """Wait until no request is left, of this test or of one before: its counts follow its answer."""
        wait_until(lambda: not httpx.get(f"{self.url}/edgeagent/status").json()["num_live_requests"])


def wait_until(is_so: Callable[[], bool]) -> None:
    """Wait for what follows an answer: counts, a report of the worker, files."""
    deadline_s = time.monotonic() + patient(20)
    while not is_so():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def run_command(*words: str) -> str:
    """Run a command in this process; return its output."""
    with redirect_stdout(io.StringIO()) as output:
        assert main([*words]) == 0, output.getvalue()
    return output.getvalue()


def start_daemon(state_dir: Path, *flags: str, program: Sequence[str] = USERS_OWN) -> Daemon:
    """Start a daemon and wait until its model is ready; `program` holds Python's arguments.

    It computes with one thread unless `flags` say otherwise: two threads wait for each other by spinning, which is many
    times slower while another test runs. It does not calibrate, which takes longer than the start. With plain
    attention, answers do not change with the sizes of steps, which follow the machine's speed.
    """
    log = state_dir.with_suffix(".log")
    flags = ("--threads", "1", "--flash-attention", "off", *flags)
    command = [sys.executable, *program, "serve", *flags, "--port", "0", "--state-dir", str(state_dir)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("EDGEAGENT_")}
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, env=environment)
    deadline = time.monotonic() + START_TIMEOUT_S
    while b" ready in " not in log.read_bytes():
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            raise AssertionError(f"the daemon does not come up:\n{log.read_text()}")
        time.sleep(0.02)
    runtime = find_daemon(state_dir)
    assert runtime is not None
    return Daemon(process, state_dir, runtime.port, log)


def stop_daemon(daemon: Daemon) -> None:
    """Stop a daemon as a service manager does; check that it ran until then and exits as it should."""
    assert daemon.process.poll() is None, f"it ended by itself:\n{daemon.log.read_text()}"
    daemon.process.terminate()
    # Windows ends the process without a signal that it could handle.
    assert daemon.process.wait(patient(20)) == (0 if os.name == "posix" else 1), daemon.log.read_text()


@contextmanager
def serving(state_dir: Path, *flags: str, program: Sequence[str] = USERS_OWN) -> Iterator[Daemon]:
    """Run a daemon, which may be killed meanwhile."""
    daemon = start_daemon(state_dir, *flags, program=program)
    try:
        yield daemon
    finally:
        if daemon.process.poll() != KILLED:
            stop_daemon(daemon)


@pytest.fixture(autouse=True)
def _late_lists_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a model in this process wait for the list of its blocks on disk: on a busy machine, a late one is a miss."""
    host = sys.modules.get("edgeagent.worker.child.generator.host")
    if host is not None:
        monkeypatch.setattr(host, "_OPEN_S", patient(20.0))


@pytest.fixture(scope="session")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """The daemon with the bundled model that most tests share; they leave it unchanged."""
    with serving(tmp_path_factory.mktemp("shared") / "state", "builtin") as running:
        yield running


@pytest.fixture
def own_daemon(tmp_path: Path) -> Iterator[Daemon]:
    """A daemon for one test, which may harm it."""
    with serving(tmp_path / "state", "builtin") as running:
        yield running
