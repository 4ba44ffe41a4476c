"""Streamed bodies: the form of an event, comments in a silence, and the end of the work when a client leaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from starlette.requests import ClientDisconnect
from starlette.types import Message

from edgeagent.api.wire.sse import DONE, PING, EventStream, Stream, event, unless_disconnected
from tests.fakes import FakeClock

END = {"type": "http.response.body", "body": b""}


class Client:
    """One end of an ASGI connection: keeps what is sent to it, and leaves when a test says so."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.left = asyncio.Event()

    async def receive(self) -> Message:
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        self.messages.append(message)

    async def read(self, stream: Stream) -> None:
        await stream({"type": "http"}, self.receive, self.send)

    @property
    def chunks(self) -> list[bytes]:
        return [message["body"] for message in self.messages[1:]]


class Source:
    """A generator that yields what is put into it, and notes that it was closed. None ends it."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.is_closed = False

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        try:
            while (chunk := await self.queue.get()) is not None:
                yield chunk
        finally:
            self.is_closed = True


async def chunks_of(*chunks: bytes) -> AsyncGenerator[bytes, None]:
    for chunk in chunks:
        yield chunk


async def settle() -> None:
    """Let every task run until it waits for something."""
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.fixture
async def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    """The clock of the test's event loop, which only the test moves."""
    clock = FakeClock()
    monkeypatch.setattr(asyncio.get_running_loop(), "time", clock)
    return clock


@asynccontextmanager
async def reading(client: Client, stream: Stream) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(client.read(stream))
    await settle()
    yield task
    client.left.set()
    await task


class TestEvent:
    def test_a_document_is_one_line_of_json(self) -> None:
        assert event({"text": "é\n\r\u2028", "n": None}) == 'data: {"text":"é\\n\\r\u2028","n":null}\n\n'.encode()

    def test_a_name_is_a_line_of_its_own(self) -> None:
        assert event({"a": 1}, "response.created") == b'event: response.created\ndata: {"a":1}\n\n'
        assert event([], "") == b"data: []\n\n"

    def test_the_ping_is_a_comment_and_the_last_event_is_openais(self) -> None:
        assert (PING, DONE) == (b": ping\n\n", b"data: [DONE]\n\n")


class TestStream:
    async def test_chunks_are_sent_as_they_come(self) -> None:
        client, source = Client(), Source()
        async with reading(client, Stream(source.chunks())):
            assert client.messages[0]["status"] == 200
            assert client.chunks == []
            source.queue.put_nowait(b"a")
            await settle()
            assert client.messages[1:] == [{"type": "http.response.body", "body": b"a", "more_body": True}]
            source.queue.put_nowait(None)
            await settle()
            assert client.messages[2:] == [END]
            assert source.is_closed

    @pytest.mark.parametrize(
        ("cls", "media_type"), [(Stream, {}), (EventStream, {"content-type": "text/event-stream; charset=utf-8"})]
    )
    async def test_the_headers_forbid_proxies_to_store_or_buffer(
        self, cls: type[Stream], media_type: dict[str, str]
    ) -> None:
        client = Client()
        await client.read(cls(chunks_of()))
        headers = {name.decode(): value.decode() for name, value in client.messages[0]["headers"]}
        assert headers == {"cache-control": "no-store", "x-accel-buffering": "no"} | media_type
        assert client.messages[1:] == [END]

    @pytest.mark.parametrize("cls", [Stream, EventStream])
    async def test_a_client_that_leaves_closes_the_generator(self, cls: type[Stream]) -> None:
        client, source = Client(), Source()
        async with reading(client, cls(source.chunks())) as task:
            source.queue.put_nowait(b"a")
            await settle()
            assert not source.is_closed
            client.left.set()
            await settle()
            assert task.done()
        assert source.is_closed
        assert client.chunks == [b"a"]

    @pytest.mark.parametrize("cls", [Stream, EventStream])
    async def test_a_slow_client_that_leaves_closes_the_generator_at_once(self, cls: type[Stream]) -> None:
        class Stuck(Client):
            async def send(self, message: Message) -> None:
                await super().send(message)
                if message.get("body") == b"a":
                    await asyncio.Event().wait()

        client, source = Stuck(), Source()
        # The test holds the stream, so that the generator is not closed by garbage collection.
        stream = cls(source.chunks())
        async with reading(client, stream):
            source.queue.put_nowait(b"a")
            await settle()
            assert client.chunks == [b"a"]
        assert source.is_closed

    @pytest.mark.parametrize("cls", [Stream, EventStream])
    async def test_a_failure_of_the_generator_is_raised(self, cls: type[Stream]) -> None:
        async def failing() -> AsyncGenerator[bytes, None]:
            yield b"a"
            raise OSError("lost")

        client = Client()
        with pytest.raises(OSError, match="lost"):
            await client.read(cls(failing()))
        assert client.chunks == [b"a"]


class TestPings:
    async def test_a_silent_stream_has_one_comment_in_each_interval(self, clock: FakeClock) -> None:
        client, source = Client(), Source()
        async with reading(client, EventStream(source.chunks(), 5.0)):
            for num_pings in (1, 2):
                clock.advance(4.0)
                await settle()
                assert client.chunks == [PING] * (num_pings - 1)
                clock.advance(1.0)
                await settle()
                assert client.chunks == [PING] * num_pings
        assert client.messages[1] == {"type": "http.response.body", "body": PING, "more_body": True}

    async def test_an_event_begins_the_interval_again(self, clock: FakeClock) -> None:
        client, source = Client(), Source()
        async with reading(client, EventStream(source.chunks(), 5.0)):
            clock.advance(3.0)
            source.queue.put_nowait(b"a")
            await settle()
            clock.advance(4.0)
            await settle()
            assert client.chunks == [b"a"]
            clock.advance(1.0)
            await settle()
            assert client.chunks == [b"a", PING]

    async def test_no_comment_follows_the_end(self, clock: FakeClock) -> None:
        class Slow(Client):
            async def send(self, message: Message) -> None:
                await super().send(message)
                if message == END:
                    clock.advance(60.0)
                    await settle()

        client = Slow()
        await client.read(EventStream(chunks_of(b"a"), 5.0))
        clock.advance(60.0)
        await settle()
        assert client.chunks == [b"a", b""]

    async def test_no_comment_follows_when_the_client_has_left(self, clock: FakeClock) -> None:
        client, source = Client(), Source()
        async with reading(client, EventStream(source.chunks(), 5.0)):
            client.left.set()
            await settle()
        clock.advance(60.0)
        await settle()
        assert client.chunks == []


class TestUnlessDisconnected:
    async def test_the_result_is_returned_and_nothing_waits_for_the_client(self) -> None:
        async def work() -> int:
            return 5

        before = asyncio.all_tasks()
        assert await unless_disconnected(Client().receive, work()) == 5
        assert asyncio.all_tasks() == before

    async def test_an_error_of_the_work_is_raised(self) -> None:
        async def work() -> None:
            raise LookupError("gone")

        with pytest.raises(LookupError, match="gone"):
            await unless_disconnected(Client().receive, work())

    async def test_the_work_is_cancelled_when_the_client_leaves(self) -> None:
        ends: list[str] = []
        client = Client()

        async def work() -> None:
            client.left.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                ends.append("cancelled")
                raise

        with pytest.raises(ClientDisconnect):
            await unless_disconnected(client.receive, work())
        assert ends == ["cancelled"]

    async def test_other_messages_are_not_a_disconnection(self) -> None:
        messages: Iterator[Message] = iter([{"type": "http.request", "body": b""}] * 3)
        is_read = asyncio.Event()

        async def receive() -> Message:
            if message := next(messages, None):
                return message
            is_read.set()
            await asyncio.Event().wait()
            raise AssertionError("there is no other message")

        async def work() -> str:
            await is_read.wait()
            return "done"

        assert await unless_disconnected(receive, work()) == "done"

    async def test_its_own_cancellation_cancels_the_work(self) -> None:
        source = Source()

        async def work() -> None:
            async for _ in source.chunks():
                pass

        before = asyncio.all_tasks()
        task = asyncio.create_task(unless_disconnected(Client().receive, work()))
        await settle()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert source.is_closed
        assert asyncio.all_tasks() == before
