"""B8, B9, B11, B13: valid JSON without a valid meaning: a 4xx names the field, and the worker gets no work.

Grammars, templates and lengths, which only the worker can judge, are tested in
tests/integration/test_hostile_inputs.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from edgeagent.api.wire.fields import MAX_MESSAGES, MAX_STOP_BYTES, MAX_STOPS
from edgeagent.types import MAX_TOOLS
from tests.robust.asgi import Caller, calling

USER = {"role": "user", "content": "hi"}


@pytest.fixture(scope="module")
def caller() -> Iterator[Caller]:
    with calling() as caller:
        yield caller


def chat(caller: Caller, **fields: Any) -> tuple[int, dict[str, Any]]:
    answer = caller.post("/v1/chat/completions", {"model": "fake", "messages": [USER], **fields})
    return answer.status, answer.error() if answer.status != 200 else {}


BAD_MESSAGES: dict[str, Any] = {
    "none": [],
    "not a list": {},
    "not objects": ["hi"],
    "an unknown role": [{"role": "robot", "content": "hi"}],
    "no role": [{"content": "hi"}],
    "a role that is no word": [{"role": 7, "content": "hi"}],
    "no content": [{"role": "user"}],
    "content that is a number": [{"role": "user", "content": 7}],
    "parts that are none": [{"role": "user", "content": [7]}],
    "a part without text": [{"role": "user", "content": [{"type": "text"}]}],
    "a result without a call": [USER, {"role": "tool", "content": "4", "tool_call_id": "call_1"}],
    "a result before its call": [
        {"role": "tool", "content": "4", "tool_call_id": "c"},
        {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}]},
    ],
    "a result without an id": [USER, {"role": "tool", "content": "4"}],
    "a call without a name": [USER, {"role": "assistant", "tool_calls": [{"id": "c", "function": {"arguments": ""}}]}],
    "too many": [USER] * (MAX_MESSAGES + 1),
    "ten thousand": [USER] * 10_000,
}


@pytest.mark.parametrize("name", BAD_MESSAGES)
def test_messages(caller: Caller, name: str) -> None:
    before = len(caller.backend.requests)
    status, error = chat(caller, messages=BAD_MESSAGES[name])
    assert status == 400 and error["param"].startswith("messages"), error
    assert len(caller.backend.requests) == before


@pytest.mark.parametrize("messages", [[USER] * MAX_MESSAGES, [{"role": "user", "content": ""}], [USER, USER]])
def test_messages_that_are_fine(caller: Caller, messages: object) -> None:
    assert chat(caller, messages=messages)[0] == 200


@pytest.mark.parametrize(
    ("route", "fields"),
    [
        ("/v1/responses", {"input": []}),
        ("/v1/responses", {}),
        ("/v1/responses", {"input": [{"type": "function_call_output", "call_id": "c", "output": "4"}]}),
        ("/v1/responses", {"input": [{"role": "robot", "content": "hi"}]}),
        ("/v1/responses", {"input": [USER] * 10_000}),
        ("/v1/completions", {"prompt": []}),
        ("/v1/completions", {"prompt": [[]]}),
        ("/v1/completions", {"prompt": [-1]}),
        ("/v1/completions", {"prompt": [2**31]}),
        ("/v1/completions", {"prompt": [True]}),
        ("/v1/completions", {"prompt": ["x"] * 1000}),
    ],
)
def test_prompts(caller: Caller, route: str, fields: dict[str, Any]) -> None:
    before = len(caller.backend.requests)
    answer = caller.post(route, {"model": "fake", **fields})
    assert answer.status == 400 and answer.error()["param"], answer.body
    assert len(caller.backend.requests) == before


def function(**fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", **fields}}


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


# The bounds of a schema are the worker's: see tests/integration/test_bounded_work.py.
BAD_TOOLS: dict[str, Any] = {
    "a type that is a number": [{"type": 123}],
    "no function": [{"type": "function"}],
    "no name": [{"type": "function", "function": {}}],
    "an empty name": [function(name="")],
    "a name with a space": [function(name="f g")],
    "a long name": [function(name="f" * 129)],
    "a name twice": [function(), function()],
    "a description that is a list": [function(description=[])],
    "parameters that are text": [function(parameters="{}")],
    "strict that is a word": [function(strict="yes")],
    "too many": [function(name=f"f{number}") for number in range(MAX_TOOLS + 1)],
    "a thousand": [function(name=f"f{number}") for number in range(1000)],
}


@pytest.mark.parametrize("name", BAD_TOOLS)
def test_tools(caller: Caller, name: str) -> None:
    status, error = chat(caller, tools=BAD_TOOLS[name])
    assert status == 400 and error["param"].startswith("tools"), error
    assert error["code"] in ("invalid_tool_schema", "invalid_value", "not_supported")


@pytest.mark.parametrize("choice", ["f", "sometimes", 7, {"type": "function"}, {"type": "function", "function": {}}])
def test_tool_choices(caller: Caller, choice: object) -> None:
    status, error = chat(caller, tools=[function(name="g")], tool_choice=choice)
    assert status == 400 and error["param"].startswith("tool_choice"), error


@pytest.mark.parametrize("schema", [nested(40), {"description": "x" * (64 << 10)}, [], "x", None, 7])
def test_schemas(caller: Caller, schema: object) -> None:
    given = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    assert chat(caller, response_format=given)[0] == 400
    flat = {"type": "json_schema", "name": "x", "schema": schema}
    assert caller.post("/v1/responses", {"model": "fake", "input": "hi", "text": {"format": flat}}).status == 400


@pytest.mark.parametrize(
    "stop",
    [
        ["x"] * (MAX_STOPS + 1),
        ["x"] * 10_000,
        ["x" * (MAX_STOP_BYTES + 1)],
        "x" * (1 << 20),
        ["é" * (MAX_STOP_BYTES // 2 + 1)],
        [7],
        7,
        {"a": 1},
    ],
    ids=lambda stop: str(stop)[:20],
)
def test_stops(caller: Caller, stop: object) -> None:
    status, error = chat(caller, stop=stop)
    assert status == 400 and error["param"].startswith("stop"), error


@pytest.mark.parametrize(
    "stop", [["x" * MAX_STOP_BYTES] * MAX_STOPS, ["é" * (MAX_STOP_BYTES // 2)], [], [""], "", {}, None, "x"]
)
def test_stops_that_are_fine(caller: Caller, stop: object) -> None:
    assert chat(caller, stop=stop)[0] == 200
