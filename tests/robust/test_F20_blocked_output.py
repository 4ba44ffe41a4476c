"""F20: the daemon's output is not read, or its disk is full: it continues to serve, and nothing waits for a line."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from edgeagent.daemon import console
from edgeagent.daemon.state import ExitCode
from tests.patience import patient
from tests.robust.stub_daemon import stub_daemon

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX pipes")


def fill(pipe: int) -> None:
    """Write into a pipe until it is full."""
    os.set_blocking(pipe, False)
    with suppress(BlockingIOError):
        while True:
            os.write(pipe, b"x" * 512)
    os.set_blocking(pipe, True)


def test_a_full_pipe_holds_nothing_up(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    fill(writing)
    try:
        with stub_daemon(tmp_path / "state", output=writing) as daemon:
            # Each crash adds a line to the log.
            assert daemon.ask("die SIGKILL 1 | answer 2") == "0 1 "
            assert daemon.ask("answer 1") == "0 "
            daemon.process.send_signal(signal.SIGTERM)
            assert daemon.process.wait(patient(20)) == ExitCode.OK
    finally:
        os.close(reading)
        os.close(writing)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_full_disk_under_the_log_holds_nothing_up(tmp_path: Path) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        with stub_daemon(tmp_path / "state", output=full) as daemon:
            assert daemon.ask("die SIGKILL 1 | answer 2") == "0 1 "
            daemon.process.send_signal(signal.SIGTERM)
            assert daemon.process.wait(patient(20)) == ExitCode.OK
    finally:
        os.close(full)


def test_lines_that_nobody_took_are_counted() -> None:
    reading, writing = os.pipe()
    fill(writing)
    with os.fdopen(writing, "w") as stream, os.fdopen(reading, "rb") as reader:
        lines = console.Console(stream)
        for index in range(console.MAX_WAITING_LINES + 50):
            lines.write(f"line {index}\n")
        read = b""
        while b"lines were dropped" not in read:
            read += reader.read1(4096)
        lines.finish()
