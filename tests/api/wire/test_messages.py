"""The types of messages and functions: parts of text, JSON schemas, names, and unions that a field chooses."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

import pytest

from edgeagent.api.wire.body import Body, validate
from edgeagent.api.wire.fields import (
    By,
    Content,
    Function,
    Parameters,
    PlainFunction,
    Schema,
    read_schema,
    tools_of,
)
from edgeagent.errors import InvalidRequest, InvalidToolSchema, NotSupported
from edgeagent.types import MAX_SCHEMA_BYTES, MAX_SCHEMA_DEPTH, Tool


class Cat(Body):
    type: Literal["cat", "kitten"] = "cat"


class Dog(Body):
    type: Literal["dog"]
    name: str


class Fish(Body):
    type: str


class Speech(Body):
    role: Literal["user"]
    said: str = ""


class Result(Body):
    role: Literal["tool"]


class Sent(Body):
    """A body with the module's types."""

    content: Content = ""
    answer: Schema | None = None
    arguments: Parameters | None = None
    pet: Annotated[Cat | Dog, By("type", "cat")] | None = None
    animal: Annotated[Cat | Dog | Fish, By("type", "cat")] | None = None
    speech: Annotated[Speech | Result, By("role")] | None = None
    tool: Function | None = None


def refusal(fields: dict[str, object], cls: type[InvalidRequest] = InvalidRequest) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        validate(Sent, fields)
    assert type(caught.value) is cls
    return caught.value


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth - 1):
        schema = {"items": schema}
    return schema


class TestContent:
    @pytest.mark.parametrize(
        ("content", "text"),
        [
            ("", ""),
            ("hi", "hi"),
            ([], ""),
            ([{"type": "text", "text": "a"}, {"type": "input_text", "text": ""}], "a"),
            ([{"type": "output_text", "text": "a", "annotations": []}, {"type": "summary_text", "text": "b"}], "ab"),
            ([{"type": "text", "text": "a"}, {"type": "refusal", "refusal": "no"}], "ano"),
        ],
    )
    def test_parts_are_joined(self, content: object, text: str) -> None:
        assert validate(Sent, {"content": content}).content == text

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (None, "content must be a string or a list of parts, not null"),
            ({"type": "text", "text": "a"}, "content must be a string or a list of parts, not an object"),
            (["a"], "content[0] must be an object, not 'a'"),
            ([{"text": "a"}], "content[0].type is required"),
            (
                [{"type": 5}],
                "content[0].type must be one of text, input_text, output_text, summary_text, refusal, not 5",
            ),
            ([{"type": "text"}], "content[0].text is required"),
            ([{"type": "text", "text": None}], "content[0].text must be a valid string, not null"),
            ([{"type": "refusal", "text": "a"}], "content[0].refusal is required"),
        ],
    )
    def test_other_content_is_refused(self, content: object, message: str) -> None:
        error = refusal({"content": content})
        assert (error.message, error.param) == (message, message.split(" ", 1)[0])

    def test_a_part_of_another_type_is_not_supported(self) -> None:
        error = refusal({"content": [{"type": "text", "text": "a"}, {"type": "image_url"}]}, NotSupported)
        assert error.param == "content[1]"
        assert error.message == (
            "content[1]: the type 'image_url' is not supported; "
            "send text, input_text, output_text, summary_text, refusal"
        )


class TestToldBy:
    @pytest.mark.parametrize(
        ("pet", "model"),
        [
            ({"type": "cat"}, Cat(type="cat")),
            ({"type": "kitten"}, Cat(type="kitten")),
            ({"type": "dog", "name": "Rex"}, Dog(type="dog", name="Rex")),
            ({"name": "no type: the default"}, Cat()),
        ],
    )
    def test_the_field_chooses_the_model(self, pet: object, model: Body) -> None:
        assert validate(Sent, {"pet": pet}).pet == model

    @pytest.mark.parametrize(
        ("animal", "model"),
        [({"type": "shark"}, Fish(type="shark")), ({"type": "kitten"}, Cat(type="kitten")), ({}, Cat())],
    )
    def test_a_model_with_any_string_stands_for_all_others(self, animal: object, model: Body) -> None:
        assert validate(Sent, {"animal": animal}).animal == model

    def test_another_type_is_not_supported(self) -> None:
        error = refusal({"pet": {"type": "b" * 100}}, NotSupported)
        assert error.message == f"pet: the type '{'b' * 64}' is not supported; send cat, kitten, dog"
        assert error.param == "pet"

    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"pet": "cat"}, "pet must be an object, not 'cat'"),
            ({"speech": {"role": None}}, "speech.role must be one of user, tool, not null"),
            ({"pet": {"type": ["cat"]}}, "pet.type must be one of cat, kitten, dog, not a list"),
            ({"pet": {"type": "dog"}}, "pet.name is required"),
            ({"speech": {"said": "a"}}, "speech.role is required"),
            ({"speech": {"role": "wizard"}}, "speech.role must be one of user, tool, not 'wizard'"),
        ],
    )
    def test_what_chooses_no_model_is_refused(self, fields: dict[str, object], message: str) -> None:
        error = refusal(fields)
        assert (error.message, error.param) == (message, message.split(" ", 1)[0])


class TestSchema:
    def test_a_schema_becomes_its_shortest_text(self) -> None:
        schema = {"title": "é", "enum": [1, None, True]}
        text = '{"title":"é","enum":[1,null,true]}'
        assert read_schema(schema, "grammar") == text
        assert validate(Sent, {"answer": schema}).answer == text

    def test_the_size_is_bounded_in_bytes(self) -> None:
        frame = len('{"title":""}')
        largest = "é" * ((MAX_SCHEMA_BYTES - frame) // 2)
        assert len(read_schema({"title": largest}, "schema").encode()) == MAX_SCHEMA_BYTES
        with pytest.raises(InvalidRequest, match=f"^schema is larger than {MAX_SCHEMA_BYTES} bytes$"):
            read_schema({"title": largest + "a"}, "schema")

    def test_the_depth_is_bounded(self) -> None:
        deepest = nested(MAX_SCHEMA_DEPTH)
        assert json.loads(read_schema(deepest, "schema")) == deepest
        with pytest.raises(InvalidRequest, match=f"^schema is nested deeper than {MAX_SCHEMA_DEPTH} levels$"):
            read_schema(nested(MAX_SCHEMA_DEPTH + 1), "schema")

    def test_lists_are_levels_too(self) -> None:
        with pytest.raises(InvalidRequest, match="nested deeper"):
            read_schema({"anyOf": [nested(MAX_SCHEMA_DEPTH - 1)]}, "schema")

    @pytest.mark.parametrize("schema", [None, True, "{}", []])
    def test_what_is_not_an_object_is_refused(self, schema: object) -> None:
        with pytest.raises(InvalidRequest) as caught:
            read_schema(schema, "text.format.schema")
        assert caught.value.message == "text.format.schema must be a JSON schema, an object"
        assert caught.value.param == "text.format.schema"

    def test_a_field_is_refused_with_its_value(self) -> None:
        assert refusal({"answer": "{}"}).message == "answer must be a JSON schema, an object, not '{}'"
        assert refusal({"answer": nested(99)}).message == f"answer is nested deeper than {MAX_SCHEMA_DEPTH} levels"


class TestParameters:
    @pytest.mark.parametrize("schema", [{}, {"type": "object"}, {"type": ["null", "object"]}, {"properties": {}}])
    def test_arguments_are_an_object(self, schema: dict[str, object]) -> None:
        text = validate(Sent, {"arguments": schema}).arguments
        assert text is not None and json.loads(text) == schema

    def test_what_a_tool_needs_is_checked_where_it_is_known_whether_the_tool_is_strict(self) -> None:
        for schema in ({"type": "string"}, {"type": None}, nested(MAX_SCHEMA_DEPTH + 1), {"a": "x" * MAX_SCHEMA_BYTES}):
            text = validate(Sent, {"arguments": schema}).arguments
            assert text is not None and json.loads(text) == schema

    def test_what_is_not_a_schema_is_refused(self) -> None:
        assert refusal({"arguments": []}).message == "arguments must be a JSON schema, an object, not a list"


class TestTools:
    def test_functions_become_tools(self) -> None:
        functions = [
            validate(Function, {"name": "f", "description": "adds", "parameters": {"type": "object"}, "strict": True}),
            Function(name="g", strict=False),
            PlainFunction(name="h"),
        ]
        assert tools_of(functions) == (Tool("f", "adds", '{"type":"object"}', strict=True), Tool("g"), Tool("h"))
        assert tools_of([]) == ()

    @pytest.mark.parametrize("field", ["tools", "functions"])
    def test_a_second_tool_of_one_name_is_refused(self, field: str) -> None:
        with pytest.raises(InvalidToolSchema) as caught:
            tools_of([PlainFunction(name="f"), PlainFunction(name="g"), PlainFunction(name="f")], field)
        assert (caught.value.message, caught.value.param) == (f"{field}[2]: a second tool named 'f'", f"{field}[2]")

    @pytest.mark.parametrize("name", ["f", "a.b:c_D-9", "mcp/set_timer", "x" * 128])
    def test_a_name_is_letters_digits_and_a_few_signs(self, name: str) -> None:
        tool = validate(Sent, {"tool": {"name": name}}).tool
        assert tool is not None and tool.name == name

    @pytest.mark.parametrize("name", ["", "a b", "é", "f\n", "x" * 129])
    def test_other_names_are_refused(self, name: str) -> None:
        error = refusal({"tool": {"name": name}})
        assert error.message.startswith("tool.name must match [A-Za-z0-9_.:/-]{1,128}, not '")
        assert error.param == "tool.name"

    @pytest.mark.parametrize("fields", [{"type": "function"}, {}, {"type": None}])
    def test_a_function_is_checked_further(self, fields: dict[str, object]) -> None:
        assert refusal({"tool": fields}).message == "tool.name is required"
