"""What clients have sent and not finished has one limit over all connections, and frames have a pace."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from typing import Any

import httpx
import pytest
from starlette.types import Message, Receive, Scope, Send

from edgeagent import freed_memory
from edgeagent.api.gate.body_limit import Arrival, BodyLimit, InFlight
from edgeagent.daemon import transport
from edgeagent.errors import Overloaded
from edgeagent.types import QueryAnswer, Started, TextDelta, TextQuery
from tests.backends.fake import FakeBackend, Gate, finished
from tests.daemon.running import Running, exchange, limited, read_reply, running
from tests.fakes import FakeClock
from tests.robust.frames import CONTINUATION, FIN, PING, PONG, TEXT, Peer, frame, open_websocket, text
from tests.worker.support import eventually

KIB = 1 << 10
JSON = {"content-type": "application/json"}
# Four of the largest bodies or messages fit.
SMALL = limited(max_body_bytes=64 * KIB, max_frame_bytes=64 * KIB, max_in_flight_bytes=256 * KIB)


def create(**fields: object) -> bytes:
    """Return the frame of a `response.create` that is not stored."""
    return text(json.dumps({"type": "response.create", "input": "hi", "store": False, **fields}))


async def ended(peer: Peer) -> str:
    """Return the type of the event that ends a response."""
    while True:
        first, payload = await peer.receive()
        if first == FIN | TEXT and (kind := json.loads(payload)["type"]) in ("response.completed", "error"):
            return str(kind)


async def begin_body(daemon: Running, num_bytes: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Announce a body, and send all of it but the last byte."""
    reader, writer = await asyncio.open_connection("127.0.0.1", daemon.port)
    head = f"POST /v1/responses HTTP/1.1\r\nHost: 127.0.0.1:{daemon.port}\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {num_bytes}\r\n\r\n".encode() + b" " * (num_bytes - 1))
    await writer.drain()
    return reader, writer


async def begin_frame(daemon: Running, num_bytes: int) -> Peer:
    """Send all of a frame but the last byte."""
    peer = await open_websocket(daemon)
    peer.send(bytes([FIN | TEXT, 0xFF]) + struct.pack("!Q", num_bytes) + bytes(4) + b" " * (num_bytes - 1))
    await peer.writer.drain()
    return peer


async def test_bodies_that_never_end_are_cut_for_those_that_do() -> None:
    async with running(FakeBackend(), SMALL) as daemon:
        bodies = [await begin_body(daemon, 60 * KIB) for _ in range(12)]
        replies = [asyncio.create_task(read_reply(reader)) for reader, _ in bodies]
        while sum(reply.done() for reply in replies) < 8:
            await asyncio.wait([reply for reply in replies if not reply.done()], return_when=asyncio.FIRST_COMPLETED)
        cut = [reply.result() for reply in replies if reply.done()]
        assert {reply.status for reply in cut} == {429}
        assert all("retry-after" in reply.headers and reply.headers["connection"] == "close" for reply in cut)
        whole = json.dumps({"input": "x" * 50 * KIB, "store": False})
        answer = await daemon.http.post(f"{daemon.url}/v1/responses", content=whole, headers=JSON)
        assert answer.status_code == 200
        for (_, writer), reply in zip(bodies, replies, strict=True):
            reply.cancel()
            writer.transport.abort()


async def test_frames_that_never_end_are_cut_for_those_that_do() -> None:
    async with running(FakeBackend(), SMALL) as daemon:
        peers = [await begin_frame(daemon, 60 * KIB) for _ in range(12)]
        ends = [asyncio.create_task(peer.closed()) for peer in peers]
        while sum(end.done() for end in ends) < 8:
            await asyncio.wait([end for end in ends if not end.done()], return_when=asyncio.FIRST_COMPLETED)
        assert {end.result() for end in ends if end.done()} == {1013}
        other = await open_websocket(daemon)
        other.send(create(input="x" * 50 * KIB))
        assert await ended(other) == "response.completed"
        other.writer.transport.abort()
        for peer, end in zip(peers, ends, strict=True):
            end.cancel()
            peer.writer.transport.abort()


async def test_a_body_that_has_been_read_counts_no_more() -> None:
    gate = Gate()
    backend = FakeBackend(lambda _: (gate, TextDelta("yes"), finished()))
    async with running(backend, SMALL) as daemon:
        padded = json.dumps({"input": "x", "store": False}).ljust(60 * KIB)
        waiting = list[asyncio.Task[httpx.Response]]()
        while len(waiting) < 8:
            sent = daemon.http.post(f"{daemon.url}/v1/responses", content=padded, headers=JSON)
            waiting.append(asyncio.create_task(sent))
            await eventually(lambda: len(backend.requests) == len(waiting))
        reader, writer = await begin_body(daemon, 60 * KIB)
        writer.write(b" ")
        assert (await read_reply(reader)).status == 400, "spaces alone are no JSON, but they were read"
        gate.opened.set()
        assert {(await task).status_code for task in waiting} == {200}
        writer.transport.abort()


async def test_requests_count_until_they_end_and_no_client_takes_the_room_of_others() -> None:
    gate = Gate()
    backend = FakeBackend(lambda _: (Started(1, 0), gate, TextDelta("yes"), finished()))
    async with running(backend, SMALL) as daemon:
        large: dict[str, object] = {"input": "x" * 60 * KIB, "store": False}

        def post(fields: dict[str, object]) -> asyncio.Task[httpx.Response]:
            sent = daemon.http.post(f"{daemon.url}/v1/responses", json=fields)
            return asyncio.create_task(sent)

        held = list[asyncio.Task[httpx.Response]]()
        while len(held) < 3:  # 120 KiB of 256, and 180 would be more than the rest
            held.append(post(large))
            await eventually(lambda: len(backend.requests) == len(held) or held[-1].done())
        background = await post(large | {"store": True, "background": True})
        for refused in (held.pop().result(), background):
            error = refused.json()["error"]
            assert (refused.status_code, error["code"], refused.headers["retry-after"]) == (429, "queue_full", "2")
            assert "this request are too many now" in error["message"] and "when one has ended" in error["message"]
        held.append(post({"input": "x", "store": False}))
        await eventually(lambda: len(backend.requests) == 3)
        peer = await open_websocket(daemon)
        peer.send(create(input="x" * 60 * KIB))
        assert await ended(peer) == "error"
        peer.writer.transport.abort()
        gate.opened.set()
        assert {(await task).status_code for task in held} == {200}
        assert (await post(large)).status_code == 200


LONG = "x" * 60 * KIB
USER: dict[str, Any] = {"role": "user", "content": "hi"}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": json.dumps({"a": LONG})}}
LARGE: dict[str, dict[str, Any]] = {
    "arguments": {"messages": [USER, {"role": "assistant", "tool_calls": [CALL]}, USER]},
    "reasoning": {"messages": [USER, {"role": "assistant", "content": "x", "reasoning_content": LONG}, USER]},
    "description": {
        "messages": [USER],
        "tools": [{"type": "function", "function": {"name": "f", "description": LONG}}],
    },
    "schema": {
        "messages": [USER],
        "response_format": {"type": "json_schema", "json_schema": {"name": "f", "schema": {"description": LONG}}},
    },
}


@pytest.mark.parametrize("fields", LARGE.values(), ids=LARGE)
async def test_all_texts_of_a_request_count(fields: dict[str, Any]) -> None:
    gate = Gate()
    backend = FakeBackend(lambda _: (Started(1, 0), gate, TextDelta("yes"), finished()))
    async with running(backend, SMALL) as daemon:
        sent = [
            asyncio.create_task(daemon.http.post(f"{daemon.url}/v1/chat/completions", json=fields)) for _ in range(4)
        ]
        await eventually(lambda: sum(task.done() for task in sent) + len(backend.requests) >= 4)
        gate.opened.set()
        assert sorted([(await task).status_code for task in sent]) == [200, 200, 429, 429]


async def test_texts_to_embed_and_to_rank_count() -> None:
    gate, num_asked = asyncio.Event(), 0

    class Waiting(FakeBackend):
        async def ask(self, name: str, query: TextQuery) -> QueryAnswer:
            nonlocal num_asked
            num_asked += 1
            await gate.wait()
            return await super().ask(name, query)

    async with running(Waiting(), SMALL) as daemon:
        sent = [
            asyncio.create_task(daemon.http.post(f"{daemon.url}/v1/{route}", json={"model": "fake", **fields}))
            for route, fields in (("embeddings", {"input": LONG}), ("rerank", {"query": "x", "documents": [LONG]})) * 2
        ]
        await eventually(lambda: sum(task.done() for task in sent) + num_asked >= 4)
        gate.set()
        assert sorted([(await task).status_code for task in sent]) == [200, 200, 429, 429]


async def test_the_choices_of_a_create_are_admitted_as_a_whole() -> None:
    gate = Gate()
    backend = FakeBackend(lambda _: (Started(1, 0), gate, TextDelta("yes"), finished()))
    async with running(backend, SMALL) as daemon:

        def post(**fields: object) -> asyncio.Task[httpx.Response]:
            return asyncio.create_task(daemon.http.post(f"{daemon.url}/v1/completions", json=fields))

        shared = post(prompt=LONG, n=8)
        await eventually(lambda: len(backend.requests) == 8 or shared.done())
        other = post(prompt=LONG)
        await eventually(lambda: len(backend.requests) == 9 or other.done())
        assert (await post(prompt=["x" * 10 * KIB, "y" * 50 * KIB])).status_code == 429, "10 KiB alone would fit"
        assert len(backend.requests) == 9, "no choice began"
        gate.opened.set()
        assert [(await each).status_code for each in (shared, other)] == [200, 200]


async def test_no_websocket_is_opened_behind_an_unread_answer() -> None:
    backend = FakeBackend(lambda _: (Started(1, 0), TextDelta("Yes. " + "x" * (8 << 20)), finished()))
    async with running(backend) as daemon:
        opened = socket.socket()
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        opened.connect(("127.0.0.1", daemon.port))
        reader, writer = await asyncio.open_connection(sock=opened, limit=1)  # it reads no more than that ahead
        host, body = f"HTTP/1.1\r\nHost: 127.0.0.1:{daemon.port}\r\n", b'{"input":"x","store":false}'
        head = f"POST /v1/responses {host}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        connections = daemon.server.server_state.connections

        def unread() -> list[Arrival]:
            guarded = [each for each in connections if isinstance(each, transport.GuardedHttp)]
            return [each._unread for each in guarded if each._unread is not None and each.cycle.response_complete]

        await eventually(lambda: bool(unread()))
        (arrival,) = unread()
        writer.write(
            f"GET /v1/responses {host}Upgrade: websocket\r\nConnection: Upgrade\r\n"
            "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n".encode()
        )
        answers = b""
        while piece := await reader.read(1 << 20):
            answers += piece
        assert answers.count(b"HTTP/1.1 200") == 1 and b"HTTP/1.1 400" in answers and b"HTTP/1.1 101" not in answers
        await eventually(lambda: not arrival.num_bytes)
        writer.close()


async def test_pieces_of_a_message_count_together_and_a_read_message_does_not() -> None:
    async with running(FakeBackend(), SMALL) as daemon:
        pieces = await open_websocket(daemon)
        pieces.send(frame(TEXT, b" " * 30 * KIB), frame(CONTINUATION, b" " * 30 * KIB))
        for _ in range(8):  # each is read before the next is sent
            other = await open_websocket(daemon)
            other.send(create(input="x" * 50 * KIB))
            assert await ended(other) == "response.completed"
            other.writer.transport.abort()
        pieces.send(frame(FIN | CONTINUATION, b"{}"))
        assert await ended(pieces) == "error"
        pieces.send(frame(TEXT, b" " * 30 * KIB), frame(CONTINUATION, b" " * 30 * KIB))
        frames = [await begin_frame(daemon, 60 * KIB) for _ in range(12)]
        assert await pieces.closed() == 1013
        for peer in (*frames, pieces):
            peer.writer.transport.abort()


async def test_a_body_whose_time_has_just_ended_is_cut_without_harm_to_the_other() -> None:
    limit, loop, faults = InFlight(100), asyncio.get_running_loop(), list[Exception]()
    other = limit.begin(lambda: None)

    def arrive() -> None:
        try:
            other.hold(60, is_whole=True)
        except Exception as error:
            faults.append(error)

    pieces: list[Message] = [{"type": "http.request", "body": b" " * 60, "more_body": True}]

    async def receive() -> Message:
        if not pieces:
            loop.call_soon(arrive)  # just after the end of the time, before the body's task runs again
            await asyncio.Event().wait()
        return pieces.pop()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        while True:
            await receive()

    async def send(message: Message) -> None:
        raise AssertionError("the application sends nothing")

    with pytest.raises(Overloaded):
        await BodyLimit(app, 1000, limit, grace_s=-1.0)(
            {"type": "http", "headers": [(b"content-length", b"100")]}, receive, send
        )
    assert faults == []


class TestLimit:
    """The limit itself."""

    @staticmethod
    def begin(in_flight: InFlight, cut: list[str], name: str) -> Arrival:
        return in_flight.begin(lambda: cut.append(name))

    async def test_the_largest_and_oldest_goes_first_and_a_whole_one_never(self) -> None:
        clock, cut = FakeClock(), list[str]()
        limit = InFlight(100, clock)
        whole, old, large = (self.begin(limit, cut, name) for name in ("whole", "old", "large"))
        whole.hold(40, is_whole=True)
        old.hold(5, is_whole=False)
        clock.advance(10)
        large.hold(50, is_whole=False)
        clock.advance(2)
        self.begin(limit, cut, "new").hold(20, is_whole=False)  # 5 bytes for 12 s, 50 for 2 s, 20 for none
        assert cut == ["large"]
        self.begin(limit, cut, "newest").hold(60, is_whole=False)
        assert cut == ["large", "old", "newest"]

    async def test_a_client_with_many_small_ones_is_cut_before_another_with_a_large_old_one(self) -> None:
        clock, cut = FakeClock(), list[str]()
        limit = InFlight(100, clock)
        large = self.begin(limit, cut, "large")
        large.client = "kiosk"
        large.hold(40, is_whole=False)
        clock.advance(10)
        for number in range(20):
            self.begin(limit, cut, f"small {number}").hold(5, is_whole=False)
            clock.advance(0.1)
        assert cut == [f"small {number}" for number in range(8)]

    async def test_the_requests_of_a_client_take_at_most_what_all_leave_free_and_its_first_is_admitted(self) -> None:
        limit, cut = InFlight(100), list[str]()
        arriving = self.begin(limit, cut, "arriving")
        arriving.hold(40, is_whole=False)
        with limit.holding("a", 30), limit.holding("a", 20):
            assert cut == [], "90 of 100"
            with pytest.raises(Overloaded, match="hold 50 bytes, and all together 50 of 100"), limit.holding("a", 1):
                pass
            with limit.holding("b", 25), limit.holding("c", 12), limit.holding("d", 6), pytest.raises(Overloaded):
                assert cut == ["arriving"]
                with limit.holding("d", 2):
                    pass
            with limit.holding("e", 60), pytest.raises(Overloaded), limit.holding("e", 1):
                pass
        with limit.holding("a", 100):
            pass

    async def test_what_has_ended_takes_nothing(self) -> None:
        cut = list[str]()
        limit = InFlight(100)
        for _ in range(5):
            arrival = self.begin(limit, cut, "each")
            arrival.hold(90, is_whole=False)
            arrival.end()
            arrival.end()
        assert not cut

    async def test_freed_memory_is_given_back_and_once_more_after_requests_have_ended(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        trimmed, calls = asyncio.Event(), list[int]()
        loop = asyncio.get_running_loop()

        def give_back() -> None:
            calls.append(0)
            if len(calls) == 2:
                loop.call_soon_threadsafe(trimmed.set)

        monkeypatch.setattr(freed_memory, "give_back_freed_memory", give_back)
        monkeypatch.setattr(freed_memory, "DELAY_S", 0.0)
        monkeypatch.setattr(freed_memory, "AGAIN_S", 0.0)
        limit = InFlight(1 << 30)
        for num_bytes in (freed_memory.MUCH_BYTES - 1, freed_memory.MUCH_BYTES, 1):
            arrival = limit.begin(lambda: None)
            arrival.hold(num_bytes, is_whole=False)
            arrival.end()
        await trimmed.wait()
        for _ in range(3):
            await asyncio.sleep(0)
        assert calls == [0, 0]


@pytest.mark.parametrize("kind", ["pings", "empty fragments", "messages"])
async def test_frames_beyond_the_pace_wait_and_other_clients_do_not(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "FRAMES_PER_S", 1e-3)
    monkeypatch.setattr(transport, "FRAMES_BURST", 3)
    begin, one = {
        "pings": (b"", frame(FIN | PING, b"")),
        "empty fragments": (frame(TEXT, b"{"), frame(CONTINUATION, b"")),
        "messages": (b"", text("{}")),
    }[kind]
    async with running(FakeBackend()) as daemon:
        flood = await open_websocket(daemon)
        flood.send(begin, one * 20_000, frame(FIN | PING, b"end"))
        other = await open_websocket(daemon)
        other.send(create())
        assert await ended(other) == "response.completed"
        # At most one piece is read at once, and then nothing for a long time.
        answers = 0
        with pytest.raises(TimeoutError):
            while True:
                first, payload = await asyncio.wait_for(flood.receive(), 0.2)
                assert payload != b"end"
                answers += first in (FIN | PONG, FIN | TEXT)
        assert answers <= 2 * transport.PIECE_BYTES // len(one)
        assert answers or kind == "empty fragments"
        for peer in (flood, other):
            peer.writer.transport.abort()


async def test_the_smallest_chunks_of_a_body_let_others_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A body in chunks of one byte is parsed in turns, and arrives whole."""
    monkeypatch.setattr(transport, "MAX_TURN_S", 0.0)
    body = json.dumps({"input": "x" * 20_000, "store": False}).encode()
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    async with running(FakeBackend()) as daemon:
        head = f"POST /v1/responses HTTP/1.1\r\nHost: 127.0.0.1:{daemon.port}\r\nContent-Type: application/json\r\n"
        sent = f"{head}Transfer-Encoding: chunked\r\n\r\n".encode() + chunks
        assert (await exchange(daemon.port, sent)).status == 200
