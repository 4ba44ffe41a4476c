"""What the bodies of all wires have in common: names are short, and earlier calls are taken in every form."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import TypeAdapter

import edgeagent.api.routes  # noqa: F401 it imports every body
from edgeagent.api.anthropic.body import read_message
from edgeagent.api.ollama.body import read_chat as read_ollama_chat
from edgeagent.api.openai.chat_body import read_chat
from edgeagent.api.responses.body import read_create
from edgeagent.api.wire.body import Body
from edgeagent.api.wire.shape import Json
from edgeagent.conversation.history import ConnectionHistory, StoreResult
from edgeagent.errors import InvalidRequest, InvalidToolSchema
from edgeagent.types import ChatPrompt, GenerateRequest
from tests.text.grammar.test_compiler import accepts, constraint
from tests.text.schema.test_check import KEYWORDS

HI = [{"role": "user", "content": "hi"}]

# The model reads these.
CONTENT = {
    *(
        "content",
        "text",
        "input",
        "instructions",
        "prompt",
        "suffix",
        "input_prefix",
        "input_suffix",
        "system",
        "query",
        "documents",
        "output",
    ),
    *(
        "description",
        "reasoning_content",
        "thinking",
        "arguments",
        "encrypted_content",
        "chat_template_kwargs",
        "definition",
    ),
}
# These are refused unless they have one of a few values, or are checked on their own.
CHECKED = {
    *("tool_choice", "function_call", "keep_alive", "think", "format", "images", "metadata"),
    *("grammar", "samplers", "template"),
}


def bodies(kind: type[Body] = Body) -> Iterator[type[Body]]:
    for each in kind.__subclasses__():
        yield each
        yield from bodies(each)


def has_free_string(schema: Any) -> bool:
    """Whether a JSON schema allows a string of any length, apart from parts that are models of their own."""
    if not isinstance(schema, dict):
        return False
    bounds = ("maxLength", "enum", "const", "pattern")
    if schema.get("type") == "string" and not any(bound in schema for bound in bounds):
        return True
    inner = [
        *schema.get("anyOf", ()),
        *schema.get("oneOf", ()),
        schema.get("items"),
        schema.get("additionalProperties"),
    ]
    return any(has_free_string(each) for each in inner)


def test_every_string_that_names_something_is_bounded() -> None:
    """Otherwise ids of megabytes are stored, indexed and repeated in answers and logs."""
    for body in bodies():
        if not body.__module__.startswith("edgeagent.") or body.__module__.startswith("edgeagent.api.documents"):
            continue  # of a test, or it describes a frame and reads none
        for name, field in TypeAdapter(body).json_schema()["properties"].items():
            assert name in CONTENT | CHECKED or not has_free_string(field), f"{body.__name__}.{name}"


def of_chat(calls: list[Json], results: list[Json]) -> GenerateRequest:
    sent = [{"role": "assistant", "tool_calls": calls}, *({"role": "tool", "content": "1", **each} for each in results)]
    return read_chat({"messages": sent}, completion_id="c", default_model="fake").requests[0]


def of_messages(calls: list[Json], results: list[Json]) -> GenerateRequest:
    """A call of Anthropic's API always has an id."""
    ids = [each.get("id") or f"toolu_{index}" for index, each in enumerate(calls)]
    used = [
        {"type": "tool_use", "id": each, "name": call["function"]["name"], "input": call["function"]["arguments"]}
        for each, call in zip(ids, calls, strict=True)
    ]
    answers = [
        {"type": "tool_result", "tool_use_id": result.get("tool_call_id") or each, "content": "1"}
        for each, result in zip(ids, results, strict=False)
    ]
    sent = [{"role": "assistant", "content": used}, {"role": "user", "content": answers}]
    return read_message({"model": "fake", "max_tokens": 9, "messages": sent}, request_id="r").request


def of_ollama(calls: list[Json], results: list[Json]) -> GenerateRequest:
    sent = [{"role": "assistant", "tool_calls": calls}, *({"role": "tool", "content": "1", **each} for each in results)]
    asked = read_ollama_chat({"model": "fake", "messages": sent}, request_id="r", served=str)
    assert asked.request is not None
    return asked.request


def of_responses(calls: list[Json], results: list[Json]) -> GenerateRequest:
    sent = [{"type": "function_call", "call_id": each.get("id"), **each["function"]} for each in calls]
    outputs = [{"type": "function_call_output", "call_id": each.get("tool_call_id"), "output": "1"} for each in results]
    create = read_create({"input": [*sent, *outputs]})
    return create.request("r", "fake", ConnectionHistory().continue_from(None, create.items, StoreResult()))


@pytest.mark.parametrize("read", [of_chat, of_messages, of_ollama, of_responses])
def test_earlier_calls_are_taken_in_every_form(read: Any) -> None:
    """Arguments are an object or its text, and an id that is missing is made."""
    calls = [{"function": {"name": "f", "arguments": arguments}} for arguments in ('{"a": "é"}', {"a": "é"}, {})]
    request = read([*calls, {"id": "mine", **calls[0]}], [{}, {}, {}, {"tool_call_id": "mine"}])
    assert isinstance(request.prompt, ChatPrompt)
    assistant, *results = request.prompt.messages
    assert [call.arguments for call in assistant.tool_calls] == ['{"a": "é"}', '{"a": "é"}', "{}", '{"a": "é"}']
    ids = [call.id for call in assistant.tool_calls]
    assert len(set(ids)) == 4 and all(ids)
    assert [message.tool_call_id for message in results] == ids
    # The ids are the same when the client sends its history again, so that the cached prompt still fits.
    again = read([*calls, {"id": "mine", **calls[0]}], [{}, {}, {}, {"tool_call_id": "mine"}])
    assert again.prompt == request.prompt


@pytest.mark.parametrize("read", [of_chat, of_responses])
def test_a_result_that_no_call_waits_for_is_named(read: Any) -> None:
    """Ollama's clients send results without ids, so its route takes them all."""
    call: Json = {"function": {"name": "f", "arguments": {}}}
    with pytest.raises(InvalidRequest, match=r"call_id is required: no call before it .*waits for a result"):
        read([call], [{}, {}])
    with pytest.raises(InvalidRequest, match="other"):
        read([call], [{"tool_call_id": "other"}])


def offered_by_chat(tool: Json) -> GenerateRequest:
    body: Json = {"messages": HI, "tools": [{"type": "function", "function": tool}]}
    return read_chat(body, completion_id="c", default_model="fake").requests[0]


def offered_by_messages(tool: Json) -> GenerateRequest:
    offered = {"name": tool["name"], "input_schema": tool["parameters"]}
    body: Json = {"model": "fake", "max_tokens": 9, "messages": HI, "tools": [offered]}
    return read_message(body, request_id="r").request


def offered_by_ollama(tool: Json) -> GenerateRequest:
    asked = read_ollama_chat(
        {"model": "fake", "messages": HI, "tools": [{"function": tool}]}, request_id="r", served=str
    )
    assert asked.request is not None
    return asked.request


def offered_by_responses(tool: Json) -> GenerateRequest:
    create = read_create({"input": "hi", "tools": [{"type": "function", **tool}]})
    return create.request("r", "fake", ConnectionHistory().continue_from(None, create.items, StoreResult()))


@pytest.mark.parametrize("read", [offered_by_chat, offered_by_messages, offered_by_ollama, offered_by_responses])
def test_no_keyword_of_a_tools_schema_costs_the_request_where_the_tool_is_not_strict(read: Any) -> None:
    """A keyword that is null is absent, as serializers write it. What cannot be followed is left out in the worker."""
    for schema in ({keyword: None} for keyword in KEYWORDS):
        parameters = {**schema, "properties": {"a": schema}}
        prompt = read({"name": "f", "parameters": parameters}).prompt
        assert isinstance(prompt, ChatPrompt)
        (tool,) = prompt.tools
        assert json.loads(tool.parameters) == parameters
        call = constraint(tools=(tool,), mode="required")
        assert not call.warnings
        assert accepts(call, '<tool_call>{"name": "f", "arguments": {"a": "b"}}</tool_call>')


@pytest.mark.parametrize("read", [offered_by_chat, offered_by_ollama, offered_by_responses])
def test_a_tool_that_is_refused_is_named(read: Any) -> None:
    wrongs: list[Json] = [{"parameters": []}, {"parameters": "{}"}, {"description": 5}]
    for wrong in wrongs:
        with pytest.raises(
            InvalidToolSchema, match=rf"^tools\[0\]\.(function\.)?{next(iter(wrong))} of tool 'f' must be"
        ):
            read({"name": "f", **wrong})
