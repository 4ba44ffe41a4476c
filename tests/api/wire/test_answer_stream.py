"""A streamed answer: before its first step, a slow client beside a fast one, failures, and a client that leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from starlette.types import Message

from edgeagent.api.wire import answer_stream
from edgeagent.api.wire.answer_stream import AnswerStream, AnswerWriter
from edgeagent.errors import EdgeAgentError, InvalidRequest, Overloaded
from edgeagent.types import Sink, Step, TextDelta, TokenLogprob


class Texts(AnswerWriter):
    """Writes texts. The text "?" cannot be written."""

    id = "test"
    has_logprobs = True
    ping_interval_s = None

    def __init__(self) -> None:
        self.is_closed = False

    def opening(self) -> bytes:
        return b"<"

    def write(self, index: int, step: Step) -> bytes:
        text = text_of(step)
        if "?" in text:
            raise InvalidRequest("cannot be written")
        return f"{index}{text}".encode()

    async def end(self) -> bytes:
        return b">"

    async def fail(self, error: EdgeAgentError) -> bytes:
        return f"!{error.code}".encode()

    def close(self) -> None:
        self.is_closed = True


def text_of(step: Step) -> str:
    return "".join(delta.text for delta in step.deltas if isinstance(delta, TextDelta))


class Source:
    """Generations whose steps the test puts. `end` ends them, with an error if one is given."""

    def __init__(self) -> None:
        self.sinks: Sequence[Sink] = ()
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.is_cancelled = False

    async def generate(self, sinks: Sequence[Sink]) -> None:
        self.sinks = sinks
        try:
            await self.ended
        except asyncio.CancelledError:
            self.is_cancelled = True
            raise

    def put(self, text: str, index: int = 0, num_logprobs: int = 0) -> None:
        logprobs = (TokenLogprob(1, b"x", -0.5),) * num_logprobs
        self.sinks[index].put(Step((TextDelta(text, logprobs),)))

    def end(self, error: Exception | None = None) -> None:
        if error is None:
            self.ended.set_result(None)
        else:
            self.ended.set_exception(error)


class Client:
    """Receives a response. While `is_slow`, what is sent waits for `read`."""

    def __init__(self) -> None:
        self.body = b""
        self.is_slow = False
        self.left = asyncio.Event()
        self._read = asyncio.Event()

    async def receive(self) -> Message:
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if self.is_slow:
            await self._read.wait()
        self.body += message.get("body", b"")

    def start(self, stream: AnswerStream) -> asyncio.Task[None]:
        return asyncio.create_task(stream({"type": "http"}, self.receive, self.send))

    async def read(self) -> None:
        self.is_slow = False
        self._read.set()
        await settle()


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.fixture
async def source() -> Source:
    return Source()


async def opened(source: Source, client: Client, num_sinks: int = 1) -> tuple[AnswerStream, asyncio.Task[None]]:
    stream = AnswerStream(Texts(), source.generate, num_sinks)
    await settle()
    task = client.start(stream)
    await settle()
    return stream, task


class TestBeforeTheFirstStep:
    async def test_an_error_is_raised(self, source: Source) -> None:
        stream = AnswerStream(Texts(), source.generate)
        source.end(Overloaded("full"))
        with pytest.raises(Overloaded):
            await stream.wait_for_first_step()

    async def test_an_error_behind_the_first_step_is_part_of_the_stream(self, source: Source) -> None:
        stream, client = AnswerStream(Texts(), source.generate), Client()
        await settle()
        source.put("a")
        source.end(Overloaded("full"))
        await stream.wait_for_first_step()
        await client.start(stream)
        assert client.body == b"<0a!queue_full"

    async def test_an_error_after_the_patience_is_part_of_the_stream(
        self, source: Source, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(answer_stream, "PATIENCE_S", 0.0)
        stream, client = AnswerStream(Texts(), source.generate), Client()
        await stream.wait_for_first_step()
        source.end(Overloaded("full"))
        await client.start(stream)
        assert client.body == b"<!queue_full"

    async def test_a_client_that_leaves_cancels_the_generation(self, source: Source) -> None:
        waiting = asyncio.ensure_future(AnswerStream(Texts(), source.generate).wait_for_first_step())
        await settle()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert source.is_cancelled


async def test_a_step_is_sent_in_the_call_that_puts_it(source: Source) -> None:
    client = Client()
    _, task = await opened(source, client)
    assert client.body == b"<"
    source.put("a")
    assert client.body == b"<0a"
    source.put("b")
    assert client.body == b"<0a0b"
    source.end()
    await task
    assert client.body == b"<0a0b>" and not source.is_cancelled


async def test_a_slow_client_gets_all_of_it_later(source: Source) -> None:
    client = Client()
    _, task = await opened(source, client)
    client.is_slow = True
    for _ in range(1000):
        source.put("a")
    source.end()
    await settle()
    assert client.body == b"<" and not task.done()
    await client.read()
    await task
    assert client.body.replace(b"0", b"") == b"<" + 1000 * b"a" + b">"
    assert client.body.count(b"0") < 100, "what waited was merged"


async def test_a_long_step_is_written_in_a_thread_and_the_order_stays(source: Source) -> None:
    client = Client()
    _, task = await opened(source, client)
    source.put("long", num_logprobs=answer_stream.MAX_INLINE_LOGPROBS + 1)
    source.put("a")
    assert client.body == b"<"
    source.end()
    await task
    assert client.body == b"<0long0a>"


async def test_several_generations_share_a_stream(source: Source) -> None:
    client = Client()
    _, task = await opened(source, client, 2)
    source.put("a", 1)
    source.put("b", 0)
    source.end()
    await task
    assert client.body == b"<1a0b>"


async def test_what_cannot_be_written_ends_the_answer_with_its_error(source: Source) -> None:
    client = Client()
    _, task = await opened(source, client)
    source.put("a")
    source.put("?")
    source.put("b")
    await task
    assert client.body == b"<0a!invalid_value" and source.is_cancelled


async def test_a_client_that_leaves_cancels_the_generation_though_its_socket_is_full(source: Source) -> None:
    client, before = Client(), asyncio.all_tasks()
    _, task = await opened(source, client)
    client.is_slow = True
    source.put("a")
    client.left.set()
    await task
    assert source.is_cancelled and client.body == b"<"
    assert asyncio.all_tasks() == before
