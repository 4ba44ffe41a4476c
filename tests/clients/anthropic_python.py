"""anthropic-python: messages, whole and streamed, tools, a schema, a count, errors."""

from __future__ import annotations

from typing import Any

from anthropic import AsyncAnthropic, BadRequestError, beta_async_tool
from cases import ASK_TIMER, KEY, MODEL, TIMER, URL, case, main
from pydantic import BaseModel

client = AsyncAnthropic(base_url=URL, api_key=KEY, max_retries=0, _strict_response_validation=True)
FIELDS: Any = {"model": MODEL, "max_tokens": 96}
HELLO: Any = [{"role": "user", "content": "Hello!"}]
ASKED: Any = [{"role": "user", "content": ASK_TIMER}]
TOOL: Any = {"name": "set_timer", "description": "Set a timer.", "input_schema": TIMER}
minutes_set: list[int] = []


class Timer(BaseModel):
    """What is asked for."""

    minutes: int


@beta_async_tool
async def set_timer(minutes: int) -> str:
    """Set a timer.

    Args:
        minutes: how long it runs
    """
    minutes_set.append(minutes)
    return "done"


@case("message, whole")
async def _() -> None:
    message = await client.messages.create(**FIELDS, messages=HELLO)
    assert message.content[0].type == "text" and message.content[0].text
    assert message.usage.output_tokens > 0


@case("message, streamed")
async def _() -> None:
    async with client.messages.stream(**FIELDS, messages=HELLO) as stream:
        text = "".join([piece async for piece in stream.text_stream])
        final = await stream.get_final_message()
    assert final.content[0].type == "text" and text == final.content[0].text != ""


@case("tool call, streamed, and its answer")
async def _() -> None:
    async with client.messages.stream(**FIELDS, messages=ASKED, tools=[TOOL], tool_choice={"type": "any"}) as stream:
        answer = await stream.get_final_message()
    call = answer.content[-1]
    assert call.type == "tool_use" and isinstance(call.input["minutes"], int)
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "done"}]}
    more = [*ASKED, answer.to_param(), result]
    assert (await client.messages.create(**FIELDS, messages=more, tools=[TOOL])).content


@case("tool call that the client runs")
async def _() -> None:
    runner = client.beta.messages.tool_runner(**FIELDS, messages=ASKED, tools=[set_timer], max_iterations=3)
    message = await runner.until_done()
    assert message.content and minutes_set


@case("parsed into a class")
async def _() -> None:
    message = await client.messages.parse(**FIELDS, messages=ASKED, output_format=Timer)
    assert isinstance(message.parsed_output, Timer)


@case("count of tokens")
async def _() -> None:
    alone = await client.messages.count_tokens(model=MODEL, messages=HELLO)
    with_tool = await client.messages.count_tokens(model=MODEL, messages=HELLO, tools=[TOOL])
    assert 0 < alone.input_tokens < with_tool.input_tokens


@case("a wrong field is named")
async def _() -> None:
    try:
        await client.messages.create(**FIELDS, messages=HELLO, extra_body={"temperature": 9})
    except BadRequestError as error:
        assert "temperature" in str(error) and error.request_id
    else:
        raise AssertionError("not refused")


if __name__ == "__main__":
    main()
