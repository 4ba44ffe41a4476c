"""A daemon process with a fake backend and a real daemon's flags: `python -m tests.robust.fake_serve`."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from edgeagent.cli.options import with_declared_options
from edgeagent.config_sources import LoadedConfig
from edgeagent.daemon import serve
from edgeagent.runtime_file import Runtime, find_daemon
from tests.backends.fake import FakeBackend
from tests.patience import patient

START_TIMEOUT_S = patient(60.0)


@dataclass(frozen=True)
class Process:
    """The process of a listening daemon."""

    process: subprocess.Popen[bytes]
    runtime: Runtime
    state_dir: Path


def command(state_dir: Path, *flags: str) -> list[str]:
    """Return the command line of a daemon on a free port."""
    flags = ("--port", "0", "--state-dir", str(state_dir), *flags)
    return [sys.executable, "-m", "tests.robust.fake_serve", *flags]


@contextmanager
def serving(state_dir: Path, *flags: str) -> Iterator[Process]:
    """Run a daemon in a separate process, and end it."""
    log = state_dir.with_suffix(".log")
    with log.open("wb") as output:
        process = subprocess.Popen(command(state_dir, *flags), stdout=output, stderr=output, stdin=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while (runtime := find_daemon(state_dir)) is None or runtime.pid != process.pid:
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.02)
        yield Process(process, runtime, state_dir)
    finally:
        process.terminate()
        process.wait(patient(20))


def main() -> None:
    """Serve with the flags of `edgeagent serve`."""
    import typer

    app = typer.Typer()

    def run(loaded: LoadedConfig) -> None:
        raise typer.Exit(serve(loaded.config, build=lambda _: FakeBackend()))

    app.command()(with_declared_options(run))
    app()


if __name__ == "__main__":
    main()
