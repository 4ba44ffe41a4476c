import json
from typing import Any

import pytest
from msgspec.structs import replace

from edgeagent.errors import InvalidRequest, InvalidToolSchema
from edgeagent.types import MAX_SCHEMA_BYTES, MAX_SCHEMA_DEPTH, JsonSchemaFormat, TextFormat, Tool
from tests.text.grammar.test_compiler import TOOLS, accepts, constraint
from tests.text.schema.test_closing import joined

FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"not": {"const": 1}}, "`not` at {} cannot be followed; leave it out, or send strict: false"),
    ({"type": "array", "uniqueItems": True}, "`uniqueItems` at {} cannot be followed"),
    ({"type": "object", "propertyNames": {"maxLength": 3}}, "`propertyNames` at {} cannot be followed"),
    ({"type": "string", "pattern": "("}, "`pattern` at {} cannot be followed: regex parse error: unclosed group"),
    ({"type": "string", "pattern": "^(?!a)b"}, "`pattern` at {} cannot be followed: regex parse error: look-around"),
    ({"type": "string", "minLength": 5, "maxLength": 3}, "`minLength` at {} is 5 and maxLength is 3"),
    ({"type": "integer", "minimum": 5, "maximum": 3}, "`minimum` at {} is 5 and maximum is 3"),
    ({"type": "text"}, "`type` at {} is 'text'; it must be one of array"),
    ({"$ref": "https://example.com/a.json"}, "`$ref` at {} is 'https://example.com/a.json', which leads out of the"),
    ({"$ref": "file:///etc/passwd#/a"}, "`$ref` at {} is 'file:///etc/passwd#/a', which leads out of the schema"),
    ({"$ref": "#/$defs/missing"}, "`$ref` at {} names '#/$defs/missing', which is not in the schema"),
    (
        {"type": "string", "allOf": [{"pattern": f".*{c}.*"} for c in "abcde"]},
        "`allOf` at {} joins more than 4 patterns",
    ),
    (
        {"anyOf": [{"allOf": [{"pattern": c} for c in "abc"]}], "allOf": [{"pattern": "d"}, {"format": "date"}]},
        "`allOf`",
    ),
    (
        {"type": "object", "required": ["b"], "properties": {}, "additionalProperties": False},
        "`required` at {} names 'b'",
    ),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "`oneOf` at {} has schemas that can match the same value"),
]


@pytest.mark.parametrize(("schema", "words"), FAULTS, ids=lambda value: None if isinstance(value, dict) else value[:12])
def test_the_keyword_and_its_place_are_named(schema: dict[str, Any], words: str) -> None:
    items = {"type": "array", "minItems": 1, "items": schema}
    required = {"type": "object", "properties": {"list": items}, "required": ["list"]}
    place = "#/properties/list/items"
    with pytest.raises(InvalidRequest) as refused:
        constraint(JsonSchemaFormat(json.dumps(required), "answer"))
    assert type(refused.value) is InvalidRequest
    assert refused.value.param == "text.format"
    assert refused.value.message.startswith("format 'answer': " + words.format(place))
    with pytest.raises(InvalidToolSchema) as refused:
        constraint(tools=(*TOOLS, Tool("bad", "", json.dumps(required), strict=True)))
    assert refused.value.param == "tools"
    assert refused.value.message.startswith("parameters of tool 'bad': " + words.format(place))


def test_what_can_be_followed_is_not_blamed_for_what_cannot() -> None:
    bad = {"type": "string", "pattern": "^(?!a)b"}
    kinds = [{"type": "object", "properties": {"kind": {"const": kind}}, "required": ["kind"]} for kind in "ab"]
    for followed in ({"unevaluatedProperties": False}, {"oneOf": kinds}):
        constraint(JsonSchemaFormat(json.dumps({"type": "object", "properties": {"z": {}}, **followed})))
        schema = {"type": "object", "properties": {"z": bad}, "required": ["z"], **followed}
        with pytest.raises(InvalidRequest, match="`pattern` at #/properties/z"):
            constraint(JsonSchemaFormat(json.dumps(schema)))


def test_a_format_beside_tools_is_told_from_them() -> None:
    bad = json.dumps({"type": "string", "pattern": "("})
    with pytest.raises(InvalidRequest) as refused:
        constraint(JsonSchemaFormat(bad, "answer"), TOOLS)
    assert refused.value.param == "text.format"
    with pytest.raises(InvalidToolSchema) as refused:
        good = JsonSchemaFormat('{"type": "string"}')
        constraint(good, (*TOOLS, Tool("bad", "", json.dumps({"properties": {"a": json.loads(bad)}}), strict=True)))
    assert refused.value.message.startswith("parameters of tool 'bad': `pattern` at #/properties/a")


IMPOSSIBLE = {"properties": {"a": {"allOf": [{"type": "string"}, {"type": "integer"}]}}, "required": ["a"]}


def test_a_fault_of_no_known_kind_keeps_the_compilers_words() -> None:
    with pytest.raises(InvalidRequest, match=r"format 'response': the schema cannot be followed: .*unsatisfiable"):
        constraint(JsonSchemaFormat(json.dumps(IMPOSSIBLE)))
    with pytest.raises(InvalidToolSchema, match=r"parameters of tool 'get': the schema cannot be followed: "):
        constraint(TextFormat(), (Tool("get", "", json.dumps(IMPOSSIBLE), strict=True),))


# What zod 4 writes for `z.string().email()`.
EMAIL = r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"
MAIL = {
    "type": "object",
    "properties": {"to": {"type": "string", "format": "email", "pattern": EMAIL}, "urgent": {"type": "boolean"}},
    "required": ["to", "urgent"],
}


@pytest.mark.parametrize(("schema", "words"), FAULTS, ids=lambda value: None if isinstance(value, dict) else value[:12])
def test_a_tool_that_is_not_strict_is_offered_without_what_cannot_be_followed(
    schema: dict[str, Any], words: str
) -> None:
    both = {"type": "object", "properties": {"bad": schema, "good": {"type": "boolean"}}, "required": ["bad", "good"]}
    state = constraint(tools=(*TOOLS, Tool("other", "", json.dumps(both))), mode="required")
    if not {*schema} & {"not", "uniqueItems", "propertyNames", "oneOf"}:  # the compiler itself ignores those
        (warning,) = state.warnings
        assert warning.startswith("parameters of tool 'other': " + words.format("#/properties/bad"))
        assert warning.endswith("is ignored")
    refused = '<tool_call>{"name": "other", "arguments": {"bad": 1, "good": 1}}</tool_call>'
    assert not accepts(state, refused), "the rest of the schema still holds"


def test_a_pattern_with_a_look_ahead_costs_no_answer_where_it_is_not_strict() -> None:
    state = constraint(tools=(*TOOLS, Tool("mail", "", json.dumps(MAIL))))
    assert state.warnings == (
        "parameters of tool 'mail': `pattern` at #/properties/to cannot be followed: regex parse error: "
        "look-around, including look-ahead and look-behind, is not supported and is ignored",
    )
    called = '<tool_call>{"name": "mail", "arguments": {"to": "%s", "urgent": true}}</tool_call>'
    assert accepts(state, called % "ada@example.com")
    assert not accepts(state, called % "nobody"), "the format of the address still holds"
    state = constraint(JsonSchemaFormat(json.dumps(MAIL), "mail", strict=False))
    assert state.warnings[0].startswith("format 'mail': `pattern` at #/properties/to cannot be followed")
    assert accepts(state, '{"to": "ada@example.com", "urgent": false}')
    with pytest.raises(InvalidToolSchema, match="parameters of tool 'mail': `pattern` at #/properties/to cannot be"):
        constraint(tools=(*TOOLS, Tool("mail", "", json.dumps(MAIL), strict=True)))


def test_a_schema_that_no_change_helps_is_ignored_where_it_is_not_strict() -> None:
    state = constraint(tools=(*TOOLS, Tool("other", "", json.dumps(IMPOSSIBLE))), mode="required")
    assert state.warnings[0].startswith("parameters of tool 'other': the schema cannot be followed and is ignored: ")
    assert accepts(state, '<tool_call>{"name": "other", "arguments": {"b": 1}}</tool_call>')


def _nested(depth: int) -> dict[str, Any]:
    return {"items": _nested(depth - 1)} if depth else {}


CHAIN = {f"d{index}": {"$ref": f"#/$defs/d{index + 1}", "required": ["a"]} for index in range(500)}
BOUNDS: dict[str, Any] = {
    "references in a row": {"$defs": {**CHAIN, "d500": {}}, "properties": {"x": CHAIN["d0"]}},
    "references in a circle": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
    "joined schemas": joined(700),
    "no object": {"type": "string"},
    "bytes": {"description": "x" * MAX_SCHEMA_BYTES},
    "levels": _nested(MAX_SCHEMA_DEPTH + 1),
}


@pytest.mark.parametrize("kind", BOUNDS)
def test_a_tool_beyond_a_bound_costs_no_answer_where_it_is_not_strict(kind: str) -> None:
    tool = Tool(
        "other", "", json.dumps({**BOUNDS[kind], "properties": {"a": {}, **BOUNDS[kind].get("properties", {})}})
    )
    with pytest.raises(InvalidToolSchema, match="parameters of tool 'other': "):
        constraint(tools=(*TOOLS, replace(tool, strict=True)))
    state = constraint(tools=(*TOOLS, tool), mode="required")
    (warning,) = state.warnings
    assert warning.startswith("parameters of tool 'other': the schema cannot be followed and is ignored: ")
    assert accepts(state, '<tool_call>{"name": "other", "arguments": {"b": 1}}</tool_call>')


def test_a_long_list_of_faults_is_cut() -> None:
    many = {"properties": {f"p{index}": {"type": "string", "pattern": "(?=a)"} for index in range(40)}}
    (warning,) = constraint(tools=(Tool("many", "", json.dumps(many)),)).warnings
    assert warning.count("cannot be followed") == 4
    assert warning.endswith(" and 36 more")


def test_what_says_nothing_is_no_fault() -> None:
    constraint(JsonSchemaFormat('{"type": "array", "uniqueItems": false}'))
