"""What docs/guides/kiosk.md promises, with a real daemon that has the guide's own configuration."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from edgeagent.runtime_file import TOKEN_FILE
from tests.integration.conftest import Daemon, start_daemon, stop_daemon
from tests.patience import patient

GUIDE = (Path(__file__).parents[2] / "docs/guides/kiosk.md").read_text()
SECRET = "The visitor's name is Xanthippe Quill."


# Runs edgeagent, and writes each address that the process looks up or connects to into a file.
WATCHED = """
import contextlib, runpy, socket, sys
def note(event, values):
    if event in ("socket.connect", "socket.sendto", "socket.sendmsg", "socket.getaddrinfo"):
        with open({log!r}, "a") as file:
            print(event, *values[0 if event == "socket.getaddrinfo" else 1 :], file=file)
sys.addaudithook(note)
with contextlib.suppress(OSError):
    socket.create_connection(("127.0.0.1", 9), timeout=1)  # so that the file shows that this is seen
sys.argv[0] = "edgeagent"
runpy.run_module("edgeagent", run_name="__main__", alter_sys=True)
"""
CONNECTED = "connected.txt"


def blocks(kind: str) -> list[str]:
    """Return the content of the guide's code blocks of one kind."""
    return [re.sub("^  ", "", block, flags=re.M) for block in re.findall(rf"```{kind}\n(.*?)```", GUIDE, re.S)]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The guide's config.toml; only the model is another."""
    text = blocks("toml")[0]
    path = tmp_path_factory.mktemp("kiosk") / "config.toml"
    path.write_text(re.sub('^model = ".*"$', 'model = "builtin"', text, flags=re.M))
    return path


@pytest.fixture(scope="module")
def kiosk(tmp_path_factory: pytest.TempPathFactory, config: Path) -> Iterator[Daemon]:
    state_dir = tmp_path_factory.mktemp("kiosk") / "state"
    # Earlier, the device ran with the defaults.
    watched = WATCHED.format(log=str(state_dir.parent / CONNECTED))
    before = start_daemon(state_dir, "builtin", "--min-free-bytes", "0", program=("-c", watched))
    talk(before, (state_dir / TOKEN_FILE).read_text())
    (state_dir / "history").write_text(SECRET)
    stop_daemon(before)
    assert kept(state_dir) >= {"responses.sqlite3", "history"}
    assert any(name.startswith("cache") for name in kept(state_dir)), kept(state_dir)
    running = start_daemon(state_dir, "--config", str(config))
    yield running
    if running.process.poll() is None:
        stop_daemon(running)


def kept(state_dir: Path) -> set[str]:
    """Return the files of the state folder that may hold conversations."""
    files = (path.relative_to(state_dir) for path in state_dir.rglob("*") if path.is_file())
    return {
        str(path) for path in files if re.match(r"responses|history|cache/.*(?<!/state.json)(?<!/lock)$", str(path))
    }


def talk(daemon: Daemon, token: str) -> None:
    """Say the secret over all APIs."""
    headers = {"Authorization": f"Bearer {token.strip()}"}
    text = f"{SECRET} {'Please remember the name. ' * 30}"
    message = {"role": "user", "content": text}
    sent: dict[str, Any] = {
        "/v1/responses": {"input": text, "max_output_tokens": 4},
        "/v1/chat/completions": {"messages": [message], "max_tokens": 4},
        "/v1/completions": {"prompt": text, "max_tokens": 4},
        "/api/chat": {"model": "builtin", "messages": [message], "stream": False, "options": {"num_predict": 4}},
    }
    for path, body in sent.items():
        reply = httpx.post(f"{daemon.url}{path}", json=body, headers=headers, timeout=patient(90))
        assert reply.status_code == 200, reply.text


def run(command: str, daemon: Daemon, **environment: str) -> str:
    """Run a command of the guide as it stands there, except for the port. Return what it prints."""
    command = command.replace("8127", str(daemon.port))
    if command.startswith("edgeagent "):
        command = f"{shlex.quote(sys.executable)} -m {command}"
    environment = {**os.environ, "EDGEAGENT_STATE_DIR": str(daemon.state_dir), **environment}
    return subprocess.run(command, shell=True, check=True, env=environment, capture_output=True, text=True).stdout


def test_every_program_needs_a_token_of_its_own_and_the_watchdog_has_one(kiosk: Daemon) -> None:
    assert httpx.get(f"{kiosk.url}/ready").status_code == 401
    assert httpx.get(f"{kiosk.url}/health").status_code == 200
    _, add, watchdog = (command.strip() for command in blocks("text"))
    [add_watchdog] = re.findall("`(edgeagent token add watchdog.*?)`", GUIDE)
    token = run(add, kiosk).strip()
    headers = {"Authorization": f"Bearer {token}"}
    assert httpx.get(f"{kiosk.url}/v1/models", headers=headers).status_code == 200
    assert httpx.post(f"{kiosk.url}/edgeagent/cache/purge", json={}, headers=headers).status_code == 403
    run(watchdog, kiosk, WATCHDOG_TOKEN=run(add_watchdog, kiosk).strip())


def test_nothing_of_a_conversation_is_on_the_disk(kiosk: Daemon, config: Path) -> None:
    assert not kept(kiosk.state_dir), "what an earlier run kept is deleted"
    token = (kiosk.state_dir / TOKEN_FILE).read_text()
    talk(kiosk, token)
    kiosk.process.kill()
    kiosk.process.wait()
    again = start_daemon(kiosk.state_dir, "--config", str(config))
    talk(again, token)
    stop_daemon(again)
    assert not kept(kiosk.state_dir)
    for path in kiosk.state_dir.parent.rglob("*"):
        if path.is_file():
            assert b"Xanthippe" not in path.read_bytes(), path


def test_nothing_leaves_the_machine_unless_its_owner_adds_a_remote(kiosk: Daemon) -> None:
    """The first daemon had the defaults, and answered over all APIs. The worker's sandbox has no network at all."""
    lines = (kiosk.state_dir.parent / CONNECTED).read_text().splitlines()
    assert lines[0].startswith("socket.getaddrinfo 127.0.0.1 9 ")
    inet = [line for line in lines if not re.match(r"socket\.\w+ (/|@|b'|\0)", line)]  # not a Unix socket
    assert [line for line in inet if not re.match(r"socket\.\w+ \(?'?(127\.0\.0\.1|localhost|::1)\b", line)] == []
