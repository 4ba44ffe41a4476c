"""What stays in the daemon's memory of turns that are over: for a client that does not read, only terminal events."""

from __future__ import annotations

import asyncio
import gc
import json
from contextlib import AsyncExitStack
from typing import cast

import pytest
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosedError
from websockets.frames import Frame

from edgeagent.api.realtime.conversation import Entry
from edgeagent.api.responses.socket.outbox import Send
from edgeagent.api.responses.socket.session import Session
from edgeagent.api.responses.turn import Turn
from edgeagent.api.wire.shape import Json
from edgeagent.conversation.history import ConnectionHistory
from edgeagent.daemon.transport import GuardedWebSocket
from edgeagent.errors import ContextLengthExceeded
from edgeagent.types import Started, TextDelta
from tests.api.serving import slow_socket
from tests.backends.fake import FakeBackend, Gate, finished
from tests.daemon.running import TOKEN, limited, running
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
            await eventually(lambda: any(type(each) is Send for each in gc.get_objects()))
            await asyncio.sleep(0.3)
            # What the sockets hold was written before; then one event is being written, and a few wait.
            assert sum(type(each) is Send for each in gc.get_objects()) <= 6
            sending.cancel()
            socket.transport.abort()


async def test_what_a_client_does_not_read_counts_among_what_all_hold() -> None:
    """If clients hold too much, the connection ends at once, and does not wait for its client."""
    backend = FakeBackend(lambda _: (Started(1, 0), TextDelta("Yes. " + "x" * (12 << 20)), finished()))
    async with running(backend) as daemon:
        slow = await slow_socket(f"127.0.0.1:{daemon.port}")
        url = f"ws://127.0.0.1:{daemon.port}/v1/responses"
        async with connect(url, sock=slow, max_queue=1, max_size=None, ping_interval=None, close_timeout=0) as socket:
            socket.transport.pause_reading()
            await socket.send(json.dumps({"type": "response.create", "store": False, "input": "x"}))
            (connection,) = cast("set[GuardedWebSocket]", daemon.server.server_state.connections)
            await eventually(lambda: connection.transport.get_write_buffer_size() > 6 << 20)
            in_flight = connection._in_flight
            others = in_flight.begin(lambda: None)
            others.hold(in_flight.max_bytes - (6 << 20), is_whole=True)
            assert connection.transport.is_closing()
            socket.transport.abort()


async def test_an_idle_connection_does_not_hold_its_last_frame() -> None:
    async with running(FakeBackend()) as daemon, connect(f"ws://127.0.0.1:{daemon.port}/v1/responses") as socket:
        await socket.send(json.dumps({"type": "response.processed", "padding": "x" * 500_000}))
        await socket.send(json.dumps({"type": "response.create", "input": "a b"}))
        while json.loads(await socket.recv())["type"] != "response.completed":  # so both frames were read
            pass
        held = [each.data for each in gc.get_objects() if type(each) is Frame]
        assert not any(b"response.processed" in bytes(data) for data in held)


async def test_what_waits_on_many_sockets_has_one_bound() -> None:
    """The creates of the connection that has held the most for the longest time are refused, and it goes on."""
    gate = Gate()
    backend = FakeBackend(lambda request: [Started(1, 0), gate, TextDelta("x"), finished()])
    most = 100_000

    def num_waiting_bytes() -> list[int]:
        sessions = (each for each in gc.get_objects() if isinstance(each, Session))
        return [each.num_waiting_bytes for each in sessions if each.num_waiting_bytes]

    async with AsyncExitStack() as held:
        daemon = await held.enter_async_context(running(backend, limited(max_in_flight_bytes=most)))
        url = f"ws://127.0.0.1:{daemon.port}/v1/responses"
        sockets = [await held.enter_async_context(connect(url)) for _ in range(6)]
        for socket in sockets:
            for text in ("x", "y" * 40_000):
                await socket.send(json.dumps({"type": "response.create", "store": False, "input": text}))
            await socket.send(json.dumps({"type": "response.steer"}))
            await until(socket, "response.steer.failed")  # all before it has been read
        num_waiting = len(num_waiting_bytes())
        assert 1 <= num_waiting <= 2 and sum(num_waiting_bytes()) <= most
        gate.opened.set()
        ends = [await until(socket, "error", "response.created") for socket in sockets]
        # The event of one that begins repeats its input and counts until it is written, so it may displace another one.
        assert 1 <= [end["type"] for end in ends].count("response.created") <= num_waiting
        assert {end["error"]["code"] for end in ends if end["type"] == "error"} == {"queue_full"}
        await sockets[0].send(json.dumps({"type": "response.create", "store": False, "input": "z"}))
        await until(sockets[0], "response.completed")


async def test_what_connections_keep_has_one_bound() -> None:
    """The connection that has kept the most for the longest time forgets its responses, and its client is told so."""
    config = limited(max_in_flight_bytes=200_000)  # an answer repeats its input
    async with AsyncExitStack() as held:
        daemon = await held.enter_async_context(running(FakeBackend(), config))
        url = f"ws://127.0.0.1:{daemon.port}/v1/responses"
        sockets = [await held.enter_async_context(connect(url)) for _ in range(6)]
        ids = []
        for socket in sockets:
            await socket.send(json.dumps({"type": "response.create", "store": False, "input": "y" * 40_000}))
            ids.append((await until(socket, "response.completed"))["response"]["id"])
        histories = [each for each in gc.get_objects() if isinstance(each, ConnectionHistory)]
        assert (
            sum(each.num_bytes > 0 for each in histories) == 2 and sum(each.num_bytes for each in histories) < 200_000
        )
        ends = []
        for socket, previous_id in zip(sockets, ids, strict=True):
            create = {"type": "response.create", "store": False, "previous_response_id": previous_id, "input": "z"}
            await socket.send(json.dumps(create))
            ends.append(await until(socket, "response.completed", "error"))
        assert [end["type"] for end in ends] == ["error"] * 4 + ["response.completed"] * 2
        assert ends[0]["error"]["code"] == "previous_response_not_found"
        assert "were forgotten, since clients keep too many" in ends[0]["error"]["message"]
    assert sum(each.num_bytes for each in histories) == 0, "a connection that has ended keeps nothing"


async def test_a_realtime_conversation_counts_among_what_is_kept() -> None:
    async with (
        running(FakeBackend(), limited(max_in_flight_bytes=200_000)) as daemon,
        connect(f"ws://127.0.0.1:{daemon.port}/v1/realtime") as first,
        connect(f"ws://127.0.0.1:{daemon.port}/v1/realtime") as second,
    ):
        item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x" * 60_000}]}
        for socket in (first, second):
            await socket.send(json.dumps({"type": "conversation.item.create", "item": item}))
            await until(socket, "conversation.item.done")
        with pytest.raises(ConnectionClosedError, match="clients keep too much"):
            while True:
                await first.recv()
        await second.send(json.dumps({"type": "conversation.item.create", "item": {**item, "id": "last"}}))
        await until(second, "conversation.item.added")


async def test_a_realtime_conversation_is_freed_when_its_connection_ends() -> None:
    """Without a garbage collection: full ones are rare."""
    gc.collect()
    gc.disable()
    try:
        async with running(FakeBackend()) as daemon:
            async with connect(f"ws://127.0.0.1:{daemon.port}/v1/realtime") as socket:
                text = {"type": "input_text", "text": "of a conversation that is over"}
                item = {"type": "message", "role": "user", "content": [text]}
                await socket.send(json.dumps({"type": "conversation.item.create", "item": item}))
                await until(socket, "conversation.item.done")
                assert any(type(each) is Entry for each in gc.get_objects())
            await eventually(lambda: not any(type(each) is Entry for each in gc.get_objects()))
    finally:
        gc.enable()


async def until(socket: ClientConnection, *kinds: str) -> Json:
    while (event := json.loads(await socket.recv()))["type"] not in kinds:
        pass
    found: Json = event
    return found


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


@pytest.mark.parametrize("fields", [{}, {"stream": True}, {"background": True}])
async def test_a_turn_that_has_failed_is_freed_without_a_garbage_collection(fields: dict[str, bool]) -> None:
    """A traceback refers to the request's objects, and these may refer to the error."""
    gc.collect()
    gc.disable()
    try:
        async with running(FakeBackend(lambda _: [ContextLengthExceeded("too long")])) as daemon:
            headers = {"authorization": f"Bearer {TOKEN}"}
            create = {"model": "fake", "input": "hello", **fields}
            reply = await daemon.http.post(f"{daemon.url}/v1/responses", json=create, headers=headers)
            assert reply.status_code == 200 if "background" in fields else 400
            async with connect(f"ws://127.0.0.1:{daemon.port}/v1/responses") as socket:
                await socket.send(json.dumps({"type": "response.create", "model": "fake", "input": "hello"}))
                assert json.loads(await socket.recv())["type"] == "error"
            await eventually(lambda: not any(type(each) is Turn for each in gc.get_objects()))
    finally:
        gc.enable()
