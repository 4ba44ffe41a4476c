"""openai-python: chat, responses over HTTP and over the WebSocket, completions, embeddings, models."""

from __future__ import annotations

import json
from typing import Any

from cases import ASK_TIMER, BASE_URL, KEY, MODEL, TIMER, case, main
from openai import AsyncOpenAI
from pydantic import BaseModel

client = AsyncOpenAI(base_url=BASE_URL, api_key=KEY, max_retries=0, _strict_response_validation=True)
MESSAGES: Any = [{"role": "user", "content": "Hello!"}]
FUNCTION = {"name": "set_timer", "description": "Set a timer.", "parameters": TIMER, "strict": True}
TOOL: Any = {"type": "function", "function": FUNCTION}
FLAT_TOOL: Any = {
    "type": "function",
    "name": "set_timer",
    "description": "Set a timer.",
    "parameters": TIMER,
    "strict": True,
}


class Timer(BaseModel):
    """What is asked for."""

    minutes: int


@case("chat, plain")
async def _() -> None:
    answer = await client.chat.completions.create(model=MODEL, messages=MESSAGES)
    assert answer.choices[0].message.content
    assert answer.usage is not None and answer.usage.completion_tokens > 0


@case("chat, streamed")
async def _() -> None:
    text = ""
    async with client.chat.completions.stream(
        model=MODEL, messages=MESSAGES, stream_options={"include_usage": True}
    ) as stream:
        async for event in stream:
            if event.type == "content.delta":
                text += event.delta
        final = await stream.get_final_completion()
    assert text == final.choices[0].message.content != ""
    assert final.usage is not None


@case("chat, tool call and its answer")
async def _() -> None:
    asked: Any = [{"role": "user", "content": ASK_TIMER}]
    answer = await client.chat.completions.create(model=MODEL, messages=asked, tools=[TOOL], tool_choice="required")
    (call,) = answer.choices[0].message.tool_calls or []
    assert call.type == "function" and isinstance(json.loads(call.function.arguments)["minutes"], int)
    result = {"role": "tool", "tool_call_id": call.id, "content": "done"}
    more = [*asked, answer.choices[0].message.model_dump(exclude_none=True), result]
    assert (await client.chat.completions.create(model=MODEL, messages=more, tools=[TOOL])).choices[0].message.content


@case("chat, streamed tool call")
async def _() -> None:
    asked: Any = [{"role": "user", "content": ASK_TIMER}]
    async with client.chat.completions.stream(
        model=MODEL, messages=asked, tools=[TOOL], tool_choice="required"
    ) as stream:
        final = await stream.get_final_completion()
    (call,) = final.choices[0].message.tool_calls or []
    assert call.function.name == "set_timer" and "minutes" in json.loads(call.function.arguments)


@case("chat, parsed into a class")
async def _() -> None:
    answer = await client.chat.completions.parse(
        model=MODEL, messages=[{"role": "user", "content": ASK_TIMER}], response_format=Timer, max_tokens=64
    )
    assert isinstance(answer.choices[0].message.parsed, Timer)


@case("responses, plain and continued")
async def _() -> None:
    first = await client.responses.create(model=MODEL, input="Hello!")
    assert first.output_text and first.status == "completed"
    second = await client.responses.create(model=MODEL, input="And what else?", previous_response_id=first.id)
    assert second.output_text and second.previous_response_id == first.id


@case("responses, streamed")
async def _() -> None:
    text = ""
    async with client.responses.stream(model=MODEL, input="Hello!") as stream:
        async for event in stream:
            if event.type == "response.output_text.delta":
                text += event.delta
        final = await stream.get_final_response()
    assert text == final.output_text != ""


@case("responses, tool call and its answer")
async def _() -> None:
    first = await client.responses.create(model=MODEL, input=ASK_TIMER, tools=[FLAT_TOOL], tool_choice="required")
    (call,) = [item for item in first.output if item.type == "function_call"]
    assert isinstance(json.loads(call.arguments)["minutes"], int)
    result: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": "done"}]
    second = await client.responses.create(model=MODEL, input=result, previous_response_id=first.id, tools=[FLAT_TOOL])
    assert second.output_text


@case("responses, parsed into a class")
async def _() -> None:
    answer = await client.responses.parse(model=MODEL, input=ASK_TIMER, text_format=Timer, max_output_tokens=64)
    assert isinstance(answer.output_parsed, Timer)


@case("completions, embeddings, models")
async def _() -> None:
    assert (await client.completions.create(model=MODEL, prompt="Once", max_tokens=4)).choices[0].text
    # Strict validation rejects the base64 embedding that the client itself requests.
    lenient = AsyncOpenAI(base_url=BASE_URL, api_key=KEY, max_retries=0)
    vector = (await lenient.embeddings.create(model=MODEL, input="a lamp")).data[0].embedding
    assert len(vector) > 8 and any(vector)
    assert MODEL in [model.id async for model in client.models.list()]


main()
