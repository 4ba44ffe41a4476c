"""Every field of a create: accepted, refused with its name and range, or ignored."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from edgeagent.api.responses.body import MAX_ECHO_BYTES, ResponseCreate, read_create
from edgeagent.api.wire.fields import MAX_MESSAGES
from edgeagent.conversation.history import MAX_ITEMS, ConnectionHistory, StoreResult
from edgeagent.conversation.items import CallItem, CallOutputItem, MessageItem, ReasoningItem, ReferenceItem
from edgeagent.errors import InvalidRequest, NotSupported
from edgeagent.types import (
    AnswerPolicy,
    CachePolicy,
    ChatPrompt,
    GenerateRequest,
    JsonObjectFormat,
    JsonSchemaFormat,
    Message,
    Need,
    SamplingParams,
    TextFormat,
    Tier,
    Tool,
    ToolChoice,
)

TOOL = {"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}, "strict": True}


def read(**fields: Any) -> ResponseCreate:
    return read_create({"type": "response.create", "input": "hi", **fields})


def request(**fields: Any) -> GenerateRequest:
    return request_of(read(**fields))


def request_of(create: ResponseCreate) -> GenerateRequest:
    conversation = ConnectionHistory().continue_from(None, create.items, StoreResult())
    return create.request("resp_1", "fake", conversation)


def prompt(**fields: Any) -> ChatPrompt:
    asked = request(**fields).prompt
    assert isinstance(asked, ChatPrompt)
    return asked


def test_the_least_a_client_sends() -> None:
    expected = ChatPrompt((Message("user", "hi"),))
    kept = CachePolicy(answers=AnswerPolicy.USE)
    assert request() == GenerateRequest("resp_1", "fake", expected, cache=kept)
    create = read()
    assert create.is_stored
    assert not create.is_prefill_only


def test_everything_a_client_sends() -> None:
    asked = request(
        model="fake",
        instructions="Be brief.",
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        min_p=0.05,
        presence_penalty=1,
        frequency_penalty=-1,
        repeat_penalty=1.1,
        repeat_last_n=64,
        seed=7,
        logit_bias={"5": -100},
        max_output_tokens=20,
        stop="END",
        top_logprobs=3,
        service_tier="priority",
        cache_prompt=False,
        tools=[TOOL],
        tool_choice={"type": "function", "name": "f"},
        parallel_tool_calls=False,
        reasoning={"effort": "low", "summary": "auto"},
        text={"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}, "verbosity": "low"},
    )
    assert asked == GenerateRequest(
        id="resp_1",
        model="fake",
        prompt=ChatPrompt(
            (Message("system", "Be brief."), Message("user", "hi")),
            (Tool("f", "d", '{"type":"object"}', strict=True),),
            ToolChoice("required", ("f",)),
            parallel_tool_calls=False,
            template_kwargs='{"enable_thinking":true,"reasoning_effort":"low"}',
        ),
        sampling=SamplingParams(0.5, 40, 0.9, 0.05, 1.1, 64, 1, -1, 7, ((5, -100),)),
        format=JsonSchemaFormat('{"type":"object"}', "n"),
        max_tokens=20,
        stop=("END",),
        logprobs=3,
        tier=Tier.REALTIME,
        need=Need(names_tier=True),
        cache=CachePolicy(read=False, write=False),
    )


def test_what_is_ignored() -> None:
    ignored: dict[str, Any] = {
        "stream": True,
        "stream_options": {"include_obfuscation": False},
        "background": True,
        "access_programs": {"cyber": "standard"},
        "context_management": [{"type": "compaction", "compact_threshold": 1000}],
        "image": {},
        "moderation": "auto",
        "prompt_cache_retention": "24h",
        "prompt_cache_options": {"mode": "implicit", "ttl": "30m"},
        "never_heard_of": [1],
        "include": ["reasoning.encrypted_content"],
    }
    assert request(**ignored) == request()
    nulls = dict.fromkeys(
        ("model", "instructions", "temperature", "tools", "tool_choice", "text", "reasoning", "store")
    )
    assert request(**nulls) == request()


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"temperature": 2.5}, "temperature", ["0", "2", "2.5"]),
        ({"temperature": "hot"}, "temperature", ["number", "hot"]),
        ({"temperature": True}, "temperature", ["number"]),
        ({"top_p": -0.1}, "top_p", ["0", "1", "-0.1"]),
        ({"top_logprobs": 21}, "top_logprobs", ["0", "20", "21"]),
        ({"max_output_tokens": 0}, "max_output_tokens", ["1", "2147483647", "0"]),
        ({"max_output_tokens": 1.5}, "max_output_tokens", ["integer", "1.5"]),
        ({"presence_penalty": 3}, "presence_penalty", ["-2", "2", "3"]),
        ({"frequency_penalty": -3}, "frequency_penalty", ["-2", "2", "-3"]),
        ({"max_tool_calls": 0}, "max_tool_calls", ["1", "0"]),
        ({"instructions": 5}, "instructions", ["string", "5"]),
        ({"store": "yes"}, "store", ["true or false", "yes"]),
        ({"previous_response_id": 5}, "previous_response_id", ["string", "5"]),
        ({"metadata": {"a": 1}}, "metadata.a", ["string", "1"]),
        ({"metadata": {"a": "x" * 513}}, "metadata", ["16 pairs", "512"]),
        ({"metadata": {"x" * 65: "a"}}, "metadata", ["64"]),
        ({"input": [{"type": "reasoning", "id": "x" * 513}]}, "input[0].id", ["at most 512 characters"]),
        ({"input": [{"type": "reasoning"}] * (MAX_ITEMS + 1)}, "input", ["at most 8192 items"]),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort", ["'low'", "huge"]),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type", ["json_schema", "xml"]),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema", ["JSON schema"]),
        ({"stop": ["x" * 257]}, "stop[0]", ["1", "256"]),
        ({"tools": [5]}, "tools[0]", ["object"]),
        ({"tools": [{"type": "function"}]}, "tools[0].name", ["required"]),
        ({"tools": [{**TOOL, "name": "a b"}]}, "tools[0].name", ["a b"]),
        ({"tools": [{**TOOL, "parameters": []}]}, "tools[0].parameters", ["of tool 'f' must be a JSON schema"]),
        ({"tools": [TOOL, TOOL]}, "tools[1]", ["'f'"]),
        ({"tools": [{"type": 5}]}, "tools[0].type", ["function", "5"]),
        ({"tool_choice": "required"}, "tool_choice", ["no tools"]),
        ({"tool_choice": "maybe"}, "tool_choice", ["maybe"]),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "g"}}, "tool_choice", ["'g'"]),
        ({"tools": [TOOL], "tool_choice": {"type": "mcp"}}, "tool_choice", ["mcp"]),
        ({"input": 5}, "input", ["string", "list"]),
        ({"input": None}, "input", ["missing"]),
        ({"input": []}, "input", ["missing"]),
        ({"input": ["hi"]}, "input[0]", ["object", "'hi'"]),
        ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role", ["user", "robot"]),
        ({"input": [{"role": "user"}]}, "input[0].content", ["required"]),
        ({"input": [{"role": "user", "content": [5]}]}, "input[0].content[0]", ["object"]),
        ({"input": [{"role": "user", "content": [{"type": "x"}]}]}, "input[0].content[0]", ["input_text", "x"]),
        ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0].text", ["required"]),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0]", ["data URL"]),
        ({"input": [{"type": "function_call", "call_id": "c", "name": "f"}]}, "input[0].arguments", ["required"]),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id", ["required"]),
        ({"input": [{"type": 5}]}, "input[0].type", ["function_call", "5"]),
        ({"input": [{"type": "reasoning", "summary": [{"type": "x"}]}]}, "input[0].summary[0].type", ["summary_text"]),
        ({"input": [{"type": "reasoning", "content": "x"}]}, "input[0].content", ["list", "x"]),
        (
            {"input": [{"type": "compaction", "encrypted_content": "edgeagent.1.!"}]},
            "input[0].encrypted_content",
            ["not what this daemon made", "unchanged"],
        ),
        ({"conversation": "conv_1", "previous_response_id": "resp_1"}, "conversation", ["not both"]),
        ({"conversation": "conv_1"}, "conversation", ["previous_response_id"]),
        ({"prompt": {"id": "pmpt_1"}}, "prompt", ["instructions"]),
    ],
)
def test_refused_with_the_field_its_range_and_the_value(fields: dict[str, Any], param: str, words: list[str]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        request(**fields)
    error = caught.value
    assert error.param is not None and error.param.startswith(param)
    assert param in error.message
    for word in words:
        assert word in error.message


@pytest.mark.parametrize(
    "fields",
    [
        {"input": [{"role": "user", "content": [{"type": "input_file"}]}]},
        {"conversation": "conv_1"},
    ],
)
def test_real_features_that_are_not_here_are_not_supported(fields: dict[str, Any]) -> None:
    with pytest.raises(NotSupported):
        request(**fields)


def test_the_first_wrong_item_ends_the_reading() -> None:
    started_s = time.thread_time()
    with pytest.raises(InvalidRequest, match=r"input\[0\] must be an object"):
        read(input=[1] * 200_000)
    assert time.thread_time() - started_s < 0.05


def test_items() -> None:
    items = read(
        input=[
            {"id": "msg_7", "role": "developer", "content": "be brief"},
            {
                "id": "msg_8",
                "type": "message",
                "role": "user",
                "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}],
            },
            {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
            {
                "type": "reasoning",
                "id": "rs_2",
                "summary": [{"type": "summary_text", "text": "so"}],
                "encrypted_content": "x",
            },
            {"type": "reasoning", "id": "rs_3", "summary": [], "encrypted_content": "x"},
            {
                "type": "message",
                "id": "msg_1",
                "role": "assistant",
                "phase": "commentary",
                "status": "completed",
                "content": [
                    {"type": "output_text", "text": "c", "annotations": []},
                    {"type": "refusal", "refusal": "no"},
                ],
            },
            {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "f", "arguments": "{}"},
            {
                "type": "function_call_output",
                "id": "fco_1",
                "call_id": "call_1",
                "output": [{"type": "input_text", "text": "42"}],
            },
            {"type": "compaction", "id": "cmp_1", "encrypted_content": "x"},
            {"type": "item_reference", "id": "msg_9"},
        ]
    ).items
    assert items == (
        MessageItem("msg_7", "system", "be brief"),
        MessageItem("msg_8", "user", "ab"),
        ReasoningItem("rs_1", "hm"),
        ReasoningItem("rs_2", "so"),
        ReasoningItem("rs_3", ""),
        MessageItem("msg_1", "assistant", "cno", "commentary"),
        CallItem("fc_1", "call_1", "f", "{}"),
        CallOutputItem("fco_1", "call_1", "42"),
        ReferenceItem("msg_9"),
    )


def test_tool_choices() -> None:
    def choice(raw: object) -> ToolChoice:
        return prompt(tools=[TOOL, {**TOOL, "name": "g"}], tool_choice=raw).tool_choice

    assert choice("auto") == ToolChoice()
    assert choice("none") == ToolChoice("none")
    assert choice("required") == ToolChoice("required")
    assert choice({"type": "function", "name": "g"}) == ToolChoice("required", ("g",))
    allowed = [{"type": "function", "name": "f"}]
    assert choice({"type": "allowed_tools", "mode": "auto", "tools": allowed}) == ToolChoice("auto", ("f",))
    assert choice({"type": "allowed_tools", "mode": "required", "tools": allowed}) == ToolChoice("required", ("f",))


def test_a_long_text_is_not_written_as_json_to_measure_it(monkeypatch: pytest.MonkeyPatch) -> None:
    create, measured, dumps = read(instructions="x" * (MAX_ECHO_BYTES + 1)), list[object](), json.dumps

    def noted(value: object) -> str:
        measured.append(value)
        return dumps(value)

    monkeypatch.setattr(json, "dumps", noted)
    assert create.echo(SamplingParams())["instructions"] is None
    assert measured and not any(isinstance(value, str) for value in measured)


def test_formats() -> None:
    assert request(text={"format": {"type": "text"}}).format == TextFormat()
    assert request(text={"format": {"type": "json_object"}}).format == JsonObjectFormat()
    echo = read(text={"format": {"type": "json_schema", "name": "n", "schema": {"a": 1}}}).echo(SamplingParams())
    assert echo["text"]["format"]["schema"] == {"a": 1}


@pytest.mark.parametrize(
    ("effort", "kwargs"),
    [
        (None, {}),
        ("none", {"enable_thinking": False}),
        ("minimal", {"enable_thinking": False, "reasoning_effort": "minimal"}),
        ("high", {"enable_thinking": True, "reasoning_effort": "high"}),
    ],
)
def test_reasoning_effort_reaches_the_template(effort: str | None, kwargs: dict[str, Any]) -> None:
    assert json.loads(prompt(reasoning={"effort": effort}).template_kwargs) == kwargs


def test_logprobs_are_asked_for_by_number_or_by_include() -> None:
    assert request().logprobs is None
    assert request(top_logprobs=0).logprobs is None
    assert request(top_logprobs=2).logprobs == 2
    assert request(include=["message.output_text.logprobs"]).logprobs == 0


def test_prefill_only() -> None:
    assert request(generate=False).prefill_only
    assert request(prompt_cache_options={"prewarm": True}).prefill_only
    assert not request(generate=True, prompt_cache_options={"prewarm": False}).prefill_only
    assert prompt(generate=False, input=None, instructions="x").messages == (Message("system", "x"),)
    assert prompt(generate=False, input=None).messages == ()


def test_the_echo_stays_small_enough_for_a_frame() -> None:
    big = "x" * (MAX_ECHO_BYTES + 1)
    tools = [{**TOOL, "name": f"f{index}", "description": "x" * 2000} for index in range(100)]
    create = read(instructions=big, tools=tools, tool_choice="required")
    echo = create.echo(SamplingParams())
    assert len(json.dumps(echo)) < MAX_ECHO_BYTES
    assert (echo["instructions"], echo["tools"], echo["tool_choice"]) == (None, [], "auto")
    assert request_of(create).prompt == ChatPrompt(
        (Message("system", big), Message("user", "hi")), create.offered.tools, ToolChoice("required")
    )


def test_a_conversation_has_an_end() -> None:
    items = [{"role": "user", "content": "a"}] * MAX_MESSAGES
    assert len(prompt(input=items).messages) == MAX_MESSAGES
    with pytest.raises(InvalidRequest, match="4097 messages, at most 4096") as refused:
        prompt(input=[*items, items[0]])
    assert refused.value.param == "input"
