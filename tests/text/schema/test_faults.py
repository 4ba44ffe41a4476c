import json
from typing import Any

import pytest

from edgeagent.errors import InvalidRequest, InvalidToolSchema
from edgeagent.types import JsonSchemaFormat, TextFormat, Tool
from tests.text.grammar.test_compiler import TOOLS, constraint

FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"not": {"const": 1}}, "`not` at {} cannot be followed; leave it out, or send strict: false"),
    ({"type": "array", "uniqueItems": True}, "`uniqueItems` at {} cannot be followed"),
    ({"type": "object", "propertyNames": {"maxLength": 3}}, "`propertyNames` at {} cannot be followed"),
    ({"type": "string", "pattern": "("}, "`pattern` at {} cannot be followed: regex parse error: unclosed group"),
    ({"type": "string", "pattern": "^(?!a)b"}, "`pattern` at {} cannot be followed: regex parse error: look-around"),
    ({"type": "string", "minLength": 5, "maxLength": 3}, "`minLength` at {} is 5 and maxLength is 3"),
    ({"type": "integer", "minimum": 5, "maximum": 3}, "`minimum` at {} is 5 and maximum is 3"),
    ({"type": "text"}, "`type` at {} is 'text'; it must be one of array"),
    ({"$ref": "#/$defs/missing"}, "`$ref` at {} names '#/$defs/missing', which is not in the schema"),
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
        constraint(good, (*TOOLS, Tool("bad", "", json.dumps({"properties": {"a": json.loads(bad)}}))))
    assert refused.value.message.startswith("parameters of tool 'bad': `pattern` at #/properties/a")


def test_a_fault_of_no_known_kind_keeps_the_compilers_words() -> None:
    closed = {"type": "object", "properties": {"a": {}}, "required": ["b"], "additionalProperties": False}
    with pytest.raises(InvalidRequest, match=r"the schema cannot be followed: .*required property 'b'"):
        constraint(JsonSchemaFormat(json.dumps(closed)))
    with pytest.raises(InvalidToolSchema, match=r"a tool cannot be followed: .*required property 'b'"):
        constraint(TextFormat(), (Tool("get", "", json.dumps(closed)),))


def test_what_says_nothing_is_no_fault() -> None:
    constraint(JsonSchemaFormat('{"type": "array", "uniqueItems": false}'))
