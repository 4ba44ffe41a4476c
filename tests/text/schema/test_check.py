import json
from typing import Any

import pytest

from edgeagent.errors import InvalidToolSchema
from edgeagent.text.schema.closing import SchemaError
from edgeagent.text.schema.reading import followable, parse_schema
from edgeagent.types import MAX_SCHEMA_BYTES, MAX_SCHEMA_DEPTH, JsonSchemaFormat, Tool
from tests.text.grammar.test_compiler import accepts, constraint


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


def adapted(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema as it is compiled, without the compiler's options."""
    compiled = followable(parse_schema(json.dumps(schema)), lenient=False)
    return {key: value for key, value in compiled.items() if key != "x-guidance"}


# Every keyword of JSON Schema that may be absent, in the drafts that clients write.
KEYWORDS = (
    *("$ref", "$defs", "definitions", "$schema", "$id", "$comment", "title", "description", "default", "examples"),
    *("type", "enum", "format", "pattern", "minLength", "maxLength", "contentEncoding", "contentMediaType"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "deprecated", "readOnly"),
    *("items", "prefixItems", "additionalItems", "contains", "minContains", "maxContains", "minItems", "maxItems"),
    *("uniqueItems", "unevaluatedItems", "properties", "required", "additionalProperties", "patternProperties"),
    *("propertyNames", "minProperties", "maxProperties", "unevaluatedProperties", "dependentRequired", "writeOnly"),
    *("dependentSchemas", "dependencies", "allOf", "anyOf", "oneOf", "not", "if", "then", "else", "nullable"),
)


@pytest.mark.parametrize("keyword", KEYWORDS)
@pytest.mark.parametrize("strict", [False, True])
def test_a_keyword_that_is_null_is_absent(keyword: str, strict: bool) -> None:
    inner = {"type": "string", keyword: None} if keyword != "type" else {"type": None}
    outer = {"type": "object", "properties": {"city": inner}, "required": ["city"]}
    text = '{"city": "Paris"}'
    for schema in (outer, {**outer, keyword: None}, {keyword: None, "properties": {"city": inner}}):
        if keyword == "properties" and schema[keyword] is None:
            continue  # it has no city
        state = constraint(JsonSchemaFormat(json.dumps(schema), strict=strict))
        assert not state.warnings
        assert accepts(state, text)
        call = constraint(tools=(Tool("go", "", json.dumps(schema), strict=strict),), mode="required")
        assert not call.warnings
        assert accepts(call, f'<tool_call>{{"name": "go", "arguments": {text}}}</tool_call>')


def test_null_is_a_value_where_values_stand() -> None:
    schema = {
        "properties": {"a": {"const": None}, "b": {"enum": [None, 1]}, "c": None, "d": {"type": ["string", None]}}
    }
    assert parse_schema(json.dumps(schema)) == {
        "properties": {"a": {"const": None}, "b": {"enum": [None, 1]}, "c": True, "d": {"type": ["string", "null"]}}
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not valid JSON"),
        ("[]", "must be a JSON object, not a list"),
        ("true", "must be a JSON object, not a boolean"),
        (json.dumps(nested(MAX_SCHEMA_DEPTH + 1)), "nested deeper than 32 at #/items/items"),
        ('{"items":' * 7_000, "nested deeper than 32|not valid JSON"),
        ('{"a": "' + "x" * MAX_SCHEMA_BYTES + '"}', "at most 65536"),
    ],
)
def test_schemas_that_cannot_be_used_are_refused(text: str, words: str) -> None:
    with pytest.raises(SchemaError, match=words):
        parse_schema(text)


def test_a_schema_within_the_limits_is_taken_as_it_is() -> None:
    schema = {**nested(MAX_SCHEMA_DEPTH), "$ref": "#/$defs/a", "$defs": {"a": {"type": "string", "format": "date"}}}
    assert parse_schema(json.dumps(schema)) == schema


def test_formats_that_are_only_annotations_are_left_out() -> None:
    schema = {
        "properties": {"format": {"type": "string", "format": "binary"}, "id": {"format": "uuid"}},
        "const": {"format": "binary"},
    }
    assert adapted(schema) == {
        "properties": {"format": {"type": "string"}, "id": {"format": "uuid"}},
        "const": {"format": "binary"},
    }


def test_a_client_does_not_set_the_compilers_options() -> None:
    schema = parse_schema('{"type": "object", "x-guidance": {"lenient": true}, "items": {"x-guidance": {}}}')
    assert adapted(schema) == {"type": "object", "items": {}}
    assert followable(schema, lenient=False)["x-guidance"]["lenient"] is False


# What languages with integers of 64 bits, JavaScript, and libraries for schemas write as "no limit".
WIDE = (
    *(2**63 - 1, 2**63, 2**64 - 1, 2**64, 18446744073709552000, 10**25, 1e19, 1e300, 1.7976931348623157e308),
    *(2**53 - 1, 2**53, 2**31 - 1, 2**31, 2**32 - 1, 2**32),
)
LOWEST = (*(-each for each in WIDE), -(2**63) + 1)


@pytest.mark.daily("integer-False", "number-True", "types2-True", "types3-False", "None-False", seconds=0.3)
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("types", ["integer", "number", ["integer", "null"], ["number", "null"], None])
def test_a_limit_that_no_answer_reaches_is_followed(strict: bool, types: str | list[str] | None) -> None:
    kind = {} if types is None else {"type": types}
    bounds = [{name: each} for name in ("maximum", "exclusiveMaximum") for each in WIDE]
    bounds += [{name: each} for name in ("minimum", "exclusiveMinimum") for each in LOWEST]
    bounds += [{"minimum": low, "maximum": high} for low, high in zip(LOWEST, WIDE, strict=False)]
    for number in bounds:
        schema = {"type": "object", "properties": {"n": {**kind, **number}}, "required": ["n"]}
        call = constraint(tools=(Tool("go", "", json.dumps(schema), strict=strict),), mode="required")
        assert not call.warnings, number
        assert accepts(call, '<tool_call>{"name": "go", "arguments": {"n": 7}}</tool_call>'), number


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("most", [*WIDE, 8.0])
def test_a_length_that_no_answer_reaches_is_followed(strict: bool, most: float) -> None:
    values = {"a": {"type": "string", "maxLength": most}, "b": {"type": "array", "maxItems": most, "minItems": 0.0}}
    schema = {"type": "object", "properties": values, "required": ["a", "b"], "maxProperties": most}
    call = constraint(tools=(Tool("go", "", json.dumps(schema), strict=strict),), mode="required")
    assert not call.warnings
    assert accepts(call, '<tool_call>{"name": "go", "arguments": {"a": "x", "b": [1]}}</tool_call>')


@pytest.mark.parametrize("value", [-(2**63), -(2**63) + 1, -1e25, [1, -(2**63)], {"a": -(2**64)}])
def test_a_number_at_which_the_compiler_crashes_never_reaches_it(value: object) -> None:
    for keyword, given in (("const", value), ("enum", [value, 1])):
        schema = json.dumps({"type": "object", "properties": {"n": {keyword: given}}, "required": ["n"]})
        with pytest.raises(
            InvalidToolSchema, match=f"tool 'go': `{keyword}` at #/properties/n has -.*cannot be followed"
        ):
            constraint(tools=(Tool("go", "", schema, strict=True),), mode="required")
        call = constraint(tools=(Tool("go", "", schema, strict=False),), mode="required")
        assert f"`{keyword}` at #/properties/n" in call.warnings[0]
        assert accepts(call, '<tool_call>{"name": "go", "arguments": {"n": 7}}</tool_call>')
