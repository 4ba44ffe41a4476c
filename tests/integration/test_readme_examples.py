"""The examples of README and docs/howto/examples.md, unchanged, against the real daemon."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.integration.conftest import Daemon, start_daemon, stop_daemon
from tests.patience import patient

ROOT = Path(__file__).parents[2]
README, EXAMPLES = "README.md", "docs/howto/examples.md"
TIMEOUT_S = patient(60)


def blocks(document: str, language: str) -> list[str]:
    """Return a document's code blocks of one language."""
    text = (ROOT / document).read_text(encoding="utf-8")
    fenced = re.findall(r"^```(\w*)\n(.*?)^```\n", text, re.MULTILINE | re.DOTALL)
    return [code for name, code in fenced if name == language]


def of(daemon: Daemon, code: str) -> str:
    """Return code changed to use this daemon instead of the one that README starts."""
    assert ":8127" in code
    return code.replace(":8127", f":{daemon.port}")


def run(command: list[str], **environment: str) -> str:
    done = subprocess.run(
        command, capture_output=True, timeout=TIMEOUT_S, env={**os.environ, **environment}, encoding="utf-8"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# The other examples use the daemon of the user's own state folder; tests/client covers them.
PYTHON = [code for document in (README, EXAMPLES) for code in blocks(document, "python") if "edgeagent" not in code]


# Runs each program of a list of JSON in names of its own, and prints what each has printed as a list of JSON.
ONE_BY_ONE = """
import contextlib, io, json, sys
printed = []
for code in json.load(sys.stdin):
    with contextlib.redirect_stdout(io.StringIO()) as output:
        exec(code, {"__name__": "__main__"})
    printed.append(output.getvalue())
print(json.dumps(printed))
"""


def test_python(daemon: Daemon) -> None:
    """All run in one process: importing their clients takes longer than what they do."""
    done = subprocess.run(
        [sys.executable, "-c", ONE_BY_ONE],
        input=json.dumps([of(daemon, code) for code in PYTHON]),
        capture_output=True,
        timeout=TIMEOUT_S,
        encoding="utf-8",
    )
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert len(printed) == 5
    assert all(len(text.split()) > 3 for text in printed), printed


@cache
def node() -> list[str]:
    """Return the command of a Node.js that has a built-in WebSocket."""
    found = shutil.which("node")
    if found is None:
        pytest.skip("no node here")
    major = int(run([found, "-p", "process.versions.node.split('.')[0]"]))
    if major < 20:
        pytest.skip("this node has no WebSocket")
    return [found] if major >= 22 else [found, "--experimental-websocket", "--no-warnings"]


def test_javascript(daemon: Daemon, tmp_path: Path) -> None:
    (code,) = blocks(EXAMPLES, "javascript")
    script = tmp_path / "example.mjs"
    script.write_text(of(daemon, code), encoding="utf-8")
    assert len(run([*node(), str(script)]).split()) > 3


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[Daemon]:
    running = start_daemon(tmp_path / "state", "builtin", "--token-required")
    yield running
    stop_daemon(running)


def test_javascript_with_the_token(locked: Daemon, tmp_path: Path) -> None:
    (code,) = blocks(EXAMPLES, "javascript")
    script = tmp_path / "example.mjs"
    script.write_text(of(locked, code), encoding="utf-8")
    token = (locked.state_dir / "token").read_text().strip()
    assert len(run([*node(), str(script)], TOKEN=token).split()) > 3
    refused = subprocess.run([*node(), str(script)], capture_output=True, timeout=TIMEOUT_S, env={**os.environ})
    assert refused.stdout == b""


def shell_commands(code: str) -> list[str]:
    """Return the curl commands, with their continued lines and with quoted text of several lines."""
    return re.findall(r"^curl(?:'[^']*'|\\\n|[^'\n])*$", code, re.MULTILINE)


@pytest.mark.skipif(not shutil.which("curl") or not shutil.which("sh"), reason="no curl or no shell")
def test_curl(daemon: Daemon) -> None:
    chat, streamed, ollama = (
        run(["sh", "-c", of(daemon, command)]) for code in blocks(EXAMPLES, "sh") for command in shell_commands(code)
    )
    assert chat.endswith("data: [DONE]\n\n")
    kinds = re.findall(r"^event: (.*)$", streamed, re.MULTILINE)
    assert (kinds[0], kinds[-1]) == ("response.created", "response.completed")
    assert streamed.endswith("data: [DONE]\n\n")
    assert json.loads(ollama)["message"]["content"]
    (chat,) = [command for code in blocks(README, "") for command in shell_commands(code)]
    (choice,) = json.loads(run(["sh", "-c", of(daemon, chat)]))["choices"]
    (call,) = choice["message"]["tool_calls"]
    assert call["function"] == {"name": "set_timer", "arguments": '{"minutes": 7}'}, "README says so"


def test_on_a_terminal(daemon: Daemon) -> None:
    (code,) = blocks(EXAMPLES, "console")
    command, typed = re.findall(r"^[$>] (.*)$", code, re.MULTILINE)
    words = [sys.executable if word == "python" else word for word in of(daemon, command).split()]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8") as terminal:
        assert terminal.stdin is not None and terminal.stdout is not None
        terminal.stdin.write(f"{typed}\n")
        terminal.stdin.flush()
        shown = ""
        while "response.completed" not in shown:
            line = terminal.stdout.readline()
            assert line, shown
            shown += line
        terminal.stdin.close()
        terminal.wait(TIMEOUT_S)
