"""The body of a message: what reaches the model, and what is refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from edgeagent.api.anthropic.body import MessagesBody, read_count, read_message
from edgeagent.api.wire.body import warning_about
from edgeagent.api.wire.shape import Json
from edgeagent.errors import InvalidRequest, InvalidToolSchema, NotSupported
from edgeagent.types import (
    AnswerSoFar,
    ChatPrompt,
    GenerateRequest,
    JsonSchemaFormat,
    Message,
    SamplingParams,
    TextFormat,
    Tool,
    ToolCall,
    ToolChoice,
)
from tests.api.anthropic.messages import HI, WEATHER

SCHEMA: Json = {"type": "object", "properties": {"a": {"type": "integer"}}}


def read(**fields: Any) -> GenerateRequest:
    return read_message({"model": "m", "max_tokens": 9, "messages": HI} | fields, request_id="r").request


def prompt_of(**fields: Any) -> ChatPrompt:
    prompt = read(**fields).prompt
    assert isinstance(prompt, ChatPrompt)
    return prompt


def refusal(**fields: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        read(**fields)
    return caught.value


def test_the_conversation_as_the_model_gets_it() -> None:
    mark = {"type": "ephemeral", "ttl": "1h"}
    call = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Köln"}, "caller": {"type": "d"}}
    seen = [
        {"type": "text", "text": "rain"},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}},
    ]
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "Weather?"}, {"type": "text", "text": "Now."}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm", "signature": "edgeagent"},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "text", "text": "Let me ", "citations": None},
                {"type": "text", "text": "see."},
                call,
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "And tomorrow?", "cache_control": mark},
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": seen, "is_error": True},
                {"type": "tool_result", "tool_use_id": "toolu_1"},
            ],
        },
        {"role": "system", "content": "Be brief."},
        {"role": "assistant", "content": "Sun."},
        {"role": "user", "content": []},
    ]
    system = [{"type": "text", "text": "You are a kiosk."}, {"type": "text", "text": "Be kind.", "cache_control": mark}]
    assert prompt_of(messages=messages, system=system).messages == (
        Message("system", "You are a kiosk.\n\nBe kind."),
        Message("user", "Weather?\n\nNow."),
        Message("assistant", "Let me see.", "Hm", (ToolCall("toolu_1", "weather", '{"city": "Köln"}'),)),
        Message("tool", "rain[image left out: only text can be read here]", tool_call_id="toolu_1"),
        Message("tool", "", tool_call_id="toolu_1"),
        Message("user", "And tomorrow?"),
        Message("system", "Be brief."),
        Message("assistant", "Sun."),
        Message("user", ""),
    )
    assert prompt_of(system="Be kind.").messages[0] == Message("system", "Be kind.")


def test_the_block_that_differs_in_each_request_is_left_out() -> None:
    """Claude Code sends it first. Nothing behind it would be found in the prefix cache."""
    system = [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.37.0d9; cc_entrypoint=cli; cch=fa690;"},
        {"type": "text", "text": "You are a kiosk."},
    ]
    assert prompt_of(system=system).messages[0] == Message("system", "You are a kiosk.")
    assert prompt_of(system=system[:1]).messages == (Message("user", HI[0]["content"]),)


def test_a_last_message_of_the_assistant_is_the_beginning_of_the_answer() -> None:
    begun = [
        *HI,
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm"}, *[{"type": "text", "text": "One"}]]},
    ]
    request = read(messages=begun)
    assert request.so_far == AnswerSoFar("One", "Hm")
    assert isinstance(request.prompt, ChatPrompt) and request.prompt.messages == (Message("user", "hello big world"),)
    assert read(messages=[*HI, {"role": "assistant", "content": ""}]).so_far is None
    assert read(messages=begun[1:]).so_far is None
    call = {"type": "tool_use", "id": "a", "name": "weather", "input": {}}
    assert read(messages=[*HI, {"role": "assistant", "content": [call]}]).so_far is None


def test_consecutive_messages_are_one_turn() -> None:
    call = {"type": "tool_use", "id": "a", "name": "weather", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "a", "content": "rain"}
    messages: list[Any] = [
        {"role": "user", "content": "Hi"},
        {"role": "user", "content": []},
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm"}, {"type": "text", "text": "Let me "}]},
        {"role": "assistant", "content": [{"type": "text", "text": "see."}, call]},
        {"role": "user", "content": [result, {"type": "text", "text": "And"}]},
        {"role": "user", "content": "tomorrow?"},
    ]
    turns = (
        Message("user", "Hi\n\nWeather?"),
        Message("assistant", "Let me see.", "Hm", (ToolCall("a", "weather", "{}"),)),
        Message("tool", "rain", tool_call_id="a"),
        Message("user", "And\n\ntomorrow?"),
    )
    assert prompt_of(messages=messages).messages == turns
    begun = [{"role": "assistant", "content": text} for text in ("Su", "n")]
    request = read(messages=[*messages, *begun])
    assert isinstance(request.prompt, ChatPrompt) and request.prompt.messages == turns
    assert request.so_far == AnswerSoFar("Sun")


def test_settings() -> None:
    request = read(
        temperature=0.5,
        top_p=0.9,
        top_k=40.0,
        max_tokens=7,
        stop_sequences=["END", ""],
        metadata={"user_id": "u"},
        service_tier="auto",
        edgeagent={"adapter": "polite", "route": "local_only"},
    )
    assert request.sampling == SamplingParams(temperature=0.5, top_p=0.9, top_k=40)
    assert (request.max_tokens, request.stop, request.format) == (7, ("END",), TextFormat())
    assert (request.model, request.route) == ("m+polite", "local_only")


def test_tools() -> None:
    tools = [
        WEATHER | {"cache_control": {"type": "ephemeral"}, "eager_input_streaming": True, "input_examples": []},
        {"type": "custom", "name": "clock", "input_schema": SCHEMA, "strict": True},
        {"type": None, "name": "bell"},
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 8},
    ]
    assert prompt_of(tools=tools).tools == (
        Tool("weather", "now", json.dumps(WEATHER["input_schema"], separators=(",", ":"))),
        Tool("clock", "", json.dumps(SCHEMA, separators=(",", ":")), strict=True),
        Tool("bell"),
    )


@pytest.mark.parametrize(
    ("sent", "choice", "is_parallel"),
    [
        (None, ToolChoice(), True),
        ({"type": "auto"}, ToolChoice(), True),
        ({"type": "auto", "disable_parallel_tool_use": True}, ToolChoice(), False),
        ({"type": "any", "disable_parallel_tool_use": True}, ToolChoice("required"), False),
        ({"type": "tool", "name": "weather"}, ToolChoice("required", ("weather",)), True),
        ({"type": "none"}, ToolChoice("none"), True),
    ],
)
def test_tool_choice(sent: Json | None, choice: ToolChoice, is_parallel: bool) -> None:
    prompt = prompt_of(tools=[WEATHER], tool_choice=sent)
    assert (prompt.tool_choice, prompt.parallel_tool_calls) == (choice, is_parallel)


@pytest.mark.parametrize(
    ("fields", "kwargs"),
    [
        ({}, {}),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, {"enable_thinking": True}),
        ({"thinking": {"type": "adaptive"}}, {"enable_thinking": True}),
        ({"thinking": {"type": "disabled"}}, {"enable_thinking": False}),
        ({"thinking": {"type": "between_tools"}}, {"enable_thinking": False}),
        ({"output_config": {"effort": "high"}}, {"enable_thinking": True, "reasoning_effort": "high"}),
        (
            {"thinking": {"type": "disabled"}, "output_config": {"effort": "low"}},
            {"enable_thinking": False, "reasoning_effort": "low"},
        ),
    ],
)
def test_thinking_is_asked_of_the_chat_template(fields: Json, kwargs: Json) -> None:
    assert json.loads(prompt_of(**fields).template_kwargs) == kwargs


def test_a_schema_for_the_text() -> None:
    config = {"format": {"type": "json_schema", "schema": SCHEMA}}
    assert read(output_config=config).format == JsonSchemaFormat(json.dumps(SCHEMA, separators=(",", ":")))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "x"}}]}]},
            "messages[0].content[0].source",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "document", "source": {}}]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "assistant", "content": [{"type": "image"}]}]}, "messages[0].content[0]"),
        ({"compaction": {"type": "summarize"}}, "compaction"),
        ({"container": "c"}, "container"),
        ({"inference_geo": "us"}, "inference_geo"),
        ({"mcp_servers": [{}]}, "mcp_servers"),
        ({"output_format": {"type": "json_schema"}}, "output_format"),
        ({"thread": {"type": "create"}}, "thread"),
    ],
)
def test_what_would_change_the_answer_is_refused_by_name(fields: Json, param: str) -> None:
    error = refusal(**fields)
    assert isinstance(error, NotSupported) and error.param == param


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_tokens": None}, "max_tokens must be a valid integer, not null"),
        ({"max_tokens": -1}, "max_tokens must be from 0 to 2147483647, not -1"),
        ({"messages": []}, "messages must hold at least 1 item"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role must be one of user, assistant, system"),
        ({"messages": [{"role": "user"}]}, "messages[0].content is required"),
        ({"messages": [{"role": "user", "content": 7}]}, "messages[0].content must be a string or a list of blocks"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text is required"),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "image", "source": {"type": "base64", "data": "AAAA"}}]}
                ]
            },
            "messages[0].content[0].source is no PNG, JPEG, WebP, GIF or BMP",
        ),
        ({"system": [{"type": "image"}]}, "system[0].type must be 'text', not 'image'"),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x"}]}]},
            "messages[0].content[0].tool_use_id 'x' answers no tool_use of an earlier message",
        ),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool"}}, "tool_choice.name is required"),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "x"}}, "tool_choice: no tool is named 'x'"),
        ({"tool_choice": {"type": "any"}}, "tool_choice asks for a call, but there are no tools"),
        ({"temperature": 3}, "temperature must be from 0 to 2, not 3"),
        ({"thinking": {"type": "maybe"}}, "thinking.type must be 'enabled', 'adaptive', 'disabled' or 'between_tools'"),
    ],
)
def test_what_is_wrong_is_named(fields: Json, message: str) -> None:
    assert refusal(**fields).message.startswith(message)


def test_a_tools_schema_is_at_fault() -> None:
    error = refusal(tools=[{"name": "f", "input_schema": "x"}])
    assert isinstance(error, InvalidToolSchema) and error.param == "tools[0].input_schema"
    assert "of tool 'f' must be a JSON schema" in error.message


def test_a_count_needs_no_limit_and_has_the_same_prompt() -> None:
    fields: Json = {"model": "m", "messages": HI, "system": "Be kind.", "tools": [WEATHER]}
    counted = read_count(fields)
    assert counted.prompt == prompt_of(**fields)
    with pytest.raises(NotSupported, match="mcp_servers"):
        read_count(fields | {"mcp_servers": [{"url": "x"}]})


def test_what_has_no_effect_is_told() -> None:
    fields = {
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "context_management": {"edits": [{"type": "clear_thinking_20251015"}]},
        "tools": [WEATHER, {"type": "web_search_20250305", "name": "web_search"}],
        "stop": ["x"],
    }
    warning = warning_about(MessagesBody, fields)
    assert warning is not None and warning.text == (
        "unknown fields: stop (did you mean stop_sequences?); "
        "tools[1] is left out: tools of type web_search_20250305 are not run here; "
        "thinking.budget_tokens is ignored: the model decides how long it reasons; "
        "context_management is ignored: the whole conversation is the prompt"
    )
    quiet = {"cache_control": {"type": "ephemeral"}, "metadata": {}, "service_tier": "auto", "speed": "fast"}
    assert warning_about(MessagesBody, quiet) is None
