"""The bounds of one connection; the protocol itself is tests/robust/test_rfc6455.py's."""

from __future__ import annotations

import json
import struct
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from edgeagent.config import Config, ServerConfig
from edgeagent.daemon import server, transport
from edgeagent.types import TextDelta
from tests.backends.fake import FakeBackend
from tests.daemon.running import Running, running
from tests.robust.frames import CLOSE, FIN, close, open_websocket, text

pytestmark = pytest.mark.asyncio(loop_scope="module")

MAX_FRAME = 4096


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def daemon() -> AsyncIterator[Running]:
    async with running(FakeBackend(), Config(server=ServerConfig(max_frame_bytes=MAX_FRAME))) as daemon:
        yield daemon


async def test_the_largest_message(daemon: Running) -> None:
    async with connect(f"ws://127.0.0.1:{daemon.port}/v1/responses") as socket:
        message = json.dumps({"type": "response.create", "input": "hi"})
        await socket.send(message + " " * (MAX_FRAME - len(message)))
        assert json.loads(await socket.recv())["type"] == "response.created"
        await socket.send("x" * (MAX_FRAME + 1))
        with pytest.raises(ConnectionClosed):
            while True:
                await socket.recv()
        assert socket.close_code == 1009


async def test_a_socket_that_never_reads_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "SOCKET_STALL_TIMEOUT_S", 0.05)
    backend = FakeBackend(lambda _: (TextDelta("x" * 65_536) for _ in range(10**9)))
    async with running(backend) as daemon:
        peer = await open_websocket(daemon)
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
        peer.send(text(json.dumps({"type": "response.create", "input": "hi"})))
        await backend.until(lambda backend: backend.num_live == 1)
        await backend.until(lambda backend: backend.num_live == 0)
        peer.writer.transport.abort()


async def test_a_client_that_answers_no_pings_has_left_and_is_no_failure_of_ours(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server, "PING_S", 0.05)
    backend = FakeBackend(lambda _: (TextDelta("x") for _ in range(10**9)))
    async with running(backend) as daemon:
        # By hand, since a library would answer.
        peer = await open_websocket(daemon)
        peer.send(text(json.dumps({"type": "response.create", "input": "hi"})))
        while (received := await peer.receive())[0] != FIN | CLOSE:
            pass
        assert received[1].startswith(struct.pack("!H", 1011))
        peer.writer.transport.abort()
        await backend.until(lambda backend: backend.num_live == 0)
    assert "failed" not in caplog.text


async def test_a_stop_in_the_moment_a_client_closes() -> None:
    async with running(FakeBackend()) as daemon:
        peer = await open_websocket(daemon)
        (protocol,) = (
            each for each in daemon.server.server_state.connections if isinstance(each, transport.GuardedWebSocket)
        )
        # Both before the loop's next turn, in which the connection is lost.
        protocol.data_received(close(1000))
        protocol.shutdown()
        assert await peer.receive() == (FIN | CLOSE, struct.pack("!H", 1000))
        assert await peer.reader.read() == b""
        peer.writer.transport.abort()
