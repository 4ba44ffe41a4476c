"""Starts edgeagent and llama.cpp's own server with the same model, threads and context, to be measured in turn."""

from __future__ import annotations

import asyncio
import contextlib
import platform
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil

from edgeagent.bench.client import Server, Transport, find_server
from edgeagent.client import Address
from edgeagent.runtime_file import find_daemon

START_S = 120.0


@dataclass(frozen=True, slots=True)
class Setup:
    """The settings that both servers share.

    `before`: the interpreter of another checkout's environment, whose edgeagent takes the place of llama-server; "" for
    none.
    """

    model: Path
    llama_server: Path
    threads: int
    before: str = field(default="", kw_only=True)


class Child:
    """A server process that can be killed and restarted with the same command."""

    def __init__(self, command: Sequence[str], log: Path, health: str) -> None:
        self._command = command
        self._log = log
        self._health = health
        self._process = self._started()

    def _started(self) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as output:
            process = subprocess.Popen(self._command, stdout=output, stderr=output, stdin=subprocess.DEVNULL)
        deadline = time.monotonic() + START_S
        try:
            while not is_healthy(self._health):
                if process.poll() is not None or time.monotonic() > deadline:
                    said = self._log.read_text(errors="replace")[-2000:]
                    raise SystemExit(f"{self._command[0]} does not come up:\n{said}")
                time.sleep(0.02)
        except BaseException:  # also if a signal ends this process meanwhile
            kill(process)
            raise
        return process

    @property
    def pid(self) -> int:
        return self._process.pid

    def restart(self) -> None:
        """Kill the server with all processes that it started, and start it again."""
        kill(self._process)
        self._process = self._started()

    def stop(self) -> None:
        """Stop the server."""
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            kill(self._process)


def edgeagent_command(
    model: Path | str, state: Path, port: int, *flags: str, python: str = sys.executable
) -> list[str]:
    """Return the command that serves a model on a port of this machine, with the edgeagent of an interpreter."""
    where = ["--port", str(port), "--state-dir", str(state)]
    return [python, "-P", "-m", "edgeagent", "serve", str(model), *where, *flags]


@contextmanager
def edgeagent(
    setup: Setup, context: int, *flags: str, transport: Transport = "ws", python: str = sys.executable
) -> Iterator[Server]:
    """Start edgeagent with a new state folder; yield it as a server to measure."""
    with tempfile.TemporaryDirectory() as folder:
        state, port = Path(folder, "state"), free_port()
        given = ["--ctx", str(context), "--threads", str(setup.threads)]
        command = edgeagent_command(setup.model, state, port, *given, *flags, python=python)
        child = Child(command, Path(folder, "log"), f"http://127.0.0.1:{port}/ready")
        try:
            runtime = find_daemon(state)
            assert runtime is not None
            server = asyncio.run(find_server(Address(f"http://127.0.0.1:{port}", runtime.token), transport))
            yield replace(server, restart=child.restart)
        finally:
            child.stop()


@contextmanager
def llama_server(setup: Setup, context: int, *flags: str) -> Iterator[Server]:
    """Start llama-server with its slots and its cache in RAM; yield it as a server to measure."""
    port = free_port()
    command = [str(setup.llama_server), "-m", str(setup.model), "-c", str(context), "--port", str(port)]
    command += ["-t", str(setup.threads), "-tb", str(setup.threads), *flags]
    with tempfile.TemporaryDirectory() as folder:
        child = Child(command, Path(folder, "log"), f"http://127.0.0.1:{port}/health")
        try:
            server = asyncio.run(find_server(Address(f"http://127.0.0.1:{port}"), "http"))
            yield replace(server, restart=child.restart)
        finally:
            child.stop()


def kill(daemon: subprocess.Popen[bytes]) -> None:
    """Kill a process and all its descendants without a normal stop; return when all have ended."""
    try:
        workers = psutil.Process(daemon.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        workers = []
    daemon.kill()
    for worker in workers:
        with contextlib.suppress(psutil.NoSuchProcess):
            worker.kill()
    daemon.wait()
    psutil.wait_procs(workers)


def free_port() -> int:
    """Return an unused port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def is_healthy(url: str) -> bool:
    """Return whether a server answers with 200."""
    try:
        with urllib.request.urlopen(url, timeout=1) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def processor() -> str:
    """Return the CPU's name, or the architecture if the system does not report a name."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
