"""Functions as tools: the schemas of their hints, and what the model gets of their calls."""

from __future__ import annotations

import enum
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import jsonschema_rs
import pytest

from edgeagent.client.tools import Tool, split_tools
from tests.media import RED, SILENCE, b64, data_url


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Place:
    room: str
    floor: int = 0


async def light(
    place: Place,
    color: Color,
    level: Annotated[int, "Percent"] = 100,
    mode: Literal["slow", "fast"] = "fast",
    names: list[str] | None = None,
) -> object:
    """Switch a light.

    And dim it.
    """
    return {"room": place.room, "color": color.value, "level": level, "mode": mode, "names": names}


def test_the_schema_is_that_of_the_hints() -> None:
    definition = Tool(light).definition
    assert (definition["type"], definition["name"]) == ("function", "light")
    assert definition["description"] == "Switch a light.\n\nAnd dim it."
    schema = definition["parameters"]
    assert schema["required"] == ["place", "color"]
    assert schema["properties"]["level"] == {"type": "integer", "description": "Percent"}
    assert schema["properties"]["mode"] == {"enum": ["fast", "slow"]}
    check = jsonschema_rs.validator_for(schema)
    assert check.is_valid({"place": {"room": "x"}, "color": "red"})
    assert not check.is_valid({"place": {"room": "x"}, "color": "green"})
    assert not check.is_valid({"place": {"room": "x"}, "color": "red", "other": 1})


async def test_arguments_get_the_types_of_the_hints() -> None:
    output = await Tool(light).run('{"place": {"room": "hall"}, "color": "blue", "level": 5}')
    assert output == '{"room":"hall","color":"blue","level":5,"mode":"fast","names":null}'


def plain(n: int) -> str:
    return "x" * n


def nothing() -> None:
    """Do nothing."""


def name_of_a_file() -> str:
    return os.fsdecode(b"caf\xe9")


def broken() -> None:
    raise ValueError("no bulb")


async def test_the_model_sees_the_image_that_a_function_returns() -> None:
    def screenshot() -> bytes:
        return RED

    def sound() -> bytes:
        return SILENCE

    def unknown() -> bytes:
        return b"bytes"

    assert await Tool(screenshot).run("{}") == [
        {"type": "input_image", "image_url": data_url(RED), "detail": "auto"},
    ]
    assert await Tool(sound).run("{}") == [
        {"type": "input_audio", "input_audio": {"data": b64(SILENCE), "format": "wav"}}
    ]
    assert await Tool(unknown).run("{}") == '"Ynl0ZXM="'


@pytest.mark.parametrize(
    ("function", "arguments", "output"),
    [
        (plain, '{"n": 3}', "xxx"),
        (plain, '{"n": "3"}', "error: ValidationError: Expected `int`, got `str` - at `$.n`"),
        (plain, "{", "error: DecodeError: Input data was truncated"),
        (nothing, "", "null"),
        (name_of_a_file, "", "caf?"),
        (broken, "{}", "error: ValueError: no bulb"),
    ],
)
async def test_the_model_is_told_the_output_or_the_error(
    function: Callable[..., Any], arguments: str, output: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "edgeagent.client.tools"):
        assert await Tool(function).run(arguments) == output
    assert ("failed" in caplog.text) == output.startswith("error")


def untyped(n) -> None:  # type: ignore[no-untyped-def]
    ...


def many(*names: str) -> None: ...


def unknown(n: Tool) -> None: ...


@pytest.mark.parametrize(("function", "reason"), [(untyped, "parameter n needs"), (many, "names"), (unknown, "Tool")])
def test_a_function_without_a_schema_is_refused(function: Callable[..., Any], reason: str) -> None:
    with pytest.raises(TypeError, match=reason):
        Tool(function)


def test_tools_of_any_kind_are_split() -> None:
    wire = {"type": "function", "name": "other"}
    made = Tool(plain)
    definitions, functions = split_tools([wire, made, nothing])
    assert definitions == [wire, made.definition, Tool(nothing).definition]
    assert functions.keys() == {"plain", "nothing"} and functions["plain"] is made
