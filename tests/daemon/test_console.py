"""A console whose reader is slow, has gone, or never reads."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

import psutil
import pytest

from edgeagent.daemon import console as module
from edgeagent.daemon.console import Console, LogFile, console, dropped_lines
from edgeagent.daemon.logs import dropped_record


def pipe() -> tuple[int, TextIO]:
    reading, writing = os.pipe()
    return reading, os.fdopen(writing, "w", encoding="ascii")


def test_what_is_written_comes_out_in_order() -> None:
    reading, stream = pipe()
    with stream:
        with console(stream) as lines:
            for number in range(100):
                lines.write(f"{number}\N{SNOWMAN}\n")
        assert os.read(reading, 1 << 16).decode() == "".join(f"{number}\\u2603\n" for number in range(100))
    os.close(reading)


def test_a_stream_that_is_no_file() -> None:
    stream = io.StringIO()
    with console(stream) as lines:
        lines.write("one\n")
    assert stream.getvalue() == "one\n"


def test_a_reader_that_has_gone() -> None:
    reading, stream = pipe()
    os.close(reading)
    with stream, console(stream) as lines:
        lines.write("one\n")
        lines.write("two\n")


@pytest.mark.parametrize("describe", [dropped_lines, dropped_record])
def test_a_reader_that_does_not_read_costs_lines_and_no_time(
    monkeypatch: pytest.MonkeyPatch, describe: Callable[[int], str]
) -> None:
    monkeypatch.setattr(module, "MAX_WAITING_LINES", 3)
    monkeypatch.setattr(module, "CLOSE_S", 0.0)
    reading, stream = pipe()
    with stream:
        lines = Console(stream, describe)
        for _ in range(64):
            lines.write("x" * 65536)
        lines.finish()
        seen = b""
        while b"lines were dropped" not in seen:
            seen += os.read(reading, 1 << 20)
        os.close(reading)
        monkeypatch.setattr(module, "CLOSE_S", 60.0)
        lines.finish()


def test_a_log_file_is_private_and_renamed_when_it_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_LOG_BYTES", 10)
    path = tmp_path / "logs" / "daemon.log"
    with LogFile(path) as file, console(file) as lines:
        for number in range(5):
            lines.write(f"line {number}\n")
    assert (path.read_text(), path.with_name("daemon.log.1").read_text()) == ("line 4\n", "line 2\nline 3\n")
    assert path.stat().st_mode & 0o777 == 0o600
    with LogFile(path) as file, console(file) as lines:
        lines.write("again\n")
    assert path.read_text() == "line 4\nagain\n"


def test_a_log_file_goes_on_after_its_folder_was_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_LOG_BYTES", 4)
    folder, away = tmp_path / "logs", tmp_path / "away"
    with LogFile(folder / "daemon.log") as file:
        file.write("one\n")
        folder.rename(away)
        with pytest.raises(FileNotFoundError):
            file.write("two\n")
        away.rename(folder)
        file.write("three\n")
        file.write("four\n")
    assert [(folder / name).read_text() for name in ("daemon.log.1", "daemon.log")] == ["three\n", "four\n"]


def test_a_full_log_file_is_closed_before_it_is_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows renames no open file."""
    monkeypatch.setattr(module, "MAX_LOG_BYTES", 4)
    rename = Path.replace

    def replace(path: Path, target: Path) -> Path:
        assert path not in [Path(each.path) for each in psutil.Process().open_files()]
        return rename(path, target)

    monkeypatch.setattr(Path, "replace", replace)
    with LogFile(tmp_path / "daemon.log") as file:
        file.write("one\n")
        file.write("two\n")
    assert (tmp_path / "daemon.log.1").read_text() == "one\n"
