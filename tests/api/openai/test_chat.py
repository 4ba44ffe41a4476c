"""Chat completions through the real openai client, and as raw bytes where the client would hide faults."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from openai import (
    AsyncOpenAI,
    LengthFinishReasonError,
    OpenAI,
)
from pydantic import BaseModel

from edgeagent.errors import WorkerCrashed
from edgeagent.types import (
    Delta,
    FinishReason,
    JsonSchemaFormat,
    PromptProgress,
    ReasoningDelta,
    Started,
    TextDelta,
    TokenLogprob,
    ToolCallDelta,
    ToolCallStarted,
)
from tests.api.openai.chats import HI, WEATHER, calling, chunks_of, post
from tests.backends.fake import FakeBackend, Gate, finished
from tests.daemon.running import Running
from tests.present import present

pytestmark = pytest.mark.asyncio(loop_scope="module")


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
    assert request.format == JsonSchemaFormat('{"type":"object"}', strict=False)
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
