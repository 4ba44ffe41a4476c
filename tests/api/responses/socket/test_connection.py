"""Real sockets: the openai client, openai-agents and plain frames against a server with a scripted backend."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from openai import AsyncOpenAI
from openai.lib.responses_websocket import (
    AsyncResponsesWebSocketSession,
    ResponsesWebSocketError,
    ResponsesWebSocketLimits,
)
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Origin

from edgeagent.api.responses.events import TERMINAL
from edgeagent.api.responses.socket import connection
from edgeagent.api.responses.socket.session import Session
from edgeagent.api.wire.shape import Json
from edgeagent.config import Config, ServerConfig
from edgeagent.conversation.store import ResponseStore
from edgeagent.errors import ContextLengthExceeded, RequestTimeout, WorkerCrashed
from edgeagent.types import (
    ChatPrompt,
    FinishReason,
    GenerateRequest,
    Message,
    RouteMode,
    Started,
    Step,
    TextDelta,
    ToolCallDelta,
    ToolCallStarted,
)
from tests.api.serving import check_golden, serve, slow_socket, validate_event
from tests.backends.fake import Act, FakeBackend, Gate, failing, finished


@pytest.fixture
async def backend() -> FakeBackend:
    return FakeBackend()


@pytest.fixture
async def address(backend: FakeBackend) -> AsyncIterator[str]:
    async with serve(backend) as address:
        yield address


def openai(address: str) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"http://{address}/v1", api_key="unused", max_retries=0)


async def create(socket: ClientConnection, **fields: Any) -> None:
    await socket.send(json.dumps({"type": "response.create", "input": "hi", **fields}))


async def receive(socket: ClientConnection) -> Json:
    frame = await socket.recv()
    assert isinstance(frame, str), "text frames only"
    event: Json = json.loads(frame)
    validate_event(event)
    return event


async def until_end(socket: ClientConnection) -> list[Json]:
    """Receive one create's events up to its terminal message."""
    events = [await receive(socket)]
    while events[-1]["type"] not in {*TERMINAL, "error"}:
        events.append(await receive(socket))
    return events


def prompt_of(request: GenerateRequest) -> ChatPrompt:
    assert isinstance(request.prompt, ChatPrompt)
    return request.prompt


async def test_openai_client_streams_and_continues(address: str, backend: FakeBackend) -> None:
    async with openai(address) as client, client.responses.connect() as connection:
        await connection.response.create(model="fake", input="one two")
        text, response_id = "", None
        async for event in connection:
            validate_event(event.to_dict())
            if event.type == "response.output_text.delta":
                text += event.delta
            elif event.type == "response.completed":
                assert event.response.output_text == text == "one two"
                assert event.response.usage is not None
                assert event.response.usage.output_tokens == 2
                response_id = event.response.id
                break
        await connection.response.create(model="fake", input="three", previous_response_id=response_id)
        async for event in connection:
            if event.type == "response.completed":
                break
    assert prompt_of(backend.requests[1]).messages == (
        Message("user", "one two"),
        Message("assistant", "one two"),
        Message("user", "three"),
    )


async def test_openai_client_sees_errors_as_events(address: str) -> None:
    async with openai(address) as client, client.responses.connect() as connection:
        await connection.response.create(model="fake", input="x", previous_response_id="resp_none")
        event = await connection.recv()
        assert event.type == "error"
        assert event.error is not None
        assert event.error.code == "previous_response_not_found"


async def test_openai_sessions_run_two_lanes(address: str, backend: FakeBackend) -> None:
    limits = ResponsesWebSocketLimits(
        max_lanes=4, max_events_per_lane=100, max_events=300, max_bytes_per_lane=1 << 20, max_bytes=1 << 22
    )
    gate = Gate()
    backend.script = lambda request: (
        Started(1, 0),
        *([gate] if "slow" in str(request.prompt) else []),
        TextDelta("done"),
        finished(),
    )
    async with (
        openai(address) as client,
        client.responses.connect() as connection,
        AsyncResponsesWebSocketSession(connection, limits=limits) as session,
    ):
        slow, quick = session.lane("slow"), session.lane("quick")
        await slow.send({"type": "response.create", "model": "fake", "input": "slow"})
        await quick.send({"type": "response.create", "model": "fake", "input": "quick"})
        first = await quick.get_final_response()
        gate.opened.set()
        assert (await slow.get_final_response()).output_text == "done"
        # A fork: this continues the response of the other lane.
        await slow.send({"type": "response.create", "input": "more", "previous_response_id": first.id})
        assert (await slow.get_final_response()).previous_response_id == first.id
        await quick.send({"type": "response.create", "input": "x", "temperature": 9})
        with pytest.raises(ResponsesWebSocketError):
            await quick.get_final_response()


async def test_events_of_a_socket_are_the_golden_ones(address: str) -> None:
    async with connect(f"ws://{address}/v1/responses") as socket:
        await create(socket, input="one two", metadata={"a": "b"})
        check_golden("socket_text", await until_end(socket))
        await create(socket, temperature=9)
        check_golden("socket_error", await until_end(socket))


async def test_a_base_url_is_served_too_and_names_the_model(address: str, backend: FakeBackend) -> None:
    async with connect(f"ws://{address}/v1?model=fake&other=1") as socket:
        await create(socket)
        assert (await until_end(socket))[-1]["type"] == "response.completed"
    assert backend.requests[0].model == "fake"


async def test_a_foreign_page_is_refused_before_the_upgrade(address: str) -> None:
    with pytest.raises(InvalidStatus) as caught:
        await connect(f"ws://{address}/v1/responses", origin=Origin("http://evil.example"))
    assert caught.value.response.status_code == 403


@pytest.mark.parametrize("path", ["/v1/", "/v1/responses/", "/v1/realtime/", "/"])
async def test_another_path_is_not_found_and_not_forbidden(address: str, path: str) -> None:
    with pytest.raises(InvalidStatus) as caught:
        await connect(f"ws://{address}{path}")
    assert caught.value.response.status_code == 404
    assert json.loads(caught.value.response.body)["error"]["code"] == "not_found"


async def test_an_unknown_model_is_an_envelope_and_the_socket_lives_on(address: str) -> None:
    async with connect(f"ws://{address}/v1/responses") as socket:
        await create(socket, model="nope")
        (event,) = await until_end(socket)
        assert (event["status"], event["error"]["code"]) == (404, "model_not_found")
        await create(socket)
        assert (await until_end(socket))[-1]["type"] == "response.completed"


async def test_a_prompt_that_the_worker_refuses_is_an_envelope(address: str, backend: FakeBackend) -> None:
    backend.script = failing(ContextLengthExceeded("9000 tokens do not fit into 8192", param="input"))
    async with connect(f"ws://{address}/v1/responses") as socket:
        await create(socket)
        (event,) = await until_end(socket)
        assert (event["status"], event["error"]["code"]) == (400, "context_length_exceeded")


@pytest.mark.parametrize("error", [WorkerCrashed("signal 9", served_by="local"), RuntimeError("a bug: secret")])
async def test_a_failure_under_way_is_a_failed_response(address: str, backend: FakeBackend, error: Exception) -> None:
    backend.script = lambda _: (TextDelta("ye"), error)
    async with connect(f"ws://{address}/v1/responses") as socket:
        await create(socket)
        events = await until_end(socket)
        assert events[-1]["type"] == "response.failed"
        assert events[-1]["response"]["error"]["code"] == "server_error"
        assert "secret" not in str(events)
        backend.script = lambda _: (finished(),)
        await create(socket)
        assert (await until_end(socket))[-1]["type"] == "response.completed"


async def test_a_backend_that_breaks_its_contract_still_ends_once(address: str, backend: FakeBackend) -> None:
    backend.script = lambda _: (TextDelta("ye"),)
    async with connect(f"ws://{address}/v1/responses") as socket:
        await create(socket)
        assert (await until_end(socket))[-1]["type"] == "response.failed"


async def test_a_response_whose_time_is_over_names_the_stage(address: str, backend: FakeBackend) -> None:
    late = RequestTimeout.passed(1.0)
    late.late_stage = "decode"
    backend.script = lambda _: (TextDelta("ye"), late)
    async with connect(f"ws://{address}/v1/responses") as socket:
        await create(socket)
        events = await until_end(socket)
        assert events[-1]["response"]["edgeagent"]["late_stage"] == "decode"
        backend.script = lambda _: (late,)
        await create(socket)
        assert (await until_end(socket))[-1]["error"]["late_stage"] == "decode"


async def test_cancel_under_way(address: str, backend: FakeBackend) -> None:
    gate = Gate()
    backend.script = lambda _: (Started(3, 0), TextDelta("ye"), gate, TextDelta("never"), finished())
    async with connect(f"ws://{address}/v1/responses") as socket:
        await create(socket)
        created = await receive(socket)
        await gate.reached.wait()
        await socket.send(json.dumps({"type": "response.cancel", "response_id": created["response"]["id"]}))
        events = await until_end(socket)
        assert (events[-1]["type"], events[-1]["response"]["status"]) == ("response.incomplete", "cancelled")
        assert events[-1]["response"]["usage"] is not None
        assert "never" not in str(events)
        assert backend.cancelled == [created["response"]["id"]]


async def test_the_end_of_a_cancelled_response_does_not_wait_for_a_slow_disk(
    address: str, backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "KEEP_S", 3600.0)
    monkeypatch.setattr(ResponseStore, "add", lambda *_: asyncio.get_running_loop().create_future())
    gate = Gate()
    backend.script = lambda _: (Started(3, 0), TextDelta("ye"), gate)
    async with connect(f"ws://{address}/v1/responses") as socket:
        await create(socket)
        await gate.reached.wait()
        await socket.send('{"type":"response.cancel"}')
        assert (await until_end(socket))[-1]["response"]["status"] == "cancelled"


async def test_cancel_right_behind_the_create(address: str, backend: FakeBackend) -> None:
    backend.script = lambda _: (Gate(), finished())
    async with connect(f"ws://{address}/v1/responses") as socket:
        await create(socket)
        await socket.send('{"type":"response.cancel"}')
        events = await until_end(socket)
        assert [event["type"] for event in events] == [
            "response.created",
            "response.in_progress",
            "response.incomplete",
        ]
        backend.script = lambda _: (finished(),)
        await create(socket)
        assert (await until_end(socket))[-1]["type"] == "response.completed"
    assert backend.num_live == 0


async def test_a_slow_start_is_announced_and_pings_are_answered(address: str, backend: FakeBackend) -> None:
    gate = Gate()
    backend.script = lambda _: (gate, TextDelta("ye"), finished())
    async with connect(f"ws://{address}/v1/responses") as socket:
        await create(socket)
        assert (await receive(socket))["type"] == "response.created"
        assert (await receive(socket))["type"] == "response.in_progress"
        await (await socket.ping())
        gate.opened.set()
        assert (await until_end(socket))[-1]["type"] == "response.completed"


async def test_leaving_cancels_all_of_a_connections_requests(address: str, backend: FakeBackend) -> None:
    backend.script = lambda _: (TextDelta("ye"), Gate(), finished())
    async with connect(f"ws://{address}/v1/responses") as socket:
        await create(socket)
        await create(socket, stream_id="a")
        await create(socket, stream_id="a")
        await backend.until(lambda backend: backend.num_live == 2)
    await backend.until(lambda backend: backend.num_live == 0)
    assert sorted(backend.closed) == sorted(request.id for request in backend.requests)
    assert len(backend.requests) == 2


async def test_lanes_run_side_by_side(address: str, backend: FakeBackend) -> None:
    gate = Gate()
    backend.script = lambda request: (
        (TextDelta("slow"), gate, finished()) if "slow" in str(request.prompt) else (TextDelta("quick"), finished())
    )
    async with connect(f"ws://{address}/v1/responses") as socket:
        await create(socket, input="slow")
        await gate.reached.wait()
        await create(socket, input="quick", stream_id="a")
        lanes: dict[str | None, list[str]] = {None: [], "a": []}
        while len(lanes[None]) + len(lanes["a"]) < 11 or "response.completed" not in lanes["a"]:
            event = await receive(socket)
            lanes[event.get("stream_id")].append(event["type"])
            if event["type"] == "response.completed" and event["stream_id"] == "a":
                break
        assert "response.completed" not in lanes[None]
        gate.opened.set()
        assert (await until_end(socket))[-1]["response"]["output"][0]["content"][0]["text"] == "slow"


async def test_binary_frames_close_with_1003(address: str) -> None:
    async with connect(f"ws://{address}/v1/responses") as socket:
        await socket.send(b"{}")
        with pytest.raises(ConnectionClosed):
            await socket.recv()
        assert socket.close_code == 1003


async def test_steering_stops_the_backend_and_a_successor_answers(address: str, backend: FakeBackend) -> None:
    gate = Gate()
    backend.script = lambda request: (
        (TextDelta("one"), gate, finished()) if len(backend.requests) == 1 else (TextDelta("two"), finished())
    )
    async with openai(address) as client, client.responses.connect() as connection:
        await connection.response.create(model="fake", input="count")
        created = await connection.recv()
        assert created.type == "response.created"
        await gate.reached.wait()
        await connection.response.steer(previous_response_id=created.response.id, input="faster")
        ends: list[Any] = []
        kinds: list[str] = []
        async for event in connection:
            validate_event(event.to_dict())
            kinds.append(event.type)
            if event.type in ("response.completed", "response.failed", "response.incomplete"):
                ends.append(event.response)
                if len(ends) == 2:
                    break
    assert "response.steer.accepted" in kinds
    assert (ends[0].status, ends[0].incomplete_details.reason) == ("incomplete", "steered")
    assert (ends[1].output_text, ends[1].previous_response_id) == ("two", created.response.id)
    assert prompt_of(backend.requests[1]).messages[-1] == Message("user", "faster")


async def test_delivery_is_measured(address: str) -> None:
    async with connect(f"ws://{address}/v1/responses") as socket:
        await create(socket, input="one two three")
        assert (await until_end(socket))[-1]["response"]["edgeagent"]["stages_ms"]["delivery"] > 0


async def test_a_slow_reader_gets_all_text_and_pauses_the_backend(address: str, backend: FakeBackend) -> None:
    num_words, word = 600, "a sentence. " * 400
    produced = 0

    def script(_: GenerateRequest) -> Any:
        nonlocal produced
        for produced in range(1, num_words + 1):  # noqa: B007 counted from outside
            yield TextDelta(word)
        yield finished()

    backend.script = script
    # The client stops reading its socket when its queue is full, so the server's send buffer fills.
    slow = await slow_socket(address)
    async with connect(f"ws://{address}/v1/responses", sock=slow, max_queue=1, max_size=None) as socket:
        await create(socket)
        await receive(socket)
        before = -1
        while before != produced:
            before = produced
            await asyncio.sleep(0.05)
        assert produced < num_words
        events = await until_end(socket)
        deltas = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
        assert "".join(deltas) == word * num_words
        assert max(map(len, deltas)) < 1 << 17
        assert [event["sequence_number"] for event in events] == list(range(1, len(events) + 1))


async def test_a_client_that_does_not_read_is_dropped(
    address: str, backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "STALL_S", 0.05)
    monkeypatch.setattr(connection, "CLOSE_S", 0.05)
    backend.script = lambda _: (*(TextDelta("x" * 1000) for _ in range(20_000)), finished())
    slow = await slow_socket(address)
    async with connect(f"ws://{address}/v1/responses", sock=slow, max_queue=1, max_size=None) as socket:
        await create(socket)
        await backend.until(lambda backend: bool(backend.closed))
        socket.transport.abort()


async def test_a_bug_closes_with_1011_and_leaves_nothing(
    address: str, backend: FakeBackend, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    secret = "what the user said"

    def fail(*_: object) -> None:
        raise RuntimeError(secret)

    backend.script = lambda _: (TextDelta("ye"), Gate(), finished())
    async with connect(f"ws://{address}/v1/responses") as socket:
        await create(socket)
        await backend.until(lambda backend: backend.num_live == 1)
        monkeypatch.setattr(Session, "receive", fail)
        await socket.send("{}")
        with pytest.raises(ConnectionClosed):
            while True:
                await socket.recv()
        assert socket.close_code == 1011
    assert backend.num_live == 0
    assert "RuntimeError" in caplog.text
    assert secret not in caplog.text


async def test_openai_agents_over_the_websocket(address: str, backend: FakeBackend) -> None:
    # Here, since it takes more than a second and 45 MB, and each process of pytest imports each test file.
    from agents import Agent, ModelSettings, OpenAIResponsesWSModel, RunConfig, Runner, function_tool

    called: list[int] = []

    @function_tool
    def set_timer(minutes: int) -> str:
        """Set a timer."""
        called.append(minutes)
        return "set"

    def script(request: GenerateRequest) -> list[Act]:
        if prompt_of(request).messages[-1].role == "tool":
            return [TextDelta("Timer set."), finished()]
        return [
            ToolCallStarted(0, "call_1", "set_timer"),
            ToolCallDelta(0, '{"minutes":5}'),
            finished(FinishReason.TOOL_CALLS),
        ]

    backend.script = script
    async with openai(address) as client:
        model = OpenAIResponsesWSModel(model="fake", openai_client=client)
        agent = Agent(name="kiosk", instructions="Be brief.", model=model, tools=[set_timer])
        config = RunConfig(tracing_disabled=True, model_settings=ModelSettings(temperature=0))
        result = await Runner.run(agent, "five minutes please", run_config=config)
        await model.close()
    assert result.final_output == "Timer set."
    assert called == [5]
    last = prompt_of(backend.requests[-1]).messages
    assert [message.role for message in last] == ["system", "user", "assistant", "tool"]


async def test_stored_responses_are_the_processes(address: str) -> None:
    async with connect(f"ws://{address}/v1/responses") as socket:
        await create(socket)
        stored = (await until_end(socket))[-1]["response"]["id"]
        await create(socket, store=False)
        unstored = (await until_end(socket))[-1]["response"]["id"]
    async with connect(f"ws://{address}/v1/responses") as socket:
        await create(socket, previous_response_id=stored)
        assert (await until_end(socket))[-1]["response"]["previous_response_id"] == stored
        await create(socket, previous_response_id=unstored)
        (event,) = await until_end(socket)
        assert event["error"]["code"] == "previous_response_not_found"


async def test_a_token_where_one_is_required() -> None:
    config = Config(server=ServerConfig(token_required=True))
    async with serve(FakeBackend(), config) as address:
        with pytest.raises(InvalidStatus) as caught:
            await connect(f"ws://{address}/v1/responses")
        assert caught.value.response.status_code == 401
        async with connect(
            f"ws://{address}/v1/responses", additional_headers={"Authorization": "Bearer secret"}
        ) as socket:
            await create(socket)
            assert (await until_end(socket))[-1]["type"] == "response.completed"


async def test_an_answer_ahead_is_released_and_goes_on_or_ends_with_its_socket(
    address: str, backend: FakeBackend
) -> None:
    gate = Gate()

    def script(request: GenerateRequest) -> list[Act]:
        if request.prefill_only:
            return [Started(4, 0), finished(output=0)]
        if request.is_ahead:
            return [Started(4, 4), Step((TextDelta("one"),), (1,), 1.0), gate]
        return [Started(5, 5), TextDelta(" two"), finished()]

    backend.script = script
    async with connect(f"ws://{address}/v1/responses") as socket:
        await create(socket, generate=False, edgeagent={"ahead": True})
        assert [event["type"] for event in await until_end(socket)][-1] == "response.completed"
        await gate.reached.wait()
        await create(socket)
        response = (await until_end(socket))[-1]["response"]
        assert response["output"][0]["content"][0]["text"] == "one two"
        assert response["edgeagent"]["ahead_tokens"] == 1
        request = backend.requests[-1]
        assert request.so_far is not None
        assert (request.so_far.tokens, request.route) == ((1,), RouteMode.LOCAL_ONLY)
        await backend.until(lambda backend: backend.closed == [backend.requests[1].id])
        await create(socket, generate=False, edgeagent={"ahead": True})
        await until_end(socket)
        await backend.until(lambda backend: backend.requests[-1].is_ahead and not backend.requests[-1].prefill_only)
    await backend.until(lambda backend: backend.closed[1:] == [backend.requests[-1].id])
