"""WebSocket frames that break the protocol or the bounds, against the daemon's own server."""

from __future__ import annotations

import asyncio
import json
import os
import struct
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from edgeagent.backends.fake import FakeBackend
from edgeagent.config import Config, ServerConfig
from edgeagent.daemon import transport
from edgeagent.types import TextDelta
from tests.daemon.running import Running, read_reply, running

pytestmark = pytest.mark.asyncio(loop_scope="module")

MAX_FRAME = 4096


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def daemon() -> AsyncIterator[Running]:
    async with running(FakeBackend(), Config(server=ServerConfig(max_frame_bytes=MAX_FRAME))) as daemon:
        yield daemon


async def handshake(
    daemon: Running, *headers: str
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, dict[str, str]]:
    """Open a WebSocket by hand."""
    reader, writer = await asyncio.open_connection("127.0.0.1", daemon.port)
    lines = [
        "GET /v1/responses HTTP/1.1",
        f"Host: 127.0.0.1:{daemon.port}",
        "Upgrade: websocket",
        "Connection: Upgrade",
    ]
    lines += ["Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: eHh4eHh4eHh4eHh4eHh4eA==", *headers, "", ""]
    writer.write("\r\n".join(lines).encode())
    reply = await read_reply(reader, has_body=False)
    assert reply.status == 101
    return reader, writer, reply.headers


def frame(first: int, payload: bytes, *, is_masked: bool = True) -> bytes:
    """Return a client's frame; `first` is its first byte: FIN, RSV and opcode."""
    size = len(payload)
    mask_bit = 0x80 if is_masked else 0
    head = bytes([first]) + (
        bytes([mask_bit | size]) if size < 126 else bytes([mask_bit | 126]) + struct.pack("!H", size)
    )
    if not is_masked:
        return head + payload
    mask = os.urandom(4)
    return head + mask + bytes(byte ^ mask[index % 4] for index, byte in enumerate(payload))


async def close_code(reader: asyncio.StreamReader) -> int:
    """Return the code of the server's close frame, which must be what comes next."""
    first, size = await reader.readexactly(2)
    assert first == 0x88
    payload = await reader.readexactly(size)
    return int.from_bytes(payload[:2], "big")


TEXT, CONTINUATION, PING, CLOSE, FIN = 0x1, 0x0, 0x9, 0x8, 0x80


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (frame(FIN | TEXT, b"{}", is_masked=False), 1002),
        (frame(FIN | 0x40 | TEXT, b"{}"), 1002),
        (frame(FIN | 0x20 | TEXT, b"{}"), 1002),
        (frame(FIN | 0x3, b"{}"), 1002),
        (frame(FIN | 0xB, b""), 1002),
        (frame(FIN | CONTINUATION, b"{}"), 1002),
        (frame(TEXT, b"{") + frame(FIN | TEXT, b"}"), 1002),
        (frame(PING, b"part"), 1002),
        (frame(FIN | PING, b"x" * 126), 1002),
        (frame(FIN | CLOSE, b"x"), 1002),
        (frame(FIN | CLOSE, struct.pack("!H", 999)), 1002),
        (frame(FIN | TEXT, b"\xff\xfe"), 1007),
        (frame(FIN | TEXT, b"\xed\xa0\x80"), 1007),
        (frame(FIN | TEXT, b" " * (MAX_FRAME + 1)), 1009),
        (bytes([FIN | TEXT, 0xFF]) + struct.pack("!Q", 2**62), 1009),
        (frame(TEXT, b" " * 3000) + frame(CONTINUATION, b" " * 3000), 1009),
        (frame(FIN | CLOSE, struct.pack("!H", 1000)), 1000),
    ],
)
async def test_frames_that_end_a_connection(daemon: Running, sent: bytes, code: int) -> None:
    reader, writer, _ = await handshake(daemon)
    writer.write(sent)
    assert await close_code(reader) == code
    assert await reader.read() == b""
    writer.close()


async def test_frames_that_are_fine(daemon: Running) -> None:
    reader, writer, _ = await handshake(daemon)
    message = json.dumps({"type": "response.create", "input": "hi"}).encode()
    writer.write(frame(TEXT, message[:5]) + frame(FIN | PING, b"p" * 125) + frame(FIN | CONTINUATION, message[5:]))
    assert await reader.readexactly(127) == b"\x8a\x7d" + b"p" * 125
    assert (await reader.readexactly(1))[0] == FIN | TEXT
    writer.close()


async def test_compression_is_declined(daemon: Running) -> None:
    _, writer, headers = await handshake(daemon, "Sec-WebSocket-Extensions: permessage-deflate")
    assert "sec-websocket-extensions" not in headers
    writer.close()


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
        _, writer, _ = await handshake(daemon)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(frame(FIN | TEXT, json.dumps({"type": "response.create", "input": "hi"}).encode()))
        await backend.until(lambda backend: backend.num_live == 1)
        await backend.until(lambda backend: backend.num_live == 0)
        writer.transport.abort()
