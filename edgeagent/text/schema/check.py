"""Checks clients' JSON schemas before anything is built from them: size, depth, references. Looks nothing up."""

from __future__ import annotations

import json
from typing import Any

from edgeagent.text.schema.choices import choices_as_any_of
from edgeagent.text.schema.closing import Effort, Schema, TooManyReferencesError, close_objects, map_schemas

MAX_SCHEMA_BYTES = 64 << 10
MAX_SCHEMA_DEPTH = 32

# Formats that the grammar compiler supports. The value: the longest text, if the compiler sets no limit itself. JSON
# Schema lets a validator ignore other formats, so they are left out.
_FORMATS: dict[str, int | None] = {
    "date-time": 35,
    "time": 24,
    "duration": 32,
    **dict.fromkeys(("date", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")),
}
# One blank, or one line break and an indentation: the forms in which models have seen JSON. Without a bound a small
# model may write blanks for ever.
GAP = r"\x20|\n(\x20{0,16}|\t{1,4})"


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
    checked: Schema = _checked(schema)
    return checked


def followable(schema: Schema, *, lenient: bool, effort: Effort | None = None) -> Schema:
    """Return the schema as it is compiled: objects closed, and with the compiler's options.

    lenient: keywords that the compiler does not know are ignored. effort: counted on where a request has several
    schemas. Raise SchemaError.
    """
    try:
        schema = close_objects(choices_as_any_of(schema), effort)
    except TooManyReferencesError as error:
        raise SchemaError(str(error)) from error
    except RecursionError:
        # Each reference may lead through as many layers as a schema may have.
        raise SchemaError("references beside allOf, anyOf or oneOf lead through too many layers") from None
    options = {"whitespace_pattern": GAP, "lenient": lenient, "json_allow_general_unicode_escapes": True}
    return {**schema, "x-guidance": options}


def _check_depth(schema: object) -> None:
    layer, depth = [schema], 0
    while layer:
        if depth > MAX_SCHEMA_DEPTH:
            raise SchemaError(f"the schema is nested deeper than {MAX_SCHEMA_DEPTH}")
        children = [value for value in layer if isinstance(value, dict | list)]
        layer = [child for value in children for child in (value.values() if isinstance(value, dict) else value)]
        depth += 1


def _checked(schema: Any) -> Any:
    """Return a schema without keywords that are only annotations to us, or that would be options of the compiler's."""
    if not isinstance(schema, dict):
        return schema
    reference = schema.get("$ref")
    if isinstance(reference, str) and not reference.startswith("#"):
        raise SchemaError(f"$ref {reference[:100]!r} leads out of the schema; only references that begin with # work")
    schema = {key: value for key, value in schema.items() if key != "x-guidance"}
    if schema.get("uniqueItems") is False:
        del schema["uniqueItems"]
    checked = map_schemas(schema, _checked)
    return _with_named_keys(_with_format(checked))


def _with_format(schema: Schema) -> Schema:
    """Return the schema without a format that the compiler does not know, bounded where it knows no bound."""
    name = schema.get("format")
    if not isinstance(name, str):
        return schema
    if name not in _FORMATS:
        return {key: value for key, value in schema.items() if key != "format"}
    bound, longest = _FORMATS[name], schema.get("maxLength")
    if bound is None or (isinstance(longest, int) and longest <= bound):
        return schema
    return {**schema, "maxLength": bound}


def _with_named_keys(schema: Schema) -> Schema:
    """Return the schema with `propertyNames` in keywords that the compiler knows, where they mean the same."""
    names = schema.get("propertyNames")
    if not isinstance(names, dict) or "properties" in schema or "patternProperties" in schema:
        return schema
    rest = {key: value for key, value in schema.items() if key != "propertyNames"}
    rule = {key: value for key, value in names.items() if key not in ("type", "title", "description", "$schema")}
    values = rest.get("additionalProperties", True)
    match rule:
        case {} if not rule and names.get("type", "string") == "string":
            return rest
        case {"enum": [*keys], **others} if not others and all(isinstance(key, str) for key in keys):
            return {**rest, "properties": dict.fromkeys(keys, values), "additionalProperties": False}
        case {"pattern": str(pattern), **others} if not others:
            return {**rest, "patternProperties": {pattern: values}, "additionalProperties": False}
    return schema
