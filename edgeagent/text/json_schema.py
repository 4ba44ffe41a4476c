"""Checks clients' JSON schemas before anything is built from them: size, depth, references. Looks nothing up."""

from __future__ import annotations

import json
from typing import Any

MAX_SCHEMA_BYTES = 64 << 10
MAX_SCHEMA_DEPTH = 32

# Formats that the grammar compiler knows. JSON Schema lets a validator ignore the others, so they are left out.
_FORMATS = frozenset(
    ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"],
)
_PLAIN_VALUES = frozenset({"const", "enum", "default", "examples", "example"})
# Bounded white space: without a bound a small model may write blanks for ever.
_WHITE_SPACE = r"[\x20\x0A\x09]{1,40}"


class SchemaError(ValueError):
    """A schema that cannot be used, and why."""


def parse_schema(text: str) -> dict[str, Any]:
    """Return the schema of a JSON text, ready to be compiled. Raise SchemaError where it is too large, or none."""
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > MAX_SCHEMA_BYTES:
        raise SchemaError(f"the schema has {size} bytes; at most {MAX_SCHEMA_BYTES}")
    try:
        schema = json.loads(text)
    except RecursionError:
        raise SchemaError(f"the schema is nested deeper than {MAX_SCHEMA_DEPTH}") from None
    except ValueError as error:
        raise SchemaError(f"the schema is not valid JSON: {error}") from error
    if not isinstance(schema, dict):
        raise SchemaError(f"the schema must be a JSON object, not {type(schema).__name__}")
    _check_depth(schema)
    return _checked(schema)


def with_options(schema: dict[str, Any], *, lenient: bool) -> dict[str, Any]:
    """Return the schema with the compiler's options. lenient: keywords that it does not know are ignored."""
    options = {"whitespace_pattern": _WHITE_SPACE, "lenient": lenient, "json_allow_general_unicode_escapes": True}
    return {**schema, "x-guidance": options}


def _check_depth(schema: object) -> None:
    layer, depth = [schema], 0
    while layer:
        if depth > MAX_SCHEMA_DEPTH:
            raise SchemaError(f"the schema is nested deeper than {MAX_SCHEMA_DEPTH}")
        children = [value for value in layer if isinstance(value, dict | list)]
        layer = [child for value in children for child in (value.values() if isinstance(value, dict) else value)]
        depth += 1


def _checked(schema: dict[str, Any]) -> dict[str, Any]:
    reference = schema.get("$ref")
    if isinstance(reference, str) and not reference.startswith("#"):
        raise SchemaError(f"$ref {reference[:100]!r} leads out of the schema; only references that begin with # work")
    return {
        key: value if key in _PLAIN_VALUES else _checked_value(value)
        for key, value in schema.items()
        if key != "x-guidance" and not (key == "format" and isinstance(value, str) and value not in _FORMATS)
    }


def _checked_value(value: Any) -> Any:
    match value:
        case dict():
            return _checked(value)
        case list():
            return [_checked_value(item) for item in value]
        case _:
            return value
