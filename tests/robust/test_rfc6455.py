"""The WebSocket protocol, section by section of RFC 6455, over raw sockets against the daemon's own server."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import pytest_asyncio

from edgeagent.daemon import transport
from tests.backends.fake import FakeBackend
from tests.daemon.running import Reply, Running, exchange, limited, running
from tests.patience import patient
from tests.robust.frames import (
    BINARY,
    CLOSE,
    CONTINUATION,
    FIN,
    PING,
    PONG,
    RSV1,
    RSV3,
    TEXT,
    Peer,
    close,
    frame,
    open_websocket,
    text,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

MIB = 1 << 20
CREATE = {"type": "response.create", "model": "fake"}


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def daemon() -> AsyncIterator[Running]:
    async with running(FakeBackend(), limited(max_frame_bytes=MIB)) as daemon:
        yield daemon


@asynccontextmanager
async def connected(daemon: Running, *headers: str) -> AsyncIterator[Peer]:
    peer = await open_websocket(daemon, *headers)
    try:
        yield peer
    finally:
        peer.writer.transport.abort()


def create(words: str, size: int = 0) -> bytes:
    """Return a create whose words are echoed, padded to a size in bytes."""
    return json.dumps({**CREATE, "input": words}, ensure_ascii=False).encode().ljust(size)


async def answered(peer: Peer) -> str:
    """Return the text of the next response."""
    while True:
        first, payload = await peer.receive()
        assert first == FIN | TEXT, (first, payload)
        event = json.loads(payload)
        assert event["type"] != "error", event
        if event["type"] == "response.completed":
            return str(event["response"]["output"][0]["content"][0]["text"])


class TestHandshake:
    """Section 4.2."""

    async def ask(self, daemon: Running, *changes: str, start: str = "GET /v1/responses HTTP/1.1") -> Reply:
        """Request an upgrade with some headers replaced, or left out ("-Name")."""
        headers = {
            "Host": f"127.0.0.1:{daemon.port}",
            "Upgrade": "websocket",
            "Connection": "Upgrade",
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
        }
        for change in changes:
            name, _, value = change.partition(": ")
            headers[name] = value
            if name.startswith("-"):
                del headers[name.removeprefix("-")], headers[name]
        lines = [start, *(f"{name}: {value}" for name, value in headers.items()), "", ""]
        return await exchange(daemon.port, "\r\n".join(lines).encode())

    async def test_the_rfcs_own_example(self, daemon: Running) -> None:
        reply = await self.ask(daemon)
        assert (reply.status, reply.headers["upgrade"].lower()) == (101, "websocket")
        assert reply.headers["connection"].lower() == "upgrade"
        assert reply.headers["sec-websocket-accept"] == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
        assert not {"sec-websocket-extensions", "sec-websocket-protocol"} & set(reply.headers)

    @pytest.mark.parametrize(
        "change",
        [
            "Upgrade: WebSocket",
            "Connection: keep-alive, Upgrade",
            "Connection: upgrade",
            "Sec-WebSocket-Protocol: x",
        ],
    )
    async def test_what_is_fine(self, daemon: Running, change: str) -> None:
        assert (await self.ask(daemon, change)).status == 101

    @pytest.mark.parametrize("version", ["8", "14", "x", ""])
    async def test_other_versions_learn_the_right_one(self, daemon: Running, version: str) -> None:
        reply = await self.ask(daemon, f"Sec-WebSocket-Version: {version}")
        assert reply.status in (400, 426)
        assert reply.status == 400 or reply.headers["sec-websocket-version"] == "13"

    @pytest.mark.parametrize(
        "change",
        [
            "-Sec-WebSocket-Version",
            "-Sec-WebSocket-Key",
            "Sec-WebSocket-Key: ",
            "Sec-WebSocket-Key: x",
            "Sec-WebSocket-Key: eHh4eA==",
            "Sec-WebSocket-Key: ????????????????????????",
        ],
    )
    async def test_what_is_not(self, daemon: Running, change: str) -> None:
        assert (await self.ask(daemon, change)).status in (400, 426)

    @pytest.mark.parametrize("start", ["POST /v1/responses HTTP/1.1", "HEAD /v1/responses HTTP/1.1"])
    async def test_only_get_upgrades(self, daemon: Running, start: str) -> None:
        assert (await self.ask(daemon, start=start)).status in (400, 405, 415)

    async def test_http_1_0_does_not_upgrade(self, daemon: Running) -> None:
        assert (await self.ask(daemon, start="GET /v1/responses HTTP/1.0")).status != 101

    async def test_without_an_upgrade_it_is_a_plain_request(self, daemon: Running) -> None:
        assert (await self.ask(daemon, "-Upgrade")).status == 405
        assert (await self.ask(daemon, "Upgrade: h2c")).status == 405

    @pytest.mark.parametrize("offer", ["permessage-deflate", "permessage-deflate; client_max_window_bits", "x-y"])
    async def test_no_extension_is_taken(self, daemon: Running, offer: str) -> None:
        async with connected(daemon, f"Sec-WebSocket-Extensions: {offer}") as peer:
            assert "sec-websocket-extensions" not in peer.headers

    async def test_frames_behind_the_handshake_in_one_segment(self, daemon: Running) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", daemon.port)
        head = (
            f"GET /v1/responses HTTP/1.1\r\nHost: 127.0.0.1:{daemon.port}\r\nUpgrade: websocket\r\n"
            "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        writer.write(head.encode() + frame(FIN | PING, b"early"))
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101")
        # A client waits for the answer first (section 4.1); one that does not wait must not hang.
        writer.write(frame(FIN | PING, b"late") + close(1000))
        assert (await reader.read()).endswith(b"\x88\x02\x03\xe8")
        writer.close()


class TestFraming:
    """Section 5.2."""

    @pytest.mark.parametrize("size", [125, 126, 65_535, 65_536, MIB])
    async def test_lengths(self, daemon: Running, size: int) -> None:
        async with connected(daemon) as peer:
            peer.send(text(create("a b", size)))
            assert await answered(peer) == "a b"

    @pytest.mark.parametrize(
        "sent",
        [
            frame(FIN | TEXT, b"", mask=None),
            frame(FIN | RSV1 | TEXT, b"{}"),
            frame(FIN | RSV3 | PING, b""),
            frame(FIN | 0x3, b""),
            frame(FIN | 0xF, b"x"),
            # Control frames are short and whole.
            frame(FIN | PING, b"x" * 126),
            frame(CLOSE, b"") + frame(FIN | CONTINUATION, b""),
            # Pieces out of order.
            frame(FIN | CONTINUATION, b"{}"),
            frame(TEXT, b"{") + frame(FIN | TEXT, b"}"),
            frame(FIN | TEXT, b"{}") + frame(FIN | CONTINUATION, b"{}"),
            # Codes that may not be sent, and half a code.
            close(999),
            close(1005),
            close(5000),
            frame(FIN | CLOSE, b"\x03"),
        ],
    )
    async def test_what_breaks_the_protocol(self, daemon: Running, sent: bytes) -> None:
        """One frame for each rule; the library has many more."""
        async with connected(daemon) as peer:
            peer.send(sent)
            assert await peer.closed() == 1002

    async def test_a_length_with_its_highest_bit(self, daemon: Running) -> None:
        async with connected(daemon) as peer:
            peer.send(bytes([FIN | TEXT, 0xFF]) + struct.pack("!Q", 1 << 63))
            assert await peer.closed() in (1002, 1009)

    @pytest.mark.parametrize("size_bytes", [2, 8])
    async def test_a_length_longer_than_needed_hurts_nobody(self, daemon: Running, size_bytes: int) -> None:
        async with connected(daemon) as peer:
            peer.send(frame(FIN | TEXT, create("long length"), size_bytes=size_bytes))
            assert await answered(peer) == "long length"

    async def test_a_byte_at_a_time(self, daemon: Running) -> None:
        async with connected(daemon) as peer:
            for byte in frame(FIN | PING, b"p") + text(create("drop by drop")):
                peer.send(bytes([byte]))
                await asyncio.sleep(0)
            assert await peer.receive() == (FIN | PONG, b"p")
            assert await answered(peer) == "drop by drop"

    async def test_binary_messages_are_not_spoken(self, daemon: Running) -> None:
        async with connected(daemon) as peer:
            peer.send(frame(FIN | BINARY, create("x")))
            assert (await peer.receive())[1][:2] == struct.pack("!H", 1003)


class TestPings:
    """Section 5.5."""

    @pytest.mark.parametrize("payload", [b"", b"hello", bytes(range(125)), b"\xff" * 125])
    async def test_a_pong_repeats_its_ping(self, daemon: Running, payload: bytes) -> None:
        async with connected(daemon) as peer:
            peer.send(frame(FIN | PING, payload))
            assert await peer.receive() == (FIN | PONG, payload)

    async def test_many_pings(self, daemon: Running) -> None:
        async with connected(daemon) as peer:
            peer.send(*(frame(FIN | PING, b"%d" % number) for number in range(100)))
            assert [(await peer.receive())[1] for _ in range(100)] == [b"%d" % number for number in range(100)]

    @pytest.mark.parametrize("payload", [b"", b"nobody asked"])
    async def test_pongs_that_nobody_asked_for(self, daemon: Running, payload: bytes) -> None:
        async with connected(daemon) as peer:
            peer.send(frame(FIN | PONG, payload), frame(FIN | PING, b"still there?"))
            assert await peer.receive() == (FIN | PONG, b"still there?")

    async def test_a_flood_of_pings_to_which_nobody_listens(
        self, daemon: Running, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        waiting: list[int] = []
        original = transport.GuardedWebSocket.handle_ping

        def noted(self: transport.GuardedWebSocket) -> None:
            original(self)
            waiting.append(self.transport.get_write_buffer_size())

        monkeypatch.setattr(transport.GuardedWebSocket, "handle_ping", noted)
        monkeypatch.setattr(transport, "FRAMES_BURST", 200_000)
        async with connected(daemon) as peer:
            peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
            flood = frame(FIN | PING, b"x" * 125) * 1000
            for _ in range(100):
                peer.send(flood)
                await asyncio.wait_for(peer.writer.drain(), patient(10))
            while len(waiting) < 100_000:  # noqa: ASYNC110 there is no event for what the server has read
                await asyncio.sleep(0)
            assert max(waiting) <= MIB


class TestFragments:
    """Section 5.4."""

    async def test_a_message_in_pieces(self, daemon: Running) -> None:
        message = create("one message in many pieces")
        for size in (1, 2, 7, len(message) - 1):
            pieces = [message[start : start + size] for start in range(0, len(message), size)]
            async with connected(daemon) as peer:
                peer.send(frame(TEXT, pieces[0]), *(frame(CONTINUATION, piece) for piece in pieces[1:-1]))
                peer.send(frame(FIN | CONTINUATION, pieces[-1]))
                assert await answered(peer) == "one message in many pieces"

    async def test_empty_pieces(self, daemon: Running) -> None:
        async with connected(daemon) as peer:
            peer.send(frame(TEXT, b""), frame(CONTINUATION, b""), frame(CONTINUATION, create("between")))
            peer.send(frame(FIN | CONTINUATION, b""))
            assert await answered(peer) == "between"

    async def test_pings_between_pieces(self, daemon: Running) -> None:
        message = create("interrupted")
        async with connected(daemon) as peer:
            peer.send(frame(TEXT, message[:9]), frame(FIN | PING, b"1"), frame(CONTINUATION, message[9:20]))
            peer.send(frame(FIN | PONG, b""), frame(FIN | PING, b"2"), frame(FIN | CONTINUATION, message[20:]))
            assert await peer.receive() == (FIN | PONG, b"1")
            assert await peer.receive() == (FIN | PONG, b"2")
            assert await answered(peer) == "interrupted"

    async def test_a_close_between_pieces(self, daemon: Running) -> None:
        async with connected(daemon) as peer:
            peer.send(frame(TEXT, b"{"), close(1000))
            assert await peer.closed() in (1000, 1002)

    async def test_two_messages_in_one_segment(self, daemon: Running) -> None:
        async with connected(daemon) as peer:
            peer.send(text(create("the first")) + text(create("the second")))
            assert [await answered(peer), await answered(peer)] == ["the first", "the second"]


VALID_TEXTS = [
    "κόσμε",
    "\x01\x7f\u0080\u07ff\u0800\uffff",
    "\U00010000\U0010ffff",
    "\ud7ff\ue000\ufffd\ufffe\uffff",
    "\N{GRINNING FACE}" * 20,
]
# A stray byte, a form that is too long, half of a pair, a beginning, and what lies beyond Unicode.
INVALID_BYTES = [b"\x80", b"\xc0\x80", b"\xed\xa0\x80", b"\xf0\x9f\x98", b"\xf4\x90\x80\x80"]


class TestUtf8:
    """Section 8.1."""

    @pytest.mark.parametrize("words", VALID_TEXTS)
    async def test_valid(self, daemon: Running, words: str) -> None:
        async with connected(daemon) as peer:
            peer.send(text(create(words)))
            assert await answered(peer) == words

    async def test_characters_cut_between_pieces(self, daemon: Running) -> None:
        message = create("κόσμε \N{GRINNING FACE}")
        async with connected(daemon) as peer:
            peer.send(frame(TEXT, message[:1]), *(frame(CONTINUATION, bytes([byte])) for byte in message[1:]))
            peer.send(frame(FIN | CONTINUATION, b""))
            assert await answered(peer) == "κόσμε \N{GRINNING FACE}"

    @pytest.mark.parametrize("wrong", INVALID_BYTES)
    async def test_invalid(self, daemon: Running, wrong: bytes) -> None:
        async with connected(daemon) as peer:
            peer.send(text(b'{"type":"' + wrong + b'"}'))
            assert await peer.closed() == 1007
        async with connected(daemon) as peer:
            peer.send(frame(TEXT, b'{"type":"'), *(frame(CONTINUATION, bytes([byte])) for byte in wrong))
            peer.send(frame(FIN | CONTINUATION, b'"}'))
            assert await peer.closed() == 1007

    async def test_a_character_that_never_ends(self, daemon: Running) -> None:
        async with connected(daemon) as peer:
            peer.send(text(b"{}\xf0\x9f\x98"))
            assert await peer.closed() == 1007


class TestLimits:
    """Row B1: refused as soon as the size is known, and without keeping what came."""

    async def test_the_largest_message_passes(self, daemon: Running) -> None:
        async with connected(daemon) as peer:
            peer.send(text(create("just fits", MIB)))
            assert await answered(peer) == "just fits"

    @pytest.mark.parametrize("size", [MIB + 1, 1 << 31, 1 << 32, 1 << 62, (1 << 63) - 1])
    async def test_a_frame_is_refused_by_its_head(self, daemon: Running, size: int) -> None:
        async with connected(daemon) as peer:
            peer.send(bytes([FIN | TEXT, 0xFF]) + struct.pack("!Q", size))
            assert await peer.closed() == 1009

    async def test_who_sends_it_all_the_same_learns_why(self, daemon: Running) -> None:
        async with connected(daemon) as peer:
            peer.send(text(b" " * (4 * MIB)))
            assert await peer.closed() == 1009

    async def test_pieces_that_add_up(self, daemon: Running) -> None:
        async with connected(daemon) as peer:
            peer.send(frame(TEXT, b" " * (MIB // 2)), frame(CONTINUATION, b" " * (MIB // 2)))
            peer.send(frame(CONTINUATION, b" "))
            assert await peer.closed() == 1009

    async def test_pieces_without_end(self, daemon: Running, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(transport, "FRAMES_BURST", 2 * transport.MAX_FRAGMENTS)
        async with connected(daemon) as peer:
            peer.send(frame(TEXT, b""))
            for _ in range(transport.MAX_FRAGMENTS // 1000 + 1):
                peer.send(frame(CONTINUATION, b"") * 1000)
            assert await peer.closed() == 1009


class TestClose:
    """Section 7."""

    @pytest.mark.parametrize("code", [1000, 1001, 4999])
    async def test_a_code_comes_back(self, daemon: Running, code: int) -> None:
        async with connected(daemon) as peer:
            peer.send(close(code))
            assert await peer.closed() == code

    async def test_without_a_code(self, daemon: Running) -> None:
        async with connected(daemon) as peer:
            peer.send(close())
            assert await peer.closed() is None

    @pytest.mark.parametrize("reason", [b"", b"bye", "auf Wiederhören".encode(), b"x" * 123])
    async def test_with_a_reason(self, daemon: Running, reason: bytes) -> None:
        async with connected(daemon) as peer:
            peer.send(close(1000, reason))
            assert await peer.closed() == 1000

    @pytest.mark.parametrize("reason", [b"\xff", b"ok\xc3"])
    async def test_a_reason_that_is_no_text(self, daemon: Running, reason: bytes) -> None:
        async with connected(daemon) as peer:
            peer.send(close(1000, reason))
            assert await peer.closed() in (1002, 1007)

    async def test_what_follows_a_close_is_not_read(self, daemon: Running) -> None:
        async with connected(daemon) as peer:
            peer.send(close(1000), frame(FIN | PING, b"too late"), text(create("too late")), close(1001))
            first, payload = await peer.receive()
            assert (first, payload[:2]) == (FIN | CLOSE, struct.pack("!H", 1000))

    async def test_an_end_without_a_close(self, daemon: Running) -> None:
        async with connected(daemon) as peer:
            peer.send(frame(FIN | PING, b"last words"))
            peer.writer.write_eof()
            assert await peer.receive() == (FIN | PONG, b"last words")
            assert await peer.reader.read() == b""

    async def test_an_end_in_the_middle_of_a_frame(self, daemon: Running) -> None:
        for sent in (b"\x81", text(b"{}")[:4], frame(TEXT, b"{")):
            async with connected(daemon) as peer:
                peer.send(sent)
                peer.writer.write_eof()
                assert await peer.reader.read() in (b"", frame(FIN | CLOSE, struct.pack("!H", 1002), mask=None))

    async def test_others_are_not_disturbed(self, daemon: Running) -> None:
        async with connected(daemon) as peer:
            for wrong in (frame(FIN | 0x3, b""), close(999), text(b"\xff"), frame(FIN | TEXT, b"", mask=None)):
                async with connected(daemon) as other:
                    other.send(wrong)
                    await other.closed()
            peer.send(text(create("undisturbed")))
            assert await answered(peer) == "undisturbed"
