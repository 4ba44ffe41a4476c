"""Chat completions through the real openai client, and as raw bytes where the client would hide faults."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from typing import Any

import httpx
import pytest
from openai import (
    APIError,
    AsyncOpenAI,
    BadRequestError,
    InternalServerError,
    LengthFinishReasonError,
    NotFoundError,
    OpenAI,
    RateLimitError,
)
from openai.types.chat import ChatCompletionChunk
from pydantic import BaseModel

from edgeagent.api.wire import sse
from edgeagent.errors import ContextLengthExceeded, EdgeAgentError, InvalidRequest, Overloaded, WorkerCrashed
from edgeagent.service import first_step
from edgeagent.types import (
    CachePolicy,
    ChatPrompt,
    Delta,
    FinishReason,
    GenerateRequest,
    JsonObjectFormat,
    JsonSchemaFormat,
    Message,
    PromptProgress,
    ReasoningDelta,
    SamplingParams,
    Started,
    TextDelta,
    Tier,
    TokenLogprob,
    Tool,
    ToolCall,
    ToolCallDelta,
    ToolCallStarted,
    ToolChoice,
)
from tests.backends.fake import Act, FakeBackend, Gate, failing, finished
from tests.daemon.running import Running
from tests.present import present

HI: list[Any] = [{"role": "user", "content": "hello big world"}]
WEATHER: Any = {
    "type": "function",
    "function": {"name": "weather", "description": "now", "parameters": {"type": "object", "properties": {}}},
}


pytestmark = pytest.mark.asyncio(loop_scope="module")


async def post(daemon: Running, fields: Any) -> httpx.Response:
    return await daemon.http.post(f"{daemon.url}/v1/chat/completions", json=fields)


async def chunks_of(daemon: Running, **fields: Any) -> list[dict[str, Any]]:
    """Return a stream's documents after checking its framing, and each chunk against the openai package."""
    reply = await post(daemon, {"messages": HI, "stream": True, **fields})
    assert reply.status_code == 200
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    *events, last, rest = reply.text.split("\n\n")
    assert (last, rest) == ("data: [DONE]", "")
    chunks = [json.loads(event.removeprefix("data: ")) for event in events]
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk, strict=True)
    assert {chunk["id"] for chunk in chunks} == {chunks[0]["id"]}
    return chunks


def calling(_request: GenerateRequest) -> Iterable[Act]:
    yield Started(8, 4)
    yield TextDelta("Let me see.")
    for index, name in enumerate(("weather", "clock")):
        yield (ToolCallStarted(index, f"call_{index}", name), ToolCallDelta(index, '{"a":'))
        yield ToolCallDelta(index, "1}")
    yield finished(FinishReason.TOOL_CALLS)


async def test_plain(client: AsyncOpenAI) -> None:
    completion = await client.chat.completions.create(model="fake", messages=HI)
    assert completion.object == "chat.completion"
    assert completion.id.startswith("chatcmpl-")
    assert completion.model == "fake"
    [choice] = completion.choices
    assert choice.message.model_dump(exclude_none=True) == {"role": "assistant", "content": "hello big world"}
    assert (choice.index, choice.finish_reason, choice.logprobs) == (0, "stop", None)
    usage = completion.usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (3, 3, 6)
    assert usage.prompt_tokens_details is not None
    extra = completion.model_extra
    assert extra is not None
    assert extra["timings"]["predicted_n"] == 3
    assert extra["edgeagent"]["route"] == "local"
    assert set(extra["edgeagent"]["stages_ms"]) >= {"queue", "load", "prefill", "first_token", "decode", "delivery"}


async def test_a_blocking_client(daemon: Running) -> None:
    def ask() -> tuple[str | None, str]:
        with OpenAI(base_url=f"{daemon.url}/v1", api_key="unused", max_retries=0) as client:
            plain = client.chat.completions.create(model="fake", messages=HI).choices[0].message.content
            stream = client.chat.completions.create(model="fake", messages=HI, stream=True)
            return plain, "".join(chunk.choices[0].delta.content or "" for chunk in stream)

    assert await asyncio.to_thread(ask) == ("hello big world", "hello big world")


async def test_streamed_chunks(daemon: Running) -> None:
    chunks = await chunks_of(daemon)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas == [
        {"role": "assistant", "content": ""},
        {"content": "hello"},
        {"content": " big"},
        {"content": " world"},
        {},
    ]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * 4 + ["stop"]
    assert not any("usage" in chunk for chunk in chunks)
    assert [("timings" in chunk, "edgeagent" in chunk) for chunk in chunks] == [(False, False)] * 4 + [(True, True)]


async def test_streamed_usage(daemon: Running) -> None:
    chunks = await chunks_of(daemon, stream_options={"include_usage": True})
    *before, last = chunks
    assert all(chunk["usage"] is None for chunk in before)
    assert not any("timings" in chunk for chunk in before)
    assert last["choices"] == []
    assert last["usage"]["total_tokens"] == 6
    assert last["timings"]["prompt_n"] == 3
    assert last["edgeagent"]["reason"] == "fake"


async def test_the_sdks_stream_helper(client: AsyncOpenAI, backend: FakeBackend) -> None:
    backend.script = calling
    async with client.chat.completions.stream(
        model="fake", messages=HI, tools=[WEATHER], stream_options={"include_usage": True}
    ) as stream:
        events = [event.type async for event in stream]
        final = await stream.get_final_completion()
    assert events.count("tool_calls.function.arguments.done") == 2
    message = final.choices[0].message
    assert message.content == "Let me see."
    assert [(call.id, call.function.name, call.function.arguments) for call in message.tool_calls or ()] == [
        ("call_0", "weather", '{"a":1}'),
        ("call_1", "clock", '{"a":1}'),
    ]
    assert final.usage is not None and final.usage.prompt_tokens == 8


async def test_tool_calls_one_to_a_chunk(daemon: Running, backend: FakeBackend) -> None:
    backend.script = calling
    chunks = await chunks_of(daemon, tools=[WEATHER])
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
    assert all(len(delta["tool_calls"]) == 1 for delta in deltas if "tool_calls" in delta)
    assert calls == [
        {"index": 0, "id": "call_0", "type": "function", "function": {"name": "weather", "arguments": ""}},
        {"index": 0, "function": {"arguments": '{"a":'}},
        {"index": 0, "function": {"arguments": "1}"}},
        {"index": 1, "id": "call_1", "type": "function", "function": {"name": "clock", "arguments": ""}},
        {"index": 1, "function": {"arguments": '{"a":'}},
        {"index": 1, "function": {"arguments": "1}"}},
    ]
    assert [delta.get("role") for delta in deltas] == ["assistant"] + [None] * (len(deltas) - 1)
    assert (deltas[-1], chunks[-1]["choices"][0]["finish_reason"]) == ({}, "tool_calls")


@pytest.mark.parametrize(
    ("deltas", "content"),
    [
        ((ToolCallStarted(0, "call_0", "weather"), ToolCallDelta(0, "{}")), None),
        ((ReasoningDelta("hm"), ToolCallStarted(0, "call_0", "weather")), None),
        ((TextDelta("Let me see."), ToolCallStarted(0, "call_0", "weather")), ""),
        ((), ""),
    ],
    ids=["call", "reasoning", "text", "nothing"],
)
async def test_the_first_chunk_promises_text_only_before_text(
    daemon: Running, backend: FakeBackend, deltas: tuple[Delta, ...], content: str | None
) -> None:
    backend.script = lambda _: (Started(8, 4), *deltas, finished())
    first, *others = [chunk["choices"][0]["delta"] for chunk in await chunks_of(daemon, tools=[WEATHER])]
    assert first == {"role": "assistant", "content": content}
    assert not any("role" in delta for delta in others)


async def test_plain_tool_calls(client: AsyncOpenAI, backend: FakeBackend) -> None:
    backend.script = lambda _: (ToolCallStarted(0, "call_x", "weather"), finished(FinishReason.TOOL_CALLS))
    [choice] = (await client.chat.completions.create(model="fake", messages=HI, tools=[WEATHER])).choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    [call] = present(choice.message.tool_calls)
    assert call.model_dump() == {"id": "call_x", "type": "function", "function": {"name": "weather", "arguments": ""}}


async def test_reasoning(daemon: Running, client: AsyncOpenAI, backend: FakeBackend) -> None:
    backend.script = lambda _: (ReasoningDelta("hm"), ReasoningDelta("m"), TextDelta("yes"), finished())
    message: Any = (await client.chat.completions.create(model="fake", messages=HI)).choices[0].message
    assert (message.reasoning_content, message.content) == ("hmm", "yes")
    deltas = [chunk["choices"][0]["delta"] for chunk in await chunks_of(daemon)]
    assert deltas[1:4] == [{"reasoning_content": "hm"}, {"reasoning_content": "m"}, {"content": "yes"}]


async def test_logprobs(daemon: Running, client: AsyncOpenAI, backend: FakeBackend) -> None:
    rival = TokenLogprob(2, b"\xff", float("-inf"))
    backend.script = lambda _: (TextDelta("é", (TokenLogprob(1, "é".encode(), -0.5, (rival,)),)), finished())
    completion = await client.chat.completions.create(model="fake", messages=HI, logprobs=True, top_logprobs=1)
    expected = {
        "content": [
            {
                "token": "é",
                "logprob": -0.5,
                "bytes": [195, 169],
                "top_logprobs": [{"token": "\ufffd", "logprob": -9999.0, "bytes": [255]}],
            }
        ],
        "refusal": None,
    }
    logprobs = completion.choices[0].logprobs
    assert logprobs is not None and logprobs.model_dump() == expected
    chunks = await chunks_of(daemon, logprobs=True)
    assert chunks[1]["choices"][0]["logprobs"] == expected
    assert [request.logprobs for request in backend.requests] == [1, 0]


async def test_several_choices(daemon: Running, client: AsyncOpenAI, backend: FakeBackend) -> None:
    completion = await client.chat.completions.create(model="fake", messages=HI, n=3, seed=5)
    assert [choice.index for choice in completion.choices] == [0, 1, 2]
    assert completion.usage is not None
    assert (completion.usage.prompt_tokens, completion.usage.completion_tokens) == (3, 9)
    assert len({request.id for request in backend.requests}) == 3
    assert [request.sampling.seed for request in backend.requests] == [5, 6, 7]
    chunks = await chunks_of(daemon, n=2, stream_options={"include_usage": True})
    for index in range(2):
        mine = [chunk["choices"][0] for chunk in chunks[:-1] if chunk["choices"][0]["index"] == index]
        assert "".join(choice["delta"].get("content", "") for choice in mine) == "hello big world"
        assert [choice["delta"].get("role") for choice in mine].count("assistant") == 1
        assert [choice["finish_reason"] for choice in mine].count("stop") == 1
    assert chunks[-1]["usage"]["completion_tokens"] == 6


async def test_one_failing_choice_ends_all(daemon: Running, backend: FakeBackend) -> None:
    backend.script = lambda request: (
        [WorkerCrashed("signal 9")] if request.id.endswith("-1") else [TextDelta("a"), Gate(), finished()]
    )
    reply = await post(daemon, {"messages": HI, "n": 3})
    assert reply.status_code == 503
    await backend.until(lambda backend: backend.num_live == 0)
    assert len(backend.closed) == 2


async def test_schema_output_is_parsed_by_the_sdk(client: AsyncOpenAI, backend: FakeBackend) -> None:
    class Lamp(BaseModel):
        room: str

    backend.script = lambda _: (TextDelta('{"room":"hall"}'), finished())
    parsed = await client.chat.completions.parse(model="fake", messages=HI, response_format=Lamp)
    assert parsed.choices[0].message.parsed == Lamp(room="hall")
    backend.script = lambda _: (TextDelta('{"ro'), finished(FinishReason.LENGTH))
    with pytest.raises(LengthFinishReasonError):
        await client.chat.completions.parse(model="fake", messages=HI, response_format=Lamp)
    output = backend.requests[0].format
    assert isinstance(output, JsonSchemaFormat)
    assert json.loads(output.schema)["required"] == ["room"]


async def test_every_field_arrives(daemon: Running, backend: FakeBackend) -> None:
    fields = {
        "model": "fake",
        "messages": [
            {"role": "developer", "content": [{"type": "text", "text": "be "}, {"type": "text", "text": "brief"}]},
            {"role": "user", "content": "one", "name": "ann"},
            {
                "role": "assistant",
                "content": None,
                "reasoning_content": "hm",
                "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "rain"},
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
            {"role": "user", "content": ""},
        ],
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.1,
        "repeat_penalty": 1.1,
        "repeat_last_n": 64,
        "presence_penalty": -1,
        "frequency_penalty": 1.5,
        "seed": 2**40,
        "logit_bias": {"7": -100, "8": 1.5},
        "stop": ["a", "b"],
        "max_tokens": 7,
        "max_completion_tokens": 9,
        "logprobs": True,
        "top_logprobs": 3,
        "tools": [WEATHER],
        "tool_choice": {"type": "function", "function": {"name": "weather"}},
        "parallel_tool_calls": False,
        "response_format": {"type": "json_object"},
        "reasoning_effort": "low",
        "chat_template_kwargs": {"enable_thinking": False},
        "service_tier": "priority",
        "cache_prompt": False,
        "user": "ignored",
        "an_unknown_field": {"x": [1]},
    }
    assert (await post(daemon, fields)).status_code == 200
    [request] = backend.requests
    assert request == GenerateRequest(
        id=request.id,
        model="fake",
        prompt=ChatPrompt(
            messages=(
                Message("system", "be brief"),
                Message("user", "one", name="ann"),
                Message("assistant", reasoning="hm", tool_calls=(ToolCall("c1", "weather", "{}"),)),
                Message("tool", "rain", tool_call_id="c1"),
                Message("assistant", "no"),
                Message("user", ""),
            ),
            tools=(Tool("weather", "now", '{"type":"object","properties":{}}'),),
            tool_choice=ToolChoice("required", ("weather",)),
            parallel_tool_calls=False,
            template_kwargs='{"enable_thinking":false,"reasoning_effort":"low"}',
        ),
        sampling=SamplingParams(
            temperature=0.5,
            top_p=0.9,
            top_k=40,
            min_p=0.1,
            repeat_penalty=1.1,
            repeat_last_n=64,
            presence_penalty=-1,
            frequency_penalty=1.5,
            seed=2**40 % (2**32 - 1),
            logit_bias=((7, -100), (8, 1.5)),
        ),
        format=JsonObjectFormat(),
        max_tokens=9,
        stop=("a", "b"),
        logprobs=3,
        tier=Tier.REALTIME,
        cache=CachePolicy(read=False, write=False),
    )


async def test_defaults(daemon: Running, backend: FakeBackend) -> None:
    nulls = ("temperature", "stop", "tools", "tool_choice", "response_format", "n", "stream", "stream_options", "seed")
    assert (await post(daemon, {"messages": HI, **dict.fromkeys(nulls)})).status_code == 200
    [request] = backend.requests
    assert request == GenerateRequest(
        id=request.id, model="fake", prompt=ChatPrompt((Message("user", "hello big world"),))
    )


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("auto", ToolChoice()),
        ("none", ToolChoice("none")),
        ("required", ToolChoice("required")),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "weather"}}]},
            },
            ToolChoice("auto", ("weather",)),
        ),
    ],
)
async def test_tool_choice(daemon: Running, backend: FakeBackend, choice: Any, expected: ToolChoice) -> None:
    assert (await post(daemon, {"messages": HI, "tools": [WEATHER], "tool_choice": choice})).status_code == 200
    prompt = backend.requests[0].prompt
    assert isinstance(prompt, ChatPrompt) and prompt.tool_choice == expected


def _tool(**fields: Any) -> dict[str, Any]:
    return {"tools": [{"type": "function", "function": fields}]}


def _say(*messages: Any) -> dict[str, Any]:
    return {"messages": list(messages)}


DEEP: Any = {}
for _ in range(20):
    DEEP = {"properties": {"x": DEEP}}

BAD_FIELDS: list[tuple[dict[str, Any], str]] = [
    *[({"temperature": value}, "temperature") for value in (-0.1, 2.1, "1", True, list[str](), 1e300)],
    *[({"top_p": value}, "top_p") for value in (-1, 1.1, "x")],
    *[({"min_p": value}, "min_p") for value in (-0.1, 2)],
    *[({"top_k": value}, "top_k") for value in (-1, 2**31, 1.5, True)],
    *[({"repeat_penalty": value}, "repeat_penalty") for value in (0, -1, 11)],
    *[({"repeat_last_n": value}, "repeat_last_n") for value in (-2, 2**31)],
    *[({"presence_penalty": value}, "presence_penalty") for value in (-2.1, 2.1)],
    *[({"frequency_penalty": value}, "frequency_penalty") for value in (-2.1, 2.1)],
    *[({"max_tokens": value}, "max_tokens") for value in (-2, 2**31, 2**63 - 1, 1.0, "7", True)],
    *[({"max_completion_tokens": value}, "max_completion_tokens") for value in (-2, 2**31)],
    *[({"n": value}, "n") for value in (0, -1, 9, 10**9, True)],
    *[({"seed": value}, "seed") for value in (1.5, "1", True)],
    *[({"top_logprobs": value, "logprobs": True}, "top_logprobs") for value in (-1, 21)],
    ({"top_logprobs": 1}, "top_logprobs"),
    ({"logprobs": 1}, "logprobs"),
    ({"stream": "yes"}, "stream"),
    ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
    ({"stop": ""}, "stop[0]"),
    ({"stop": ["x" * 257]}, "stop[0]"),
    ({"stop": ["x", 1]}, "stop[1]"),
    ({"stop": ["x"] * 17}, "stop"),
    ({"stop": 5}, "stop"),
    ({"logit_bias": {"7": 101}}, "logit_bias.7"),
    ({"logit_bias": {"-1": 1}}, "logit_bias"),
    ({"logit_bias": {"99999999999": 1}}, "logit_bias"),
    ({"logit_bias": {"x": 1}}, "logit_bias"),
    ({"logit_bias": {str(token): 1 for token in range(1025)}}, "logit_bias"),
    ({"model": ""}, "model"),
    ({"model": 5}, "model"),
    ({"response_format": {"type": "xml"}}, "response_format"),
    ({"response_format": {"type": "json_schema"}}, "response_format"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "response_format"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": DEEP}}},
        "response_format.json_schema.schema",
    ),
    ({"response_format": "json"}, "response_format"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": "sometimes"}, "tool_choice"),
    ({"tool_choice": {"type": "function", "function": {"name": "nothing"}}}, "tool_choice"),
    ({"tool_choice": {"type": "function"}}, "tool_choice"),
    ({"reasoning_effort": "enormous"}, "reasoning_effort"),
    ({"chat_template_kwargs": {"x": [1]}}, "chat_template_kwargs.x"),
    ({"messages": []}, "messages"),
    ({"messages": None}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": ["hi"]}, "messages[0]"),
    ({"messages": HI * 4097}, "messages"),
    (_say({"content": "x"}), "messages[0].role"),
    (_say({"role": "wizard", "content": "x"}), "messages[0].role"),
    (_say({"role": ["user"], "content": "x"}), "messages[0].role"),
    (_say({"role": "user"}), "messages[0].content"),
    (_say({"role": "user", "content": 5}), "messages[0].content"),
    (_say({"role": "user", "content": [{"type": "text"}]}), "messages[0].content[0].text"),
    (_say({"role": "user", "content": ["x"]}), "messages[0].content[0]"),
    (_say({"role": "user", "content": "x", "name": 5}), "messages[0].name"),
    (_say(*HI, {"role": "tool", "content": "x"}), "messages[1].tool_call_id"),
    (_say(*HI, {"role": "tool", "content": "x", "tool_call_id": "c9"}), "messages[1].tool_call_id"),
    (_say({"role": "assistant", "tool_calls": [{"id": "x"}]}), "messages[0].tool_calls[0].function"),
    (_say({"role": "assistant", "tool_calls": "x"}), "messages[0].tool_calls"),
    ({"tools": "x"}, "tools"),
    ({"tools": [5]}, "tools[0]"),
    ({"tools": [WEATHER] * 129}, "tools"),
]
BAD_TOOLS: list[tuple[dict[str, Any], str]] = [
    ({"tools": [{"type": "function"}]}, "tools[0].function"),
    (_tool(), "tools[0].function.name"),
    (_tool(name=""), "tools[0].function.name"),
    (_tool(name="a b"), "tools[0].function.name"),
    (_tool(name="x" * 129), "tools[0].function.name"),
    (_tool(name="x\n"), "tools[0].function.name"),
    (_tool(name=5), "tools[0].function.name"),
    (_tool(name="x", description=5), "tools[0].function.description"),
    (_tool(name="x", parameters={"type": "string"}), "tools[0].function.parameters"),
    (_tool(name="x", parameters={"type": ["array", "null"]}), "tools[0].function.parameters"),
    ({"functions": [{"name": "x", "parameters": {"type": "string"}}]}, "functions[0].parameters"),
    (_tool(name="x", strict="yes"), "tools[0].function.strict"),
    (_tool(name="x", parameters="{}"), "tools[0].function.parameters"),
    (_tool(name="x", parameters=[]), "tools[0].function.parameters"),
    (_tool(name="x", parameters=DEEP), "tools[0].function.parameters"),
    (_tool(name="x", parameters={"enum": ["y" * 70_000]}), "tools[0].function.parameters"),
    ({"tools": [WEATHER, WEATHER]}, "tools[1]"),
]


@pytest.mark.parametrize(("fields", "param"), BAD_FIELDS, ids=lambda value: str(value)[:40])
async def test_bad_fields_are_named(daemon: Running, backend: FakeBackend, fields: dict[str, Any], param: str) -> None:
    reply = await post(daemon, {"messages": HI, **fields})
    error = reply.json()["error"]
    assert (reply.status_code, error["param"], error["code"]) == (400, param, "invalid_value"), error
    assert error["message"].startswith(param.split("[")[0].split(".")[0])
    assert backend.requests == []


@pytest.mark.parametrize(("fields", "param"), BAD_TOOLS, ids=lambda value: str(value)[:40])
async def test_bad_tools_are_named(daemon: Running, fields: dict[str, Any], param: str) -> None:
    reply = await post(daemon, {"messages": HI, **fields})
    error = reply.json()["error"]
    assert (reply.status_code, error["param"], error["code"]) == (400, param, "invalid_tool_schema"), error


async def test_a_range_is_told(daemon: Running) -> None:
    error = (await post(daemon, {"messages": HI, "temperature": 3})).json()["error"]
    assert error["message"] == "temperature must be from 0 to 2, not 3"


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file"])
async def test_what_is_not_text_is_refused(daemon: Running, kind: str) -> None:
    reply = await post(daemon, _say({"role": "user", "content": [{"type": kind, kind: {}}]}))
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "not_supported")


@pytest.mark.parametrize(
    "content", ["", "[]", "null", "5", '"x"', "{", '{"messages":[],"messages":[]}', "{}x", "\ufeff{}"]
)
async def test_bodies_that_are_no_object(daemon: Running, content: str) -> None:
    reply = await daemon.http.post(
        f"{daemon.url}/v1/chat/completions", content=content.encode(), headers={"content-type": "application/json"}
    )
    assert reply.status_code == 400
    assert reply.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_refusal_names_the_format(client: AsyncOpenAI, backend: FakeBackend, is_streamed: bool) -> None:
    backend.script = failing(InvalidRequest("it cannot be followed", param="text.format"))
    with pytest.raises(BadRequestError) as caught:
        await client.chat.completions.create(
            model="fake", messages=HI, stream=is_streamed, response_format={"type": "json_object"}
        )
    assert caught.value.param == "response_format"


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (ContextLengthExceeded("9000 tokens do not fit 4096", param="input"), BadRequestError),
        (Overloaded("full", retry_after_s=2), RateLimitError),
        (WorkerCrashed("signal 9"), InternalServerError),
    ],
)
async def test_failing_before_the_first_step(
    client: AsyncOpenAI, backend: FakeBackend, failure: EdgeAgentError, expected: type[APIError], is_streamed: bool
) -> None:
    backend.script = failing(failure)
    with pytest.raises(expected) as raised:
        await client.chat.completions.create(model="fake", messages=HI, stream=is_streamed)
    assert raised.value.code == failure.code
    assert raised.value.param == ("messages" if expected is BadRequestError else None)
    response = getattr(raised.value, "response", None)
    assert response is not None and response.headers["x-request-id"].startswith("req_")
    waits: dict[type[APIError], str | None] = {BadRequestError: None, RateLimitError: "2", InternalServerError: "1"}
    assert response.headers.get("retry-after") == waits[expected]


async def test_an_unknown_model(client: AsyncOpenAI) -> None:
    with pytest.raises(NotFoundError) as raised:
        await client.chat.completions.create(model="gpt-17", messages=HI, stream=True)
    assert (raised.value.code, raised.value.param) == ("model_not_found", "model")


async def test_failing_in_the_middle(daemon: Running, client: AsyncOpenAI, backend: FakeBackend) -> None:
    crash = WorkerCrashed("signal 9", served_by="local", num_delivered_tokens=1)
    backend.script = failing(crash, Started(1, 0), TextDelta("one"))
    stream = await client.chat.completions.create(model="fake", messages=HI, stream=True)
    texts: list[str | None] = []
    with pytest.raises(APIError) as raised:
        async for chunk in stream:
            texts.append(chunk.choices[0].delta.content)
    assert texts == ["", "one"]
    assert raised.value.code == "worker_crashed"
    reply = await post(daemon, {"messages": HI, "stream": True})
    *_, last, rest = reply.text.split("\n\n")
    assert rest == ""
    assert json.loads(last.removeprefix("data: ")) == {
        "error": {"message": "signal 9", "type": "server_error", "param": None, "code": "worker_crashed"},
        "edgeagent": {"served_by": "local", "num_delivered_tokens": 1},
    }
    assert (await post(daemon, {"messages": HI})).status_code == 503


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_bug_says_nothing(daemon: Running, backend: FakeBackend, is_streamed: bool) -> None:
    backend.script = lambda _: (Started(1, 0), TextDelta("x"), ValueError("the prompt was hello"))
    reply = await post(daemon, {"messages": HI, "stream": is_streamed})
    assert reply.status_code == (200 if is_streamed else 500)
    assert "the prompt was" not in reply.text
    assert "internal_error" in reply.text


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_cut_answer_is_an_error(daemon: Running, backend: FakeBackend, is_streamed: bool) -> None:
    backend.script = lambda _: (Started(1, 0), TextDelta("x"), finished(FinishReason.CANCELLED))
    reply = await post(daemon, {"messages": HI, "stream": is_streamed})
    assert "backend_unavailable" in reply.text
    assert 'finish_reason":"stop' not in reply.text


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("num_choices", [1, 2])
async def test_leaving_cancels(daemon: Running, backend: FakeBackend, is_streamed: bool, num_choices: int) -> None:
    gate = Gate()
    backend.script = lambda _: (Started(1, 0), TextDelta("x"), gate, finished())
    body = json.dumps({"messages": HI, "stream": is_streamed, "n": num_choices})
    _, writer = await asyncio.open_connection("127.0.0.1", daemon.port)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{daemon.port}\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
    await backend.until(lambda backend: backend.num_live == num_choices)
    await gate.reached.wait()
    writer.close()
    await backend.until(lambda backend: backend.num_live == 0)
    assert len(backend.closed) == num_choices


async def test_leaving_before_the_first_step_cancels(daemon: Running, backend: FakeBackend) -> None:
    gate = Gate()
    backend.script = lambda _: (gate, finished())
    body = json.dumps({"messages": HI, "stream": True})
    _, writer = await asyncio.open_connection("127.0.0.1", daemon.port)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{daemon.port}\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
    await gate.reached.wait()
    writer.transport.abort()
    await backend.until(lambda backend: backend.num_live == 0)
    assert len(backend.closed) == 1


async def test_a_silent_stream_opens_and_pings(
    daemon: Running, backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_step, "PATIENCE_S", 0.0)
    monkeypatch.setattr(sse.EventStream.__init__, "__defaults__", (0.01,))
    gate = Gate()
    backend.script = lambda _: (gate, Started(1, 0), TextDelta("late"), finished())
    async with (
        daemon.http.stream("POST", f"{daemon.url}/v1/chat/completions", json={"messages": HI, "stream": True}) as reply,
    ):
        assert reply.status_code == 200
        text, pings = "", 0
        async for part in reply.aiter_text():
            text += part
            pings = text.count(": ping\n\n")
            if pings >= 3:
                gate.opened.set()
    assert pings >= 3
    assert '"content":"late"' in text
    assert text.endswith("data: [DONE]\n\n")


async def test_a_failure_after_the_patience_is_an_event(
    daemon: Running, backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_step, "PATIENCE_S", 0.0)
    gate = Gate()
    gate.opened.set()
    backend.script = failing(Overloaded("full"), gate)
    reply = await post(daemon, {"messages": HI, "stream": True})
    assert reply.status_code == 200
    assert '"code":"queue_full"' in reply.text


async def test_a_stream_tells_its_prompts_progress_and_its_timings(daemon: Running, backend: FakeBackend) -> None:
    backend.script = lambda _: ((Started(10, 4), PromptProgress(4)), PromptProgress(10), TextDelta("x"), finished())
    chunks = await chunks_of(daemon, return_progress=True, timings_per_token=True)
    progress = [chunk["prompt_progress"] for chunk in chunks if "prompt_progress" in chunk]
    assert [(each["total"], each["cache"], each["processed"]) for each in progress] == [(10, 4, 4), (10, 4, 10)]
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": None}
    assert all("timings" in chunk for chunk in chunks)
    assert backend.requests[0].reports_progress
    assert "timings" not in (await chunks_of(daemon))[1]


async def test_llama_servers_fields(daemon: Running, backend: FakeBackend) -> None:
    fields = {
        "n_predict": 9,
        "n_probs": 3,
        "json_schema": {"type": "object"},
        "samplers": ["min_p", "temperature"],
        "reasoning_format": "auto",
        "parse_tool_calls": True,
        "sse_ping_interval": 1,
    }
    assert (await post(daemon, {"messages": HI, **fields})).status_code == 200
    assert (await post(daemon, {"messages": HI, "max_tokens": 0})).status_code == 200
    request, silent = backend.requests
    assert (request.max_tokens, request.logprobs, silent.max_tokens) == (9, 3, 0)
    assert request.format == JsonSchemaFormat('{"type":"object"}')
    assert (request.sampling.top_k, request.sampling.top_p, request.sampling.min_p) == (0, 1.0, None)


@pytest.mark.parametrize(
    "fields",
    [
        {"reasoning_format": "none"},
        {"parse_tool_calls": False, "tools": [WEATHER]},
        {"grammar": "root ::= x"},
        {"json_schema": {}, "response_format": {"type": "json_object"}},
    ],
    ids=str,
)
async def test_what_would_be_passed_over_is_refused(
    daemon: Running, backend: FakeBackend, fields: dict[str, Any]
) -> None:
    reply = await post(daemon, {"messages": HI, **fields})
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == next(iter(fields))
    assert not backend.requests
