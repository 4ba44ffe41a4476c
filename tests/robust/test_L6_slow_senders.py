"""L6: two hundred clients that send single bytes with pauses are dropped in time, and others notice nothing."""

from __future__ import annotations

import asyncio

import pytest

from edgeagent.api.gate.body_limit import BodyLimit
from edgeagent.daemon import transport
from tests.backends.fake import FakeBackend
from tests.daemon.running import Running, read_reply, running
from tests.worker.support import eventually

NUM_CLIENTS = 200


async def dribble(daemon: Running, beginning: bytes) -> int:
    """Send the start of a request, then byte by byte; return the final status."""
    reader, writer = await asyncio.open_connection("127.0.0.1", daemon.port)
    writer.write(beginning)
    answer = asyncio.create_task(read_reply(reader))
    try:
        while not answer.done():
            writer.write(b"x")
            await asyncio.wait({answer}, timeout=0.1)
        return answer.result().status
    finally:
        writer.transport.abort()


@pytest.mark.parametrize("phase", ["head", "body"])
async def test_slow_senders_are_dropped(monkeypatch: pytest.MonkeyPatch, phase: str) -> None:
    # Only this phase's limit is shortened: a slow machine may need longer to accept two hundred connections.
    if phase == "head":
        monkeypatch.setattr(transport, "HEAD_TIMEOUT_S", 0.5)
    else:
        monkeypatch.setattr(BodyLimit.__init__, "__defaults__", (0.5,))
    async with running(FakeBackend()) as daemon:
        head = f"POST /v1/responses HTTP/1.1\r\nHost: 127.0.0.1:{daemon.port}\r\n"
        if phase == "body":
            head += "Content-Type: application/json\r\nContent-Length: 100000\r\n\r\n"
        slow = [asyncio.create_task(dribble(daemon, head.encode())) for _ in range(NUM_CLIENTS)]
        num_answered = 0
        while not all(task.done() for task in slow):
            reply = await daemon.http.post(f"{daemon.url}/v1/responses", json={"input": "hi", "store": False})
            assert reply.status_code == 200
            num_answered += 1
            await asyncio.sleep(0.01)
        assert num_answered
        expected = 408 if phase == "head" else 400
        assert {task.result() for task in slow} == {expected}
        # After an early answer the server reads what still comes for a moment, until it sees that the client has left.
        await eventually(lambda: len(daemon.server.server_state.connections) <= 1)
