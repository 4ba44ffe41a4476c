"""L6: an invalid handshake is answered and closed at once, and a slow one is cut off."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from websockets.asyncio.client import connect

from edgeagent.config import Config, ServerConfig
from edgeagent.daemon import server, transport
from edgeagent.doctor.system import look_at_port
from edgeagent.types import replace
from tests.backends.fake import FakeBackend
from tests.daemon.running import Reply, Running, limited, read_reply, running
from tests.patience import patient
from tests.robust.raw import KEY_HEADERS

NUM_CLIENTS = 300
MAX_CONNECTIONS = 64
UPGRADE = ("Upgrade: websocket", "Connection: Upgrade", *KEY_HEADERS.split("\r\n"))
REFUSED = {
    "a body": (("Content-Length: 1",), "", 400),
    "a body in chunks": (("Transfer-Encoding: chunked",), "", 400),
    "a long line": (("X-Long: " + "a" * 9000,), "", 431),
    "long lines": (tuple(f"X-Long-{n}: " + "a" * 6000 for n in range(3)), "", 431),
    "many lines": (tuple(f"X-{n}: a" for n in range(120)), "", 431),
    "a long target": ((), "?" + "a" * 8185, 414),
    "a foreign version": (("Sec-WebSocket-Version: 7",), "", 400),
}


def handshake(daemon: Running, *lines: str, query: str = "") -> bytes:
    head = [f"GET /v1/responses{query} HTTP/1.1", f"Host: 127.0.0.1:{daemon.port}", *UPGRADE, *lines, "", ""]
    return "\r\n".join(head).encode()


async def ask(daemon: Running, request: bytes) -> Reply:
    """Send bytes; return the answer after the connection was closed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", daemon.port)
    try:
        writer.write(request)
        reply = await read_reply(reader)
        assert await reader.read() == b""
        return reply
    finally:
        writer.transport.abort()


@pytest.mark.parametrize("case", REFUSED)
async def test_what_is_no_handshake_is_refused_and_closed(case: str) -> None:
    lines, query, status = REFUSED[case]
    async with running(FakeBackend()) as daemon, asyncio.timeout(transport.HEAD_TIMEOUT_S / 2):
        reply = await ask(daemon, handshake(daemon, *lines, query=query))
    assert reply.status == status


async def test_hundreds_of_them_shut_nobody_out() -> None:
    config = limited(max_connections=MAX_CONNECTIONS)
    async with running(FakeBackend(), config) as daemon, asyncio.timeout(patient(60)):
        cases = [REFUSED[case] for case in ("a body", "a body in chunks", "a long line")]
        for start in range(0, NUM_CLIENTS, MAX_CONNECTIONS // 2):
            numbers = range(start, min(start + MAX_CONNECTIONS // 2, NUM_CLIENTS))
            asked = [cases[number % len(cases)] for number in numbers]
            replies = await asyncio.gather(*(ask(daemon, handshake(daemon, *lines)) for lines, _, _ in asked))
            assert [reply.status for reply in replies] == [status for _, _, status in asked]
            async with connect(f"ws://127.0.0.1:{daemon.port}/v1/responses"):
                pass


async def test_what_follows_a_refused_handshake_is_not_kept() -> None:
    async with running(FakeBackend()) as daemon, asyncio.timeout(patient(30)):
        reader, writer = await asyncio.open_connection("127.0.0.1", daemon.port)
        writer.write(handshake(daemon, "Transfer-Encoding: chunked"))
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            while True:
                writer.write(b"10000\r\n" + b"x" * 65536 + b"\r\n")
                await writer.drain()
        reader.feed_eof()
        assert not daemon.server.server_state.connections
        writer.transport.abort()


async def test_headers_of_a_byte_each_are_counted_too() -> None:
    async with running(FakeBackend()) as daemon, asyncio.timeout(patient(30)):
        head = f"GET /health HTTP/1.1\r\nHost: 127.0.0.1:{daemon.port}\r\n" + "a:\r\n" * 5000
        assert (await ask(daemon, head.encode() + b"\r\n")).status == 431


async def test_a_handshake_that_the_application_leaves_open_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "HEAD_TIMEOUT_S", 0.2)

    async def never(*_: object) -> None:
        await asyncio.Event().wait()

    async with running(FakeBackend()) as daemon, asyncio.timeout(patient(30)):
        monkeypatch.setattr(daemon.server.config, "loaded_app", never)
        assert (await ask(daemon, handshake(daemon))).status == 408
        assert not daemon.server.server_state.connections
        for task in daemon.server.server_state.tasks:
            task.cancel()


async def test_a_handshake_that_is_complete_is_not_cut() -> None:
    async with (
        running(FakeBackend()) as daemon,
        asyncio.timeout(patient(30)),
        connect(f"ws://127.0.0.1:{daemon.port}/v1/responses") as socket,
    ):
        connections = daemon.server.server_state.connections
        (protocol,) = (each for each in connections if isinstance(each, transport.GuardedWebSocket))
        protocol._on_slow_handshake()
        await (await socket.ping())


async def test_tls_that_never_begins_is_cut(monkeypatch: pytest.MonkeyPatch, certificate: tuple[Path, Path]) -> None:
    monkeypatch.setattr(server, "TLS_TIMEOUT_S", 0.2)
    tls, key = certificate
    config = Config(server=ServerConfig(tls_certificate=tls, tls_key=key))
    async with running(FakeBackend(), config) as daemon, asyncio.timeout(patient(30)):
        reader, writer = await asyncio.open_connection("127.0.0.1", daemon.port)
        assert await reader.read() == b""
        writer.transport.abort()


async def test_a_daemon_with_tls_is_known_to_the_doctor(certificate: tuple[Path, Path]) -> None:
    tls, key = certificate
    server_config = ServerConfig(tls_certificate=tls, tls_key=key)
    async with running(FakeBackend(), Config(server=server_config)) as daemon, asyncio.timeout(patient(30)):
        address = replace(server_config, port=daemon.port)
        found = await asyncio.to_thread(look_at_port, address, None)
        assert found.state == "edgeagent"
