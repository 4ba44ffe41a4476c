"""B5: every number of every body at and beyond its bounds, and non-numbers: 400 names the field and the range."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeagent.api.routes import ROUTES as OPERATIONS
from edgeagent.api.wire.body import NEUTRAL_NUMBERS
from tests.examples import examples
from tests.robust.asgi import Caller, calling

DOCUMENT = json.loads((Path(__file__).parents[2] / "docs" / "openapi.json").read_text(encoding="utf-8"))
SCHEMAS = DOCUMENT["components"]["schemas"]
BASE: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}], "logprobs": True},
    "/v1/responses": {"input": "hi"},
    "/v1/completions": {"prompt": "hi"},
    "/completion": {"prompt": "hi"},
    "/api/chat": {"messages": [{"role": "user", "content": "hi"}], "stream": False},
    "/api/generate": {"prompt": "hi", "stream": False},
}
ROUTES = [route for route in BASE if f"POST {route}" in OPERATIONS]
NO_NUMBERS = ["true", "false", '"1"', "[1]", "{}"]
ABSENT = ["null", '""']
TOO_LARGE = [
    *(str(2**63), str(-(2**63)), str(2**64 - 1), str(2**64), str(-(2**64)), str(10**25), "9" * 400, "9" * 5000),
    *("1e400", "-1e400", "NaN", "Infinity", "-Infinity"),
]


def resolved(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema with its reference resolved and without null."""
    for choice in schema.get("anyOf", ()):
        if choice.get("type") != "null":
            return resolved(choice)
    if "$ref" in schema:
        return resolved(SCHEMAS[schema["$ref"].rpartition("/")[2]])
    return schema


def numbers(route: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield each number of a body: the name of its object ("" for the body), its name and its schema."""
    operation = DOCUMENT["paths"][route]["post"]
    body = resolved(operation["requestBody"]["content"]["application/json"]["schema"])
    for name, schema in body["properties"].items():
        field = resolved(schema)
        if field.get("type") in ("integer", "number"):
            yield "", name, field
        elif name == "options":
            yield from (("options", inner, resolved(of)) for inner, of in field["properties"].items())


NUMBERS = [
    (route, parent, name, schema)
    for route in ROUTES
    for parent, name, schema in numbers(route)
    if schema.get("type") in ("integer", "number")
]
IDS = [f"{route}-{name}" for route, _, name, _ in NUMBERS]


@pytest.fixture(scope="module")
def caller() -> Iterator[Caller]:
    with calling() as caller:
        yield caller


def body_with(route: str, parent: str, name: str, literal: str) -> str:
    """Return a valid body in which a field has this literal as its value."""
    fields = {"model": "fake", **BASE[route]}
    marked: dict[str, Any] = {**fields, parent: {name: "<here>"}} if parent else {**fields, name: "<here>"}
    return json.dumps(marked).replace('"<here>"', literal)


def test_enough_is_tried() -> None:
    names = {name for _, _, name, _ in NUMBERS}
    assert {"temperature", "top_p", "top_k", "max_tokens", "n", "seed", "num_predict", "max_output_tokens"} <= names
    assert len(NUMBERS) > 40
    # Every number must have bounds.
    unbounded = {name for _, _, name, schema in NUMBERS if not {"minimum", "exclusiveMinimum"} & set(schema)}
    # Any duration is fine: keep_alive only concerns an unused model, and a request ends long before by itself.
    assert unbounded <= {"keep_alive", "t_max_predict_ms"}


@pytest.mark.parametrize(("route", "parent", "name", "schema"), NUMBERS, ids=IDS)
def test_the_bounds_are_where_they_are_said_to_be(
    caller: Caller, route: str, parent: str, name: str, schema: dict[str, Any]
) -> None:
    if "minimum" not in schema:
        return
    low, high = schema["minimum"], schema["maximum"]
    is_whole = schema["type"] == "integer"
    for value in (low, high):
        answer = caller.post(route, body_with(route, parent, name, json.dumps(value)))
        assert answer.status == 200, (value, answer.body)
    step = 1 if is_whole else 0.001
    for value in (low - step, high + step):
        # Some fields take -1 or 0 for "not set"; Ollama's take -1.
        is_neutral = value in NEUTRAL_NUMBERS.get(name, ()) or (parent, value) == ("options", -1)
        if abs(value) < 2**63 and not is_neutral:
            answer = caller.post(route, body_with(route, parent, name, json.dumps(value)))
            assert answer.status == 400
            message = answer.error()["message"]
            assert name in message and "must be from" in message, message
    for literal in [*TOO_LARGE, *(NO_NUMBERS[: None if is_whole else -1])]:
        answer = caller.post(route, body_with(route, parent, name, literal))
        assert answer.status == 400, (literal, answer.body)
    for literal in ABSENT:
        assert caller.post(route, body_with(route, parent, name, literal)).status == 200, literal
    if is_whole:
        assert caller.post(route, body_with(route, parent, name, "1.5")).status == 400
        # Typed clients send whole numbers as 40.0.
        whole = caller.post(route, body_with(route, parent, name, f"{min(max(2, low), high)}.0"))
        assert whole.status == 200, whole.body


NASTY = st.sampled_from(
    ["-0", "-0.0", "0", "1", "-1", str(2**31 - 1), str(2**31), str(2**32), str(2**53), *TOO_LARGE, *NO_NUMBERS, *ABSENT]
)


@settings(max_examples=examples(500))
@given(st.sampled_from(NUMBERS), NASTY | st.integers().map(str) | st.floats().map(json.dumps))
def test_whatever_a_number_is(caller: Caller, field: tuple[str, str, str, dict[str, Any]], literal: str) -> None:
    route, parent, name, _ = field
    answer = caller.post(route, body_with(route, parent, name, literal))
    assert answer.status in (200, 400), answer.body
    if answer.status == 400:
        assert answer.error()["message"].isprintable()


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(
    "bias",
    [
        {"-1": 0},
        {"1.5": 0},
        {"": 0},
        {" 1": 0},
        {"٣": 0},
        {"9" * 5000: 0},
        {str(2**31): 0},
        {"1": 101},
        {"1": "0"},
        {"1": True},
        {str(token): 0 for token in range(20_000)},
        [7],
        7,
    ],
    ids=lambda bias: str(bias)[:20],
)
def test_logit_bias(caller: Caller, route: str, bias: object) -> None:
    fields = {"options": {"logit_bias": bias}} if route.startswith("/api/") else {"logit_bias": bias}
    answer = caller.post(route, {"model": "fake", **BASE[route], **fields})
    assert answer.status == 400
    assert "logit_bias" in answer.error()["message"]


@pytest.mark.parametrize("route", ROUTES)
def test_unknown_fields_have_no_effect(caller: Caller, route: str) -> None:
    assert caller.post(route, {"model": "fake", **BASE[route], "no_such_field": [{"x": -1}]}).status == 200
