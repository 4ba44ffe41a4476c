"""Tables and lines on a narrow terminal; output to a pipe is not changed."""

from __future__ import annotations

import io
import os
import sys

import pytest

from edgeagent.cli import display
from edgeagent.cli.display import complain, duration, size_text, table, wrapped

HEADINGS = ("name", "size", "where")
ROWS = [("builtin", "5.8 MB", "/models/builtin/a-file-with-a-long-name.gguf"), ("b", "1.0 GB", "/b.gguf")]


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(display, "terminal_width", lambda: 60)


def test_a_table_in_a_pipe_has_a_line_for_each_row_however_long() -> None:
    rows = [("n" * 100, "5.8 MB", "/" + "p" * 300)]
    assert table(HEADINGS, rows, last_left=True).splitlines()[1] == f"{'n' * 100}  5.8 MB  /{'p' * 300}"


def test_a_table_that_fits_a_terminal_is_not_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = table(HEADINGS, ROWS, last_left=True)
    monkeypatch.setattr(display, "terminal_width", lambda: 80)
    assert table(HEADINGS, ROWS, last_left=True) == whole
    assert whole.splitlines()[2] == "b        1.0 GB  /b.gguf"


@pytest.mark.usefixtures("narrow")
def test_what_does_not_fit_goes_below_its_row_and_no_path_is_broken() -> None:
    assert table(HEADINGS, ROWS, last_left=True).splitlines() == [
        "name       size",
        "builtin  5.8 MB",
        "  where: /models/builtin/a-file-with-a-long-name.gguf",
        "b        1.0 GB",
        "  where: /b.gguf",
    ]


@pytest.mark.usefixtures("narrow")
def test_several_columns_go_below_where_one_is_not_enough() -> None:
    rows = [("a" * 55, "1", "2")]
    assert table(("model", "running", "waiting"), rows).splitlines() == ["model", "a" * 55, "  running: 1, waiting: 2"]


@pytest.mark.usefixtures("narrow")
def test_lines_break_at_blanks() -> None:
    text = f"short\nbuiltin: {'word ' * 14}/a/{'long' * 20}.gguf end"
    lines = wrapped(text).splitlines()
    assert lines[:2] == ["short", "builtin: " + " ".join(["word"] * 10)]
    assert lines[-2:] == [f"  /a/{'long' * 20}.gguf", "  end"]
    assert " ".join(" ".join(lines).split()) == " ".join(text.split())


def test_lines_in_a_pipe_are_left_alone() -> None:
    assert wrapped("word " * 100) == "word " * 100


@pytest.mark.parametrize(
    ("num_bytes", "text"), [(0, "0 B"), (999, "999 B"), (2_000_000, "2.0 MB"), (12_345_678_901_234, "12,345.7 GB")]
)
def test_sizes(num_bytes: int, text: str) -> None:
    assert size_text(num_bytes) == text


@pytest.mark.parametrize(("seconds", "text"), [(5.2, "5 s"), (90, "1 min"), (7500, "2 h 5 min"), (200_000, "2 days")])
def test_lengths_of_time(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_errors_have_one_form(capsys: pytest.CaptureFixture[str]) -> None:
    complain("it broke")
    assert capsys.readouterr() == ("", "error: it broke\n")


def test_a_very_narrow_terminal_breaks_no_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    complain("there is no model that is called so")
    assert capsys.readouterr().err == "error: there is no\n  model that is\n  called so\n"


def test_the_width_is_that_of_the_streams_own_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """stdout is a pipe and stderr a narrow terminal."""

    def size_of(descriptor: int) -> os.terminal_size:
        if descriptor != 2:
            raise OSError("not a terminal")
        return os.terminal_size((50, 24))

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

        def fileno(self) -> int:
            return 2

    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr(os, "get_terminal_size", size_of)
    assert display.terminal_width(Terminal()) == 50
    assert display.terminal_width(io.StringIO()) is None


def test_a_long_line_of_blanks_is_wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(display, "terminal_width", lambda: 20)
    assert wrapped("a\n" + " " * 30 + "\nb").split() == ["a", "b"]
