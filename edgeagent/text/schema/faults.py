"""Finds the keywords in a JSON schema that cannot be followed. The grammar compiler does not say where they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from edgeagent.text.schema.closing import SCHEMA_LISTS, SCHEMA_MAPS, SCHEMA_VALUES, Schema, resolve

MAX_PATTERNS = 32
# The most patterns and formats that one text must match at once. The compiler's work doubles with each.
MAX_JOINED = 4
_MAX_NODES = 10_000
_MAX_PATH_CHARS = 400
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
Place = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Fault:
    """A keyword of a schema that cannot be followed: the place of its subschema, its name, and the reason."""

    place: Place
    keyword: str
    reason: str

    def __str__(self) -> str:
        return f"`{self.keyword}` at {path_of(self.place)} {self.reason}"


def path_of(place: Place) -> str:
    """Return a place as a path, such as #/properties/to."""
    return "/".join(["#", *map(str, place)])[:_MAX_PATH_CHARS]


def forbidden_keywords(schema: Schema) -> list[Fault]:
    """Return the keywords that must not reach the compiler: references out of the schema, and too many patterns."""
    found: list[Fault] = []
    joined = _Joined(schema)
    for place, node in _nodes(schema):
        reference = node.get("$ref")
        if isinstance(reference, str) and not reference.startswith("#"):
            why = f"is {reference[:100]!r}, which leads out of the schema; only references that begin with # work"
            found.append(Fault(place, "$ref", why))
        joins = next((keyword for keyword in ("allOf", "$ref", "anyOf", "oneOf") if keyword in node), None)
        if joins is not None and joined.count(node) > MAX_JOINED:
            why = f"joins more than {MAX_JOINED} patterns and formats for one text; write them as one pattern"
            found.append(Fault(place, joins, why))
    return found


def plain_faults(schema: Schema) -> list[Fault]:
    """Return the keywords that are invalid or that no value can satisfy."""
    nodes = list(_nodes(schema))
    return [Fault(place, keyword, reason) for place, node in nodes for keyword, reason in _faults(schema, node)]


def pattern_faults(schema: Schema, try_schema: Try) -> list[Fault]:
    """Return the patterns that the compiler refuses. Only the first MAX_PATTERNS different ones are tried."""
    found: list[Fault] = []
    reasons: dict[str, str | None] = {}
    for place, node in _nodes(schema):
        names, named = node.get("propertyNames"), node.get("patternProperties")
        patterns = [("pattern", node.get("pattern"))]
        patterns += [("propertyNames", names.get("pattern"))] if isinstance(names, dict) else []
        patterns += [("patternProperties", key) for key in (named if isinstance(named, dict) else ())]
        for keyword, pattern in patterns:
            if not isinstance(pattern, str):
                continue
            if pattern not in reasons and len(reasons) < MAX_PATTERNS:
                reasons[pattern] = try_schema({"type": "string", "pattern": pattern})
            if (why := reasons.get(pattern)) is not None:
                found.append(Fault(place, keyword, f"cannot be followed: {why}"))
    return found


def unknown_keywords(schema: Schema) -> list[Fault]:
    """Return the keywords that the compiler often does not support. It may support them in this schema."""
    return [Fault(place, *doubt) for place, node in _nodes(schema) for doubt in _doubts(node)]


def without(schema: Schema, faults: list[Fault]) -> Schema:
    """Return a copy of a schema without the keywords of these faults."""
    left_out: dict[Place, set[str]] = {}
    for fault in faults:
        left_out.setdefault(fault.place, set()).add(fault.keyword)

    def copy(value: Any, place: Place) -> Any:
        if isinstance(value, dict):
            dropped = left_out.get(place, ())
            return {key: copy(item, (*place, key)) for key, item in value.items() if key not in dropped}
        if isinstance(value, list):
            return [copy(item, (*place, index)) for index, item in enumerate(value)]
        return value

    copied: Schema = copy(schema, ())
    return copied


def _nodes(root: Schema) -> Iterator[tuple[Place, Schema]]:
    """Yield the schema and every schema within it, each with its place. Stop after _MAX_NODES."""
    open_nodes: list[tuple[Place, Any]] = [((), root)]
    for _ in range(_MAX_NODES):
        if not open_nodes:
            return
        place, schema = open_nodes.pop()
        if not isinstance(schema, dict):
            continue
        yield place, schema
        inner: list[tuple[Place, Any]] = []
        for key, value in schema.items():
            if key in SCHEMA_MAPS and isinstance(value, dict):
                inner += [((*place, key, name), item) for name, item in value.items()]
            elif key in SCHEMA_LISTS and isinstance(value, list):
                inner += [((*place, key, index), item) for index, item in enumerate(value)]
            elif key in SCHEMA_VALUES:
                inner.append(((*place, key), value))
        open_nodes += reversed(inner)


def _faults(root: Schema, node: Schema) -> Iterator[tuple[str, str]]:
    """Yield the keywords of one schema that no compiler could follow, each with the reason."""
    types = node.get("type")
    for name in types if isinstance(types, list) else [types] if "type" in node else []:
        if not isinstance(name, str) or name not in _TYPES:
            yield "type", f"is {str(name)[:40]!r}; it must be one of {', '.join(sorted(_TYPES))}"
            break
    if "$ref" in node and resolve(root, node["$ref"]) is None:
        yield "$ref", f"names {str(node['$ref'])[:100]!r}, which is not in the schema"
    if node.get("enum") == []:
        yield "enum", "is empty, so no value fits it"
    if node.get("additionalProperties") is False and "patternProperties" not in node:
        allowed, required = node.get("properties", {}), node.get("required", [])
        lacking = [name for name in required if name not in allowed] if isinstance(required, list) else []
        if lacking:
            yield (
                "required",
                f"names {str(lacking[0])[:100]!r}, which `properties` lacks, and no other keys are allowed",
            )
    for low, high in (*_BOUNDS, *_NUMBER_BOUNDS):
        if _is_number(node.get(low)) and _is_number(node.get(high)) and node[low] > node[high]:
            yield low, f"is {node[low]} and {high} is {node[high]}, so no value fits both"


class _Joined:
    """Counts the patterns and formats that a text must match at once, in each subschema of one schema."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._counts: dict[int, int] = {}

    def count(self, schema: Any) -> int:
        """Return the largest number for any of the alternatives of a subschema."""
        if not isinstance(schema, dict):
            return 0
        if id(schema) not in self._counts:
            self._counts[id(schema)] = 0  # for references that lead back here
            self._counts[id(schema)] = min(self._count(schema), MAX_JOINED + 1)
        return self._counts[id(schema)]

    def _count(self, schema: Schema) -> int:
        num = isinstance(schema.get("pattern"), str) + isinstance(schema.get("format"), str)
        if isinstance(members := schema.get("allOf"), list):
            num += sum(map(self.count, members))
        if "$ref" in schema:
            num += self.count(resolve(self._root, schema["$ref"]))
        for fork in ("anyOf", "oneOf"):
            if isinstance(branches := schema.get(fork), list):
                num += max(map(self.count, branches), default=0)
        return num


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
