"""F1, F11: the worker and its renderers are killed or stopped at random moments, and a stream goes on exactly."""

from __future__ import annotations

import json
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import psutil
import pytest
from websockets.sync.client import connect
from websockets.sync.connection import Connection

from tests.integration.conftest import Daemon, start_daemon, stop_daemon
from tests.integration.leaks import status_of
from tests.patience import patient

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads the processes of a Linux sandbox")

TIMEOUT_S = patient(60.0)
NUM_CANARY_TOKENS = 96
# The bundled model's token of the end is forbidden, so that the answers are long.
CANARY = {"input": "Tell me a story.", "max_output_tokens": NUM_CANARY_TOKENS, "logit_bias": {"2041": -100}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
# A worker that is killed three times while it loads is not started again for a while. A renderer that is killed twice
# during one job counts as killed by the job. A stopped process goes on before it counts as hung.
MAX_KILLS = 2
MAX_STOP_S = 1.0
NUM_FAULTS = 12


def answer(socket: Connection, **fields: Any) -> tuple[str, dict[str, Any]]:
    """Return the text that was streamed, and the terminal event's response. Fail if an event comes twice or not."""
    socket.send(json.dumps({"type": "response.create", "store": False, "temperature": 0, **fields}))
    text, number = "", 0
    while True:
        event = json.loads(socket.recv(timeout=TIMEOUT_S))
        assert event["type"] != "error", event
        assert event["sequence_number"] == number, "an event is missing or comes twice"
        number += 1
        if event["type"] == "response.output_text.delta":
            text += event["delta"]
        if event["type"] in ("response.completed", "response.incomplete", "response.failed"):
            return text, event["response"]


@dataclass
class Client:
    """Asks one question after another on one socket, until it is told to end."""

    daemon: Daemon
    fields: Callable[[], dict[str, Any]]
    is_over: threading.Event
    answers: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)

    def run(self) -> None:
        try:
            with connect(f"ws://127.0.0.1:{self.daemon.port}/v1/responses", open_timeout=TIMEOUT_S) as socket:
                while not self.is_over.is_set():
                    self.answers.append(answer(socket, **self.fields()))
        except BaseException as error:  # the test's own thread raises it
            self.errors.append(error)


@contextmanager
def asking(daemon: Daemon, *fields: Callable[[], dict[str, Any]]) -> Iterator[list[Client]]:
    is_over = threading.Event()
    clients = [Client(daemon, each, is_over) for each in fields]
    threads = [threading.Thread(target=client.run) for client in clients]
    for thread in threads:
        thread.start()
    try:
        yield clients
    finally:
        is_over.set()
        for thread in threads:
            thread.join()


def descendants(daemon: Daemon) -> list[psutil.Process]:
    found: list[psutil.Process] = psutil.Process(daemon.process.pid).children(recursive=True)
    return found


PARTS = {"worker": "edgeagent.worker.child.process", "renderer": "edgeagent.worker.render.process"}


def victims(daemon: Daemon, part: str) -> list[psutil.Process]:
    """Return the processes of a part, with those that it has begun: a sandbox, and the jobs of a renderer."""
    found: list[psutil.Process] = []
    for each in descendants(daemon):
        with suppress(psutil.Error):
            if PARTS[part] in " ".join(each.cmdline()):
                found.append(each)
    return found


def harm(daemon: Daemon, chance: random.Random, may_kill: dict[str, bool]) -> str:
    """Kill or stop one process of the worker or the renderer; return what was done."""
    part, way = chance.choice(list(PARTS)), chance.choice(["kill", "stop"])
    if not may_kill[part]:
        way = "stop"
    if not (found := victims(daemon, part)):
        return "nobody there"
    victim = chance.choice(found)
    with suppress(psutil.NoSuchProcess):
        if way == "kill":
            victim.kill()
        else:
            victim.send_signal(signal.SIGSTOP)
            time.sleep(chance.uniform(0.0, MAX_STOP_S))
            victim.send_signal(signal.SIGCONT)
    return f"{way} {part}"


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    running = start_daemon(tmp_path / "state", "builtin")
    yield running
    running.process.kill()
    running.process.wait()


@pytest.mark.slow(seconds=12)
@pytest.mark.parametrize("seed", range(8))
def test_streams_go_on_exactly(daemon: Daemon, seed: int) -> None:
    chance, number = random.Random(seed), count()
    with connect(f"ws://127.0.0.1:{daemon.port}/v1/responses") as socket:
        expected, first = answer(socket, **CANARY)
    assert first["usage"]["output_tokens"] == NUM_CANARY_TOKENS

    def other() -> dict[str, Any]:
        text = {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA, "strict": True}}
        return {"input": f"Say {next(number)}.", "max_output_tokens": 8, "text": text}

    done, seen, num_answered = list[str](), set[psutil.Process](), [-1, -1]
    with asking(daemon, lambda: dict(CANARY), other) as clients:
        while len(done) < NUM_FAULTS or not all(client.answers or client.errors for client in clients):
            seen.update(descendants(daemon))
            time.sleep(chance.uniform(0.0, 0.5))
            if len(done) < NUM_FAULTS:
                answered = [len(client.answers) for client in clients]
                is_other_job = all(now > before for now, before in zip(answered, num_answered, strict=True))
                may_kill = {"worker": done.count("kill worker") < MAX_KILLS, "renderer": is_other_job}
                done.append(harm(daemon, chance, may_kill))
                if done[-1] == "kill renderer":
                    num_answered = answered
    assert {"worker", "renderer"} <= {what.split()[-1] for what in done}, done
    canary, beside = clients
    assert not canary.errors + beside.errors, (done, canary.errors + beside.errors)
    for text, response in canary.answers:
        assert (text, response["usage"]["output_tokens"]) == (expected, NUM_CANARY_TOKENS), (done, response)
    assert {response["status"] for _, response in beside.answers} <= {"completed", "incomplete"}, done
    assert status_of(daemon.url)["models"][0]["state"] == "ready"
    seen.update(descendants(daemon))
    stop_daemon(daemon)
    assert not [each for each in seen if each.is_running() and each.status() != psutil.STATUS_ZOMBIE], done
    assert not (daemon.state_dir / "daemon.json").exists()
    assert [path for path in daemon.state_dir.rglob("*") if "tmp" in path.name] == []
    assert "Traceback" not in daemon.log.read_text()
