"""OpenAI's Realtime client against a real daemon with the bundled model; only the address differs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from openai import AsyncOpenAI, NotFoundError
from openai.resources.realtime.realtime import AsyncRealtimeConnection
from openai.types.realtime import RealtimeErrorEvent, RealtimeResponse
from websockets.asyncio.client import connect

from tests.api.realtime.realtime_client import check_event, kinds, message
from tests.integration.conftest import Daemon, wait_until
from tests.patience import patient
from tests.present import present

SYSTEM = "You are a helpful assistant."
SCHEMA: Any = {"type": "object", "properties": {"minutes": {"type": "integer"}}, "required": ["minutes"]}
SET_TIMER: Any = {"type": "function", "name": "set_timer", "description": "Set a timer.", "parameters": SCHEMA}
# An answer that does not end for a while.
NUMBERS = {"type": "array", "items": {"type": "integer"}, "minItems": 900, "maxItems": 900}
COUNT = {"type": "object", "properties": {"numbers": NUMBERS}, "required": ["numbers"]}
ENDLESS: Any = {
    "tools": [{"type": "function", "name": "count", "description": "Count.", "parameters": COUNT}],
    "tool_choice": "required",
}
# The client has no parameter for a temperature.
GREEDY: Any = {"type": "realtime", "output_modalities": ["text"], "instructions": SYSTEM, "temperature": 0}


class Talk:
    """A connection whose events are checked and kept."""

    def __init__(self, connection: AsyncRealtimeConnection) -> None:
        self.connection = connection
        self.events: list[Any] = []

    async def next(self) -> Any:
        async with asyncio.timeout(patient(30)):
            event = await self.connection.recv()
        check_event(event.to_dict())
        self.events.append(event)
        return event

    async def until(self, kind: str) -> Any:
        """Return the next event of this type; an error that comes before it fails the test."""
        while (event := await self.next()).type != kind:
            assert event.type != "error", event
        return event

    async def say(self, text: str) -> str:
        """Add a user's message, and return its id."""
        await self.connection.conversation.item.create(item=message(text))
        return str((await self.until("conversation.item.done")).item.id)

    async def done(self) -> RealtimeResponse:
        response = (await self.until("response.done")).response
        assert isinstance(response, RealtimeResponse)
        return response

    async def error(self) -> Any:
        event = await self.next()
        assert isinstance(event, RealtimeErrorEvent), event
        return event.error


@asynccontextmanager
async def talking(daemon: Daemon, model: str = "builtin") -> AsyncIterator[Talk]:
    """Connect, and set the settings of a greedy session."""
    async with (
        AsyncOpenAI(base_url=f"{daemon.url}/v1", api_key="unused", max_retries=0) as client,
        client.realtime.connect(model=model) as connection,
    ):
        talk = Talk(connection)
        created = await talk.next()
        assert created.type == "session.created" and created.session.model == model
        await connection.session.update(session=GREEDY)
        updated = await talk.next()
        assert updated.type == "session.updated" and updated.session.instructions == SYSTEM
        yield talk


@pytest.fixture
async def talk(daemon: Daemon) -> AsyncIterator[Talk]:
    async with talking(daemon) as made:
        yield made


def text_of(response: RealtimeResponse) -> str:
    [item] = present(response.output)
    assert item.type == "message" and item.role == "assistant"
    return "".join(part.text or "" for part in item.content)


async def test_text_comes_in_pieces_and_a_turn_knows_the_one_before(talk: Talk, daemon: Daemon) -> None:
    await talk.say("Good morning!")
    await talk.connection.response.create(response={"max_output_tokens": 40})
    response = await talk.done()
    text = text_of(response)
    assert text == "".join(event.delta for event in talk.events if event.type == "response.output_text.delta")
    assert response.status in ("completed", "incomplete") and response.conversation_id
    usage = present(response.usage)
    assert present(usage.output_tokens) > 0
    assert usage.total_tokens == present(usage.input_tokens) + present(usage.output_tokens)
    # The answer is that of the other APIs.
    async with AsyncOpenAI(base_url=f"{daemon.url}/v1", api_key="unused", max_retries=0) as client:
        plain = await client.responses.create(
            model="builtin", instructions=SYSTEM, input="Good morning!", temperature=0, max_output_tokens=40
        )
        assert plain.output_text == text
        with pytest.raises(NotFoundError):  # nothing of the session is kept
            await client.responses.retrieve(present(response.id))
    await talk.say("Set a timer for 5 minutes.")
    await talk.connection.response.create()
    usage = present((await talk.done()).usage)
    assert present(present(usage.input_token_details).cached_tokens) > 0


async def test_a_tool_is_called_and_its_result_read(talk: Talk) -> None:
    await talk.connection.session.update(session={"type": "realtime", "tools": [SET_TIMER], "tool_choice": "required"})
    await talk.until("session.updated")
    await talk.say("Set a timer for 5 minutes.")
    await talk.connection.response.create()
    ended = await talk.until("response.function_call_arguments.done")
    assert ended.name == "set_timer" and json.loads(ended.arguments) == {"minutes": 5}
    [call] = present((await talk.done()).output)
    assert call.type == "function_call" and call.call_id == ended.call_id
    pieces = [event.delta for event in talk.events if event.type == "response.function_call_arguments.delta"]
    assert "".join(pieces) == call.arguments == ended.arguments
    await talk.connection.conversation.item.create(
        item={"type": "function_call_output", "call_id": ended.call_id, "output": "It is set."}
    )
    await talk.until("conversation.item.done")
    await talk.connection.response.create(response={"tool_choice": "none"})
    assert text_of(await talk.done())


async def test_it_is_cancelled_and_the_session_goes_on(talk: Talk) -> None:
    await talk.say("Good morning!")
    await talk.connection.response.create(response=ENDLESS)
    await talk.until("response.function_call_arguments.delta")
    await talk.connection.response.create(event_id="second")
    while (event := await talk.next()).type != "error":
        assert event.type == "response.function_call_arguments.delta"
    assert (event.error.code, event.error.event_id) == ("conversation_already_has_active_response", "second")
    await talk.connection.response.cancel()
    response = await talk.done()
    assert response.status == "cancelled" and present(response.status_details).reason == "client_cancelled"
    [item] = present(response.output)
    assert item.type == "function_call" and item.status == "incomplete"
    await talk.connection.response.cancel(event_id="late")
    error = await talk.error()
    assert (error.code, error.event_id) == ("response_cancel_not_active", "late")
    await talk.connection.response.create(response={"max_output_tokens": 1, "metadata": {"topic": "x"}})
    response = await talk.done()
    assert (response.status, response.metadata) == ("incomplete", {"topic": "x"})
    assert present(response.status_details).reason == "max_output_tokens"


async def test_responses_outside_of_the_conversation_run_beside_it(talk: Talk) -> None:
    await talk.say("Good morning!")
    await talk.connection.response.create(response=ENDLESS)
    main = (await talk.until("response.created")).response.id
    asked: Any = {
        "conversation": "none",
        "instructions": "Answer with one word.",
        "input": [message("Good morning!")],
        "max_output_tokens": 5,
        "metadata": {"topic": "aside"},
    }
    await talk.connection.response.create(response=asked)
    aside = await talk.done()
    await talk.connection.response.cancel(response_id=main)
    assert (await talk.done()).id == main
    assert (aside.conversation_id, aside.metadata) == (None, {"topic": "aside"})
    [item] = present(aside.output)
    await talk.connection.conversation.item.retrieve(item_id=present(item.id), event_id="gone")
    error = await talk.error()
    assert (error.code, error.event_id) == ("item_retrieve_invalid_item_id", "gone")


async def test_items_are_inserted_and_deleted(talk: Talk) -> None:
    last = await talk.say("What did I say first?")
    for text in ("b", "a"):
        await talk.connection.conversation.item.create(item=message(text, id=text), previous_item_id="root")
        added = await talk.until("conversation.item.added")
        assert added.previous_item_id is None
        await talk.until("conversation.item.done")
    await talk.connection.conversation.item.delete(item_id="b")
    assert (await talk.until("conversation.item.deleted")).item_id == "b"
    await talk.connection.conversation.item.retrieve(item_id=last)
    assert (await talk.until("conversation.item.retrieved")).item.content[0].text == "What did I say first?"
    await talk.connection.response.create(response={"max_output_tokens": 2})
    num_tokens = present((await talk.done()).usage).input_tokens
    asked: Any = {"max_output_tokens": 2, "input": [message("What did I say first?")]}
    await talk.connection.response.create(response=asked)
    assert present(present((await talk.done()).usage).input_tokens) < present(num_tokens)


async def test_audio_and_unknown_models_are_refused(daemon: Daemon) -> None:
    async with talking(daemon, "no-such-model") as talk:
        await talk.connection.input_audio_buffer.append(audio="AAAA", event_id="audio")
        error = await talk.error()
        assert (error.code, error.event_id) == ("not_supported", "audio") and "text" in error.message
        await talk.say("Good morning!")
        await talk.connection.response.create(event_id="mine")
        error = await talk.error()
        assert (error.code, error.event_id) == ("model_not_found", "mine")


async def test_the_prompt_and_the_answer_are_computed_ahead(daemon: Daemon) -> None:
    """What a voice assistant says is added as an item while the app still decides; then the answer is there."""
    num_cached = num_ahead = 0
    for attempt in range(1, 40):
        async with talking(daemon) as talk:
            extra: Any = {
                "type": "realtime",
                "edgeagent": {"ahead": True},
                "max_output_tokens": 64,
                "instructions": f"{SYSTEM} {'Be kind to others. ' * 20} {attempt}",
            }
            await talk.connection.session.update(session=extra)
            await talk.until("session.updated")
            await talk.say("Good morning!")
            await asyncio.sleep(0.02 * attempt)  # until enough of it is there
            await talk.connection.response.create()
            response = await talk.done()
        usage = present(response.usage)
        num_cached = max(num_cached, present(present(usage.input_token_details).cached_tokens))
        num_ahead = present(response.to_dict()["edgeagent"]).get("ahead_tokens", 0)
        if num_cached > 64 and num_ahead:
            return
    raise AssertionError(f"{num_cached} tokens were cached and {num_ahead} came ahead")


async def test_plain_frames_without_the_client(daemon: Daemon) -> None:
    async with connect(f"ws://127.0.0.1:{daemon.port}/v1/realtime") as socket:
        await socket.send("{")
        await socket.send(json.dumps({"type": "conversation.item.create", "item": message("Good morning!")}))
        await socket.send(json.dumps({"type": "response.create", "response": {"max_output_tokens": 2}}))
        events = [json.loads(await socket.recv())]
        while events[-1]["type"] != "response.done":
            events.append(json.loads(await socket.recv()))
        assert kinds(events)[:5] == [
            "session.created",
            "error",
            "conversation.item.added",
            "conversation.item.done",
            "response.created",
        ]
        for event in events:
            check_event(event)


async def test_an_item_loads_the_model_before_an_answer_is_asked_for(own_daemon: Daemon) -> None:
    own_daemon.run("unload", "builtin")
    assert not json.loads(own_daemon.run("ps", "--json"))["models"]
    async with talking(own_daemon) as talk:
        await talk.say("Good morning!")
        await asyncio.to_thread(wait_until, lambda: "ready" in own_daemon.run("ps"))
        await talk.connection.response.create(response={"max_output_tokens": 4})
        assert (await talk.done()).status == "incomplete"
