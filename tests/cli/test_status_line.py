"""The temporary progress line on stderr."""

from __future__ import annotations

import io
import sys

import pytest

from edgeagent.cli.progress import StatusLine


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_each_text_takes_the_place_of_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    monkeypatch.setenv("COLUMNS", "10")
    with StatusLine() as line:
        for text in ("loading", "ready", "ready"):
            line.show(text)
    assert terminal.getvalue() == "\rloading\rready  \r         \r"


def test_it_is_no_longer_than_the_terminal_is_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    monkeypatch.setenv("COLUMNS", "10")
    StatusLine().show("starting the daemon")
    assert terminal.getvalue() == "\rstartin"


def test_elsewhere_nothing_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", stream := io.StringIO())
    with StatusLine() as line:
        line.show("loading")
    assert stream.getvalue() == ""
