"""POST /v1/responses through the real openai client: whole, streamed, continued, refused, cancelled by a disconnect."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress

import httpx
import pytest
from openai import AsyncOpenAI, BadRequestError, InternalServerError, NotFoundError
from pydantic import BaseModel

from edgeagent.api.wire import answer_stream
from edgeagent.conversation.history import StoredResponse
from edgeagent.conversation.store import ResponseStore
from edgeagent.errors import ModelNotFound, WorkerCrashed
from edgeagent.types import (
    ChatPrompt,
    FinishReason,
    JsonSchemaFormat,
    Message,
    Started,
    TextDelta,
    ToolCallDelta,
    ToolCallStarted,
)
from tests.api.serving import check_golden, serve, validate_event
from tests.backends.fake import FakeBackend, Gate, failing, finished


@pytest.fixture
async def backend() -> FakeBackend:
    return FakeBackend()


@pytest.fixture
async def address(backend: FakeBackend) -> AsyncIterator[str]:
    async with serve(backend) as address:
        yield address


@pytest.fixture
async def client(address: str) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"http://{address}/v1", api_key="unused", max_retries=0) as client:
        yield client


async def test_whole_and_continued(client: AsyncOpenAI, backend: FakeBackend) -> None:
    first = await client.responses.create(model="fake", input="one two")
    assert first.output_text == "one two"
    assert first.usage is not None
    assert first.usage.output_tokens == 2
    assert (first.to_dict()["timings"], first.to_dict()["edgeagent"]) != (None, None)
    await client.responses.create(model="fake", input="three", previous_response_id=first.id)
    prompt = backend.requests[1].prompt
    assert isinstance(prompt, ChatPrompt)
    assert prompt.messages == (Message("user", "one two"), Message("assistant", "one two"), Message("user", "three"))


async def test_unstored_responses_cannot_be_continued(client: AsyncOpenAI) -> None:
    first = await client.responses.create(model="fake", input="one", store=False)
    with pytest.raises(BadRequestError) as caught:
        await client.responses.create(model="fake", input="two", previous_response_id=first.id)
    assert (caught.value.code, caught.value.param) == ("previous_response_not_found", "previous_response_id")


async def test_streamed_with_the_clients_helper(client: AsyncOpenAI) -> None:
    async with client.responses.stream(model="fake", input="one two") as stream:
        texts = [event.delta async for event in stream if event.type == "response.output_text.delta"]
        final = await stream.get_final_response()
    assert texts == ["one", " two"]
    assert final.output_text == "one two"


async def test_structured_output(client: AsyncOpenAI, backend: FakeBackend) -> None:
    class Timer(BaseModel):
        minutes: int

    backend.script = lambda _: (TextDelta('{"minutes":5}'), finished())
    parsed = await client.responses.parse(model="fake", input="five", text_format=Timer)
    assert parsed.output_parsed == Timer(minutes=5)
    assert isinstance(backend.requests[0].format, JsonSchemaFormat)


async def test_frames_of_a_stream(address: str) -> None:
    async with httpx.AsyncClient() as plain:
        reply = await plain.post(
            f"http://{address}/v1/responses", json={"input": "one two", "stream": True, "metadata": {"a": "b"}}
        )
    assert reply.headers["content-type"].startswith("text/event-stream")
    *frames, done, rest = reply.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    events = []
    for frame in frames:
        name, data = frame.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
        validate_event(events[-1])
    # These are the same events as on a socket.
    check_golden("socket_text", events)


async def test_calls_are_answered(client: AsyncOpenAI, backend: FakeBackend) -> None:
    backend.script = lambda _: (
        ToolCallStarted(0, "call_1", "f"),
        ToolCallDelta(0, '{"a":1}'),
        finished(FinishReason.TOOL_CALLS),
    )
    first = await client.responses.create(model="fake", input="go")
    call = first.output[0]
    assert call.type == "function_call"
    backend.script = lambda _: (TextDelta("done"), finished())
    second = await client.responses.create(
        model="fake",
        previous_response_id=first.id,
        input=[{"type": "function_call_output", "call_id": call.call_id, "output": "2"}],
    )
    assert second.output_text == "done"
    with pytest.raises(BadRequestError, match="No tool call found"):
        await client.responses.create(
            model="fake", input=[{"type": "function_call_output", "call_id": call.call_id, "output": "2"}]
        )


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_refusals_have_their_status(client: AsyncOpenAI, backend: FakeBackend, is_streamed: bool) -> None:
    with pytest.raises(BadRequestError) as caught:
        await client.responses.create(model="fake", input="x", temperature=9, stream=is_streamed)
    assert caught.value.param == "temperature"
    backend.script = failing(ModelNotFound("gone", param="model"))
    with pytest.raises(NotFoundError):
        await client.responses.create(model="fake", input="x", stream=is_streamed)


@pytest.mark.parametrize("error", [WorkerCrashed("signal 9"), RuntimeError("secret")])
async def test_a_failure_under_way_ends_the_stream(client: AsyncOpenAI, backend: FakeBackend, error: Exception) -> None:
    backend.script = lambda _: (TextDelta("ye"), error)
    stream = await client.responses.create(model="fake", input="x", stream=True)
    events = [event async for event in stream]
    assert events[-1].type == "response.failed"
    assert "secret" not in str(events)


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_failure_under_way_is_stored_and_a_refusal_is_not(
    client: AsyncOpenAI, backend: FakeBackend, monkeypatch: pytest.MonkeyPatch, is_streamed: bool
) -> None:
    stored: list[StoredResponse] = []
    add = ResponseStore.add

    def add_noted(store: ResponseStore, response: StoredResponse, body: bytes) -> asyncio.Future[None]:
        stored.append(response)
        return add(store, response, body)

    monkeypatch.setattr(ResponseStore, "add", add_noted)
    for is_under_way in (False, True):
        backend.script = failing(WorkerCrashed("signal 9"), *([TextDelta("ye")] if is_under_way else []))
        with suppress(InternalServerError):
            if not is_streamed:
                await client.responses.create(model="fake", input="x")
            else:
                stream = await client.responses.create(model="fake", input="x", stream=True)
                assert [event.type async for event in stream][-1] == "response.failed"
            assert is_streamed and is_under_way, "a whole answer has the failure's status"
        assert [response.is_failed for response in stored] == [True] * is_under_way


async def test_a_slow_start_is_announced(
    client: AsyncOpenAI, backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answer_stream, "PATIENCE_S", 0.0)
    gate = Gate()
    backend.script = lambda _: (gate, TextDelta("ye"), finished())
    stream = await client.responses.create(model="fake", input="x", stream=True)
    assert (await anext(stream)).type == "response.created"
    gate.opened.set()
    assert [event.type async for event in stream][-1] == "response.completed"


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_leaving_cancels(address: str, backend: FakeBackend, is_streamed: bool) -> None:
    gate = Gate()
    backend.script = lambda _: (TextDelta("ye"), gate, finished())
    body = json.dumps({"input": "x", "stream": is_streamed})
    _, writer = await asyncio.open_connection(*address.split(":"))
    head = f"POST /v1/responses HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
    await gate.reached.wait()
    writer.close()
    await backend.until(lambda backend: bool(backend.closed))


async def test_prefill_only(client: AsyncOpenAI, backend: FakeBackend) -> None:
    warm = await client.responses.create(model="fake", input="one", extra_body={"generate": False})
    assert (warm.status, warm.output) == ("completed", [])
    assert backend.requests[0].prefill_only
    empty = await client.responses.create(model="fake", input=[], extra_body={"generate": False})
    assert empty.status == "completed"
    assert len(backend.requests) == 1


@pytest.mark.parametrize("stream", ["yes", 1, [], {}])
async def test_stream_is_true_or_false(address: str, stream: object) -> None:
    async with httpx.AsyncClient() as http:
        reply = await http.post(f"http://{address}/v1/responses", json={"input": "Hi", "stream": stream})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "stream")


async def test_truncation(client: AsyncOpenAI, backend: FakeBackend) -> None:
    backend.script = lambda _: (Started(8, 4, num_dropped_items=3), TextDelta("yes"), finished())
    for truncation, truncates in (("auto", True), ("disabled", False), (None, False)):
        made = await client.responses.create(model="fake", input="one", truncation=truncation)
        assert made.truncation == (truncation or "disabled")
        prompt = backend.requests[-1].prompt
        assert isinstance(prompt, ChatPrompt) and prompt.truncate is truncates
        assert made.to_dict()["edgeagent"]["dropped_items"] == 3
    with pytest.raises(BadRequestError) as caught:
        await client.responses.create(model="fake", input="one", truncation="some")
    assert caught.value.param == "truncation"
