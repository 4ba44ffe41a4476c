"""The system prompt of a kiosk, and the file of facts: what it may be, and what is said of one that cannot be used."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from edgeagent.config import KioskConfig
from edgeagent.errors import ConfigError
from edgeagent.kiosk_prompt import MAX_FACTS_BYTES, read_facts, system_prompt


@pytest.mark.parametrize(
    ("instructions", "facts", "expected"),
    [("", "", ""), ("Be kind.", " \n", "Be kind."), ("", "a\n", "a"), ("Be kind.", "\na\n", "Be kind.\n\na")],
)
def test_the_prompt(instructions: str, facts: str, expected: str) -> None:
    assert system_prompt(KioskConfig(instructions=instructions), facts) == expected


def test_facts_that_can_be_used(tmp_path: Path) -> None:
    assert read_facts(None) == ""
    path = tmp_path / "today.txt"
    for content, text in ((b"", ""), (b"\xef\xbb\xbfA lift.\r\n", "A lift.\r\n"), (b"a" * MAX_FACTS_BYTES, None)):
        path.write_bytes(content)
        assert read_facts(path) == (content.decode() if text is None else text)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"\xff", "it is not a text in UTF-8"),
        (b"a" * (MAX_FACTS_BYTES + 1), "it has more than 32768 bytes"),
        (None, "No such file or directory"),
    ],
    ids=["binary", "large", "missing"],
)
def test_facts_that_cannot_be_used(tmp_path: Path, content: bytes | None, problem: str) -> None:
    path = tmp_path / "today.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        read_facts(path)
    assert caught.value.message == f"kiosk.facts_file: {path} cannot be used: {problem}"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no named pipes in folders")
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "today")
    with pytest.raises(ConfigError, match="it is no file"):
        read_facts(tmp_path / "today")
