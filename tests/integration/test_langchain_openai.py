"""LangChain's OpenAI client against a real daemon: chat and responses, whole, streamed, with tools."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from pydantic import BaseModel, SecretStr

from tests.integration.conftest import Daemon

if TYPE_CHECKING:
    from langchain_openai import ChatOpenAI

Make = Callable[..., "ChatOpenAI"]
BOTH = pytest.mark.parametrize("is_responses", [False, True], ids=["chat", "responses"])


def set_timer(minutes: int) -> str:
    """Set a timer."""
    return f"timer set for {minutes} minutes"


class Timer(BaseModel):
    """How long a timer runs."""

    minutes: int


@pytest.fixture
async def make(daemon: Daemon) -> AsyncIterator[Make]:
    # Here, since it takes a second, and each process of pytest imports each test file.
    from langchain_openai import ChatOpenAI

    async with httpx2.AsyncClient() as quick:
        with httpx2.Client() as slow:

            def model(is_responses: bool, **fields: Any) -> ChatOpenAI:
                return ChatOpenAI(
                    model="builtin",
                    base_url=f"{daemon.url}/v1",
                    api_key=SecretStr("unused"),
                    temperature=0,
                    max_retries=0,
                    use_responses_api=is_responses,
                    http_async_client=quick,
                    http_client=slow,
                    **fields,
                )

            yield model


@BOTH
async def test_whole_and_streamed_agree(make: Make, is_responses: bool) -> None:
    model = make(is_responses)
    messages = [("system", "Be brief."), ("human", "Good morning!")]
    whole = await model.ainvoke(messages)
    assert whole.text
    assert whole.usage_metadata is not None
    assert whole.usage_metadata["output_tokens"] > 0
    streamed: Any = None
    async for chunk in model.astream(messages):
        streamed = chunk if streamed is None else streamed + chunk
    assert streamed.text == whole.text


@BOTH
async def test_a_tool_is_called_and_its_result_taken(make: Make, is_responses: bool) -> None:
    model = make(is_responses).bind_tools([set_timer])
    question = ("human", "Set a timer for 5 minutes.")
    asked = await model.ainvoke([question])
    (call,) = asked.tool_calls
    assert (call["name"], call["args"]) == ("set_timer", {"minutes": 5})
    result = {"role": "tool", "content": set_timer(**call["args"]), "tool_call_id": call["id"]}
    answer = await model.ainvoke([question, asked, result])
    assert answer.text


@BOTH
async def test_a_tool_call_is_streamed(make: Make, is_responses: bool) -> None:
    model = make(is_responses).bind_tools([set_timer], tool_choice="set_timer")
    streamed: Any = None
    async for chunk in model.astream("Set a timer for 12 minutes."):
        streamed = chunk if streamed is None else streamed + chunk
    (call,) = streamed.tool_calls
    assert call["name"] == "set_timer"
    assert isinstance(call["args"]["minutes"], int)


@BOTH
async def test_structured_output(make: Make, is_responses: bool) -> None:
    model = make(is_responses).with_structured_output(Timer, method="json_schema")
    assert isinstance(await model.ainvoke("Set a timer for 5 minutes."), Timer)


async def test_a_conversation_that_the_daemon_keeps(make: Make) -> None:
    model = make(True, use_previous_response_id=True)
    hello = ("human", "Hello, my name is Robin.")
    first = await model.ainvoke([hello])
    second = await model.ainvoke([hello, first, ("human", "What is my name?")])
    assert second.usage_metadata is not None
    assert first.usage_metadata is not None
    assert second.usage_metadata["input_tokens"] > first.usage_metadata["total_tokens"]
    assert second.response_metadata["id"] != first.response_metadata["id"]
