"""The server of Wyoming with a scripted backend: one answer at a time, what ends it, and what clients may cost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, closing

import pytest
from wyoming.asr import Transcript
from wyoming.client import AsyncTcpClient
from wyoming.event import Event
from wyoming.ping import Ping

from edgeagent.api.app import create_app
from edgeagent.api.context import Context
from edgeagent.api.wyoming import server
from edgeagent.api.wyoming.events import MAX_EVENT_BYTES, NO_ANSWER, NOTHING_HEARD, STOPPING
from edgeagent.api.wyoming.server import CLIENT, MAX_CONNECTIONS, Wyoming
from edgeagent.config import Config, ServerConfig
from edgeagent.daemon.listeners import bind
from edgeagent.errors import ModelDamaged, Overloaded
from edgeagent.types import ChatPrompt, FinishReason, GenerateRequest, TextDelta, Tier
from tests.backends.fake import Act, FakeBackend, Gate, finished
from tests.daemon.running import TOKEN
from tests.owner_key import OwnerKey
from tests.patience import patient
from tests.robust.lag import FEW_LOOKS, assert_in_time
from tests.worker.support import eventually

LAST = ("handled-stop", "not-handled", "error")


class Served:
    """A server of Wyoming, and the backend behind it."""

    def __init__(self, backend: FakeBackend, wyoming: Wyoming, context: Context, port: int) -> None:
        self.backend, self.wyoming, self.context, self.port = backend, wyoming, context, port

    def client(self) -> AsyncTcpClient:
        return AsyncTcpClient("127.0.0.1", self.port, read_timeout=patient(10))

    async def raw(self, sent: bytes) -> bytes:
        """Send bytes; return all that comes until the server closes the connection."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(sent)
            async with asyncio.timeout(patient(10)):
                return await reader.read()
        finally:
            writer.transport.abort()


@asynccontextmanager
async def served(backend: FakeBackend, instructions: str = "Be brief.") -> AsyncIterator[Served]:
    config = Config(server=ServerConfig(wyoming_instructions=instructions))
    app = create_app(config, backend, keys=OwnerKey(TOKEN))
    wyoming = Wyoming(app.state.context)
    with closing(bind("127.0.0.1", 0, "--wyoming")) as listener:
        serving = asyncio.create_task(wyoming.serve(listener))
        try:
            yield Served(backend, wyoming, app.state.context, listener.getsockname()[1])
        finally:
            serving.cancel()
            await asyncio.wait({serving})
    assert backend.num_live == 0
    assert app.state.context.service.live.num_running == 0


async def ask(client: AsyncTcpClient, text: str, conversation_id: str | None = None) -> list[Event]:
    """Send a transcript; return the events of its answer."""
    context = None if conversation_id is None else {"conversation_id": conversation_id}
    await client.write_event(Transcript(text, context=context, language="en").event())
    return await answer_of(client)


async def answer_of(client: AsyncTcpClient) -> list[Event]:
    events: list[Event] = []
    while not events or events[-1].type not in LAST:
        event = await client.read_event()
        assert event is not None, events
        events.append(event)
    return events


async def test_an_answer_is_a_stream_and_one_text() -> None:
    async with served(FakeBackend()) as daemon, daemon.client() as client:
        events = await ask(client, "one two three", "c1")
    assert events[0] == Event("handled-start", {"context": {"conversation_id": "c1"}})
    assert "".join(each.data["text"] for each in events[1:-2]) == "one two three"
    assert {each.type for each in events[1:-2]} == {"handled-chunk"}
    assert events[-2] == Event("handled", {"text": "one two three", "context": {"conversation_id": "c1"}})
    [request] = daemon.backend.requests
    assert (request.client, request.cache.partition, request.tier) == (CLIENT, CLIENT, Tier.REALTIME)
    assert messages_of(request) == [("system", "Be brief."), ("user", "one two three")]


def messages_of(request: GenerateRequest) -> list[tuple[str, str]]:
    assert isinstance(request.prompt, ChatPrompt)
    return [(message.role, message.content) for message in request.prompt.messages]


async def test_a_conversation_goes_on_over_connections() -> None:
    async with served(FakeBackend()) as daemon:
        for text, conversation_id in (("one", "a"), ("two", "b"), ("three", "a")):
            async with daemon.client() as client:
                await ask(client, text, conversation_id)
    first, second, third = map(messages_of, daemon.backend.requests)
    assert second == [first[0], ("user", "two")]
    assert third == [first[0], ("user", "one"), ("assistant", "one"), ("user", "three")]
    lanes = [request.cache.lane for request in daemon.backend.requests]
    assert lanes[0] == lanes[2] != lanes[1]


async def test_a_conversation_without_an_id_gets_one() -> None:
    async with served(FakeBackend()) as daemon, daemon.client() as client:
        context = (await ask(client, "one"))[-2].data["context"]
        await ask(client, "two", context["conversation_id"])
        other = (await ask(client, "three"))[-2].data["context"]
    assert len(messages_of(daemon.backend.requests[1])) == 4
    assert context["conversation_id"] != other["conversation_id"]


async def test_another_language_is_asked_for() -> None:
    async with served(FakeBackend()) as daemon, daemon.client() as client:
        await client.write_event(Transcript("Hallo", language="de-AT").event())
        await answer_of(client)
    assert messages_of(daemon.backend.requests[0])[0] == ("system", "Be brief. Answer in the language de-AT.")


@pytest.mark.parametrize(
    ("acts", "said"),
    [
        ([Overloaded("the queue is full")], "I am busy"),
        ([ModelDamaged("/models/x.gguf is damaged")], "Sorry"),
        ([ValueError("a prompt")], "Sorry"),
        ([TextDelta(" \n"), finished()], NO_ANSWER),
        ([finished(FinishReason.CANCELLED)], STOPPING),
    ],
)
async def test_a_failure_is_said(acts: list[Act], said: str) -> None:
    async with served(FakeBackend(lambda _: acts)) as daemon, daemon.client() as client:
        [event] = await ask(client, "one", "c1")
        daemon.backend.script = lambda _: [TextDelta("well"), finished()]
        again = await ask(client, "two", "c1")
    assert event.type == "not-handled"
    assert event.data["text"].startswith(said)
    assert event.data["context"] == {"conversation_id": "c1"}
    assert again[-2].data["text"] == "well"
    assert ("user", "one") not in messages_of(daemon.backend.requests[1]), "it has no answer, so it is not kept"


async def test_a_failure_in_the_midst_ends_the_stream() -> None:
    acts: list[Act] = [TextDelta("I think"), Overloaded("the queue is full")]
    async with served(FakeBackend(lambda _: acts)) as daemon, daemon.client() as client:
        await client.write_event(Transcript("one").event())
        types = [event.type for event in [await client.read_event() for _ in range(4)] if event is not None]
    assert types == ["handled-start", "handled-chunk", "not-handled", "handled-stop"]


async def test_nothing_is_generated_for_silence() -> None:
    async with served(FakeBackend()) as daemon, daemon.client() as client:
        [event] = await ask(client, "  ")
    assert (event.type, event.data["text"]) == ("not-handled", NOTHING_HEARD)
    assert daemon.backend.requests == []


class Endless(FakeBackend):
    """Answers `go on` with one word, and then waits until it is cancelled; and all else at once."""

    def __init__(self) -> None:
        super().__init__(self.acts)
        self.gate = Gate()

    def acts(self, request: GenerateRequest) -> Iterable[Act]:
        assert isinstance(request.prompt, ChatPrompt)
        is_endless = request.prompt.messages[-1].content == "go on"
        return [TextDelta("well"), self.gate] if is_endless else [TextDelta("done"), finished()]


async def test_a_new_transcript_cancels_the_answer() -> None:
    async with served(Endless()) as daemon, daemon.client() as client:
        await client.write_event(Transcript("go on", context={"conversation_id": "c1"}).event())
        assert [(await read(client)).type for _ in range(2)] == ["handled-start", "handled-chunk"]
        await client.write_event(Transcript("stop", context={"conversation_id": "c1"}).event())
        assert (await read(client)).type == "handled-stop"
        events = await answer_of(client)
    assert [each.type for each in events] == ["handled-start", "handled-chunk", "handled", "handled-stop"]
    assert len(daemon.backend.closed) == 1
    # What was said of the first answer is kept.
    kept = [("user", "go on"), ("assistant", "well"), ("user", "stop")]
    assert messages_of(daemon.backend.requests[1])[1:] == kept


async def read(client: AsyncTcpClient) -> Event:
    event = await client.read_event()
    assert event is not None
    return event


async def test_a_client_that_leaves_cancels_the_answer() -> None:
    async with served(Endless()) as daemon:
        async with daemon.client() as client:
            await client.write_event(Transcript("go on").event())
            await read(client)
        await eventually(lambda: len(daemon.backend.closed) == 1)


async def test_a_ping_is_answered_beside_an_answer() -> None:
    async with served(Endless()) as daemon, daemon.client() as client:
        await client.write_event(Transcript("go on").event())
        await read(client), await read(client)
        await client.write_event(Event("audio-chunk", {"rate": 16000}, b"\0" * 2048))  # it is not for this service
        await client.write_event(Ping("are you there?").event())
        assert await read(client) == Event("pong", {"text": "are you there?"})
        assert daemon.backend.closed == []


async def test_a_wrong_transcript_is_named_and_the_connection_stays() -> None:
    async with served(FakeBackend()) as daemon, daemon.client() as client:
        await client.write_event(Event("transcript", {"text": 7}))
        error = await read(client)
        assert (error.type, error.data["code"]) == ("error", "invalid_value")
        assert error.data["text"].startswith("text must be a string")
        assert (await ask(client, "one"))[-2].data["text"] == "one"


async def test_a_page_reaches_nothing() -> None:
    """A browser can send any body to any port of this machine, but not without HTTP's own lines before it."""
    body = b'{"type": "transcript", "data": {"text": "hello"}}\n'
    head = b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n" % len(body)
    async with served(FakeBackend()) as daemon:
        reply = await daemon.raw(head + body)
    assert b'"type": "error"' in reply.splitlines()[0]
    assert daemon.backend.requests == []


async def test_the_first_fault_in_the_bytes_ends_the_connection() -> None:
    transcript = b'{"type": "transcript", "data": {"text": "hello"}}\n'
    async with served(FakeBackend()) as daemon:
        for fault in (b"\n\0\n", b"x" * 3 * MAX_EVENT_BYTES, b'{"type": "x", "payload_length": 99999999}\n', b"[]\n"):
            reply = await daemon.raw(fault + transcript)
            assert reply.startswith(b'{"type": "error"'), fault[:20]
    assert daemon.backend.requests == []


async def test_a_half_event_is_dropped_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "EVENT_S", 0.05)
    halves = (b"{", b'{"type": "transcript", "data_length": 30}\n{"te', b'{"type": "x", "payload_length": 9}\n')
    async with served(FakeBackend()) as daemon:
        assert await asyncio.gather(*map(daemon.raw, halves)) == [b"", b"", b""]


async def test_an_idle_client_is_dropped_unless_it_waits_for_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "IDLE_S", 0.05)
    async with served(Endless()) as daemon:
        assert await daemon.raw(b"") == b""
        async with daemon.client() as client:
            await client.write_event(Transcript("go on").event())
            assert [(await read(client)).type for _ in range(2)] == ["handled-start", "handled-chunk"]
            await asyncio.sleep(0.2)
            assert daemon.backend.closed == []


async def test_a_client_that_does_not_read_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "EVENT_S", 0.2)
    backend = FakeBackend(lambda _: [TextDelta("a sentence. " * 41_000) for _ in range(20)])
    async with served(backend) as daemon:
        _, writer = await asyncio.open_connection("127.0.0.1", daemon.port, limit=1)
        writer.write(b'{"type": "transcript", "data": {"text": "hello"}}\n')
        await eventually(lambda: len(daemon.backend.requests) == 1)
        await eventually(lambda: daemon.backend.num_live == 0)
        await eventually(lambda: daemon.context.service.live.num_running == 0)
        writer.transport.abort()


async def test_one_client_too_many_is_told_so() -> None:
    async with served(FakeBackend()) as daemon:
        opened = [await asyncio.open_connection("127.0.0.1", daemon.port) for _ in range(MAX_CONNECTIONS)]
        for reader, writer in opened:
            writer.write(b'{"type": "ping"}\n')
            await reader.readline()
        ping = b'{"type": "ping"}\n'
        assert b"64 clients are connected" in await daemon.raw(ping)
        for _, writer in opened[::2]:
            writer.transport.abort()
        while b"not valid JSON" not in await daemon.raw(b"x\n"):  # the test's timeout ends it
            pass
        for _, writer in opened:
            writer.transport.abort()


FLOODS = {
    "pings": b'{"type": "ping"}\n' * 4000,
    "transcripts": b'{"type": "transcript", "data": {"text": "go on"}}\n' * 1000,
    "objects": b'{"type": "x", "data": {"a": [' + b"{}," * ((MAX_EVENT_BYTES - 64) // 3) + b"0]}}\n",
    "data": b'{"type": "x", "data_length": %d}\n' % MAX_EVENT_BYTES
    + b'{"a": ['
    + b"1," * ((MAX_EVENT_BYTES - 10) // 2)
    + b"0]}",
}


@pytest.mark.alone
@pytest.mark.parametrize("flood", FLOODS)
async def test_no_flood_holds_the_loop(flood: str) -> None:
    async with served(Endless()) as daemon:

        async def send() -> None:
            _, writer = await asyncio.open_connection("127.0.0.1", daemon.port)
            writer.write(FLOODS[flood])
            await asyncio.sleep(0.05)
            writer.transport.abort()

        await assert_in_time(send, FEW_LOOKS)


async def test_a_stop_ends_the_connections() -> None:
    async with served(FakeBackend()) as daemon:
        reader, writer = await asyncio.open_connection("127.0.0.1", daemon.port)
        writer.write(b'{"type": "ping"}\n')
        await reader.readline()
    async with asyncio.timeout(patient(5)):
        await reader.read()
    writer.transport.abort()


async def test_a_daemon_that_stops_says_so() -> None:
    async with served(FakeBackend()) as daemon, daemon.client() as client:
        daemon.context.service.begin_drain()
        [event] = await ask(client, "one")
    assert event.type == "not-handled"
