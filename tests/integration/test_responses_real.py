"""The Responses API against a real daemon with the bundled model: by id, lanes, steering, and across a kill -9."""

from __future__ import annotations

import asyncio
import stat
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI, NotFoundError
from openai.lib.responses_websocket import AsyncResponsesWebSocketSession, ResponsesWebSocketLimits

from tests.integration.conftest import Daemon, start_daemon, stop_daemon

TERMINAL = {"response.completed", "response.incomplete", "response.failed"}
STORY = "Tell me everything that you can do, one thing after another."
LIMITS = ResponsesWebSocketLimits(
    max_lanes=4, max_events_per_lane=5000, max_events=10_000, max_bytes_per_lane=1 << 24, max_bytes=1 << 26
)


def openai(daemon: Daemon) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{daemon.url}/v1", api_key="unused", max_retries=0, _strict_response_validation=True)


@pytest.fixture
async def client(daemon: Daemon) -> AsyncIterator[AsyncOpenAI]:
    async with openai(daemon) as made:
        yield made


async def test_by_its_id(client: AsyncOpenAI) -> None:
    made = await client.responses.create(model="builtin", input="Hello!", instructions="Be brief.", temperature=0)
    assert await client.responses.retrieve(made.id) == made
    items = await client.responses.input_items.list(made.id)
    assert [item.type for item in items.data] == ["message"]
    counted = await client.responses.input_tokens.count(model="builtin", input="Hello!", instructions="Be brief.")
    assert made.usage is not None
    assert counted.input_tokens == made.usage.input_tokens
    assert (await client.responses.cancel(made.id)).status == "completed"
    await client.responses.delete(made.id)
    with pytest.raises(NotFoundError):
        await client.responses.retrieve(made.id)


async def test_in_the_background(client: AsyncOpenAI) -> None:
    made = await client.responses.create(model="builtin", input="Hello!", background=True)
    assert made.status == "queued"
    async with asyncio.timeout(30):
        now = made
        while now.status in ("queued", "in_progress"):
            await asyncio.sleep(0.02)
            now = await client.responses.retrieve(made.id)
    assert now.output_text


async def test_compacted(client: AsyncOpenAI) -> None:
    first = await client.responses.create(model="builtin", input="Hello, my name is Robin.")
    made = await client.responses.compact(model="builtin", previous_response_id=first.id)
    assert made.usage.output_tokens > 0
    follow: Any = [*(item.to_dict() for item in made.output), {"role": "user", "content": "Hello!"}]
    async with client.responses.connect() as connection:
        await connection.response.create(model="builtin", input=follow)
        assert (await last(connection)).status == "completed"


async def test_two_lanes_and_a_fork(client: AsyncOpenAI) -> None:
    async with (
        client.responses.connect() as connection,
        AsyncResponsesWebSocketSession(connection, limits=LIMITS) as session,
    ):
        left, right = session.lane("left"), session.lane("right")
        for lane in (left, right):
            await lane.send({"type": "response.create", "model": "builtin", "input": "Hello!", "temperature": 0})
        first, second = await left.get_final_response(), await right.get_final_response()
        assert first.output_text == second.output_text != ""
        await right.send({"type": "response.create", "input": "What can you do?", "previous_response_id": first.id})
        forked = await right.get_final_response()
        assert (forked.previous_response_id, forked.status) == (first.id, "completed")


async def test_steered(client: AsyncOpenAI) -> None:
    async with client.responses.connect() as connection:
        # A short answer may be over before the input arrives, which then comes back.
        for _ in range(10):
            await connection.response.create(model="builtin", input=STORY, max_output_tokens=400)
            created = await connection.recv()
            await connection.response.steer(previous_response_id=created.response.id, input="Hello!")
            first = await last(connection)
            answer = await connection.recv()
            if answer.type == "response.created":
                break
            assert answer.error.code == "response_already_completed"
        assert first.status in ("incomplete", "completed")
        successor = await last(connection)
        assert (successor.previous_response_id, successor.status) == (first.id, "completed")


async def last(connection: Any) -> Any:
    async for event in connection:
        if event.type in TERMINAL:
            return event.response
    raise AssertionError("the connection ended without a terminal event")


async def test_a_chain_outlives_the_daemon(tmp_path: Path) -> None:
    daemon = start_daemon(tmp_path / "state", "builtin")
    try:
        async with openai(daemon) as client, client.responses.connect() as connection:
            await connection.response.create(model="builtin", input="My secret name is Zebulon.", store=False)
            secret = await last(connection)
            await connection.response.create(model="builtin", input="Hello, my name is Robin.", temperature=0)
            first = await last(connection)
            # Whoever has seen the end may go on from it, however soon the daemon dies.
            daemon.process.kill()
    finally:
        daemon.process.kill()
        daemon.process.wait()
    stored = [path for path in daemon.state_dir.iterdir() if path.name.startswith("responses.sqlite3")]
    assert stored
    if sys.platform != "win32":
        assert {stat.S_IMODE(path.stat().st_mode) for path in stored} == {0o600}
    daemon = start_daemon(tmp_path / "state", "builtin")
    try:
        async with openai(daemon) as client:
            assert (await client.responses.retrieve(first.id)).output_text == first.output_text
            with pytest.raises(NotFoundError):
                await client.responses.retrieve(secret.id)
            second = await client.responses.create(
                model="builtin", input="What is my name?", previous_response_id=first.id, temperature=0
            )
            assert second.usage.input_tokens > first.usage.total_tokens
            async with client.responses.connect() as connection:
                await connection.response.create(model="builtin", input="And?", previous_response_id=second.id)
                assert (await last(connection)).previous_response_id == second.id
                await connection.response.create(model="builtin", input="And?", previous_response_id=secret.id)
                refused = await connection.recv()
                assert refused.type == "error"
                assert refused.error.code == "previous_response_not_found"
    finally:
        stop_daemon(daemon)
