"""The lines people see, and the lines that go to the log."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgeagent.config import LogConfig
from edgeagent.daemon.logs import ConsoleLines, JsonLines, configure_logging
from edgeagent.daemon.reporter import ConsoleReporter
from edgeagent.runtime_file import Runtime
from edgeagent.types import ModelStatus, WorkerState
from tests.api.test_models import INFO

RUNTIME = Runtime(1, 2.0, 8127, "http://127.0.0.1:8127", "0.1.0", token="hidden")


@pytest.fixture
def streams() -> tuple[io.StringIO, io.StringIO]:
    return io.StringIO(), io.StringIO()


def test_the_lines(streams: tuple[io.StringIO, io.StringIO]) -> None:
    out, err = streams
    reporter = ConsoleReporter(out, err)
    reporter.listening(RUNTIME, None)
    reporter.listening(RUNTIME, Path("state", "token"))
    reporter.ready(ModelStatus("m", WorkerState.READY, 1.0, INFO))
    reporter.failed(ModelStatus("m", WorkerState.FAILED))
    reporter.stopping(0)
    reporter.stopping(2)
    reporter.error("no")
    address = "edgeagent 0.1.0 listening on http://127.0.0.1:8127 (ws://127.0.0.1:8127/v1/responses)"
    assert out.getvalue().splitlines() == [
        address,
        f"{address}; clients need the token in {Path('state', 'token')}",
        "m ready in 1.2 s: llama 5M, context 4096",
    ]
    assert err.getvalue().splitlines() == [
        "m failed: no cause is known",
        "stopping",
        "stopping, waiting for 2 live requests (a second signal ends them)",
        "error: no",
    ]
    assert "hidden" not in out.getvalue() + err.getvalue()


def test_progress_takes_few_lines(streams: tuple[io.StringIO, io.StringIO]) -> None:
    reporter = ConsoleReporter(*streams)
    for percent in range(101):
        reporter.loading(ModelStatus("m", WorkerState.STARTING, percent / 100))
    assert 8 <= len(streams[1].getvalue().splitlines()) <= 11


def test_a_reader_that_left_does_not_matter(streams: tuple[io.StringIO, io.StringIO]) -> None:
    for stream in streams:
        stream.close()
    reporter = ConsoleReporter(*streams)
    reporter.listening(RUNTIME, None)
    reporter.error("no")


def record(message: str, *values: object) -> logging.LogRecord:
    return logging.LogRecord("edgeagent.x", logging.WARNING, __file__, 1, message, values, None)


def test_log_lines_hold_no_control_characters() -> None:
    line = ConsoleLines().format(record("path %s", "/\x1b[2J\r\x00\x9b\u202e\u2028x"))
    assert line.endswith("WARNING edgeagent.x: path /\\x1b[2J\\r\\x00\\x9b\\u202e\\u2028x")


def test_json_lines() -> None:
    line = JsonLines().format(record("path %s", "a\nb"))
    assert "\n" not in line
    fields = json.loads(line)
    assert (fields["level"], fields["logger"], fields["message"]) == ("warning", "edgeagent.x", "path a\nb")


@pytest.fixture
def _logging_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:], root.level = handlers, level
    for name in ("uvicorn.error", "asyncio", "httpx"):
        logging.getLogger(name).setLevel(logging.NOTSET)


@pytest.mark.usefixtures("_logging_as_it_was")
def test_configuring(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(LogConfig(level="warning", format="json"))
    logging.getLogger("edgeagent.x").info("not this")
    logging.getLogger("edgeagent.x").warning("this")
    logging.getLogger("uvicorn.error").error("nor this")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert [json.loads(line)["message"] for line in captured.err.splitlines()] == ["this"]
