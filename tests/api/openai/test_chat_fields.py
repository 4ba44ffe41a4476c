"""The fields of a chat completion: all of them arrive, and a wrong one is named."""

from __future__ import annotations

from typing import Any

import pytest

from edgeagent.types import (
    MAX_TOOLS,
    AnswerPolicy,
    CachePolicy,
    ChatPrompt,
    GenerateRequest,
    JsonObjectFormat,
    Message,
    Need,
    SamplingParams,
    Tier,
    Tool,
    ToolCall,
    ToolChoice,
)
from tests.api.openai.chats import HI, WEATHER, post
from tests.backends.fake import FakeBackend
from tests.daemon.running import Running

pytestmark = pytest.mark.asyncio(loop_scope="module")


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
        need=Need(names_tier=True),
        cache=CachePolicy(read=False, write=False),
        is_whole=True,
    )


async def test_defaults(daemon: Running, backend: FakeBackend) -> None:
    nulls = ("temperature", "stop", "tools", "tool_choice", "response_format", "n", "stream", "stream_options", "seed")
    assert (await post(daemon, {"messages": HI, **dict.fromkeys(nulls)})).status_code == 200
    [request] = backend.requests
    assert request == GenerateRequest(
        id=request.id,
        model="fake",
        prompt=ChatPrompt((Message("user", "hello big world"),)),
        cache=CachePolicy(answers=AnswerPolicy.USE),
        is_whole=True,
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
    *[({"top_k": value}, "top_k") for value in (-2, 2**31, 1.5, True)],
    *[({"repeat_penalty": value}, "repeat_penalty") for value in (-1, 11)],
    *[({"repeat_last_n": value}, "repeat_last_n") for value in (-2, 2**31)],
    *[({"presence_penalty": value}, "presence_penalty") for value in (-2.1, 2.1)],
    *[({"frequency_penalty": value}, "frequency_penalty") for value in (-2.1, 2.1)],
    *[({"max_tokens": value}, "max_tokens") for value in (-2, 2**31, 2**63 - 1, 1.5, "7", True)],
    *[({"max_completion_tokens": value}, "max_completion_tokens") for value in (-2, 2**31)],
    *[({"n": value}, "n") for value in (0, -1, 9, 10**9, True)],
    *[({"seed": value}, "seed") for value in (1.5, "1", True)],
    *[({"top_logprobs": value, "logprobs": True}, "top_logprobs") for value in (-1, 21)],
    ({"top_logprobs": 1}, "top_logprobs"),
    ({"logprobs": 1}, "logprobs"),
    ({"stream": "yes"}, "stream"),
    ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
    ({"stop": ["x" * 257]}, "stop[0]"),
    ({"stop": ["x", 1]}, "stop[1]"),
    ({"stop": ["x"] * 17}, "stop"),
    ({"stop": 5}, "stop"),
    ({"logit_bias": {"7": 101}}, "logit_bias.7"),
    ({"logit_bias": {"-1": 1}}, "logit_bias"),
    ({"logit_bias": {"99999999999": 1}}, "logit_bias"),
    ({"logit_bias": {"x": 1}}, "logit_bias"),
    ({"logit_bias": {str(token): 1 for token in range(1025)}}, "logit_bias"),
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
    ({"tools": [WEATHER] * (MAX_TOOLS + 1)}, "tools"),
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
    ({"functions": [{"name": "x", "parameters": [{"type": "object"}]}]}, "functions[0].parameters"),
    (_tool(name="x", strict="yes"), "tools[0].function.strict"),
    (_tool(name="x", parameters="{}"), "tools[0].function.parameters"),
    (_tool(name="x", parameters=[]), "tools[0].function.parameters"),
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


@pytest.mark.parametrize("kind", ["file", "video_url"])
async def test_what_cannot_be_read_is_refused(daemon: Running, kind: str) -> None:
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
