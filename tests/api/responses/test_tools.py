"""Tools that are no plain functions, as coding agents send them: namespaces, custom tools, and other servers' tools."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeagent.api.responses.body import ResponseCreate, read_create
from edgeagent.api.responses.events import ResponseEvents, events_after, new_response
from edgeagent.api.responses.items import item_body, read_items
from edgeagent.api.responses.open_items import StringReader
from edgeagent.api.wire.shape import Json
from edgeagent.conversation.items import CallOutputItem
from edgeagent.errors import InvalidRequest, InvalidToolSchema
from edgeagent.types import (
    MAX_TOOLS,
    ChatPrompt,
    FinishReason,
    GenerateRequest,
    Message,
    SamplingParams,
    ToolCall,
    ToolCallDelta,
    ToolCallStarted,
    ToolChoice,
)
from tests.api.event_grammar import EventGrammar
from tests.api.responses.test_body import request_of
from tests.api.serving import serve, validate_event
from tests.backends.fake import FakeBackend, finished

SPAWN = {"type": "function", "name": "spawn", "parameters": {"type": "object"}, "strict": False}
AGENTS = {"type": "namespace", "name": "agents", "description": "Agents.", "tools": [SPAWN, {"type": "web_search"}]}
PATCH = {"type": "custom", "name": "apply_patch", "description": "Patches files."}
LARK = {**PATCH, "format": {"type": "grammar", "syntax": "lark", "definition": "start: /x/"}}
REGEX = {**PATCH, "format": {"type": "grammar", "syntax": "regex", "definition": "a|b"}}
USER = {"role": "user", "content": "hi"}


def read(**fields: Any) -> ResponseCreate:
    return read_create({"input": "hi", **fields})


def chat_prompt(request: GenerateRequest) -> ChatPrompt:
    assert isinstance(request.prompt, ChatPrompt)
    return request.prompt


def answered(create: ResponseCreate, name: str, *arguments: str) -> tuple[list[Json], ResponseEvents]:
    """Return the events of a response in which the model calls the tool `name`."""
    response = new_response("resp_1", "fake", create.echo(SamplingParams()), 0)
    events = ResponseEvents(response, offered=create.offered)
    produced = events.created() + events.step([ToolCallStarted(0, "call_1", name)])
    for piece in arguments:
        produced += events.step([ToolCallDelta(0, piece)])
    produced += events.step([finished(FinishReason.TOOL_CALLS)])
    grammar = EventGrammar()
    for event in produced:
        validate_event(event)
        grammar.feed(event)
    grammar.finish()
    return produced, events


def test_a_function_of_a_namespace_is_offered_and_called_back_with_its_namespace() -> None:
    create = read(tools=[AGENTS, {**SPAWN, "name": "f"}])
    assert [tool.name for tool in create.offered.tools] == ["agents.spawn", "f"]
    _, events = answered(create, "agents.spawn", "{}")
    [call] = events.response["output"]
    assert call["type"] == "function_call"
    assert (call["namespace"], call["name"], call["arguments"]) == ("agents", "spawn", "{}")
    [item] = events.items
    assert item_body(item) == call
    again = read(input=[USER, call, {"type": "function_call_output", "call_id": "call_1", "output": "ok"}])
    prompt = chat_prompt(request_of(again))
    assert prompt.messages[1] == Message("assistant", "", "", (ToolCall("call_1", "agents.spawn", "{}"),))


def test_the_echo_has_the_form_of_the_request() -> None:
    echoed = read(tools=[AGENTS, PATCH]).echo(SamplingParams())["tools"]
    assert [(tool["type"], tool["name"]) for tool in echoed] == [("namespace", "agents"), ("custom", "apply_patch")]
    assert [tool["name"] for tool in echoed[0]["tools"]] == ["spawn"]


@pytest.mark.parametrize(
    "chosen",
    [
        {"type": "function", "name": "spawn", "namespace": "agents"},
        {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "agents.spawn"}]},
    ],
)
def test_a_choice_names_a_function_of_a_namespace(chosen: Json) -> None:
    assert read(tools=[AGENTS], tool_choice=chosen).tool_choice == ToolChoice("required", ("agents.spawn",))


def test_a_custom_tool_is_a_function_of_one_text() -> None:
    for sent, text in ((PATCH, {"type": "string"}), (REGEX, {"type": "string", "pattern": "^(?:a|b)$"})):
        [tool] = read(tools=[sent]).offered.tools
        assert json.loads(tool.parameters)["properties"] == {"input": text}
        assert tool.description == "Patches files."
    [shown] = read(tools=[LARK]).offered.tools
    assert "start: /x/" in shown.description


def test_a_call_of_a_custom_tool_streams_its_text() -> None:
    produced, events = answered(read(tools=[PATCH]), "apply_patch", '{"inp', 'ut": "a\\', "n\\u00", 'e9"', "}")
    deltas = [event["delta"] for event in produced if event["type"] == "response.custom_tool_call_input.delta"]
    assert deltas == ["a", "\n", "é"]
    [call] = events.response["output"]
    assert call["type"] == "custom_tool_call"
    assert (call["name"], call["input"]) == ("apply_patch", "a\né")
    assert [event["type"] for event in events_after(events.state, -1)][-4:] == [
        "response.custom_tool_call_input.delta",
        "response.custom_tool_call_input.done",
        "response.output_item.done",
        "response.completed",
    ]
    [item] = events.items
    assert item_body(item) == call
    output = {"type": "custom_tool_call_output", "call_id": "call_1", "output": "done"}
    [_, result] = read_items([call, output])
    assert item_body(result)["type"] == "custom_tool_call_output"


def test_what_another_server_runs_is_left_out_and_named() -> None:
    create = read(tools=[AGENTS, {"type": "web_search"}, {"type": "local_shell"}, LARK])
    assert [tool.name for tool in create.offered.tools] == ["agents.spawn", "apply_patch"]
    assert create.warning is not None
    assert create.warning.text.split("; ") == [
        "tools[0].tools[1] is left out: tools of type web_search are not run here",
        "tools[1] is left out: tools of type web_search are not run here",
        "tools[2] is left out: tools of type local_shell are not run here",
        "tools[3].format: a Lark grammar is shown to the model, and not enforced",
    ]
    with pytest.raises(InvalidRequest, match="there are no tools"):
        read(tools=[{"type": "web_search"}], tool_choice="required")


def test_too_many_functions_and_two_of_one_name_are_refused() -> None:
    many = [{**SPAWN, "name": f"f{index}"} for index in range(MAX_TOOLS)]
    with pytest.raises(InvalidRequest, match=f"there are {2 * MAX_TOOLS}"):
        read(tools=[{**AGENTS, "tools": many}, {**AGENTS, "name": "more", "tools": many}])
    with pytest.raises(InvalidToolSchema, match=r"agents\.spawn"):
        read(tools=[AGENTS, {**SPAWN, "name": "agents.spawn"}])


def test_items_of_other_tools_become_text() -> None:
    shell = {"type": "local_shell_call", "call_id": "c", "action": {"command": ["ls"]}, "status": "completed"}
    output = {"type": "local_shell_call_output", "call_id": "c", "output": "a.txt"}
    image = {"type": "image_generation_call", "id": "ig_1", "result": "iVBOR", "revised_prompt": "a cat"}
    create = read(input=[USER, shell, output, image])
    prompt = chat_prompt(request_of(create))
    assert [(each.role, each.content) for each in prompt.messages[1:]] == [
        ("assistant", '[local_shell_call] {"action":{"command":["ls"]}}'),
        ("user", '[local_shell_call_output] {"output":"a.txt"}'),
        ("assistant", '[image_generation_call] {"revised_prompt":"a cat"}'),
    ]
    assert create.warning is not None
    assert create.warning.text.startswith("input[1]: an item of type local_shell_call is shown to the model as text")


def test_a_damaged_image_in_a_result_becomes_a_note() -> None:
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    parts = [{"type": "input_text", "text": "Seen: "}, {"type": "input_image", "image_url": "data:image/png;base64,AA"}]
    [_, result] = read_items([call, {"type": "function_call_output", "call_id": "c", "output": parts}])
    assert isinstance(result, CallOutputItem)
    assert result.output == "Seen: [image left out: only text can be read here]"


@given(st.text(), st.lists(st.integers(0, 60)), st.booleans())
def test_a_string_is_read_whatever_its_pieces(text: str, cuts: list[int], is_ascii: bool) -> None:
    whole = json.dumps({"input": text}, ensure_ascii=is_ascii)
    reader = StringReader("input")
    assert "".join(reader.read(piece) for piece in _pieces(whole, cuts)) == text


def test_half_a_character_is_replaced() -> None:
    assert StringReader("input").read('{"input": "a\\ud83d b"}') == "a\ufffd b"


def _pieces(text: str, cuts: list[int]) -> Iterator[str]:
    for length in cuts:
        yield text[:length]
        text = text[length:]
    yield text


async def test_chat_leaves_other_tools_out_and_names_them() -> None:
    function = {"type": "function", "function": {"name": "f"}}
    tools = [function, {"type": "web_search_preview"}, {"type": "custom", "custom": {"name": "x"}}]
    backend = FakeBackend()
    async with serve(backend) as address, httpx.AsyncClient(base_url=f"http://{address}") as http:
        sent = {"messages": [USER], "tools": tools}
        reply = await http.post("/v1/chat/completions", json=sent)
    assert reply.status_code == 200
    warning = reply.headers["x-edgeagent-warning"]
    assert "tools[1] is left out" in warning and "tools[2] is left out" in warning
    assert [tool.name for tool in chat_prompt(backend.requests[0]).tools] == ["f"]
