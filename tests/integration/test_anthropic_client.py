"""Anthropic's own client against a real daemon with the bundled model; only the address differs.

The tests import the client, not the module: it takes seconds, and each process of a parallel run imports every module.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from pydantic import BaseModel

from tests.integration.conftest import Daemon
from tests.present import present

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic

HI: Any = [{"role": "user", "content": "Good morning!"}]
ASK_TIMER = "Set a timer for 5 minutes."
SCHEMA = {
    "type": "object",
    "properties": {"minutes": {"type": "integer"}},
    "required": ["minutes"],
    "additionalProperties": False,
}
SET_TIMER: Any = {"name": "set_timer", "description": "Set a timer.", "input_schema": SCHEMA}
# An answer that does not end for a while.
NUMBERS = {"type": "array", "items": {"type": "integer"}, "minItems": 900, "maxItems": 900}
ENDLESS: Any = {"type": "object", "properties": {"numbers": NUMBERS}, "required": ["numbers"]}
# Anthropic's newest models have no temperature, so the client has no parameter for it.
GREEDY: Any = {"model": "builtin", "max_tokens": 64, "extra_body": {"temperature": 0}}


class Timer(BaseModel):
    """How long a timer runs."""

    minutes: int


async def set_timer(minutes: int) -> str:
    """Set a timer.

    Args:
        minutes: how long it runs
    """
    return f"The timer is set for {minutes} minutes."


@pytest.fixture
async def client(daemon: Daemon) -> AsyncIterator[AsyncAnthropic]:
    from anthropic import AsyncAnthropic

    async with AsyncAnthropic(
        base_url=daemon.url, api_key="unused", max_retries=0, _strict_response_validation=True
    ) as made:
        yield made


async def test_plain_and_streamed_agree(client: AsyncAnthropic) -> None:
    plain = await client.messages.create(**GREEDY, messages=HI, system="You are a helpful assistant.")
    [block] = plain.content
    assert block.type == "text" and block.text
    assert (plain.stop_reason, plain.stop_sequence, plain.model) == ("end_turn", None, "builtin")
    assert present(plain._request_id).startswith("req_")
    async with client.messages.stream(**GREEDY, messages=HI, system="You are a helpful assistant.") as stream:
        text = "".join([piece async for piece in stream.text_stream])
        final = await stream.get_final_message()
    assert text == block.text
    assert [each.to_dict() for each in final.content] == [each.to_dict() for each in plain.content]
    # The second time, the prompt is found in the cache.
    assert final.usage.output_tokens == plain.usage.output_tokens > 0
    assert present(final.usage.cache_read_input_tokens) > 0
    assert _num_prompt_tokens(final.usage) == _num_prompt_tokens(plain.usage)


def _num_prompt_tokens(usage: Any) -> int:
    return int(usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens)


async def test_a_tool_is_called_and_its_result_read(client: AsyncAnthropic) -> None:
    asked: list[Any] = [{"role": "user", "content": ASK_TIMER}]
    answer = await client.messages.create(
        **GREEDY, messages=asked, tools=[SET_TIMER], tool_choice={"type": "any", "disable_parallel_tool_use": True}
    )
    assert answer.stop_reason == "tool_use"
    call = answer.content[-1]
    assert call.type == "tool_use" and (call.name, call.input) == ("set_timer", {"minutes": 5})
    result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "It is set."}]}
    turn: Any = [answer.to_param(), {"role": "user", "content": [result]}]
    final = await client.messages.create(**GREEDY, messages=[*asked, *turn], tools=[SET_TIMER])
    assert final.content[0].type == "text" and final.content[0].text


async def test_a_call_comes_as_pieces_of_json(client: AsyncAnthropic) -> None:
    asked: Any = [{"role": "user", "content": ASK_TIMER}]
    pieces = []
    async with client.messages.stream(
        **GREEDY, messages=asked, tools=[SET_TIMER], tool_choice={"type": "tool", "name": "set_timer"}
    ) as stream:
        async for event in stream:
            if event.type == "input_json":
                pieces.append(event.partial_json)
        final = await stream.get_final_message()
    call = final.content[-1]
    assert call.type == "tool_use" and call.input == json.loads("".join(pieces)) == {"minutes": 5}


async def test_no_tool_is_called_if_none_may_be(client: AsyncAnthropic) -> None:
    asked: Any = [{"role": "user", "content": ASK_TIMER}]
    answer = await client.messages.create(**GREEDY, messages=asked, tools=[SET_TIMER], tool_choice={"type": "none"})
    assert all(block.type == "text" for block in answer.content)


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_the_tool_runner(client: AsyncAnthropic, is_streamed: bool) -> None:
    from anthropic import beta_async_tool

    asked: Any = [{"role": "user", "content": ASK_TIMER}]
    tools = [beta_async_tool(set_timer)]
    kinds = []
    if is_streamed:
        async for stream in client.beta.messages.tool_runner(
            **GREEDY, messages=asked, tools=tools, max_iterations=3, stream=True
        ):
            kinds += [block.type for block in (await stream.get_final_message()).content]
    else:
        async for message in client.beta.messages.tool_runner(**GREEDY, messages=asked, tools=tools, max_iterations=3):
            kinds += [block.type for block in message.content]
    assert (kinds[0], kinds[-1]) == ("tool_use", "text")


async def test_an_answer_in_a_class(client: AsyncAnthropic) -> None:
    asked: Any = [{"role": "user", "content": ASK_TIMER}]
    answer = await client.messages.parse(**GREEDY, messages=asked, output_format=Timer)
    assert isinstance(answer.parsed_output, Timer)


async def test_a_stop_sequence_and_a_limit(client: AsyncAnthropic) -> None:
    full = (await client.messages.create(**GREEDY, messages=HI)).content[0]
    assert full.type == "text"
    stop = full.text.split()[2]
    cut = await client.messages.create(**GREEDY, messages=HI, stop_sequences=["no such text", stop])
    assert (cut.stop_reason, cut.stop_sequence) == ("stop_sequence", stop)
    assert cut.content[0].type == "text" and cut.content[0].text == full.text[: full.text.index(stop)]
    short = await client.messages.create(**GREEDY | {"max_tokens": 2}, messages=HI)
    assert (short.stop_reason, short.usage.output_tokens) == ("max_tokens", 2)


async def test_an_answer_that_the_client_began_is_continued(client: AsyncAnthropic) -> None:
    full = (await client.messages.create(**GREEDY, messages=HI)).content[0]
    assert full.type == "text"
    begun = full.text[: full.text.index(" ", 5)]
    rest = await client.messages.create(**GREEDY, messages=[*HI, {"role": "assistant", "content": begun}])
    assert rest.content[0].type == "text" and begun + rest.content[0].text == full.text


async def test_tokens_are_counted_as_they_are_used(client: AsyncAnthropic) -> None:
    fields: Any = {"messages": HI, "system": "You are a helpful assistant.", "tools": [SET_TIMER]}
    counted = await client.messages.count_tokens(model="builtin", **fields)
    used = await client.messages.create(**GREEDY | {"max_tokens": 1}, **fields)
    assert counted.input_tokens == _num_prompt_tokens(used.usage)
    beta = await client.beta.messages.count_tokens(model="builtin", betas=["token-counting-2024-11-01"], **fields)
    assert beta.input_tokens == counted.input_tokens


async def test_what_is_written_to_the_cache_is_said_if_the_client_marks_it(client: AsyncAnthropic) -> None:
    text = "The kiosk by the gate sells tickets, maps and umbrellas. " * 6
    system: Any = [{"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}]
    first, second = [
        (await client.messages.create(**GREEDY | {"max_tokens": 1}, messages=HI, system=system)).usage for _ in range(2)
    ]
    assert present(first.cache_creation_input_tokens) > 50 and first.input_tokens == 0
    assert present(second.cache_read_input_tokens) > 50
    assert _num_prompt_tokens(first) == _num_prompt_tokens(second)


async def test_closing_a_stream_cancels_its_answer(daemon: Daemon, client: AsyncAnthropic) -> None:
    fields = GREEDY | {"max_tokens": 4000, "output_config": {"format": {"type": "json_schema", "schema": ENDLESS}}}
    async with client.messages.stream(**fields, messages=HI) as stream:
        async for event in stream:
            if event.type == "text":
                break
    async with httpx.AsyncClient(base_url=daemon.url) as plain:
        while (await plain.get("/edgeagent/status")).json()["models"][0]["worker"]["num_running"]:
            pass


def test_the_synchronous_client(daemon: Daemon) -> None:
    from anthropic import Anthropic

    with Anthropic(base_url=daemon.url, auth_token="unused", max_retries=0) as client:
        kinds = [event.type for event in client.messages.create(**GREEDY, messages=HI, stream=True)]
        assert (kinds[0], kinds[-2:]) == ("message_start", ["message_delta", "message_stop"])
        assert [model.id for model in client.models.list()] == ["builtin"]
        assert client.models.retrieve("builtin").id == "builtin"


async def test_what_claude_code_sends(client: AsyncAnthropic) -> None:
    """Many tools, system blocks of which the first differs, inline instructions, and fields of the beta API."""
    tools = [SET_TIMER, *[SET_TIMER | {"name": f"mcp__house__tool_{number}"} for number in range(4)]]
    mark = {"type": "ephemeral", "ttl": "1h"}

    def fields(nonce: str) -> Any:
        return {
            "system": [
                {"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.1.37; cch={nonce};"},
                {"type": "text", "text": "You are a helpful assistant.", "cache_control": mark},
            ],
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "<system-reminder>Be brief.</system-reminder>"}]},
                {"role": "system", "content": "The light is on."},
                {"role": "user", "content": [{"type": "text", "text": "Hello!", "cache_control": mark}]},
            ],
            "tools": tools,
            "thinking": {"type": "adaptive"},
        }

    asked = GREEDY | {
        "metadata": {"user_id": "user_1"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "medium"},
        "betas": ["claude-code-20250219", "interleaved-thinking-2025-05-14"],
    }
    raw = await client.beta.messages.with_raw_response.create(**asked, **fields("fa690"))
    assert "context_management is ignored" in raw.headers["x-edgeagent-warning"]
    again = await client.beta.messages.create(**asked, **fields("0aaa9"))
    num_counted = (await client.beta.messages.count_tokens(model="builtin", **fields("1"))).input_tokens
    assert present(again.usage.cache_read_input_tokens) >= num_counted - 8
