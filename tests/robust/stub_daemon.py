"""A daemon process with a scripted worker: `python -m tests.robust.stub_daemon FOLDER PORT DRAIN_S [START...]`."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from edgeagent.backends.local import LocalBackend
from edgeagent.config import Config, ServerConfig
from edgeagent.daemon import serve
from edgeagent.router.router import Router
from edgeagent.runtime_file import find_daemon
from edgeagent.worker.parent.pool.loading import ModelSource
from edgeagent.worker.parent.pool.pool import Pool
from tests.patience import patient
from tests.stub_worker import stub_command
from tests.worker.support import QUICK, found_at

START_TIMEOUT_S = patient(60.0)


@dataclass
class StubDaemon:
    """A daemon process that is ready to answer."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path

    @property
    def worker(self) -> psutil.Process:
        (worker,) = psutil.Process(self.process.pid).children()
        return worker

    @contextmanager
    def stream(self, text: str) -> Iterator[http.client.HTTPResponse]:
        """Start a streamed completion and read its first event."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=patient(60))
        body = json.dumps({"stream": True, "messages": [{"role": "user", "content": text}]})
        connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
        with closing(connection), connection.getresponse() as response:
            assert response.readline().startswith(b"data: ")
            yield response

    def ask(self, text: str) -> str:
        """Return the answer to a message."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=patient(60))
        body = json.dumps({"messages": [{"role": "user", "content": text}]})
        connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
        answer = json.loads(connection.getresponse().read())
        connection.close()
        return str(answer["choices"][0]["message"]["content"])

    def is_healthy(self) -> bool:
        """Return whether the model is ready."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=patient(60))
        connection.request("GET", "/health")
        status = connection.getresponse().status
        connection.close()
        return status == 200


def command(folder: Path, *starts: str, port: int = 0, drain_s: float = 1.0) -> list[str]:
    """Return the command line of a daemon that stores its state in a folder."""
    return [sys.executable, "-m", "tests.robust.stub_daemon", str(folder), str(port), str(drain_s), *starts]


@contextmanager
def stub_daemon(folder: Path, *starts: str, output: int | None = None, drain_s: float = 1.0) -> Iterator[StubDaemon]:
    """Run a daemon until its model is ready; at the end kill what still runs."""
    log = folder.with_suffix(".log")
    with log.open("wb") as file:
        process = subprocess.Popen(
            command(folder, *starts, drain_s=drain_s),
            stdout=file if output is None else output,
            stderr=file if output is None else output,
            stdin=subprocess.DEVNULL,
        )
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while (found := find_daemon(folder)) is None or found.pid != process.pid:
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.02)
        daemon = StubDaemon(process, found.port, log)
        while not daemon.is_healthy():
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.02)
        yield daemon
    finally:
        process.kill()
        process.wait()


def is_gone(process: psutil.Process, timeout_s: float) -> bool:
    """Return whether a process ends within this many seconds."""
    deadline = time.monotonic() + timeout_s
    while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def main(folder: Path, port: int, drain_s: float, starts: list[str]) -> int:
    """Serve."""
    config = Config(state_dir=folder, server=ServerConfig(port=port, drain_s=drain_s))
    lives = folder.with_suffix(".lives")
    pool = Pool(
        config,
        ModelSource(lambda _: found_at(Path("stub.gguf"), "stub"), lambda _: None),
        command=stub_command(lives, *starts),
        limits=QUICK,
    )
    return serve(config, build=lambda _: Router([LocalBackend(pool)]))


if __name__ == "__main__":
    os.environ.pop("EDGEAGENT_CONFIG", None)
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4:]))
