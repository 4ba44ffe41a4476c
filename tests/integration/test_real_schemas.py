"""Schemas of ordinary types and tool calls with trained weights: each answer is valid JSON and ends in its limit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import jsonschema_rs
import pytest

from tests.integration.conftest import Daemon
from tests.integration.test_real_weights import running
from tests.patience import patient
from tests.smollm2 import MODEL

MAX_TOKENS = 160


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


TEXT, INTEGER, NUMBER = {"type": "string"}, {"type": "integer"}, {"type": "number"}
STEPS = {"type": "array", "items": TEXT, "maxItems": 3}
TYPES: dict[str, tuple[str, dict[str, Any]]] = {
    "integer": ("How many minutes are in an hour?", _object(minutes=INTEGER)),
    "number": ("What is half of five?", _object(result=NUMBER)),
    "text": ("What is the capital of France?", _object(capital=TEXT)),
    "boolean": ("Is the sky blue?", _object(is_blue={"type": "boolean"})),
    "choice": ("Is this friendly? I love you.", _object(mood={"enum": ["friendly", "neutral", "hostile"]})),
    "date": ("When was the first moon landing?", _object(day={"type": "string", "format": "date"})),
    "list": ("Name three primary colours.", _object(colours={"type": "array", "items": TEXT, "maxItems": 3})),
    "person": ("Ada Lovelace was a mathematician, born in 1815.", _object(name=TEXT, born=INTEGER, job=TEXT)),
    "nested": ("A red car with four wheels.", _object(car=_object(colour=TEXT, wheels=INTEGER))),
    "or null": ("The book has no known author.", _object(author={"anyOf": [TEXT, {"type": "null"}]}, title=TEXT)),
}
TOOLS = {
    "set_timer": _object(minutes=INTEGER),
    "get_weather": _object(city=TEXT, unit={"enum": ["celsius", "fahrenheit"]}),
    "send_mail": _object(to={"type": "string", "format": "email"}, is_urgent={"type": "boolean"}),
}


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with running(tmp_path_factory.mktemp("schemas") / "state") as daemon:
        yield daemon


def _choice(daemon: Daemon, question: str, **fields: Any) -> dict[str, Any]:
    body = {"model": MODEL.stem, "messages": [{"role": "user", "content": question}], "temperature": 0}
    body |= {"max_tokens": MAX_TOKENS, **fields}
    reply = httpx.post(f"{daemon.url}/v1/chat/completions", json=body, timeout=patient(120), trust_env=False)
    assert reply.status_code == 200, reply.text
    choice: dict[str, Any] = reply.json()["choices"][0]
    return choice


@pytest.mark.parametrize("name", TYPES)
def test_an_answer_of_this_type_is_whole(real: Daemon, name: str) -> None:
    question, schema = TYPES[name]
    wanted = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}
    choice = _choice(real, question, response_format=wanted)
    assert choice["finish_reason"] == "stop", choice
    assert jsonschema_rs.is_valid(schema, json.loads(choice["message"]["content"]), validate_formats=True), choice


@pytest.mark.parametrize("name", TOOLS)
def test_a_call_fits_its_tool(real: Daemon, name: str) -> None:
    tools = [{"type": "function", "function": {"name": each, "parameters": TOOLS[each]}} for each in TOOLS]
    named = {"type": "function", "function": {"name": name}}
    asked = "Please do this: " + name.replace("_", " ")
    choice = _choice(real, asked, tools=tools, tool_choice=named, parallel_tool_calls=False)
    (call,) = choice["message"]["tool_calls"]
    assert call["function"]["name"] == name
    arguments = json.loads(call["function"]["arguments"])
    assert jsonschema_rs.is_valid(TOOLS[name], arguments, validate_formats=True), choice


@pytest.mark.slow
def test_any_object_ends_without_a_limit(real: Daemon) -> None:
    """A small model repeats itself. What it may repeat is bounded, so that it does not fill its context."""
    choice = _choice(real, "Describe a cat as JSON.", response_format={"type": "json_object"}, max_tokens=None)
    assert choice["finish_reason"] == "stop", choice
    assert isinstance(json.loads(choice["message"]["content"]), dict)
