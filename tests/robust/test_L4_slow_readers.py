"""L4: a client that stops reading, or reads byte by byte, is cut off; its slot is freed, and others notice nothing."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from websockets.asyncio.client import connect

from edgeagent import metrics
from edgeagent.api.responses.socket import connection
from edgeagent.daemon import transport
from edgeagent.types import ChatPrompt, GenerateRequest, TextDelta
from tests.api.serving import slow_socket
from tests.backends.fake import Act, FakeBackend, finished
from tests.daemon.running import Running, running
from tests.robust.frames import FIN, TEXT, frame
from tests.robust.raw import KEY_HEADERS
from tests.worker.support import eventually

MAX_BUFFERED = 1 << 20
MAX_FREED_S = 1.0
# The two kernels' buffers between the daemon and a client that does not read; the kernels bound them.
KERNEL_BYTES = 8 << 20
WORD = "a sentence. " * 800


class Talker:
    """A backend with an endless answer for the slow reader and short ones for others; it counts its words."""

    def __init__(self) -> None:
        self.num_words = 0
        self.backend = FakeBackend(self.script)

    def script(self, request: GenerateRequest) -> Iterator[Act]:
        assert isinstance(request.prompt, ChatPrompt)
        if request.prompt.messages[-1].content == "brief":
            yield from (TextDelta("a"), TextDelta("b"), finished())
            return
        while True:
            self.num_words += 1
            yield TextDelta(WORD)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "STALL_S", 0.3)
    monkeypatch.setattr(connection, "CLOSE_S", 0.1)
    monkeypatch.setattr(transport, "SOCKET_STALL_TIMEOUT_S", 0.5)
    monkeypatch.setattr(transport, "STALL_TIMEOUT_S", 0.3)


def cut(kind: str) -> float:
    """Return how many slow clients were cut off so far."""
    return metrics.REGISTRY.get_sample_value("edgeagent_slow_clients_cut_total", {"transport": kind}) or 0.0


@asynccontextmanager
async def reader_of(daemon: Running) -> AsyncIterator[socket.socket]:
    """Open a connection for a client that reads slowly, or not at all."""
    with await slow_socket(f"127.0.0.1:{daemon.port}") as slow:
        yield slow


async def brief(daemon: Running) -> None:
    async with connect(f"ws://127.0.0.1:{daemon.port}/v1/responses") as client:
        await client.send(json.dumps({"type": "response.create", "input": "brief"}))
        while json.loads(await client.recv())["type"] != "response.completed":
            pass


async def upgrade(slow: socket.socket, port: int) -> None:
    loop = asyncio.get_running_loop()
    head = f"GET /v1/responses HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    await loop.sock_sendall(slow, f"{head}{KEY_HEADERS}\r\n\r\n".encode())
    assert (await loop.sock_recv(slow, 1024)).startswith(b"HTTP/1.1 101")
    await loop.sock_sendall(slow, frame(FIN | TEXT, b'{"type":"response.create","input":"endless"}'))


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("is_reading_a_little", [False, True])
async def test_a_socket_that_is_not_read(is_reading_a_little: bool, caplog: pytest.LogCaptureFixture) -> None:
    talker, before = Talker(), cut("websocket")
    async with running(talker.backend) as daemon, reader_of(daemon) as slow:
        await upgrade(slow, daemon.port)
        await talker.backend.until(lambda backend: backend.num_live == 1)
        sipping = asyncio.create_task(sip(slow)) if is_reading_a_little else None
        while not talker.backend.closed:
            await brief(daemon)
        assert talker.num_words * len(WORD) <= MAX_BUFFERED + KERNEL_BYTES
        if sipping:
            sipping.cancel()
        await eventually(lambda: not daemon.server.server_state.connections, 5 * MAX_FREED_S)
        assert cut("websocket") == before + 1
    assert num_told(caplog, "websocket") == 1


def num_told(caplog: pytest.LogCaptureFixture, kind: str) -> int:
    """Return how many lines of the log say that a client was cut, and why."""
    return caplog.messages.count(f"cut (it does not read): a client without a name, at {kind}")


async def sip(slow: socket.socket) -> None:
    """Read one byte at a time, with pauses."""
    byte = b"x"
    while byte:
        byte = await asyncio.get_running_loop().sock_recv(slow, 1)
        await asyncio.sleep(0.02)


@pytest.mark.usefixtures("quick")
async def test_a_stream_that_is_not_read(caplog: pytest.LogCaptureFixture) -> None:
    talker = Talker()
    async with running(talker.backend) as daemon, reader_of(daemon) as slow:
        body = b'{"input":"endless","stream":true}'
        head = f"POST /v1/responses HTTP/1.1\r\nHost: 127.0.0.1:{daemon.port}\r\nContent-Type: application/json\r\n"
        await asyncio.get_running_loop().sock_sendall(
            slow, f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
        )
        await talker.backend.until(lambda backend: backend.num_live == 1)
        while not talker.backend.closed:
            await brief(daemon)
        assert talker.num_words * len(WORD) <= MAX_BUFFERED + KERNEL_BYTES
    assert num_told(caplog, "http") == 1
