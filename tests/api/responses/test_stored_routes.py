"""Responses by id over HTTP, as the openai client requests them with strict validation."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI, BadRequestError, InternalServerError, NotFoundError
from websockets.asyncio.client import connect

from edgeagent.api.responses import routes
from edgeagent.api.responses.items import item_body
from edgeagent.api.responses.socket.session import MAX_ACTIVE
from edgeagent.conversation.items import Item
from edgeagent.credentials.keys import CheckedKeys, Client, KeyStatus, Scope
from edgeagent.errors import ContextLengthExceeded, WorkerCrashed
from edgeagent.types import (
    ChatPrompt,
    FinishReason,
    GenerateRequest,
    Message,
    Started,
    TextDelta,
    ToolCallDelta,
    ToolCallStarted,
)
from tests.api.serving import serve
from tests.backends.fake import FakeBackend, Gate, finished
from tests.present import present


class NamedKeys:
    """A key ring in which each token is its client's name."""

    trouble = ""
    revision = 0

    def judge(self, tokens: Sequence[bytes]) -> CheckedKeys:
        return CheckedKeys(KeyStatus.KNOWN, self.holder(tokens[0]), tokens[0])

    def holder(self, token_digest: bytes) -> Client:
        return Client(token_digest.decode(), frozenset({Scope.INFER}))


@pytest.fixture
async def backend() -> FakeBackend:
    return FakeBackend()


@pytest.fixture
async def address(backend: FakeBackend) -> AsyncIterator[str]:
    async with serve(backend, keys=NamedKeys()) as address:
        yield address


def openai(address: str, name: str = "alice") -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"http://{address}/v1", api_key=name, max_retries=0, _strict_response_validation=True)


@pytest.fixture
async def client(address: str) -> AsyncIterator[AsyncOpenAI]:
    async with openai(address) as client:
        yield client


def messages_of(request: GenerateRequest) -> tuple[Message, ...]:
    assert isinstance(request.prompt, ChatPrompt)
    return request.prompt.messages


async def test_a_response_is_returned_as_it_was(client: AsyncOpenAI) -> None:
    made = await client.responses.create(model="fake", input="one two", metadata={"a": "b"})
    assert await client.responses.retrieve(made.id) == made


async def test_a_streamed_and_a_socket_response_too(client: AsyncOpenAI) -> None:
    async with client.responses.stream(model="fake", input="one two") as stream:
        streamed = await stream.get_final_response()
    assert (await client.responses.retrieve(streamed.id)).output_text == "one two"
    async with client.responses.connect() as connection:
        await connection.response.create(model="fake", input="three")
        async for event in connection:
            if event.type == "response.completed":
                break
        assert event.type == "response.completed"
        assert (await client.responses.retrieve(event.response.id)).output_text == "three"


async def test_what_is_not_there(client: AsyncOpenAI) -> None:
    unstored = await client.responses.create(model="fake", input="one", store=False)
    assert unstored.model_extra is not None
    for response_id in (unstored.id, "resp_never"):
        for ask in (client.responses.retrieve, client.responses.delete, client.responses.cancel):
            with pytest.raises(NotFoundError, match=f"Response with id '{response_id}' not found."):
                await ask(response_id)
        with pytest.raises(NotFoundError):
            await client.responses.input_items.list(response_id)


async def test_another_credential_sees_nothing(address: str, client: AsyncOpenAI) -> None:
    made = await client.responses.create(model="fake", input="mine")
    item_id = present(made.output[0].id)
    async with openai(address, "bob") as bob:
        with pytest.raises(NotFoundError):
            await bob.responses.retrieve(made.id)
        with pytest.raises(NotFoundError):
            await bob.responses.delete(made.id)
        with pytest.raises(BadRequestError) as caught:
            await bob.responses.create(model="fake", input="x", previous_response_id=made.id)
        assert caught.value.code == "previous_response_not_found"
        with pytest.raises(BadRequestError, match="not found"):
            await bob.responses.create(model="fake", input=[{"type": "item_reference", "id": item_id}])
    await client.responses.create(
        model="fake", input=[{"type": "item_reference", "id": item_id}, {"role": "user", "content": "x"}]
    )


async def test_a_deleted_response_is_gone_everywhere(client: AsyncOpenAI) -> None:
    async with client.responses.connect() as connection:
        await connection.response.create(model="fake", input="one")
        async for event in connection:
            if event.type == "response.completed":
                break
        assert event.type == "response.completed"
        await client.responses.delete(event.response.id)
        await connection.response.create(model="fake", input="x", previous_response_id=event.response.id)
        refusal = await connection.recv()
        assert refusal.type == "error"
        assert refusal.error is not None
        assert refusal.error.code == "previous_response_not_found"
    with pytest.raises(NotFoundError):
        await client.responses.retrieve(event.response.id)


async def test_what_runs_is_not_deleted(client: AsyncOpenAI, backend: FakeBackend) -> None:
    backend.script = lambda _: [Started(1, 0), TextDelta("x"), Gate(), finished()]
    made = await client.responses.create(model="fake", input="one", background=True)
    with pytest.raises(BadRequestError, match="cancel it"):
        await client.responses.delete(made.id)
    await client.responses.cancel(made.id)
    await client.responses.delete(made.id)
    with pytest.raises(NotFoundError):
        await client.responses.retrieve(made.id)


async def test_deletion_says_what_it_deleted(address: str, client: AsyncOpenAI) -> None:
    made = await client.responses.create(model="fake", input="one")
    async with httpx.AsyncClient() as plain:
        reply = await plain.delete(
            f"http://{address}/v1/responses/{made.id}", headers={"authorization": "Bearer alice"}
        )
    assert reply.json() == {"id": made.id, "object": "response", "deleted": True}


async def test_input_items_are_all_that_was_answered(client: AsyncOpenAI, backend: FakeBackend) -> None:
    backend.script = lambda _: (
        ToolCallStarted(0, "call_1", "look"),
        ToolCallDelta(0, "{}"),
        finished(FinishReason.TOOL_CALLS),
    )
    first = await client.responses.create(
        model="fake", input=[{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "go"}]
    )
    backend.script = lambda _: (TextDelta("done"), finished())
    second = await client.responses.create(
        model="fake",
        input=[{"type": "function_call_output", "call_id": "call_1", "output": "7"}],
        previous_response_id=first.id,
    )
    items = [item async for item in client.responses.input_items.list(second.id, order="asc")]
    assert [item.type for item in items] == ["message", "message", "function_call", "function_call_output"]
    newest = [item async for item in client.responses.input_items.list(second.id)]
    assert newest == items[::-1]
    own = await client.responses.input_items.list(first.id, order="asc")
    assert own.data == items[:2]


async def test_input_items_come_in_pages(address: str, client: AsyncOpenAI) -> None:
    spoken: Any = [{"role": "user", "content": str(index)} for index in range(7)]
    made = await client.responses.create(model="fake", input=spoken)
    page = await client.responses.input_items.list(made.id, limit=3, order="asc")
    assert (len(page.data), page.has_more) == (3, True)
    items: list[Any] = [item async for item in page]
    texts = [item.content[0].text for item in items]
    assert texts == [str(index) for index in range(7)]
    wrong: dict[str, Any]
    for wrong in ({"limit": 0}, {"limit": 101}, {"limit": "9" * 5000}, {"after": "msg_never"}, {"order": "up"}):
        with pytest.raises(BadRequestError) as caught:
            await client.responses.input_items.list(made.id, **wrong)
        assert caught.value.param == next(iter(wrong))
    async with httpx.AsyncClient() as plain:
        url = f"http://{address}/v1/responses/{made.id}/input_items?after={page.data[2].id}&limit=2&order=asc"
        answer = (await plain.get(url, headers={"authorization": "Bearer alice"})).json()
    assert (answer["object"], answer["has_more"]) == ("list", True)
    assert [answer["first_id"], answer["last_id"]] == [item["id"] for item in answer["data"]]


async def test_a_response_is_cancelled_from_elsewhere(address: str, client: AsyncOpenAI, backend: FakeBackend) -> None:
    gate = Gate()
    backend.script = lambda _: (TextDelta("ye"), gate, finished())
    stream = await client.responses.create(model="fake", input="x", stream=True)
    created = await anext(stream)
    assert created.type == "response.created"
    await gate.reached.wait()
    live = await client.responses.retrieve(created.response.id)
    assert (live.status, live.output) == ("in_progress", [])
    assert (await client.responses.input_items.list(created.response.id)).data
    async with openai(address, "bob") as bob:
        with pytest.raises(NotFoundError):
            await bob.responses.cancel(created.response.id)
    reading = asyncio.create_task(_last(stream))
    cancelled = await client.responses.cancel(created.response.id)
    assert (cancelled.status, cancelled.output_text) == ("cancelled", "ye")
    assert (await reading).type == "response.incomplete"
    # A second cancel changes nothing.
    assert (await client.responses.cancel(created.response.id)).status == "cancelled"


async def test_what_waits_on_a_socket_is_seen_and_cancelled_from_elsewhere(
    address: str, client: AsyncOpenAI, backend: FakeBackend
) -> None:
    gate = Gate()
    backend.script = lambda _: (TextDelta("ye"), gate, finished())
    headers = {"authorization": "Bearer alice"}
    async with connect(f"ws://{address}/v1/responses", additional_headers=headers) as socket:
        for index in range(MAX_ACTIVE + 2):
            await socket.send(json.dumps({"type": "response.create", "input": "x", "stream_id": f"lane{index}"}))
        ids: dict[str, str] = {}
        while len(ids) < 2:
            event = json.loads(await socket.recv())
            if event["type"] == "response.queued":
                ids[event["stream_id"]] = event["response"]["id"]
        first, second = ids.values()
        assert (await client.responses.retrieve(second)).status == "queued"
        assert (await client.responses.cancel(second)).status == "cancelled"
        while (event := json.loads(await socket.recv()))["type"] != "response.incomplete":
            pass
        assert (event["response"]["id"], event["response"]["status"]) == (second, "cancelled")
        assert (await client.responses.retrieve(second)).status == "cancelled"
        # A running response can be cancelled too; then the other waiting one runs.
        await backend.until(lambda backend: backend.num_live == MAX_ACTIVE)
        assert (await client.responses.cancel(backend.requests[0].id)).output_text == "ye"
        await backend.until(lambda backend: any(request.id == first for request in backend.requests))
    with pytest.raises(NotFoundError):
        await client.responses.retrieve(first)
    assert second not in [request.id for request in backend.requests]


async def _last(stream: Any) -> Any:
    event = None
    async for event in stream:  # noqa: B007 the last is wanted
        pass
    return event


async def test_a_background_response_goes_on_by_itself(client: AsyncOpenAI, backend: FakeBackend) -> None:
    gate = Gate()
    backend.script = lambda _: (TextDelta("ye"), gate, finished())
    queued = await client.responses.create(model="fake", input="x", background=True)
    assert (queued.status, queued.background, queued.output) == ("queued", True, [])
    await gate.reached.wait()
    assert (await client.responses.retrieve(queued.id)).status == "in_progress"
    gate.opened.set()
    await backend.until(lambda backend: backend.num_live == 0)
    done = await client.responses.retrieve(queued.id)
    assert (done.status, done.output_text) == ("completed", "ye")
    assert (await client.responses.create(model="fake", input="y", previous_response_id=queued.id)).id


async def test_a_background_response_is_cancelled(client: AsyncOpenAI, backend: FakeBackend) -> None:
    gate = Gate()
    backend.script = lambda _: (TextDelta("ye"), gate, finished())
    queued = await client.responses.create(model="fake", input="x", background=True)
    await gate.reached.wait()
    assert (await client.responses.cancel(queued.id)).status == "cancelled"
    assert (await client.responses.retrieve(queued.id)).status == "cancelled"


@pytest.mark.parametrize("error", [WorkerCrashed("signal 9"), RuntimeError("secret")])
async def test_a_failed_background_response_says_so_and_is_not_continued(
    client: AsyncOpenAI, backend: FakeBackend, error: Exception
) -> None:
    backend.script = lambda _: (TextDelta("ye"), error)
    queued = await client.responses.create(model="fake", input="x", background=True)
    await backend.until(lambda backend: bool(backend.requests) and backend.num_live == 0)
    failed = await client.responses.retrieve(queued.id)
    assert failed.status == "failed"
    assert failed.error is not None
    assert failed.error.code == "server_error"
    assert "secret" not in failed.to_json()
    assert (await client.responses.input_items.list(queued.id)).data
    with pytest.raises(BadRequestError):
        await client.responses.create(model="fake", input="y", previous_response_id=queued.id)


async def test_background_needs_a_store(client: AsyncOpenAI) -> None:
    with pytest.raises(BadRequestError) as caught:
        await client.responses.create(model="fake", input="x", background=True, store=False)
    assert caught.value.param == "store"


async def test_input_tokens_are_those_of_the_rendered_prompt(client: AsyncOpenAI) -> None:
    first = await client.responses.create(model="fake", input="one")
    counted = await client.responses.input_tokens.count(model="fake", input="two")
    assert counted.input_tokens == len("<user>two")
    counted = await client.responses.input_tokens.count(
        model="fake", input="two", instructions="Be.", previous_response_id=first.id
    )
    assert counted.input_tokens == len("<system>Be.<user>one<assistant>one<user>two")
    with pytest.raises(BadRequestError):
        await client.responses.input_tokens.count(model="fake", input="x", previous_response_id="resp_never")
    with pytest.raises(NotFoundError):
        await client.responses.input_tokens.count(model="nope", input="x")


async def test_a_conversation_is_compacted_and_goes_on(client: AsyncOpenAI, backend: FakeBackend) -> None:
    first = await client.responses.create(
        model="fake", input=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "tea?"}]
    )
    backend.script = lambda _: (TextDelta(" They spoke of tea. "), finished(prompt=20, output=5))
    made = await client.responses.compact(model="fake", previous_response_id=first.id, input="with milk")
    asked = messages_of(backend.requests[-1])
    assert [message.role for message in asked] == ["system", "user", "assistant", "user", "user"]
    assert backend.requests[-1].cache.read
    (item,) = made.output
    assert item.type == "compaction"
    assert (made.usage.input_tokens, made.usage.output_tokens) == (20, 5)
    follow: Any = [*(item.to_dict() for item in made.output), {"role": "user", "content": "and?"}]
    await client.responses.create(model="fake", input=follow)
    assert messages_of(backend.requests[-1]) == (
        Message("system", "Be brief.\n\nWhat was said before, in short:\nThey spoke of tea."),
        Message("user", "and?"),
    )


async def test_open_calls_outlive_a_compaction(
    client: AsyncOpenAI, backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = list[threading.Thread]()  # there may be much JSON

    def noted(item: Item) -> Any:
        threads.append(threading.current_thread())
        return item_body(item)

    monkeypatch.setattr(routes, "item_body", noted)
    backend.script = lambda _: (TextDelta("short"), finished())
    calls: Any = [
        {"role": "user", "content": "go"},
        {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "call_1", "output": "1"},
        {"type": "function_call", "call_id": "call_2", "name": "f", "arguments": "{}"},
    ]
    made = await client.responses.compact(model="fake", input=calls)
    assert [item.type for item in made.output] == ["compaction", "function_call"]
    assert threads and threading.main_thread() not in threads
    follow: Any = [*(item.to_dict() for item in made.output)]
    result: Any = {"type": "function_call_output", "call_id": "call_2", "output": "2"}
    closed: Any = {**result, "call_id": "call_1"}
    await client.responses.create(model="fake", input=[*follow, result])
    with pytest.raises(BadRequestError):
        await client.responses.create(model="fake", input=[*follow, closed])


async def test_what_leaves_no_room_is_compacted_by_halves(client: AsyncOpenAI, backend: FakeBackend) -> None:
    def script(request: GenerateRequest) -> Any:
        if len(messages_of(request)) > 4:
            return [ContextLengthExceeded("too long")]
        return [TextDelta("short"), finished()]

    backend.script = script
    spoken: Any = [{"role": "user", "content": str(index)} for index in range(8)]
    await client.responses.compact(model="fake", input=spoken)
    assert [len(messages_of(request)) for request in backend.requests] == [9, 5, 3]
    backend.script = lambda _: (ContextLengthExceeded("too long"),)
    with pytest.raises(BadRequestError):
        await client.responses.compact(model="fake", input=spoken)


async def test_a_summary_that_is_cut_short_is_told(client: AsyncOpenAI, backend: FakeBackend) -> None:
    backend.script = lambda _: (TextDelta("They sp"), finished(FinishReason.CANCELLED))
    with pytest.raises(InternalServerError, match="summary was cut short") as caught:
        await client.responses.compact(model="fake", input="tea?")
    assert caught.value.status_code == 503


async def test_compaction_needs_a_model(address: str) -> None:
    async with httpx.AsyncClient(headers={"authorization": "Bearer alice"}) as plain:
        reply = await plain.post(f"http://{address}/v1/responses/compact", json={"input": "x"})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "model")


async def test_a_chain_goes_on_after_a_restart(backend: FakeBackend, tmp_path: Path) -> None:
    for index in range(3):
        async with serve(backend, keys=NamedKeys(), store=tmp_path / "r") as address, openai(address) as client:
            if index == 0:
                made = await client.responses.create(model="fake", input="one")
            else:
                made = await client.responses.create(model="fake", input="more", previous_response_id=made.id)
    assert len(messages_of(backend.requests[-1])) == 5
