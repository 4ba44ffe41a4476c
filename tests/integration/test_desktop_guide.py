"""What docs/guides/desktop-app.md says about finding a daemon again, and about resuming, with a real daemon."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import psutil
from websockets.sync.client import connect

from tests.integration.conftest import Daemon, start_daemon, stop_daemon

GUIDE = (Path(__file__).parents[2] / "docs/guides/desktop-app.md").read_text()


def test_the_python_example_is_a_script(daemon: Daemon) -> None:
    [code] = re.findall(r"```python\n(.*?)```", GUIDE, re.S)
    environment = {**os.environ, "EDGEAGENT_STATE_DIR": str(daemon.state_dir)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0 and done.stdout.strip(), done.stderr


def test_another_language_finds_the_daemon_by_its_file(daemon: Daemon) -> None:
    runtime = json.loads((daemon.state_dir / "daemon.json").read_text())
    described = {name for row in re.findall(r"^\| (`.*?`) \|", GUIDE, re.M) for name in re.findall("`(.*?)`", row)}
    assert runtime.keys() <= described
    assert (runtime["url"], runtime["pid"]) == (daemon.url, daemon.process.pid)
    assert abs(psutil.Process(runtime["pid"]).create_time() - runtime["started_at_s"]) < 1


def events(reply: httpx.Response) -> Any:
    for line in reply.iter_lines():
        if line.startswith("data: {"):
            yield json.loads(line.removeprefix("data: "))


def test_an_answer_in_the_background_is_resumed_and_a_conversation_continues_after_a_restart(tmp_path: Path) -> None:
    running = start_daemon(tmp_path / "state", "builtin")
    body = {"input": "Hello!", "background": True, "stream": True, "max_output_tokens": 24}
    with httpx.stream("POST", f"{running.url}/v1/responses", json=body, timeout=90) as reply:
        stream = events(reply)
        first = [next(stream) for _ in range(3)]
    response_id, after = first[0]["response"]["id"], first[-1]["sequence_number"]
    url = f"{running.url}/v1/responses/{response_id}"
    with httpx.stream("GET", f"{url}?stream=true&starting_after={after}", timeout=90) as reply:
        rest = list(events(reply))
    # Deltas that follow each other may be joined, so the numbers need not be consecutive.
    numbers = [after, *(event["sequence_number"] for event in rest)]
    assert numbers == sorted(set(numbers))
    text = "".join(event["delta"] for event in [*first, *rest] if event["type"] == "response.output_text.delta")
    assert text == rest[-1]["response"]["output"][0]["content"][0]["text"]
    assert rest[-1]["type"] in ("response.completed", "response.incomplete")
    assert httpx.get(url).json() == rest[-1]["response"]
    stop_daemon(running)
    again = start_daemon(tmp_path / "state", "builtin")
    with connect(f"ws://127.0.0.1:{again.port}/v1/responses") as socket:
        sent = {"type": "response.create", "input": "And then?", "max_output_tokens": 4}
        socket.send(json.dumps({**sent, "background": True}))
        assert json.loads(socket.recv(timeout=90))["error"]["param"] == "background"
        socket.send(json.dumps({**sent, "previous_response_id": response_id}))
        assert json.loads(socket.recv(timeout=90))["type"] == "response.created"
    stop_daemon(again)
