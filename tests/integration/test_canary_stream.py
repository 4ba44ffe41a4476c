"""A client's long or hostile history must not hold up another client's stream.

The stream's largest gap is printed (`pytest -s`). It is not asserted: it depends on the machine. What is asserted is
that the work has bounds.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from websockets.sync.client import connect
from websockets.sync.connection import Connection

from edgeagent.conversation.store import FILE
from tests.integration.conftest import Daemon, start_daemon, stop_daemon
from tests.patience import patient
from tests.slow_worker import slow_program

MIB = 1 << 20


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    flags = ("--ctx", "4096", "--max-stored-bytes", str(4 * MIB))
    state_dir = tmp_path_factory.mktemp("attacked") / "state"
    running = start_daemon(state_dir, "builtin", *flags, program=slow_program(step_s=0.02))
    yield running
    stop_daemon(running)


@contextmanager
def canary(daemon: Daemon) -> Iterator[None]:
    """Stream answers while the block runs. Every one must come to its end."""
    gaps: list[float] = []
    outcomes: list[str] = []
    is_over = threading.Event()

    def stream() -> None:
        with connect(f"ws://127.0.0.1:{daemon.port}/v1/responses", open_timeout=60) as socket:
            while not is_over.is_set():
                last_s = time.monotonic()
                for event in create(socket, input="Tell me a story.", max_output_tokens=64, store=False, temperature=0):
                    gaps.append(time.monotonic() - last_s)
                    last_s = time.monotonic()
                    if event["type"] in ("response.completed", "response.incomplete", "response.failed", "error"):
                        outcomes.append(event["type"])

    thread = threading.Thread(target=stream)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
    print(f"largest gap {max(gaps) * 1000:.0f} ms in {len(gaps)} events")
    assert set(outcomes) <= {"response.completed", "response.incomplete"}


def create(socket: Connection, **fields: Any) -> Iterator[dict[str, Any]]:
    socket.send(json.dumps({"type": "response.create", **fields}))
    while True:
        event = json.loads(socket.recv(timeout=patient(120)))
        yield event
        if event["type"] in ("response.completed", "response.incomplete", "response.failed", "error"):
            return


def prefill(socket: Connection, **fields: Any) -> dict[str, Any]:
    *_, last = create(socket, generate=False, **fields)
    return last


def post(daemon: Daemon, **fields: Any) -> httpx.Response:
    body = {"generate": False, **fields}
    return httpx.post(f"{daemon.url}/v1/responses", json=body, timeout=patient(120))


def test_a_small_frame_refers_to_a_long_chain(attacked: Daemon) -> None:
    url = f"ws://127.0.0.1:{attacked.port}/v1/responses"
    with canary(attacked), connect(url, max_size=None) as socket:
        prefill(socket, store=False, input=[{"type": "reasoning", "id": f"t{number}"} for number in range(1000)])
        refused = prefill(socket, store=False, input=[{"type": "reasoning", "id": "a"}] * 30_000)
        assert refused["error"]["message"] == "input must hold at most 8192 items"
        last = prefill(socket, store=False, input=[{"type": "reasoning", "id": "a"}] * 8000)
        for _ in range(100):
            last = prefill(socket, store=False, input=[], previous_response_id=last["response"]["id"])
        references = [{"type": "item_reference", "id": f"t{number % 300}"} for number in range(1000)]
        refused = prefill(socket, store=False, input=references, previous_response_id=last["response"]["id"])
        assert refused["error"]["message"].startswith("the conversation is too long (at most 8192 items")
        assert prefill(socket, store=False, input=references)["type"] == "response.completed"


def test_the_same_ids_in_many_stored_responses(attacked: Daemon) -> None:
    metadata = {f"k{number}": random.randbytes(250).hex() for number in range(16)}
    ids = [f"x{number}" for number in range(300)]
    sent = [{"type": "reasoning", "id": item_id} for item_id in ids]
    with canary(attacked):
        for _ in range(50):
            assert post(attacked, input=sent, metadata=metadata).status_code == 200
        reply = post(attacked, input=[{"type": "item_reference", "id": item_id} for item_id in ids * 3])
    assert reply.status_code == 200
    url = f"{attacked.url}/v1/responses/{reply.json()['id']}/input_items"
    assert len(httpx.get(url, params={"limit": 100}).json()["data"]) == 100, "copies of a reference add nothing"


def test_ids_are_short_and_the_limit_of_stored_bytes_holds(attacked: Daemon) -> None:
    with canary(attacked):
        assert post(attacked, input=[{"type": "reasoning", "id": "a" * 7_900_000}]).status_code == 400
        for number in range(20):
            ids = [f"{number}.{index}." + "a" * 450 for index in range(1000)]
            sent = [{"type": "reasoning", "id": item_id} for item_id in ids]
            assert post(attacked, input=sent).status_code == 200
    # SQLite keeps each row once, and an index of it; its log may be as large as one transaction.
    assert (attacked.state_dir / FILE).stat().st_size < 4 * MIB * 3
