"""What docs/guides/desktop-app.md says about finding a daemon again, and about resuming, with a real daemon."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from websockets.sync.client import connect

from edgeagent.client.sync import Client, Conversation, Reply
from tests.integration.conftest import Daemon, start_daemon, stop_daemon
from tests.integration.test_readme_examples import node
from tests.patience import patient

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs/guides/desktop-app.md").read_text(encoding="utf-8")
VOICE = (ROOT / "docs/guides/voice-assistant.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    """Return the examples of the two guides that use our clients."""
    return [code for guide in (GUIDE, VOICE) for code in re.findall(rf"```{language}\n(.*?)```", guide, re.S)]


def environment(daemon: Daemon) -> dict[str, str]:
    """Return the variables with which the examples find this daemon, and the program `edgeagent`."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return {**os.environ, "EDGEAGENT_STATE_DIR": str(daemon.state_dir), "PATH": path}


@pytest.mark.parametrize("code", blocks("python"), ids=range(len(blocks("python"))))
def test_the_python_examples_are_scripts(daemon: Daemon, code: str) -> None:
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment(daemon), capture_output=True, text=True, timeout=patient(90))
    assert done.returncode == 0 and done.stdout.strip(), done.stderr


@pytest.mark.parametrize("code", blocks("javascript"), ids=range(len(blocks("javascript"))))
def test_the_javascript_examples_are_scripts(daemon: Daemon, code: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "packaging" / "js", tmp_path / "node_modules" / "edgeagent-client")
    script = tmp_path / "example.mjs"
    script.write_text(code, encoding="utf-8")
    command = [*node(), str(script)]
    done = subprocess.run(command, env=environment(daemon), capture_output=True, text=True, timeout=patient(90))
    assert done.returncode == 0 and done.stdout.strip(), done.stderr


def test_both_languages_have_each_example() -> None:
    assert len(blocks("python")) == len(blocks("javascript")) == 3


@pytest.mark.parametrize("owner", [Client, Conversation, Reply])
def test_the_table_has_every_method(owner: type) -> None:
    names = {name for name in vars(owner) if not name.startswith("_")} - {"open", "close", "words", "rounds"}
    for name in names:
        assert re.search(rf"^\| .*`{owner.__name__.lower()}\.{name}\b", GUIDE, re.M), name


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
    with httpx.stream("POST", f"{running.url}/v1/responses", json=body, timeout=patient(90)) as reply:
        stream = events(reply)
        first = [next(stream) for _ in range(3)]
    response_id, after = first[0]["response"]["id"], first[-1]["sequence_number"]
    url = f"{running.url}/v1/responses/{response_id}"
    with httpx.stream("GET", f"{url}?stream=true&starting_after={after}", timeout=patient(90)) as reply:
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
        assert json.loads(socket.recv(timeout=patient(90)))["error"]["param"] == "background"
        socket.send(json.dumps({**sent, "previous_response_id": response_id}))
        assert json.loads(socket.recv(timeout=patient(90)))["type"] == "response.created"
    stop_daemon(again)
