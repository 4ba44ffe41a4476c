"""The chat on a real terminal: a separate process behind a pseudo-terminal, against a scripted daemon."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.cli.conftest import StartStub
from tests.client.daemon_stub import DaemonStub, sending, text_events
from tests.patience import patient

if sys.platform == "win32":
    pytest.skip("pseudo-terminals", allow_module_level=True)

import fcntl
import pty
import struct
import termios

CHAT = """
import asyncio, sys
from pathlib import Path
from edgeagent.cli.conversation import Chat
from edgeagent.cli.line_reader import make_reader
from edgeagent.client import connect

with asyncio.Runner() as runner:
    client = connect(sys.argv[1])
    Chat(client, runner, {}).repl(make_reader(Path(sys.argv[2]) if sys.argv[2:] else None))
    runner.run(client.close())
print("LEFT")
"""
UP = "\x1b[A"
CTRL_C, CTRL_D = "\x03", "\x04"
PASTE = "\x1b[200~{}\x1b[201~"
WAIT_S = 30.0
# For daemons that the command starts.
UNCALIBRATED = {"EDGEAGENT_ENGINE__FLASH_ATTENTION": "off", "EDGEAGENT_ENGINE__THREADS": "1"}


class Terminal:
    """A process on a terminal of 80 columns: the text that it shows, without colours, and keys to send."""

    def __init__(self, *command: str, **environment: str) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        # The process must not react to variables such as PYTEST_CURRENT_TEST.
        self.process = subprocess.Popen(
            command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**os.environ, "TERM": "xterm", **environment},
            preexec_fn=_take_terminal,
        )
        os.close(slave)
        self._shown = ""
        self._seen = 0

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode("utf-8", "surrogateescape"))

    def wait_for(self, text: str) -> None:
        """Wait until a text appears after the last one that was waited for."""
        deadline = time.monotonic() + patient(WAIT_S)
        while (place := self._shown.find(text, self._seen)) < 0:
            assert time.monotonic() < deadline, self._shown
            self._read(0.1)
        self._seen = place + len(text)

    def shown_lines(self) -> list[str]:
        """Return the lines so far. Each run of backspaces is followed by a clear, so it erases what it runs over."""
        shown: list[str] = []
        for char in self._shown:
            if char == "\b":
                shown.pop()
            else:
                shown.append(char)
        return [line.rstrip() for line in "".join(shown).splitlines()]

    def wait_until_it_reads(self) -> None:
        """Wait until the process stays asleep, which it does only while it reads keys."""
        process, deadline, num_asleep = psutil.Process(self.process.pid), time.monotonic() + patient(WAIT_S), 0
        while num_asleep < 5:
            assert time.monotonic() < deadline, self._shown
            num_asleep = num_asleep + 1 if process.status() == psutil.STATUS_SLEEPING else 0
            time.sleep(0.01)

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
        os.close(self._master)

    def _read(self, timeout_s: float) -> None:
        if not select.select([self._master], [], [], timeout_s)[0]:
            return
        try:
            content = os.read(self._master, 65536).decode(errors="replace")
        except OSError:  # the other end is closed
            return
        if "\x1b[6n" in content:  # a query for the cursor's position
            self.type("\x1b[1;1R")
        self._shown += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]", "", content)


def _take_terminal() -> None:
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.fixture
def terminals() -> Iterator[list[Terminal]]:
    terminals: list[Terminal] = []
    yield terminals
    for terminal in terminals:
        terminal.close()


def chat(terminals: list[Terminal], stub: DaemonStub, *arguments: object, **environment: str) -> Terminal:
    terminal = Terminal(sys.executable, "-c", CHAT, stub.url, *map(str, arguments), **environment)
    terminals.append(terminal)
    terminal.wait_for(">>>")
    return terminal


def answers(*texts: str) -> list[Any]:
    return [sending(text_events(f"resp_{number}", text)) for number, text in enumerate(texts)]


def inputs(stub: DaemonStub) -> list[str]:
    return [event["input"] for event in stub.received if event["type"] == "response.create"]


def test_pasted_lines_are_one_question(start_stub: StartStub, terminals: list[Terminal]) -> None:
    stub = start_stub(*answers("ANSWER"))
    terminal = chat(terminals, stub)
    terminal.type(PASTE.format("def f():\r    return 1\r\rWhat is that?"))
    terminal.type("\r")
    terminal.wait_for("ANSWER")
    assert inputs(stub) == ["def f():\n    return 1\n\nWhat is that?"]


def test_a_block_in_quotes_is_one_question(start_stub: StartStub, terminals: list[Terminal]) -> None:
    stub = start_stub(*answers("ANSWER"))
    terminal = chat(terminals, stub)
    terminal.type('"""first\r')
    terminal.wait_for("...")
    terminal.type('second"""\r')
    terminal.wait_for("ANSWER")
    assert inputs(stub) == ["first\nsecond"]


def test_an_answer_is_broken_between_words(start_stub: StartStub, terminals: list[Terminal]) -> None:
    words = "".join(f"word{number} " for number in range(30))
    command = "x = '" + "y" * 90 + "'"
    text = f"{words}\n```\n{command}\n```\nEND"
    pieces = [text[start : start + 5] for start in range(0, len(text), 5)]
    terminal = chat(terminals, start_stub(sending(text_events("resp_1", *pieces))))
    terminal.type("tell me all\r")
    terminal.wait_for("END")
    lines = terminal.shown_lines()
    assert command in lines
    written = [line for line in lines if line.startswith("word")]
    assert len(written) == 3
    assert all(len(line) < 80 for line in written)
    assert " ".join(written).split() == words.split()


def test_a_dumb_terminal_gets_an_answer_as_it_is(start_stub: StartStub, terminals: list[Terminal]) -> None:
    words = "".join(f"word{number} " for number in range(30))
    terminal = chat(terminals, start_stub(*answers(words)), TERM="dumb")
    terminal.type("tell me all\n")
    terminal.wait_for(words)


def test_ctrl_c_clears_a_line_then_hints_then_leaves(start_stub: StartStub, terminals: list[Terminal]) -> None:
    stub = start_stub(*answers("ANSWER"))
    terminal = chat(terminals, stub)
    terminal.type("never sent" + CTRL_C + "sent\r")
    terminal.wait_for("ANSWER")
    terminal.wait_for(">>>")
    terminal.type(CTRL_C)
    terminal.wait_for("(Ctrl-C again or Ctrl-D leaves)")
    terminal.wait_for(">>>")
    terminal.type(CTRL_C)
    terminal.wait_for("LEFT")
    assert terminal.process.wait(WAIT_S) == 0
    assert inputs(stub) == ["sent"]


def test_ctrl_c_cancels_an_answer_and_ctrl_d_leaves(start_stub: StartStub, terminals: list[Terminal]) -> None:
    created, first, _, completed = text_events("resp_1", "ALPHA", "lo")
    cancelled = {"type": "response.incomplete", "response": {**completed["response"], "status": "cancelled"}}
    stub = start_stub(sending([created, first]), sending([cancelled]), *answers("NEXT"))
    terminal = chat(terminals, stub)
    terminal.type("tell me all\r")
    terminal.wait_for("ALPHA")
    terminal.process.send_signal(signal.SIGINT)
    terminal.wait_for("(cancelled")
    terminal.wait_for(">>>")
    terminal.type("go on\r")
    terminal.wait_for("NEXT")
    terminal.wait_for(">>>")
    terminal.type(CTRL_D)
    terminal.wait_for("LEFT")


def test_lines_are_remembered_over_sessions(start_stub: StartStub, terminals: list[Terminal], tmp_path: Path) -> None:
    stub = start_stub(*answers("ONE", "TWO"))
    history = tmp_path / "state" / "history"
    terminal = chat(terminals, stub, history)
    terminal.type("a question\r")
    terminal.wait_for("ONE")
    terminal.wait_for(">>>")
    terminal.type(CTRL_D)
    terminal.wait_for("LEFT")
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
    again = chat(terminals, stub, history)
    again.type(UP)
    again.wait_for("a question")
    again.type(" again\r")
    again.wait_for("TWO")
    assert inputs(stub) == ["a question", "a question again"]


def test_a_byte_that_is_not_utf_8_is_sent_and_kept_as_a_question_mark(
    start_stub: StartStub, terminals: list[Terminal], tmp_path: Path
) -> None:
    stub = start_stub(*answers("ONE"))
    terminal = chat(terminals, stub, tmp_path / "history")
    terminal.type("caf\udce9!\r")
    terminal.wait_for("ONE")
    assert inputs(stub) == ["caf?!"]
    assert "+caf?!\n" in (tmp_path / "history").read_text()


def test_a_dumb_terminal_is_talked_to_in_lines(
    start_stub: StartStub, terminals: list[Terminal], tmp_path: Path
) -> None:
    stub = start_stub(*answers("ONE", "TWO"))
    terminal = chat(terminals, stub, tmp_path / "history", TERM="dumb")
    terminal.type('"""a\n')
    terminal.wait_for("...")
    terminal.type('b"""\n')
    terminal.wait_for("ONE")
    terminal.wait_for(">>>")
    terminal.type("half")
    terminal.wait_for("half")
    terminal.wait_until_it_reads()  # Ctrl-C discards unread input, and may be lost itself before the process reads
    terminal.type(CTRL_C)
    terminal.wait_for(">>>")
    terminal.type("whole\n")
    terminal.wait_for("TWO")
    terminal.wait_for(">>>")  # typed earlier, the end of input is lost when the prompt changes the terminal's mode
    terminal.type(CTRL_D)
    terminal.wait_for("LEFT")
    assert inputs(stub) == ["a\nb", "whole"]
    assert not (tmp_path / "history").exists()


def test_the_command_on_a_terminal_with_the_bundled_model(terminals: list[Terminal], tmp_path: Path) -> None:
    folder = tmp_path / "state"
    command = (sys.executable, "-m", "edgeagent", "run", "--max-tokens", "1", "--state-dir")
    terminal = Terminal(*command, str(folder), **UNCALIBRATED)
    terminals.append(terminal)
    terminal.wait_for("starting the daemon")
    terminal.wait_for("/help lists the commands")
    terminal.wait_for(">>>")
    terminal.type("Hello\r")
    terminal.wait_for("(cut off")
    terminal.wait_for(">>>")
    terminal.type("/timings\r")
    terminal.wait_for("computing the prompt")
    terminal.wait_for(">>>")
    saved = tmp_path / "chat.json"
    typed = [
        (f"/save {saved}", "Saved 1 question"),
        ("/set max_tokens 40", "max_tokens is 40"),
        ("/model", "builtin"),
        ("/model builtin", "The next answer is from builtin"),
        (f"/load {saved}", "Loaded 1 question"),
        ("Set a timer for five minutes", "(cut off"),  # the saved limit of one token counts again
        ("/clear", "Forgotten"),
        ("/set max_tokens default", "model's default"),
        ("What can you do?", "timers"),
    ]
    for text, shown in typed:
        terminal.type(f"{text}\r")
        terminal.wait_for(shown)
        terminal.wait_for(">>>")
    terminal.type(CTRL_D)
    assert terminal.process.wait(WAIT_S) == 0
    lines = (folder / "history").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if line.startswith("+")] == [
        "+Hello",
        "+/timings",
        *(f"+{text}" for text, _ in typed),
    ]

    unkept = Terminal(*command, str(tmp_path / "none"), "--no-store", **UNCALIBRATED)
    terminals.append(unkept)
    unkept.wait_for(">>>")
    for question in ("a secret", "what did I say?"):
        unkept.type(f"{question}\r")
        unkept.wait_for("(cut off")
        unkept.wait_for(">>>")
    unkept.type(CTRL_D)
    assert unkept.process.wait(WAIT_S) == 0
    assert not (tmp_path / "none").exists()


def test_a_status_that_is_watched_follows_the_daemon(terminals: list[Terminal], tmp_path: Path) -> None:
    folder = str(tmp_path)
    watch = Terminal(sys.executable, "-m", "edgeagent", "status", "--watch", "--state-dir", folder)
    terminals.append(watch)
    watch.wait_for("serve`")  # the last word, since lines are wrapped
    serve = Terminal(sys.executable, "-m", "edgeagent", "serve", "--port", "0", "--state-dir", folder, **UNCALIBRATED)
    terminals.append(serve)
    serve.wait_for("builtin ready")
    watch.wait_for("live requests: 0 (of 0 so far)")
    serve.type(CTRL_C)
    assert serve.process.wait(WAIT_S) == 0
    watch.wait_for("serve`")  # the last word, since lines are wrapped
    watch.type(CTRL_C)
    assert watch.process.wait(WAIT_S) == 130


def test_ctrl_c_ends_a_command_that_waits_and_not_the_chat(
    start_stub: StartStub, terminals: list[Terminal], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("fifo")
    terminal = chat(terminals, start_stub(sending(text_events("resp_1", "an answer"))))
    terminal.type("/load fifo\r")
    terminal.wait_for("/load fifo")
    terminal.wait_until_it_reads()
    terminal.type(CTRL_C)
    terminal.wait_for("Ctrl-C again or Ctrl-D leaves")
    terminal.type("Hi\r")
    terminal.wait_for("an answer")


def test_a_status_is_watched_on_a_dumb_terminal_too(terminals: list[Terminal], tmp_path: Path) -> None:
    command = (sys.executable, "-m", "edgeagent", "status", "--watch", "--state-dir", str(tmp_path))
    watch = Terminal(*command, TERM="dumb")
    terminals.append(watch)
    watch.wait_for("serve`")
    watch.wait_for("serve`")
