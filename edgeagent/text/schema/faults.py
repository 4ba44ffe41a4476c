"""Finds the keyword in a JSON schema that made the grammar compiler refuse it. The compiler does not name it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from edgeagent.text.schema.closing import SCHEMA_LISTS, SCHEMA_MAPS, SCHEMA_VALUES, Schema, resolve

MAX_PATTERNS = 20
_TYPES = frozenset({"null", "boolean", "integer", "number", "string", "array", "object"})
# Keywords that the compiler does not support. A format or tool that is not strict is compiled without them.
_UNKNOWN = (
    *("not", "if", "contains", "minContains", "maxContains", "uniqueItems", "unevaluatedItems"),
    *("dependentRequired", "dependentSchemas", "dependencies", "propertyNames", "unevaluatedProperties"),
    *("$dynamicRef", "$recursiveRef"),
)
_BOUNDS = (("minLength", "maxLength"), ("minItems", "maxItems"), ("minProperties", "maxProperties"))
_NUMBER_BOUNDS = (("minimum", "maximum"), ("exclusiveMinimum", "exclusiveMaximum"))

# A function that returns why a small, separate schema cannot be compiled; None if it can.
Try = Callable[[Schema], str | None]


def describe_fault(schema: Schema, *, strict: bool, try_schema: Try) -> str | None:
    """Return the keyword at fault, its path and what to do, as one line; None if no known reason is found.

    `strict`: the client asked for exact adherence, so unsupported keywords are faults too.
    """
    nodes = list(_nodes(schema, "#"))
    for path, node in nodes:
        for keyword, reason in _faults(schema, node):
            return f"`{keyword}` at {path} {reason}"
    patterns = ((path, node) for path, node in nodes if isinstance(node.get("pattern"), str))
    for path, node in islice(patterns, MAX_PATTERNS):
        why = try_schema({"type": "string", "pattern": node["pattern"]})
        if why is not None:
            return f"`pattern` at {path} cannot be followed: {why}"
    # These come last, because some are supported, and the compiler may have refused something else.
    for path, node in nodes if strict else ():
        for keyword, reason in _doubts(node):
            return f"`{keyword}` at {path} {reason}"
    return None


def _nodes(schema: Any, path: str) -> Iterator[tuple[str, Schema]]:
    """Yield the schema and every schema within it, each with its path."""
    if not isinstance(schema, dict):
        return
    yield path, schema
    for key, value in schema.items():
        if key in SCHEMA_MAPS and isinstance(value, dict):
            for name, item in value.items():
                yield from _nodes(item, f"{path}/{key}/{name}"[:400])
        elif key in SCHEMA_LISTS and isinstance(value, list):
            for index, item in enumerate(value):
                yield from _nodes(item, f"{path}/{key}/{index}")
        elif key in SCHEMA_VALUES:
            yield from _nodes(value, f"{path}/{key}")


def _faults(root: Schema, node: Schema) -> Iterator[tuple[str, str]]:
    """Yield keywords that are invalid or that no value can satisfy, each with the reason."""
    types = node.get("type")
    for name in types if isinstance(types, list) else [types] if "type" in node else []:
        if not isinstance(name, str) or name not in _TYPES:
            yield "type", f"is {str(name)[:40]!r}; it must be one of {', '.join(sorted(_TYPES))}"
    if "$ref" in node and resolve(root, node["$ref"]) is None:
        yield "$ref", f"names {str(node['$ref'])[:100]!r}, which is not in the schema"
    if node.get("enum") == []:
        yield "enum", "is empty, so no value fits it"
    for low, high in (*_BOUNDS, *_NUMBER_BOUNDS):
        if _is_number(node.get(low)) and _is_number(node.get(high)) and node[low] > node[high]:
            yield low, f"is {node[low]} and {high} is {node[high]}, so no value fits both"


def _doubts(node: Schema) -> Iterator[tuple[str, str]]:
    """Yield keywords that the compiler often does not support, each with the reason."""
    for keyword in _UNKNOWN:
        # `unevaluatedProperties` can be followed if it is true or false.
        if keyword in node and not (keyword == "unevaluatedProperties" and isinstance(node[keyword], bool)):
            yield keyword, "cannot be followed; leave it out, or send strict: false to have it ignored"
    if "oneOf" in node:
        yield (
            "oneOf",
            "has schemas that can match the same value; tell them apart by a required property with a const, use "
            "anyOf, or send strict: false",
        )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
