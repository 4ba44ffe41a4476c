"""The lines that the daemon prints for people."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from msgspec import structs

from edgeagent.daemon.console import ConsoleReporter, LogReporter
from edgeagent.runtime_file import Runtime
from edgeagent.types import ModelStatus, WorkerState, replace
from tests.api.services import INFO
from tests.daemon.logged import logged

RUNTIME = Runtime(1, 2.0, 8127, "http://127.0.0.1:8127", "0.1.0", token="hidden")


@pytest.fixture
def streams() -> tuple[io.StringIO, io.StringIO]:
    return io.StringIO(), io.StringIO()


def test_the_lines(streams: tuple[io.StringIO, io.StringIO]) -> None:
    out, err = streams
    reporter = ConsoleReporter(out, err)
    reporter.listening(RUNTIME, None)
    reporter.listening(RUNTIME, Path("state", "token"))
    elsewhere = ("http://192.0.2.2:8127", "http://[2001:db8::2]:8127")
    reporter.listening(structs.replace(RUNTIME, network_urls=elsewhere), None)
    reporter.ready(ModelStatus("m", WorkerState.READY, 1.0, INFO))
    reporter.failed(ModelStatus("m", WorkerState.FAILED))
    reporter.stopping(0)
    reporter.stopping(2)
    reporter.error("no")
    address = "edgeagent 0.1.0 listening on http://127.0.0.1:8127 (ws://127.0.0.1:8127/v1/responses)"
    assert out.getvalue().splitlines() == [
        address,
        f"{address}; clients need the token in {Path('state', 'token')}",
        address,
        "reached from other machines at http://192.0.2.2:8127, http://[2001:db8::2]:8127",
        "m ready in 1.2 s: llama 5M, context 4096",
    ]
    assert err.getvalue().splitlines() == [
        "m failed: no cause is known",
        "stopping",
        "stopping, waiting for 2 live requests (a second signal ends them)",
        "error: no",
    ]
    assert "hidden" not in out.getvalue() + err.getvalue()


def test_a_log_in_a_file_has_all_lines_and_errors_are_printed_too(capsys: pytest.CaptureFixture[str]) -> None:
    with logged() as log:
        reporter = LogReporter()
        reporter.listening(RUNTIME, None)
        reporter.error("no")
    assert "listening on http://127.0.0.1:8127" in log.getvalue()
    assert "error: no" in log.getvalue()
    assert capsys.readouterr() == ("", "error: no\n")


def test_a_log_for_machines_has_no_other_lines() -> None:
    out = io.StringIO()
    with logged() as log:
        reporter = LogReporter(out)
        reporter.listening(RUNTIME, None)
        reporter.loading(ModelStatus("m", WorkerState.STARTING, 0.5))
        reporter.failed(ModelStatus("m", WorkerState.FAILED))
        reporter.stopping(0)
        reporter.error("100% no")
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    assert [(line["level"], line["message"]) for line in lines] == [
        ("info", "m: loading 50%"),
        ("error", "m failed: no cause is known"),
        ("info", "stopping"),
        ("error", "error: 100% no"),
    ]
    assert out.getvalue().startswith("edgeagent 0.1.0 listening on ")


@pytest.mark.parametrize(("num_params", "size"), [(4_987_136, "5.0M"), (12_345_678_901, "12.3B")])
def test_a_model_whose_size_llama_cpp_has_no_name_for(
    streams: tuple[io.StringIO, io.StringIO], num_params: int, size: str
) -> None:
    info = replace(INFO, description="llama ?B Q8_0", num_params=num_params)
    ConsoleReporter(*streams).ready(ModelStatus("m", WorkerState.READY, 1.0, info))
    assert streams[0].getvalue() == f"m ready in 1.2 s: llama {size} Q8_0, context 4096\n"


def test_progress_takes_few_lines(streams: tuple[io.StringIO, io.StringIO]) -> None:
    reporter = ConsoleReporter(*streams)
    for percent in range(101):
        reporter.loading(ModelStatus("m", WorkerState.STARTING, percent / 100))
    assert streams[1].getvalue().splitlines() == [
        *(f"m: loading {percent}%" for percent in (25, 50, 75)),
        "m: checking the model",
    ]


def test_no_url_is_cut_by_a_terminal(streams: tuple[io.StringIO, io.StringIO]) -> None:
    ConsoleReporter(*streams, is_terminal=True).listening(RUNTIME, Path("token"))
    assert streams[0].getvalue().splitlines() == [
        "edgeagent 0.1.0 listening on http://127.0.0.1:8127",
        "  WebSocket: ws://127.0.0.1:8127/v1/responses",
        "  clients need the token in token",
    ]


def test_progress_takes_one_line_of_a_terminal(streams: tuple[io.StringIO, io.StringIO]) -> None:
    out, err = streams
    reporter = ConsoleReporter(out, err, is_terminal=True)
    for progress, shown in ((0, "m: loading 0%"), (0.999, "m: loading 99%"), (1, "m: checking the model")):
        reporter.loading(ModelStatus("m", WorkerState.STARTING, progress))
        assert screen(err.getvalue()) == [shown]
    reporter.ready(ModelStatus("m", WorkerState.READY, 1.0, INFO))
    assert screen(err.getvalue()) == [""]
    assert out.getvalue().startswith("m ready")
    reporter.stopping(0)
    assert screen(err.getvalue()) == ["stopping", ""]


def test_lines_are_fitted_to_the_terminal(
    streams: tuple[io.StringIO, io.StringIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    reporter = ConsoleReporter(*streams, is_terminal=True)
    reporter.loading(ModelStatus("a-long-name", WorkerState.STARTING, 1.0))
    assert streams[1].getvalue() == "a-long-name: checki\r"
    reporter.error("no model is called /a/path/that/is/long: see there")
    assert screen(streams[1].getvalue()) == [
        "error: no model is",
        "  called",
        "  /a/path/that/is/long:",
        "  see there",
        "",
    ]


def screen(written: str) -> list[str]:
    """Return the lines that a terminal shows; a carriage return moves to the start of the line."""
    lines = []
    for line in written.split("\n"):
        shown = ""
        for part in line.split("\r"):
            shown = part + shown[len(part) :]
        lines.append(shown.rstrip())
    return lines


def test_a_reader_that_left_does_not_matter(streams: tuple[io.StringIO, io.StringIO]) -> None:
    for stream in streams:
        stream.close()
    reporter = ConsoleReporter(*streams)
    reporter.listening(RUNTIME, None)
    reporter.error("no")
