"""A real daemon and its remotes, each a process of its own, for the figures."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tests.cluster.client import Client
from tests.cluster.endless_model import LOCAL_NAME
from tests.integration.conftest import Daemon, start_daemon, stop_daemon


class Engine(Protocol):
    """A remote that can be started and stopped; `certificate` is its own certificate if it uses TLS."""

    @property
    def name(self) -> str: ...
    @property
    def served_name(self) -> str: ...
    @property
    def url(self) -> str: ...
    @property
    def key(self) -> str: ...
    @property
    def certificate(self) -> Path | None: ...
    def start(self) -> object: ...
    def stop(self) -> None: ...


@dataclass(slots=True)
class Stage:
    """The daemon, and the commands of its owner."""

    daemon: Daemon

    def command(self, *words: str) -> str:
        """Run an edgeagent command for the daemon; return what it printed."""
        command = [sys.executable, "-m", "edgeagent", *words, "--state-dir", str(self.daemon.state_dir)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def add(self, engine: Engine, *limits: str) -> None:
        """Add a remote, as its owner does."""
        words = ["remote", "add", engine.name, engine.url, "--key-env", _variable(engine)]
        words += ["--model", f"{LOCAL_NAME}={engine.served_name}", "--yes"]
        words += ["--ca", str(engine.certificate)] if engine.certificate else []
        self.command(*words, *(word for limit in limits for word in ("--limit", limit)))

    def client(self) -> Client:
        """Return a client of the daemon."""
        return Client(self.daemon.url)


@contextmanager
def staged(engines: Sequence[Engine], model: Path, folder: Path, *flags: str) -> Iterator[Stage]:
    """Start the remotes and the daemon with `flags`, yield them, and stop them in any case."""
    with ExitStack() as stack:
        for engine in engines:
            stack.callback(engine.stop)
            engine.start()
            os.environ[_variable(engine)] = engine.key
        daemon = start_daemon(folder / "state", str(model), *flags)
        stack.callback(stop_daemon, daemon)
        yield Stage(daemon)


def _variable(engine: Engine) -> str:
    return f"KEY_OF_{engine.name.replace('-', '_').upper()}"
