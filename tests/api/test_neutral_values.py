"""Every optional field of every wire takes its neutral values as if it were absent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, get_args

import pytest
from pydantic import BaseModel, TypeAdapter

from edgeagent.api.openai.chat_body import read_chat
from edgeagent.api.realtime.body import CLIENT_EVENTS
from edgeagent.api.responses.body import read_create
from edgeagent.api.routes import ROUTES as OPERATIONS
from edgeagent.api.wire.body import MEANT_EMPTY, NEUTRAL_NUMBERS, Body, Settings, validate
from edgeagent.api.wire.latency import LatencyHeaders
from edgeagent.credentials.keys import Scope
from tests.present import present

WIRES = ("openai", "anthropic", "llama-server", "ollama")
FUNCTION: dict[str, Any] = {"name": "f", "arguments": "{}"}
# The required fields of the bodies, and of the objects in them.
REQUIRED: dict[str, dict[str, Any]] = {
    "AnthropicTool": {"name": "f"},
    "AnthropicToolChoice": {"type": "auto"},
    "AssistantMessage": {"role": "assistant"},
    "ChatCall": {"function": FUNCTION},
    "ChatTool": {"function": {"name": "f"}},
    "CustomTool": {"type": "custom", "name": "f"},
    "Function": {"name": "f"},
    "InputCall": {"type": "function_call", **FUNCTION},
    "InputCallOutput": {"type": "function_call_output", "output": "1"},
    "InputCompaction": {"type": "compaction"},
    "InputCustomCall": {"type": "custom_tool_call", "name": "f", "input": "x"},
    "InputMessage": {"role": "user", "content": "hi"},
    "InputOtherItem": {"type": "web_search_call"},
    "InputReasoning": {"type": "reasoning"},
    "InstructionMessage": {"role": "system", "content": "hi"},
    "NamespaceTool": {"type": "namespace", "name": "n", "tools": []},
    "OllamaEarlierCall": {"function": FUNCTION},
    "OllamaMessage": {"role": "user"},
    "OllamaTool": {"function": {"name": "f"}},
    "PlainFunction": {"name": "f"},
    "ResponsesTool": {"name": "f"},
    "ToolMessage": {"role": "tool", "content": "1"},
    "ChatBody": {"messages": [{"role": "user", "content": "hi"}]},
    "CompletionBody": {"prompt": "hi"},
    "ChooseBody": {"input": "hi", "choices": ["a", "b"]},
    "CountTokensBody": {"model": "m", "messages": [{"role": "user", "content": "hi"}]},
    "ContextManagement": {"type": "compaction"},
    "DetokenizeBody": {"tokens": [1]},
    "EmbeddingsBody": {"input": "hi"},
    "InfillBody": {"input_prefix": "hi", "input_suffix": ""},
    "InfillFile": {"text": "hi"},
    "LlamaCompletionBody": {"prompt": "hi"},
    "MessagesBody": {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1},
    "OllamaChatBody": {"model": "m"},
    "OllamaCopyBody": {"source": "a", "destination": "b"},
    "OllamaEmbedBody": {"model": "m"},
    "OllamaEmbeddingsBody": {"model": "m"},
    "OllamaGenerateBody": {"model": "m"},
    "OllamaModelBody": {"model": "m"},
    "OllamaPullBody": {"model": "m"},
    "PullBody": {"model": "m"},
    "RerankBody": {"query": "q", "documents": ["d"]},
    "Thinking": {"type": "adaptive"},
    "ChatUserMessage": {"role": "user", "content": "hi"},
    "TokenizeBody": {"content": "hi"},
    "InputReference": {"type": "item_reference", "id": "x"},
    "ItemCreate": {"type": "conversation.item.create", "item": {"role": "user", "content": "hi"}},
    "ItemDelete": {"type": "conversation.item.delete", "item_id": "x"},
    "ItemRetrieve": {"type": "conversation.item.retrieve", "item_id": "x"},
    "ItemTruncate": {"type": "conversation.item.truncate", "item_id": "x"},
    "RealtimeCallOutput": {"type": "function_call_output", "call_id": "x", "output": "1"},
    "RealtimeResponseCancel": {"type": "response.cancel"},
    "RealtimeResponseCreate": {"type": "response.create"},
    "SessionUpdate": {"type": "session.update", "session": {}},
}


# The fields in which an empty list or object is a value, and those in which an empty text is one.
MEANT = {"content", "input", "json_schema", "format", "samplers", "parameters", "schema", "tool_call_id", "id"}
MEANT |= {"input_schema"}
MEANT_TEXTS = {"input"}
# The numbers that clients send for "not set". Written by hand, so that one that is lost in the code is missed.
NUMBERS = {
    "dimensions": (0, -1),
    "max_output_tokens": (-1,),
    "max_tool_calls": (-1,),
    "repeat_penalty": (0,),
    "seed": (-1,),
    "top_n": (0, -1),
}


def parts(annotation: object) -> Iterator[type[BaseModel]]:
    """Yield the bodies in a field's type."""
    if isinstance(annotation, type) and issubclass(annotation, Body):
        yield annotation
    for inner in get_args(annotation):
        yield from parts(inner)


def all_settings() -> Iterator[type[Settings]]:
    """Yield every body that clients send, every event of the Realtime API, the headers, and every object in one."""
    waiting: list[type[BaseModel]] = [
        each.body for each in OPERATIONS.values() if each.body and (each.tag in WIRES or each.scope is not Scope.ADMIN)
    ]
    waiting += [*CLIENT_EVENTS.values(), LatencyHeaders]
    seen: set[type[BaseModel]] = set()
    while waiting:
        body = waiting.pop()
        if body in seen:
            continue
        seen.add(body)
        optional = [field for field in body.model_fields.values() if not field.is_required()]
        assert not optional or issubclass(body, Settings), f"{body.__name__} does not take neutral values"
        if issubclass(body, Settings):
            yield body
        for field in body.model_fields.values():
            waiting += parts(field.annotation)


BODIES = sorted(all_settings(), key=lambda body: body.__name__)


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_a_neutral_value_is_as_if_the_field_were_absent(body: type[Settings]) -> None:
    least = REQUIRED.get(body.__name__, {})
    absent = validate(body, least)
    for name, field in body.model_fields.items():
        sent = field.alias or name
        if field.is_required() or sent in least:
            continue
        shape = json.dumps(TypeAdapter[Any](present(field.annotation)).json_schema())
        values: list[Any] = [None, *NUMBERS.get(sent, ())]
        values += [] if sent in MEANT_TEXTS else [""]
        values += [[]] if '"array"' in shape and sent not in MEANT else []
        values += [{}] if '"object"' in shape and sent not in MEANT else []
        for value in values:
            assert validate(body, {**least, sent: value}) == absent, (sent, value)


def test_each_wire_is_walked() -> None:
    names = {body.__name__ for body in BODIES}
    assert {"ChatBody", "CompletionBody", "CreateResponseBody", "EmbeddingsBody", "RerankBody"} <= names
    assert {"MessagesBody", "CountTokensBody", "AnthropicToolChoice", "Thinking", "OutputConfig"} <= names
    assert {"OllamaChatBody", "OllamaGenerateBody", "OllamaEmbedBody", "OptionsBody"} <= names
    assert {"ChooseBody", "LatencyHeaders"} <= names
    assert {"EdgeagentBody", "Format", "Reasoning", "StreamOptions"} <= names
    fields = {field.alias or name for body in BODIES for name, field in body.model_fields.items()}
    assert names >= {event.__name__ for event in CLIENT_EVENTS.values() if event.model_fields}
    assert fields >= NUMBERS.keys() and fields >= MEANT_EMPTY
    assert NEUTRAL_NUMBERS == NUMBERS


@pytest.mark.parametrize("stop", ["", [""], [], None, [None]])
def test_an_empty_stop_string_is_none(stop: object) -> None:
    messages = [{"role": "user", "content": "hi"}]
    [chat] = read_chat({"messages": messages, "stop": stop}, completion_id="c", default_model="m").requests
    assert chat.stop == ()
    [kept] = read_chat({"messages": messages, "stop": ["", "x"]}, completion_id="c", default_model="m").requests
    assert kept.stop == ("x",)
    assert not read_create({"input": "hi", "stop": stop}).body.stop


@pytest.mark.parametrize(
    "fields",
    [
        {"top_logprobs": 0},
        {"response_format": {}},
        {"response_format": {"type": ""}},
        {"json_schema": "", "samplers": ""},
        {"functions": [], "tools": []},
        {"messages": [{"role": "user", "content": "hi", "name": ""}]},
        {"logit_bias": []},
        {"reasoning_effort": "", "tool_choice": "", "function_call": ""},
        {"max_tokens": -1, "n_predict": -1},
        {"stream_options": {}, "edgeagent": {"route": ""}},
    ],
)
def test_what_settings_pages_send_to_chat(fields: dict[str, Any]) -> None:
    messages = [{"role": "user", "content": "hi"}]
    least, sent = ({"messages": messages, **each} for each in ({}, fields))
    assert read_chat(sent, completion_id="c", default_model="m") == read_chat(
        least, completion_id="c", default_model="m"
    )


def test_a_whole_number_may_be_written_with_a_point() -> None:
    fields = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 40.0, "top_k": 40.0, "seed": 1.0, "n": 1.0}
    [request] = read_chat(fields, completion_id="c", default_model="m").requests
    assert (request.max_tokens, request.sampling.top_k, request.sampling.seed) == (40, 40, 1)


def test_minus_one_as_top_k_is_all_tokens() -> None:
    fields = {"messages": [{"role": "user", "content": "hi"}], "top_k": -1}
    [request] = read_chat(fields, completion_id="c", default_model="m").requests
    assert request.sampling.top_k == 0
