"""The real daemon when things fail: its worker dies, it dies itself, it is stopped."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import psutil
import pytest
from websockets.asyncio.client import ClientConnection, connect

from edgeagent.types import MemoryKind
from tests.integration.conftest import START_TIMEOUT_S, Daemon, start_daemon
from tests.models import make_tiny_model
from tests.patience import patient

UNIT = Path(__file__).parents[2] / "packaging/systemd/edgeagent.service"

LONG = {"type": "response.create", "model": "builtin", "input": "Hello!", "max_output_tokens": 800}


async def receive(socket: ClientConnection) -> dict[str, object]:
    return json.loads(await asyncio.wait_for(socket.recv(), patient(60)))  # type: ignore[no-any-return]


async def until(socket: ClientConnection, *kinds: str) -> dict[str, object]:
    """Read until an event of one of these kinds."""
    while True:
        event = await receive(socket)
        if event["type"] in kinds:
            return event


async def ask(daemon: Daemon, text: str) -> str:
    """Return the answer to one message on a new connection."""
    async with connect(f"ws://127.0.0.1:{daemon.port}/v1/responses") as socket:
        await socket.send(json.dumps({"type": "response.create", "model": "builtin", "input": text, "temperature": 0}))
        event = await until(socket, "response.completed", "response.failed", "error")
    assert event["type"] == "response.completed", event
    return json.dumps(event["response"]["output"][0]["content"][0]["text"])  # type: ignore[index]


def long_request(daemon: Daemon) -> dict[str, object]:
    """Return a request whose answer does not end for a while."""
    schema = {"type": "array", "items": {"type": "integer"}, "minItems": 900, "maxItems": 900}
    wrapped = {"type": "object", "properties": {"numbers": schema}, "required": ["numbers"]}
    return {**LONG, "text": {"format": {"type": "json_schema", "name": "numbers", "schema": wrapped, "strict": True}}}


@pytest.mark.daily(1, seconds=1)
@pytest.mark.parametrize("damage", ["cut off", "without a tensor that llama.cpp needs"])
def test_a_service_manager_does_not_restart_a_daemon_with_a_damaged_model(tmp_path: Path, damage: str) -> None:
    path = make_tiny_model(tmp_path / "torn.gguf", MemoryKind.FULL_ATTENTION, num_layers=1)
    content = path.read_bytes()
    is_cut = damage == "cut off"
    path.write_bytes(content[:-1000] if is_cut else content.replace(b"blk.0.attn_q.weight", b"blk.0.attn_x.weight"))
    command = [sys.executable, "-m", "edgeagent", "serve", str(path), "--port", "0", "--state-dir", str(tmp_path / "s")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=START_TIMEOUT_S)
    assert "torn.gguf" in ended.stderr
    (line,) = re.findall(r"^RestartPreventExitStatus=(.*)$", UNIT.read_text(encoding="utf-8"), re.MULTILINE)
    assert str(ended.returncode) in line.split(), ended.stderr


async def test_a_worker_killed_in_mid_stream(own_daemon: Daemon) -> None:
    before = await ask(own_daemon, "Hello!")
    victim = own_daemon.worker_pid()
    async with connect(f"ws://127.0.0.1:{own_daemon.port}/v1/responses") as socket:
        await socket.send(json.dumps(long_request(own_daemon)))
        created = await until(socket, "response.created")
        await until(socket, "response.output_text.delta")
        os.kill(victim, signal.SIGKILL if sys.platform != "win32" else signal.SIGTERM)
        end = await until(socket, "response.completed", "response.failed", "response.incomplete", "error")
        # A new worker continued from the delivered tokens, under the same id.
        assert end["type"] in ("response.completed", "response.incomplete"), end
        response: Any = end["response"]
        assert response["id"] == created["response"]["id"]  # type: ignore[index]
        (handover,) = response["edgeagent"]["handovers"]
        assert (handover["reason"], handover["after_tokens"] > 0) == ("worker_killed", True)
        text = response["output"][0]["content"][0]["text"]
        assert "".join(text.split()).startswith('{"numbers":[')
        # The same socket and the same daemon, with a new worker, give the same answer.
        await socket.send(
            json.dumps({"type": "response.create", "model": "builtin", "input": "Hello!", "temperature": 0})
        )
        again = await until(socket, "response.completed", "response.failed", "error")
    assert again["type"] == "response.completed", again
    assert await ask(own_daemon, "Hello!") == before
    assert own_daemon.worker_pid() != victim
    assert own_daemon.process.poll() is None


async def test_a_stop_lets_a_stream_end_with_its_terminal_event(tmp_path: Path) -> None:
    daemon = start_daemon(tmp_path / "state", "builtin", "--drain-s", "0.2")
    worker = daemon.worker_pid()
    async with connect(f"ws://127.0.0.1:{daemon.port}/v1/responses") as socket:
        await socket.send(json.dumps(long_request(daemon)))
        await until(socket, "response.output_text.delta")
        daemon.process.send_signal(signal.SIGTERM)
        end = await until(socket, "response.completed", "response.failed", "response.incomplete")
    assert end["type"] == "response.incomplete", end
    assert (end["response"]["status"], end["response"]["incomplete_details"]) == ("cancelled", None)  # type: ignore[index]
    assert daemon.process.wait(patient(20)) == 0
    assert not psutil.pid_exists(worker)


@pytest.mark.skipif(sys.platform == "win32", reason="the socket is bound otherwise there")
def test_a_second_daemon_on_the_same_state_says_so(daemon: Daemon) -> None:
    command = [sys.executable, "-m", "edgeagent", "serve", "--port", "0", "--state-dir", str(daemon.state_dir)]
    second = subprocess.run(command, capture_output=True, text=True, timeout=patient(60), check=False)
    assert second.returncode == 4
    assert "another daemon" in second.stderr
    assert "Traceback" not in second.stderr


async def test_a_web_page_cannot_reach_it(daemon: Daemon) -> None:
    for headers in ({"Origin": "https://example.com"}, {"Host": "example.com"}):
        request = urllib.request.Request(f"{daemon.url}/v1/models", headers=headers)
        with pytest.raises(urllib.error.HTTPError) as refused:
            await asyncio.to_thread(urllib.request.urlopen, request)
        assert refused.value.code == 403
        refused.value.close()


def test_nobody_s_words_are_in_the_log(daemon: Daemon) -> None:
    asyncio.run(ask(daemon, "xylophone-canary"))
    assert "xylophone-canary" not in daemon.log.read_text()
