"""Chat completions that fail, are cancelled or wait: the status, the error, and what the backend is told."""

from __future__ import annotations

import asyncio
import json

import pytest
from openai import (
    APIError,
    AsyncOpenAI,
    BadRequestError,
    InternalServerError,
    NotFoundError,
    RateLimitError,
)

from edgeagent.api.wire import answer_stream
from edgeagent.errors import ContextLengthExceeded, EdgeAgentError, InvalidRequest, Overloaded, WorkerCrashed
from edgeagent.types import (
    FinishReason,
    Started,
    TextDelta,
)
from tests.api.openai.chats import HI, post
from tests.backends.fake import FakeBackend, Gate, failing, finished
from tests.daemon.running import Running

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_refusal_names_the_format(client: AsyncOpenAI, backend: FakeBackend, is_streamed: bool) -> None:
    backend.script = failing(InvalidRequest("it cannot be followed", param="text.format"))
    with pytest.raises(BadRequestError) as caught:
        await client.chat.completions.create(
            model="fake", messages=HI, stream=is_streamed, response_format={"type": "json_object"}
        )
    assert caught.value.param == "response_format"


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (ContextLengthExceeded("9000 tokens do not fit 4096", param="input"), BadRequestError),
        (Overloaded("full", retry_after_s=2), RateLimitError),
        (WorkerCrashed("signal 9"), InternalServerError),
    ],
)
async def test_failing_before_the_first_step(
    client: AsyncOpenAI, backend: FakeBackend, failure: EdgeAgentError, expected: type[APIError], is_streamed: bool
) -> None:
    backend.script = failing(failure)
    with pytest.raises(expected) as raised:
        await client.chat.completions.create(model="fake", messages=HI, stream=is_streamed)
    assert raised.value.code == failure.code
    assert raised.value.param == ("messages" if expected is BadRequestError else None)
    response = getattr(raised.value, "response", None)
    assert response is not None and response.headers["x-request-id"].startswith("req_")
    waits: dict[type[APIError], str | None] = {BadRequestError: None, RateLimitError: "2", InternalServerError: "1"}
    assert response.headers.get("retry-after") == waits[expected]


async def test_an_unknown_model(client: AsyncOpenAI) -> None:
    with pytest.raises(NotFoundError) as raised:
        await client.chat.completions.create(model="gpt-17", messages=HI, stream=True)
    assert (raised.value.code, raised.value.param) == ("model_not_found", "model")


async def test_failing_in_the_middle(daemon: Running, client: AsyncOpenAI, backend: FakeBackend) -> None:
    crash = WorkerCrashed("signal 9", served_by="local", num_delivered_tokens=1)
    backend.script = failing(crash, Started(1, 0), TextDelta("one"))
    stream = await client.chat.completions.create(model="fake", messages=HI, stream=True)
    texts: list[str | None] = []
    with pytest.raises(APIError) as raised:
        async for chunk in stream:
            texts.append(chunk.choices[0].delta.content)
    assert texts == ["", "one"]
    assert raised.value.code == "worker_crashed"
    reply = await post(daemon, {"messages": HI, "stream": True})
    *_, last, rest = reply.text.split("\n\n")
    assert rest == ""
    assert json.loads(last.removeprefix("data: ")) == {
        "error": {"message": "signal 9", "type": "server_error", "param": None, "code": "worker_crashed"},
        "edgeagent": {"served_by": "local", "num_delivered_tokens": 1},
    }
    assert (await post(daemon, {"messages": HI})).status_code == 503


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_bug_says_nothing(daemon: Running, backend: FakeBackend, is_streamed: bool) -> None:
    backend.script = lambda _: (Started(1, 0), TextDelta("x"), ValueError("the prompt was hello"))
    reply = await post(daemon, {"messages": HI, "stream": is_streamed})
    assert reply.status_code == (200 if is_streamed else 500)
    assert "the prompt was" not in reply.text
    assert "internal_error" in reply.text


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_cut_answer_is_an_error(daemon: Running, backend: FakeBackend, is_streamed: bool) -> None:
    backend.script = lambda _: (Started(1, 0), TextDelta("x"), finished(FinishReason.CANCELLED))
    reply = await post(daemon, {"messages": HI, "stream": is_streamed})
    assert "backend_unavailable" in reply.text
    assert 'finish_reason":"stop' not in reply.text


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("num_choices", [1, 2])
async def test_leaving_cancels(daemon: Running, backend: FakeBackend, is_streamed: bool, num_choices: int) -> None:
    gate = Gate()
    backend.script = lambda _: (Started(1, 0), TextDelta("x"), gate, finished())
    body = json.dumps({"messages": HI, "stream": is_streamed, "n": num_choices})
    _, writer = await asyncio.open_connection("127.0.0.1", daemon.port)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{daemon.port}\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
    await backend.until(lambda backend: backend.num_live == num_choices)
    await gate.reached.wait()
    writer.close()
    await backend.until(lambda backend: backend.num_live == 0)
    assert len(backend.closed) == num_choices


async def test_leaving_before_the_first_step_cancels(daemon: Running, backend: FakeBackend) -> None:
    gate = Gate()
    backend.script = lambda _: (gate, finished())
    body = json.dumps({"messages": HI, "stream": True})
    _, writer = await asyncio.open_connection("127.0.0.1", daemon.port)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{daemon.port}\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
    await gate.reached.wait()
    writer.transport.abort()
    await backend.until(lambda backend: backend.num_live == 0)
    assert len(backend.closed) == 1


async def test_a_silent_stream_opens_and_pings(
    daemon: Running, backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answer_stream, "PATIENCE_S", 0.0)
    monkeypatch.setattr(answer_stream.AnswerWriter, "ping_interval_s", 0.01)
    gate = Gate()
    backend.script = lambda _: (gate, Started(1, 0), TextDelta("late"), finished())
    async with (
        daemon.http.stream("POST", f"{daemon.url}/v1/chat/completions", json={"messages": HI, "stream": True}) as reply,
    ):
        assert reply.status_code == 200
        text, pings = "", 0
        async for part in reply.aiter_text():
            text += part
            pings = text.count(": ping\n\n")
            if pings >= 3:
                gate.opened.set()
    assert pings >= 3
    assert '"content":"late"' in text
    assert text.endswith("data: [DONE]\n\n")


async def test_a_failure_after_the_patience_is_an_event(
    daemon: Running, backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answer_stream, "PATIENCE_S", 0.0)
    gate = Gate()
    gate.opened.set()
    backend.script = failing(Overloaded("full"), gate)
    reply = await post(daemon, {"messages": HI, "stream": True})
    assert reply.status_code == 200
    assert '"code":"queue_full"' in reply.text
