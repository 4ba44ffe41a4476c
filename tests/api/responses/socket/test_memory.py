"""What stays in the daemon's memory of turns that are over: for a client that does not read, only terminal events."""

from __future__ import annotations

import asyncio
import gc
import json

import pytest
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle
from websockets.asyncio.client import ClientConnection, connect

from edgeagent.api.responses.socket.outbox import Send
from edgeagent.api.responses.turn import Turn
from tests.api.serving import slow_socket
from tests.backends.fake import FakeBackend
from tests.daemon.running import TOKEN, running
from tests.worker.support import eventually

MAX_ALIVE = 17  # one for each lane, and the one that is being read


async def test_turns_that_were_cancelled_are_forgotten_although_their_ends_are_not_read() -> None:
    async with running(FakeBackend()) as daemon:
        slow = await slow_socket(f"127.0.0.1:{daemon.port}")
        url = f"ws://127.0.0.1:{daemon.port}/v1/responses"
        async with connect(url, sock=slow, max_queue=1, max_size=None, ping_interval=None, close_timeout=0) as socket:
            socket.transport.pause_reading()
            for number in range(50):
                lane = f"lane-{number % 16}"
                create = {"type": "response.create", "stream_id": lane, "store": False, "input": "x" * 20_000}
                await socket.send(json.dumps(create))
                await socket.send(json.dumps({"type": "response.cancel", "stream_id": lane}))
            await asyncio.sleep(0.3)
            gc.collect()
            assert sum(type(each) is Turn for each in gc.get_objects()) <= MAX_ALIVE
            socket.transport.abort()


@pytest.mark.parametrize("kind", ["a steer", "tools"])
async def test_a_client_that_does_not_read_what_repeats_its_frames_is_sent_little(kind: str) -> None:
    properties = {f"k{number}": {"type": "string"} for number in range(4000)}
    tool = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": properties}}
    frame = (
        {"type": "response.steer", "previous_response_id": "r", "input": "x" * 200_000}
        if kind == "a steer"
        else {"type": "response.create", "input": [], "store": False, "generate": False, "tools": [tool]}
    )
    async with running(FakeBackend()) as daemon:
        slow = await slow_socket(f"127.0.0.1:{daemon.port}")
        url = f"ws://127.0.0.1:{daemon.port}/v1/responses"
        async with connect(url, sock=slow, max_queue=1, max_size=None, ping_interval=None, close_timeout=0) as socket:
            socket.transport.pause_reading()
            sending = asyncio.create_task(flood(socket, json.dumps(frame)))
            await asyncio.sleep(0.5)
            # What the sockets hold was written before; then one event is being written, and a few wait.
            assert sum(type(each) is Send for each in gc.get_objects()) <= 6
            sending.cancel()
            socket.transport.abort()


async def flood(socket: ClientConnection, frame: str) -> None:
    for _ in range(100):
        await socket.send(frame)


async def test_a_turn_that_is_over_is_freed_without_a_garbage_collection() -> None:
    """Full collections are rare, and each turn may hold a conversation of megabytes."""
    gc.collect()
    gc.disable()
    try:
        async with running(FakeBackend()) as daemon:
            create = {"model": "fake", "input": "hello"}
            headers = {"authorization": f"Bearer {TOKEN}"}
            reply = await daemon.http.post(
                f"{daemon.url}/v1/responses", json=create | {"stream": True}, headers=headers
            )
            assert "response.completed" in reply.text
            async with connect(f"ws://127.0.0.1:{daemon.port}/v1/responses") as socket:
                await socket.send(json.dumps({"type": "response.create", **create}))
                while json.loads(await socket.recv())["type"] != "response.completed":
                    pass
            await eventually(lambda: not any(type(each) is Turn for each in gc.get_objects()))
            # A connection keeps the latest request.
            assert sum(type(each) is RequestResponseCycle for each in gc.get_objects()) == 1
    finally:
        gc.enable()
