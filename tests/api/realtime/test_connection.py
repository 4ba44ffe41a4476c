"""Real sockets that speak the Realtime API, against a server with a scripted backend."""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from edgeagent.api.realtime import connection as connection_module
from edgeagent.api.realtime.body import Received
from edgeagent.api.realtime.session import RealtimeSession
from edgeagent.api.responses.socket.outbox import Close, Outbox, Send
from edgeagent.api.wire.shape import Json
from edgeagent.errors import InvalidRequest
from edgeagent.types import (
    ChatPrompt,
    Delta,
    FinishReason,
    GenerateRequest,
    ModelStatus,
    QueryAnswer,
    RenderPrompt,
    Started,
    TextDelta,
    TextQuery,
    ToolCallDelta,
    ToolCallStarted,
    WorkerState,
)
from tests.api.realtime.realtime_client import check_event, kinds, message
from tests.api.serving import serve
from tests.backends.fake import FakeBackend, Gate, Script, echo, finished
from tests.daemon.running import running
from tests.media import BLUE, RED, data_url, media
from tests.patience import patient


@pytest.fixture
async def backend() -> FakeBackend:
    return FakeBackend()


@pytest.fixture
async def address(backend: FakeBackend) -> AsyncIterator[str]:
    async with serve(backend) as address:
        yield f"ws://{address}/v1/realtime"


async def send(socket: ClientConnection, kind: str, **fields: object) -> None:
    await socket.send(json.dumps({"type": kind, **fields}))


async def receive(socket: ClientConnection) -> Json:
    event: Json = json.loads(await socket.recv())
    check_event(event)
    return event


async def until(socket: ClientConnection, kind: str) -> list[Json]:
    events = [await receive(socket)]
    while events[-1]["type"] != kind:
        events.append(await receive(socket))
    return events


async def test_the_address_names_the_model() -> None:
    backend = FakeBackend(models=("one", "two"))
    async with serve(backend) as address, connect(f"ws://{address}/v1/realtime?model=two") as socket:
        assert (await receive(socket))["session"]["model"] == "two"
        await send(socket, "response.create", response={"instructions": "Greet."})
        (*_, done) = await until(socket, "response.done")
        assert done["response"]["status"] == "completed"
        assert done["response"]["edgeagent"]["stages_ms"]["delivery"] >= 0
    assert [request.model for request in backend.requests] == ["two"]


async def test_what_is_computed_ahead_ends_before_the_response(address: str, backend: FakeBackend) -> None:
    gate = Gate()
    backend.script = lambda request: [gate] if request.prefill_only else [TextDelta("yes"), finished()]
    async with connect(address) as socket:
        await send(socket, "conversation.item.create", item=message("hi"))
        await until(socket, "conversation.item.done")
        await gate.reached.wait()
        await send(socket, "response.create")
        events = await until(socket, "response.done")
        assert kinds(events)[0] == "response.created" and len({event["event_id"] for event in events}) == len(events)
    ahead, asked = backend.requests
    assert ahead.prefill_only and not asked.prefill_only and backend.closed == [ahead.id]


async def test_a_client_that_reads_late_gets_all_and_takes_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it sends comes back, so no more is read of it until it reads."""
    pending: list[int] = []
    push = Outbox.push

    def noted(outbox: Outbox, entry: Send | Close) -> None:
        push(outbox, entry)
        pending.append(outbox.num_bytes)

    monkeypatch.setattr(Outbox, "push", noted)
    text = "x" * 900_000
    async with (
        running(FakeBackend()) as daemon,
        connect(f"ws://127.0.0.1:{daemon.port}/v1/realtime", max_queue=1) as socket,
    ):

        async def talk() -> None:
            for number in range(40):
                await send(socket, "conversation.item.create", item=message(text, id=f"{number}"))
                await send(socket, "conversation.item.delete", item_id=f"{number}")

        talking = asyncio.create_task(talk())
        await asyncio.sleep(0.3)
        events = [json.loads(await socket.recv()) for _ in range(1 + 3 * 40)]
        await talking
    assert [event["item"]["id"] for event in events[1::3]] == [f"{number}" for number in range(40)]
    assert max(pending) < 4 * len(text)


async def test_the_runner_of_openai_agents_calls_its_tools_and_gets_the_answer(backend: FakeBackend) -> None:
    # Imported here: it takes seconds, and each process of a parallel run imports every module.
    from agents import function_tool
    from agents.realtime import RealtimeAgent, RealtimeRunner

    minutes: list[int] = []

    @function_tool
    def set_timer(minutes_: int) -> str:
        """Set a timer."""
        minutes.append(minutes_)
        return "It is set."

    def answer(request: GenerateRequest) -> Iterator[Delta]:
        yield Started(1, 0)
        if request.prefill_only:
            yield finished(output=0)
        elif not minutes:
            yield from (ToolCallStarted(0, "call_1", "set_timer"), ToolCallDelta(0, '{"minutes_":5}'))
            yield finished(FinishReason.TOOL_CALLS)
        else:
            yield from (TextDelta("The timer "), TextDelta("is set."), finished())

    backend.script = answer
    settings: Any = {"model_name": "fake", "output_modalities": ["text"]}
    runner = RealtimeRunner(RealtimeAgent(name="timer", tools=[set_timer]), config={"model_settings": settings})
    async with running(backend) as daemon:
        url = f"ws://127.0.0.1:{daemon.port}/v1/realtime"
        async with (
            await runner.run(model_config={"api_key": "unused", "url": url}) as session,
            asyncio.timeout(patient(30)),
        ):
            await session.send_message("Set a timer for 5 minutes.")
            num_ends = 0
            async for event in session:
                assert event.type != "error", event
                num_ends += event.type == "agent_end"
                if num_ends == 2:
                    break
            said = [getattr(item, "content", None) for item in session._history]
    assert minutes == [5] and "The timer is set." in str(said[-1])
    assert prompt_texts(backend.requests[-1])[-1] == "It is set."


def prompt_texts(request: GenerateRequest) -> list[str]:
    assert isinstance(request.prompt, ChatPrompt)
    return [each.content for each in request.prompt.messages]


async def test_bytes_are_refused(address: str) -> None:
    async with connect(address) as socket:
        await receive(socket)
        await socket.send(b"{}")
        with pytest.raises(ConnectionClosed):
            await receive(socket)
        assert socket.close_code == 1003


async def test_an_item_names_the_file_of_a_binary_frame(address: str, backend: FakeBackend) -> None:
    name = f"sha256:{hashlib.sha256(RED).hexdigest()}"
    async with connect(address) as socket:
        await socket.send(RED)
        await send(socket, "conversation.item.create", item=showing(name, "What is this?"))
        await until(socket, "conversation.item.done")
        await send(socket, "conversation.item.create", item=showing(f"sha256:{'0' * 64}"))
        (*_, refused) = await until(socket, "error")
        assert "names a file that is not here" in refused["error"]["message"]
        await send(socket, "response.create")
        await until(socket, "response.done")
    prompt = backend.requests[-1].prompt
    assert isinstance(prompt, ChatPrompt) and prompt.media == (media(RED),)


class ReadingBackend(FakeBackend):
    """Finds BLUE damaged, and refuses all messages with the text "alone"."""

    async def ask(self, name: str, query: TextQuery) -> QueryAnswer:
        answer = await super().ask(name, query)
        if isinstance(query, RenderPrompt):
            if media(BLUE) in query.prompt.media and any(message.media for message in query.prompt.messages):
                raise InvalidRequest("an image cannot be read: it is damaged", param="input")
            if any("alone" in message.content for message in query.prompt.messages):
                raise InvalidRequest("the template refuses this")
        return answer


async def test_an_item_with_a_damaged_image_is_refused() -> None:
    async with serve(ReadingBackend()) as address, connect(f"ws://{address}/v1/realtime") as socket:
        damaged = showing(data_url(BLUE), "And this?")
        await send(socket, "conversation.item.create", event_id="e1", item={"id": "whole", **showing(data_url(RED))})
        await send(socket, "conversation.item.create", event_id="e2", item={"id": "damaged", **damaged})
        error = (await until(socket, "error"))[-1]["error"]
        assert (error["event_id"], error["param"], error["code"]) == ("e2", "item", "invalid_value")
        assert "it is damaged" in error["message"]
        await send(socket, "conversation.item.retrieve", item_id="damaged")
        await until(socket, "error")
        # Here it cannot be known what is wrong.
        await send(socket, "conversation.item.create", item=showing(data_url(BLUE), "alone"))
        await until(socket, "conversation.item.done")


class BusyBackend(ReadingBackend):
    """Answers a question about an image when `is_free` is set. Its model is in `state`."""

    def __init__(self, script: Script = echo) -> None:
        super().__init__(script)
        self.is_free = asyncio.Event()
        self.state = WorkerState.READY

    def statuses(self) -> list[ModelStatus]:
        return [ModelStatus("fake", self.state)]

    async def ask(self, name: str, query: TextQuery) -> QueryAnswer:
        answer = await super().ask(name, query)
        if isinstance(query, RenderPrompt):
            await self.is_free.wait()
        return answer


async def test_a_cancel_passes_what_waits_for_a_check() -> None:
    backend = BusyBackend(lambda _: (Started(1, 0), TextDelta("a"), Gate(), finished()))
    async with serve(backend) as address, connect(f"ws://{address}/v1/realtime") as socket:
        await send(socket, "response.create", response={"instructions": "Greet."})
        await until(socket, "response.output_text.delta")
        await send(socket, "conversation.item.create", item={"id": "shown", **showing(data_url(RED))})
        await send(socket, "conversation.item.create", item={"id": "next", **message("What is it?")})
        await send(socket, "response.cancel")
        events = await until(socket, "response.done")
        assert events[-1]["response"]["status"] == "cancelled"
        assert not any(event.get("item", {}).get("id") in ("shown", "next") for event in events)
        await send(socket, "response.cancel", event_id="late")
        backend.is_free.set()
        events = await until(socket, "error")
        added = [event["item"]["id"] for event in events if event["type"] == "conversation.item.added"]
        assert added == ["shown", "next"]
        assert events[-1]["error"]["event_id"] == "late", "it finds no response, so it keeps its place"


async def test_a_cancel_does_not_pass_the_response_that_it_is_for() -> None:
    backend = BusyBackend(lambda request: [] if request.prefill_only else [Started(1, 0), Gate()])
    async with serve(backend) as address, connect(f"ws://{address}/v1/realtime") as socket:
        await send(socket, "conversation.item.create", item=showing(data_url(RED)))
        await backend.until(lambda _: any(isinstance(query, RenderPrompt) for query in backend.queries))
        await send(socket, "response.create")
        await send(socket, "response.cancel")
        backend.is_free.set()
        assert (await until(socket, "response.done"))[-1]["response"]["status"] == "cancelled"


async def test_an_item_that_cannot_be_checked_in_time_is_added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "CHECK_S", 0.01)
    async with serve(BusyBackend()) as address, connect(f"ws://{address}/v1/realtime") as socket:
        await send(socket, "conversation.item.create", item=showing(data_url(RED)))
        await until(socket, "conversation.item.done")


@pytest.mark.parametrize("num_steps", [0, 1])
async def test_an_item_loads_no_model_and_is_named_if_it_fails_an_answer(num_steps: int) -> None:
    damaged = InvalidRequest("an image cannot be read: it is damaged", param="input")
    steps: list[Delta] = [Started(1, 0), TextDelta("a")] if num_steps else []
    backend = BusyBackend(lambda _: (*steps, damaged))
    backend.state = WorkerState.STOPPED
    async with serve(backend) as address, connect(f"ws://{address}/v1/realtime") as socket:
        await send(socket, "conversation.item.create", item={"id": "shown", **showing(data_url(BLUE))})
        await until(socket, "conversation.item.done")
        assert not backend.queries
        await send(socket, "response.create")
        if num_steps:
            error = (await until(socket, "response.done"))[-1]["response"]["status_details"]["error"]
        else:
            error = (await until(socket, "error"))[-1]["error"]
        assert "it is damaged" in error["message"] and "added: shown" in error["message"]
        await send(socket, "conversation.item.delete", item_id="shown")
        await until(socket, "conversation.item.deleted")
        await send(socket, "response.create", response={"instructions": "Greet."})
        (*_, end) = await until(socket, "response.done" if num_steps else "error")
        assert "it is damaged" in str(end) and "shown" not in str(end)


def showing(url: str, *texts: str) -> Json:
    content = [{"type": "input_image", "image_url": url}, *({"type": "input_text", "text": text} for text in texts)]
    return {"type": "message", "role": "user", "content": content}


async def test_large_settings_are_read_beside_the_event_loop(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[bool] = []
    prepare = RealtimeSession.prepare

    def prepared(self: RealtimeSession, received: Received) -> Received:
        threads.append(threading.current_thread() is threading.main_thread())
        return prepare(self, received)

    monkeypatch.setattr(RealtimeSession, "prepare", prepared)
    parameters = {"type": "object", "properties": {"minutes": {"type": "integer"}}}
    tools = [{"type": "function", "name": f"tool_{n}", "parameters": parameters} for n in range(512)]
    async with connect(address) as socket:
        for settings in ({"instructions": "Be brief."}, {"tools": tools}, {"instructions": "Be kind."}, {}):
            await send(socket, "session.update", session=settings)
            (*_, event) = await until(socket, "session.updated")
        assert event["session"]["instructions"] == "Be kind." and len(event["session"]["tools"]) == 512
    # The last frames are small, but the tools are read again with each, even if no setting changes.
    assert threads == [True, False, False, False]
