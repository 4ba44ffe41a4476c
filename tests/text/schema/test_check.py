import json
from typing import Any

import pytest

from edgeagent.text.schema.check import MAX_SCHEMA_BYTES, MAX_SCHEMA_DEPTH, SchemaError, followable, parse_schema


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not valid JSON"),
        ("[]", "must be a JSON object, not a list"),
        ("true", "must be a JSON object, not a boolean"),
        (json.dumps(nested(MAX_SCHEMA_DEPTH + 1)), "nested deeper than 32"),
        ('{"items":' * 7_000, "nested deeper than 32|not valid JSON"),
        ('{"a": "' + "x" * MAX_SCHEMA_BYTES + '"}', "at most 65536"),
        ('{"$ref": "https://example.com/schema.json"}', "leads out of the schema"),
        ('{"anyOf": [{"properties": {"a": {"$ref": "file:///etc/passwd"}}}]}', "leads out of the schema"),
        ('{"$defs": {"a": {"$ref": "other.json#/a"}}}', "leads out of the schema"),
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
    assert parse_schema(json.dumps(schema)) == {
        "properties": {"format": {"type": "string"}, "id": {"format": "uuid"}},
        "const": {"format": "binary"},
    }


def test_a_client_does_not_set_the_compilers_options() -> None:
    schema = parse_schema('{"type": "object", "x-guidance": {"lenient": true}, "items": {"x-guidance": {}}}')
    assert schema == {"type": "object", "items": {}}
    assert followable(schema, lenient=False)["x-guidance"]["lenient"] is False
