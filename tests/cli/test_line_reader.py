"""What a chat reads: blocks, half-typed lines, the history file; real terminals are in test_chat_terminal."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from edgeagent.cli import line_reader
from edgeagent.cli.line_reader import PlainReader, TerminalReader, is_open, make_reader, unquoted


def typing(monkeypatch: pytest.MonkeyPatch, *lines: str | BaseException) -> None:
    typed = iter(lines)

    def read(prompt: str) -> str:
        line = next(typed)
        if isinstance(line, BaseException):
            raise line
        return line

    monkeypatch.setattr("builtins.input", read)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hi", False),
        ('"""', True),
        ('""" a\nb', True),
        ('"""a\nb"""', False),
        ('"""a"""', False),
        ('""""', True),
        ('say """', False),
    ],
)
def test_what_is_open(text: str, expected: bool) -> None:
    assert is_open(text) is expected


@pytest.mark.parametrize(
    ("text", "expected"), [(" hi ", "hi"), ('"""\n a\n  b\n"""', "a\n  b"), ('"""', '"""'), ('say """', 'say """')]
)
def test_quotes_are_taken_off(text: str, expected: str) -> None:
    assert unquoted(text) == expected


def test_a_block_is_one_question_without_a_terminal_too(monkeypatch: pytest.MonkeyPatch) -> None:
    typing(monkeypatch, '"""first', "  second", '"""', "next")
    reader = PlainReader()
    assert reader.read() == "first\n  second"
    assert reader.read() == "next"


def test_ctrl_c_drops_a_half_typed_line(monkeypatch: pytest.MonkeyPatch) -> None:
    half_typed = iter([True, False])
    monkeypatch.setattr(line_reader, "_half_typed", lambda: next(half_typed))
    typing(monkeypatch, KeyboardInterrupt(), "next", KeyboardInterrupt())
    reader = PlainReader()
    assert reader.read() == "next"
    with pytest.raises(KeyboardInterrupt):
        reader.read()


def test_a_pipe_and_a_dumb_terminal_have_plain_lines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert isinstance(make_reader(tmp_path / "history"), PlainReader)
    for stream in (sys.stdin, sys.stdout):
        monkeypatch.setattr(stream, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(make_reader(tmp_path / "history"), PlainReader)
    assert not (tmp_path / "history").exists()


def test_a_console_that_cannot_be_drawn_on_has_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(history_file: Path | None) -> None:
        raise OSError("no console")

    for stream in (sys.stdin, sys.stdout):
        monkeypatch.setattr(stream, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(line_reader, "TerminalReader", refuse)
    assert isinstance(make_reader(None), PlainReader)


@pytest.fixture
def remember() -> Callable[[Path, str], list[str]]:
    def add(file: Path, line: str) -> list[str]:
        line_reader._history(file).store_string(line)
        return list(line_reader._history(file).load_history_strings())

    return add


def test_the_history_is_this_users_alone(tmp_path: Path, remember: Callable[[Path, str], list[str]]) -> None:
    file = tmp_path / "state" / "history"
    assert remember(file, "one") == ["one"]
    assert remember(file, "two\nlines") == ["two\nlines", "one"]
    if os.name == "posix":
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
        file.chmod(0o644)
        remember(file, "three")
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_the_history_stays_small_and_keeps_the_latest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, remember: Callable[[Path, str], list[str]]
) -> None:
    monkeypatch.setattr(line_reader, "MAX_HISTORY_BYTES", 1000)
    file = tmp_path / "history"
    for number in range(60):
        kept = remember(file, f"line {number}")
        assert file.stat().st_size < 1100
    assert kept[0] == "line 59"
    assert kept == [f"line {number}" for number in range(59, 59 - len(kept), -1)]
    assert len(kept) >= 8


@pytest.mark.skipif(os.name != "posix", reason="links")
def test_a_history_that_cannot_be_kept_costs_no_chat(tmp_path: Path) -> None:
    (tmp_path / "history").symlink_to(tmp_path / "elsewhere")
    line_reader._history(tmp_path / "history").store_string("secret")
    assert not (tmp_path / "elsewhere").exists()
    (tmp_path / "file").touch()
    line_reader._history(tmp_path / "file" / "history").store_string("secret")


@pytest.mark.skipif(sys.platform == "win32", reason="a terminal of POSIX")
@pytest.mark.parametrize("end", ["\x03", "\x07"], ids=["ctrl-c", "ctrl-g"])
def test_a_search_in_the_history_can_be_left(end: str, tmp_path: Path) -> None:
    with create_pipe_input() as keys, create_app_session(input=keys, output=DummyOutput()):
        reader = TerminalReader(tmp_path / "history")
        keys.send_text("first\r")
        assert reader.read() == "first"
        keys.send_text(f"\x12fir{end}second\r")
        assert reader.read() == "second"
        # Enter takes what was found, and a second one sends it.
        keys.send_text("\x12fir\r\r")
        assert reader.read() == "first"


@pytest.mark.skipif(sys.platform == "win32", reason="a terminal of POSIX")
def test_a_history_that_cannot_be_kept_any_more_costs_its_lines(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    history = tmp_path / "history"
    with create_pipe_input() as keys, create_app_session(input=keys, output=DummyOutput()):
        reader = TerminalReader(history)
        history.unlink()
        history.mkdir()
        for question in ("hello", "again"):
            keys.send_text(f"{question}\r")
            assert reader.read() == question
    output = capfd.readouterr()
    assert output.out + output.err == "", "no error is shown"
