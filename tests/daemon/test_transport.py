"""The limits of one connection; tests/robust/test_rfc6455.py tests the protocol itself."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from edgeagent.config import Config, ServerConfig
from edgeagent.daemon import server, transport
from edgeagent.types import TextDelta
from tests.backends.fake import FakeBackend
from tests.daemon.running import TOKEN, Running, exchange, limited, read_reply, running
from tests.robust.frames import CLOSE, FIN, PING, PONG, close, frame, open_websocket, text

pytestmark = pytest.mark.asyncio(loop_scope="module")

MAX_FRAME = 4096


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def daemon() -> AsyncIterator[Running]:
    async with running(FakeBackend(), limited(max_frame_bytes=MAX_FRAME)) as daemon:
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


async def test_a_long_frame_is_few_pieces_and_what_follows_it_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    parse, sizes = transport.GuardedWebSocket.parse, list[int]()

    def recorded(self: transport.GuardedWebSocket, data: bytes) -> float:
        sizes.append(len(data))
        return parse(self, data)

    monkeypatch.setattr(transport.GuardedWebSocket, "parse", recorded)
    async with running(FakeBackend()) as daemon:
        peer = await open_websocket(daemon)
        long = text(json.dumps({"type": "response.create", "input": "hi", "store": False}).ljust(400_000))
        peer.send(long, frame(FIN | PING, b"x" * 100) * 200)
        num_pongs = 0
        while num_pongs < 200:
            num_pongs += (await peer.receive())[0] == FIN | PONG
        peer.writer.transport.abort()
    assert len(sizes) < len(long) // transport.PIECE_BYTES // 2
    assert sum(size for size in sizes if size > transport.PIECE_BYTES) <= len(long)


async def test_a_socket_that_never_reads_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "SOCKET_STALL_TIMEOUT_S", 0.05)
    backend = FakeBackend(lambda _: (TextDelta("Yes. " + "x" * 65_536) for _ in range(10**9)))
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
        # On a raw socket, since a library would answer the close.
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
        # Both calls run before the event loop's next turn, in which the connection is lost.
        protocol.data_received(close(1000))
        protocol.shutdown()
        assert await peer.receive() == (FIN | CLOSE, struct.pack("!H", 1000))
        assert await peer.reader.read() == b""
        peer.writer.transport.abort()


H2C = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA")
HI = b'{"messages":[{"role":"user","content":"hi"}]}'


def request(daemon: Running, line: str, *headers: str, body: bytes = b"") -> bytes:
    lines = [f"{line} HTTP/1.1", f"Host: 127.0.0.1:{daemon.port}", "Content-Type: application/json", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


class TestOtherUpgrades:
    """A server may answer in HTTP/1.1, whichever other protocol a request offers (RFC 9110, section 7.8)."""

    @pytest.mark.parametrize("offer", [H2C, ("Connection: keep-alive, upgrade", "Upgrade: websocket, h2c")])
    @pytest.mark.parametrize("sizes", [[10_000], [400, 10_000], [1] * 2000])
    async def test_the_body_is_read(self, daemon: Running, offer: tuple[str, ...], sizes: list[int]) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", daemon.port)
        chunked = b"1\r\n{\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(HI) - 1, HI[1:])
        asked = (
            request(daemon, "POST /v1/chat/completions", *offer, f"Content-Length: {len(HI)}", body=HI)
            + request(daemon, "GET /health", *offer)
            + request(daemon, "POST /v1/chat/completions", *offer, "Transfer-Encoding: chunked", body=chunked)
            + request(daemon, "GET /v1/models")
        )
        for size in sizes:
            writer.write(asked[:size])
            asked = asked[size:]
            await asyncio.sleep(0)
        assert [(await read_reply(reader)).status for _ in range(4)] == [200] * 4
        writer.close()

    async def test_no_request_hides_in_the_body(self, daemon: Running) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", daemon.port)
        hidden = request(daemon, "GET /health", "X-Hidden: 1")
        writer.write(request(daemon, "POST /v1/chat/completions", *H2C, f"Content-Length: {len(hidden)}"))
        await asyncio.sleep(0.01)
        writer.write(hidden + request(daemon, "GET /nothing", "Connection: close"))
        assert [(await read_reply(reader)).status for _ in range(2)] == [400, 404]
        assert await reader.read() == b""
        writer.close()

    async def test_connect_is_refused(self, daemon: Running) -> None:
        """The parser would read its body as the next request."""
        for target in ("/v1/models", "127.0.0.1:1"):
            reply = await exchange(daemon.port, request(daemon, f"CONNECT {target}"))
            assert (reply.status, reply.headers["connection"]) == (400, "close")

    async def test_the_bounds_hold_as_ever(self, daemon: Running) -> None:
        for headers, status in ((["X-A: b"] * 100, 431), (["Content-Length: 1", "Transfer-Encoding: chunked"], 400)):
            reply = await exchange(daemon.port, request(daemon, "POST /v1/chat/completions", *H2C, *headers))
            assert reply.status == status


class TestTrailers:
    """Fields after a chunked body, which a proxy that checks headers does not see."""

    def asked(self, daemon: Running, *trailers: str) -> bytes:
        chunked = b"%x\r\n%b\r\n0\r\n" % (len(HI), HI)
        end = "".join(f"{line}\r\n" for line in (*trailers, "")).encode()
        return request(daemon, "POST /v1/chat/completions", "Transfer-Encoding: chunked", body=chunked + end)

    async def test_they_are_no_headers(self) -> None:
        async with running(FakeBackend(), Config(server=ServerConfig(token_required=True))) as daemon:
            assert (await exchange(daemon.port, self.asked(daemon, f"Authorization: Bearer {TOKEN}"))).status == 401
        async with running(FakeBackend()) as daemon:
            for trailer in ("Host: evil.example", "Origin: http://evil.example", "Content-Encoding: gzip", "X: y"):
                assert (await exchange(daemon.port, self.asked(daemon, trailer))).status == 200

    @pytest.mark.parametrize("trailers", [["X: y"] * 100, ["X: " + "y" * (17 << 10)]])
    async def test_they_are_bounded(self, daemon: Running, trailers: list[str]) -> None:
        assert (await exchange(daemon.port, self.asked(daemon, *trailers))).status == 431


class TestBehindAnAnswer:
    """Data that arrives on a connection while its last request is still being answered."""

    HANDSHAKE = (
        "Upgrade: websocket",
        "Connection: Upgrade",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: eHh4eHh4eHh4eHh4eHh4eA==",
    )
    STREAM = b'{"messages":[{"role":"user","content":"hi"}],"stream":true}'

    def stream(self, daemon: Running) -> bytes:
        length = f"Content-Length: {len(self.STREAM)}"
        return request(daemon, "POST /v1/chat/completions", length, body=self.STREAM)

    async def test_no_websocket_opens_in_the_middle_of_it(self, daemon: Running) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", daemon.port)
        writer.write(self.stream(daemon) + request(daemon, "GET /v1/responses", *self.HANDSHAKE))
        answer = await reader.read()
        assert b" 101 " not in answer
        assert answer.count(b"HTTP/1.1 ") == 1
        writer.close()

    async def test_no_refusal_is_written_into_it(self) -> None:
        backend = FakeBackend(lambda _: (TextDelta("x") for _ in range(10**9)))
        async with running(backend) as daemon:
            bad, waiting = b"NOT HTTP\r\n\r\n", request(daemon, "GET /health")
            for behind in (bad, waiting + bad, request(daemon, "GET /v1/responses", *self.HANDSHAKE)):
                reader, writer = await asyncio.open_connection("127.0.0.1", daemon.port)
                writer.write(self.stream(daemon))
                assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
                writer.write(behind)
                assert b"HTTP/1.1 " not in await reader.read()
                await backend.until(lambda backend: backend.num_live == 0)
                writer.close()

    async def test_a_client_that_leaves_ends_it(self) -> None:
        backend = FakeBackend(lambda _: (TextDelta("x") for _ in range(10**9)))
        async with running(backend) as daemon:
            reader, writer = await asyncio.open_connection("127.0.0.1", daemon.port)
            writer.write(self.stream(daemon))
            await reader.readuntil(b"\r\n\r\n")
            (protocol,) = daemon.server.server_state.connections
            assert isinstance(protocol, HttpToolsProtocol)
            writer.write(request(daemon, "GET /health"))
            while not protocol.pipeline:  # noqa: ASYNC110 uvicorn tells nobody
                await asyncio.sleep(0)
            writer.transport.abort()
            await backend.until(lambda backend: backend.num_live == 0)
