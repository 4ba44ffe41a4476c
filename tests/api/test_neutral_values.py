"""Every optional field of every wire takes its neutral values as if it were absent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any, NotRequired, get_args, get_origin

import pytest
from pydantic import BaseModel, TypeAdapter
from typing_extensions import get_type_hints, is_typeddict

from edgeagent.api.documents.asyncapi import CLIENT_FRAMES
from edgeagent.api.openai.chat_body import read_chat
from edgeagent.api.page.kiosk import KioskFrame
from edgeagent.api.realtime.body import CLIENT_EVENTS
from edgeagent.api.responses.body import read_create
from edgeagent.api.routes import ROUTES as OPERATIONS
from edgeagent.api.wire.body import MEANT_EMPTY, NEUTRAL_NUMBERS, Body, Settings, validate
from edgeagent.api.wire.fields import Arguments
from edgeagent.api.wire.latency import LatencyHeaders
from edgeagent.api.wire.shape import Json
from edgeagent.credentials.keys import Scope
from edgeagent.types import TextDelta
from tests.api.responses.socket.session_client import Client
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
    "InputCustomCall": {"type": "custom_tool_call", "name": "f"},
    "InputMessage": {"role": "user", "content": "hi"},
    "InputOtherItem": {"type": "web_search_call"},
    "InputReasoning": {"type": "reasoning"},
    "InstructionMessage": {"role": "system", "content": "hi"},
    "KioskFrame": {"type": "response.create"},
    "KioskMessage": {"role": "user", "content": "hi"},
    "NamespaceTool": {"type": "namespace", "name": "n"},
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


def parts(annotation: object) -> Iterator[type]:
    """Yield the bodies and the typed dicts in a field's type. A validator that reads a field says what clients send."""
    if isinstance(annotation, type) and (issubclass(annotation, Body) or is_typeddict(annotation)):
        yield annotation
    for inner in (*get_args(annotation), getattr(annotation, "json_schema_input_type", None)):
        if inner is not None:
            yield from parts(inner)


def fields_of(body: type) -> dict[str, object]:
    """Return the types of a body's or a typed dict's fields, by the names that clients send."""
    if not issubclass(body, BaseModel):
        return get_type_hints(body, include_extras=True)
    return {
        field.alias or name: Annotated[field.annotation, "", *field.metadata]
        for name, field in body.model_fields.items()
    }


def all_bodies() -> Iterator[type]:
    """Yield what clients send: bodies, queries, the frames of WebSockets, the headers, and every object in one."""
    waiting: list[type] = [*CLIENT_EVENTS.values(), LatencyHeaders, KioskFrame]
    for each in OPERATIONS.values():
        if each.tag in WIRES or each.scope is not Scope.ADMIN:
            waiting += [body for body in (each.body, each.query) if body]
    seen: set[type] = set()
    while waiting:
        body = waiting.pop()
        if body in seen:
            continue
        seen.add(body)
        yield body
        for annotation in fields_of(body).values():
            waiting += parts(annotation)


ALL = sorted(all_bodies(), key=lambda body: body.__name__)
BODIES = [body for body in ALL if issubclass(body, Settings)]
DICTS = [body for body in ALL if not issubclass(body, BaseModel)]


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


def test_each_body_with_optional_fields_takes_neutral_values() -> None:
    for body in ALL:
        if issubclass(body, BaseModel) and not issubclass(body, Settings):
            assert all(field.is_required() for field in body.model_fields.values()), body.__name__


@pytest.mark.parametrize("part", DICTS, ids=lambda part: part.__name__)
def test_an_optional_field_of_a_part_may_be_null(part: type) -> None:
    for annotation in fields_of(part).values():
        if get_origin(annotation) is NotRequired:
            TypeAdapter[Any](get_args(annotation)[0]).validate_python(None)


def test_the_arguments_of_an_earlier_call_may_be_null() -> None:
    """Otherwise a conversation with one such call could not be continued."""
    [reads] = get_args(Arguments)[1:]
    has_calls = {
        body.__name__
        for body in ALL
        for annotation in fields_of(body).values()
        if reads in getattr(annotation, "__metadata__", ())
    }
    assert has_calls == {"CalledFunction", "InputCall", "OllamaEarlierFunction", "ToolUseBlock"}
    assert TypeAdapter[str](Arguments).validate_python(None) == "{}"


@pytest.mark.parametrize("frame", CLIENT_FRAMES, ids=lambda frame: frame.__name__)
def test_a_neutral_value_in_a_frame_is_as_if_the_field_were_absent(frame: type[BaseModel]) -> None:
    [kind] = get_args(frame.model_fields["type"].annotation)
    required = {"response.create": {"input": "hi"}, "response.steer": {"previous_response_id": "resp_1", "input": "no"}}

    def told(**sent: Any) -> tuple[list[Json], list[str], list[str]]:
        client = Client()
        client.create()
        client.step("resp_1", TextDelta("hi"))
        return client.send(kind, **required.get(kind, {}), **sent), client.started, client.cancelled

    absent = told()
    assert absent[2] == (["resp_1"] if kind in ("response.cancel", "response.steer") else [])
    for name, field in frame.model_fields.items():
        for value in (None, "") if name not in MEANT_TEXTS else (None,):
            if not field.is_required() and name not in required.get(kind, {}):
                assert told(**{name: value}) == absent, (name, value)


def test_each_wire_is_walked() -> None:
    names = {body.__name__ for body in BODIES}
    assert {"ChatBody", "CompletionBody", "CreateResponseBody", "EmbeddingsBody", "RerankBody"} <= names
    assert {"MessagesBody", "CountTokensBody", "AnthropicToolChoice", "Thinking", "OutputConfig"} <= names
    assert {"OllamaChatBody", "OllamaGenerateBody", "OllamaEmbedBody", "OptionsBody"} <= names
    assert {"ChooseBody", "LatencyHeaders"} <= names
    assert {"EdgeagentBody", "Format", "Reasoning", "StreamOptions"} <= names
    assert {"EventsQuery", "KioskFrame", "KioskMessage", "ListQuery", "PageQuery"} <= names
    parts = {"FilePart", "ImageAddress", "ImagePart", "ImageSource", "Sound", "TextBlock", "TextPart", "ToolUseBlock"}
    assert parts <= {part.__name__ for part in DICTS}
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
