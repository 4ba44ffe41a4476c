"""Calls in the form that chat completions had before tools, through the real openai client."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from openai import AsyncOpenAI, BadRequestError

from edgeagent.types import (
    ChatPrompt,
    FinishReason,
    Message,
    Started,
    TextDelta,
    Tool,
    ToolCall,
    ToolCallDelta,
    ToolCallStarted,
    ToolChoice,
)
from tests.backends.fake import FakeBackend, finished
from tests.daemon.running import Running

HI: list[Any] = [{"role": "user", "content": "hi"}]
WEATHER: Any = {"name": "weather", "description": "now", "parameters": {"type": "object", "properties": {}}}
CALL = (Started(8, 4), ToolCallStarted(0, "call_x", "weather"), ToolCallDelta(0, '{"a"'), ToolCallDelta(0, ":1}"))
CALLING = (*CALL, finished(FinishReason.TOOL_CALLS))

pytestmark = pytest.mark.asyncio(loop_scope="module")


def prompt_of(backend: FakeBackend) -> ChatPrompt:
    [request] = backend.requests
    assert isinstance(request.prompt, ChatPrompt)
    return request.prompt


async def test_a_call(client: AsyncOpenAI, backend: FakeBackend) -> None:
    backend.script = lambda _: CALLING
    [choice] = (await client.chat.completions.create(model="fake", messages=HI, functions=[WEATHER])).choices
    assert choice.finish_reason == "function_call"
    assert (choice.message.content, choice.message.tool_calls) == (None, None)
    call = choice.message.function_call
    assert call is not None and (call.name, call.arguments) == ("weather", '{"a":1}')
    prompt = prompt_of(backend)
    assert prompt.tools == (Tool("weather", "now", '{"type":"object","properties":{}}'),)
    # This form can express only one call in a message.
    assert (prompt.tool_choice, prompt.parallel_tool_calls) == (ToolChoice(), False)


async def test_a_streamed_call(client: AsyncOpenAI, backend: FakeBackend) -> None:
    backend.script = lambda _: CALLING
    stream = await client.chat.completions.create(model="fake", messages=HI, functions=[WEATHER], stream=True)
    choices = [chunk.choices[0] async for chunk in stream]
    deltas = [choice.delta.model_dump(exclude_unset=True) for choice in choices]
    assert deltas == [
        {"role": "assistant", "content": None},
        {"function_call": {"name": "weather", "arguments": ""}},
        {"function_call": {"arguments": '{"a"'}},
        {"function_call": {"arguments": ":1}"}},
        {},
    ]
    assert choices[-1].finish_reason == "function_call"


async def test_an_answer_without_a_call(client: AsyncOpenAI, backend: FakeBackend) -> None:
    backend.script = lambda _: (Started(8, 4), TextDelta("Sunny."), finished())
    [choice] = (await client.chat.completions.create(model="fake", messages=HI, functions=[WEATHER])).choices
    assert (choice.finish_reason, choice.message.content) == ("stop", "Sunny.")
    assert choice.message.function_call is None


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("auto", ToolChoice()),
        ("none", ToolChoice("none")),
        ({"name": "weather"}, ToolChoice("required", ("weather",))),
    ],
)
async def test_the_choice(client: AsyncOpenAI, backend: FakeBackend, choice: Any, expected: ToolChoice) -> None:
    await client.chat.completions.create(model="fake", messages=HI, functions=[WEATHER], function_call=choice)
    assert prompt_of(backend).tool_choice == expected


async def test_results_answer_the_latest_call_of_their_name(client: AsyncOpenAI, backend: FakeBackend) -> None:
    call = {"name": "weather", "arguments": "{}"}
    round_trip = [
        {"role": "assistant", "content": None, "function_call": call},
        {"role": "function", "name": "weather", "content": "sunny"},
    ]
    # Later clients send this for a message without a call.
    answer = {"role": "assistant", "content": "Sunny.", "function_call": None}
    messages: list[Any] = [*HI, *round_trip, answer, *HI, *round_trip]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        await client.chat.completions.create(model="fake", messages=messages)
    told = prompt_of(backend).messages
    for index in (1, 5):
        call_id = f"call_{index}"
        assert told[index] == Message("assistant", tool_calls=(ToolCall(call_id, "weather", "{}"),))
        assert told[index + 1] == Message("tool", "sunny", tool_call_id=call_id, name="weather")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"functions": [{"name": "no name"}]}, "functions[0].name"),
        ({"functions": [{"name": "f", "parameters": 5}]}, "functions[0].parameters"),
        ({"functions": [{"name": "f", "strict": 0}]}, "functions[0].strict"),
        ({"functions": [{"name": "f"}, {"name": "f"}]}, "functions[1]"),
        ({"functions": [WEATHER], "tools": [{"type": "function", "function": WEATHER}]}, "tools"),
        ({"functions": [WEATHER], "tool_choice": "auto"}, "tool_choice"),
        ({"function_call": {"name": "nope"}, "functions": [WEATHER]}, "function_call"),
        ({"function_call": "required", "functions": [WEATHER]}, "function_call"),
        ({"messages": [*HI, {"role": "function", "name": "f", "content": ""}]}, "messages[1].name"),
        ({"messages": [{"role": "assistant", "function_call": {"name": "f"}}]}, "messages[0].function_call.arguments"),
    ],
    ids=str,
)
async def test_what_is_wrong_is_named(daemon: Running, backend: FakeBackend, fields: Any, param: str) -> None:
    reply = await daemon.http.post(f"{daemon.url}/v1/chat/completions", json={"messages": HI} | fields)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)
    assert backend.requests == []


async def test_the_client_raises_what_is_wrong(client: AsyncOpenAI) -> None:
    with pytest.raises(BadRequestError, match="send either functions and function_call, or tools"):
        await client.chat.completions.create(
            model="fake", messages=HI, functions=[WEATHER], tools=[{"type": "function", "function": WEATHER}]
        )
