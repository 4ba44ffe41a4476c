"""Off-the-shelf clients against a real daemon with the bundled model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from openai import AsyncOpenAI
from openai.types.responses.responses_server_event import ResponsesServerEvent

from tests.api.event_grammar import EventGrammar, check_stream
from tests.integration.conftest import Daemon
from tests.present import present

TIMER = {
    "type": "object",
    "properties": {"minutes": {"type": "integer"}},
    "required": ["minutes"],
    "additionalProperties": False,
}
# An answer that does not end for a while.
NUMBERS = {"type": "array", "items": {"type": "integer"}, "minItems": 900, "maxItems": 900}
ENDLESS: Any = {
    "format": {
        "type": "json_schema",
        "name": "numbers",
        "schema": {"type": "object", "properties": {"numbers": NUMBERS}, "required": ["numbers"]},
        "strict": True,
    }
}
TERMINAL = {"response.completed", "response.incomplete", "response.failed"}


@pytest.fixture
async def client(daemon: Daemon) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(
        base_url=f"{daemon.url}/v1", api_key="unused", max_retries=0, _strict_response_validation=True
    ) as made:
        yield made


async def respond(connection: Any, **fields: Any) -> Any:
    """Create a response on an open connection; return its final object."""
    await connection.response.create(model="builtin", **fields)
    grammar = EventGrammar()
    async for event in connection:
        grammar.feed(event.to_dict())
        if event.type in TERMINAL:
            return event.response
    raise AssertionError("the connection ended without a terminal event")


class TestResponsesOverWebSocket:
    async def test_events_come_in_order_and_agree_with_the_end(self, client: AsyncOpenAI) -> None:
        async with client.responses.connect() as connection:
            await connection.response.create(model="builtin", input="Hello!", temperature=0)
            events = []
            async for event in connection:
                events.append(event)
                if event.type in TERMINAL:
                    break
        check_stream([event.to_dict() for event in events])
        kinds = [event.type for event in events]
        assert kinds[:4] == [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added",
        ]
        assert kinds[-4:] == [
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.completed",
        ]
        assert [event.sequence_number for event in events] == list(range(len(events)))
        text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
        assert events[-1].type == "response.completed"
        final = events[-1].response
        assert text == final.output_text != ""
        usage, extra = present(final.usage), present(final.model_extra)
        assert usage.output_tokens > 0
        assert extra["timings"]["predicted_n"] == usage.output_tokens
        assert extra["edgeagent"]["route"] == "local"
        assert {"queue", "load", "render", "cache", "prefill", "first_token", "decode", "delivery"} <= set(
            extra["edgeagent"]["stages_ms"]
        )

    async def test_a_follow_up_reuses_what_was_computed(self, client: AsyncOpenAI) -> None:
        async with client.responses.connect() as connection:
            first = await respond(connection, input="Hello, my name is Robin.", temperature=0)
            second = await respond(connection, input="What is my name?", previous_response_id=first.id, temperature=0)
        assert second.previous_response_id == first.id
        assert second.usage.input_tokens > first.usage.total_tokens
        # All of the first turn except the answer's last token, which was never computed, and the end of the turn.
        assert second.usage.input_tokens_details.cached_tokens >= first.usage.total_tokens - 1

    async def test_prefill_only(self, client: AsyncOpenAI) -> None:
        async with client.responses.connect() as connection:
            text = "The kiosk by the door sells maps and tickets. " * 8
            warm = await respond(connection, instructions=text, input=[], generate=False)
            answer = await respond(connection, instructions=text, input="Hello!", max_output_tokens=4)
        assert (warm.status, warm.output, warm.usage.output_tokens) == ("completed", [], 0)
        assert answer.usage.input_tokens_details.cached_tokens > 50

    async def test_cancel_in_the_middle(self, client: AsyncOpenAI) -> None:
        async with client.responses.connect() as connection:
            await connection.response.create(model="builtin", input="Hello!", text=ENDLESS)
            events: list[ResponsesServerEvent] = []
            async for event in connection:
                if event.type == "response.output_text.delta" and not any(event.type == each.type for each in events):
                    created = events[0]
                    assert created.type == "response.created"
                    response_id = created.response.id
                    await connection.send_raw(json.dumps({"type": "response.cancel", "response_id": response_id}))
                events.append(event)
                if event.type in TERMINAL:
                    break
            check_stream([each.to_dict() for each in events])
            assert event.type == "response.incomplete"
            assert event.response.status == "cancelled"
            item = event.response.output[0]
            assert item.type == "message" and item.status == "incomplete"
            again = await respond(connection, input="Hello!")
        assert again.status == "completed"

    async def test_two_connections_at_once(self, client: AsyncOpenAI) -> None:
        async def one(name: str) -> str:
            async with client.responses.connect() as connection:
                return str((await respond(connection, input=f"Hello, I am {name}.", temperature=0)).output_text)

        alone = [await one(name) for name in ("Anna", "Bert", "Cleo")]
        together = await asyncio.gather(*(one(name) for name in ("Anna", "Bert", "Cleo")))
        assert together == alone
        assert all(alone)

    async def test_too_long_a_prompt_is_refused_with_both_counts(self, client: AsyncOpenAI) -> None:
        async with client.responses.connect() as connection:
            await connection.response.create(model="builtin", input="timer " * 4000)
            events = []
            async for event in connection:
                events.append(event)
                if event.type in TERMINAL | {"error"}:
                    break
        last: Any = events[-1]
        # A slow machine says first that the response is queued, and then that it failed.
        error = last.error if last.type == "error" else last.response.error
        assert error.code == "context_length_exceeded"
        assert "2048" in error.message
        assert error.message.count("tokens") >= 1


class TestAgents:
    # The package takes more than a second and 45 MB to import, and each process of pytest imports each test file.
    async def test_an_agent_calls_a_tool_over_the_websocket(self, client: AsyncOpenAI) -> None:
        from agents import Agent, Runner, function_tool, set_tracing_disabled
        from agents.models.openai_responses import OpenAIResponsesWSModel

        set_tracing_disabled(True)
        calls: list[int] = []

        @function_tool
        def set_timer(minutes: int) -> str:
            """Set a timer."""
            calls.append(minutes)
            return f"timer set for {minutes} minutes"

        model = OpenAIResponsesWSModel("builtin", client)
        agent = Agent(name="kiosk", instructions="You are a helpful assistant.", tools=[set_timer], model=model)
        result = await Runner.run(agent, "Set a timer for 5 minutes.", max_turns=4)
        await model.close()
        assert calls == [5]
        assert result.final_output

    async def test_an_agent_over_http(self, client: AsyncOpenAI) -> None:
        from agents import Agent, OpenAIResponsesModel, Runner, set_tracing_disabled

        set_tracing_disabled(True)
        agent = Agent(name="kiosk", instructions="Be brief.", model=OpenAIResponsesModel("builtin", client))
        result = await Runner.run(agent, "Hello!")
        assert result.final_output


class TestChatCompletions:
    async def test_plain_and_streamed_agree(self, client: AsyncOpenAI) -> None:
        messages: Any = [{"role": "user", "content": "Good morning!"}]
        plain = await client.chat.completions.create(model="builtin", messages=messages, temperature=0)
        stream = await client.chat.completions.create(
            model="builtin", messages=messages, temperature=0, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert text == plain.choices[0].message.content != ""
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.completion_tokens == present(plain.usage).completion_tokens

    async def test_a_forced_tool_call_obeys_its_schema(self, client: AsyncOpenAI) -> None:
        answer = await client.chat.completions.create(
            model="builtin",
            messages=[{"role": "user", "content": "Set a timer for 12 minutes"}],
            tools=[{"type": "function", "function": {"name": "set_timer", "parameters": TIMER}}],
            tool_choice={"type": "function", "function": {"name": "set_timer"}},
            temperature=0,
        )
        (choice,) = answer.choices
        assert choice.finish_reason == "tool_calls"
        (call,) = present(choice.message.tool_calls)
        assert call.type == "function" and call.function.name == "set_timer"
        arguments = json.loads(call.function.arguments)
        assert set(arguments) == {"minutes"}
        assert isinstance(arguments["minutes"], int)

    async def test_a_json_schema_is_obeyed(self, client: AsyncOpenAI) -> None:
        schema = {
            "type": "object",
            "properties": {"room": {"enum": ["kitchen", "hall"]}, "on": {"type": "boolean"}},
            "required": ["room", "on"],
            "additionalProperties": False,
        }
        answer = await client.chat.completions.create(
            model="builtin",
            messages=[{"role": "user", "content": "Is the light in the kitchen on?"}],
            response_format={"type": "json_schema", "json_schema": {"name": "light", "schema": schema, "strict": True}},
            temperature=0.8,
            seed=1,
        )
        content = json.loads(present(answer.choices[0].message.content))
        assert content["room"] in ("kitchen", "hall")
        assert isinstance(content["on"], bool)

    async def test_a_seed_repeats_and_stop_strings_do_not_leak(self, client: AsyncOpenAI) -> None:
        fields: Any = {"model": "builtin", "messages": [{"role": "user", "content": "Tell me what you can do."}]}
        one, two = [
            (await client.chat.completions.create(**fields, temperature=1.5, seed=7)).choices[0].message.content
            for _ in range(2)
        ]
        assert one == two
        full = (await client.chat.completions.create(**fields, temperature=0)).choices[0].message.content
        stop = full.split()[2]
        cut = await client.chat.completions.create(**fields, temperature=0, stop=[stop])
        assert cut.choices[0].message.content == full[: full.index(stop)]
        assert cut.choices[0].finish_reason == "stop"

    async def test_logprobs(self, client: AsyncOpenAI) -> None:
        answer = await client.chat.completions.create(
            model="builtin",
            messages=[{"role": "user", "content": "Hello!"}],
            logprobs=True,
            top_logprobs=3,
            temperature=0,
            max_tokens=5,
        )
        entries = present(present(answer.choices[0].logprobs).content)
        assert 1 <= len(entries) <= 5
        for entry in entries:
            assert entry.logprob <= 0
            assert [other.logprob for other in entry.top_logprobs] == sorted(
                (other.logprob for other in entry.top_logprobs), reverse=True
            )
            assert entry.token == entry.top_logprobs[0].token
            assert len(entry.top_logprobs) == 3
