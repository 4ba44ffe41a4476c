"""Reads the schemas of formats and tools into the form that is compiled, and leaves out what cannot be followed.

A schema that is strict is refused if any keyword cannot be followed. From other schemas such keywords are left out, and
a warning names them: an unused tool must not cost an agent its answers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Any, TypeGuard

from edgeagent.strict_json import kind_of
from edgeagent.text.partition_cache import PartitionCache
from edgeagent.text.schema.closing import (
    SCHEMA_LISTS,
    SCHEMA_MAPS,
    SCHEMA_VALUES,
    Schema,
    SchemaError,
    WorkLimit,
    close_objects,
    map_schemas,
    resolve,
)
from edgeagent.types import MAX_SCHEMA_BYTES, MAX_SCHEMA_DEPTH

MAX_PATTERNS = 32
# The most patterns and formats that one text must match at once. The compiler's work doubles with each.
MAX_JOINED = 4
_MAX_NODES = 10_000
_MAX_PATH_CHARS = 400
# The most references in a row from a tool's parameters to their schema.
MAX_CHAIN = 32
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
    """Return the keywords that must not reach the compiler.

    They are references out of the schema, too many patterns, and integers at which it crashes.
    """
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
        found += [Fault(place, each, why) for each in ("const", "enum") if (why := _crashing(node.get(each)))]
    return found


def _crashing(value: object) -> str:
    """Return why the compiler would crash at a value of `const` or `enum`; empty if it would not."""
    match value:
        case dict():
            return next(filter(None, map(_crashing, value.values())), "")
        case list():
            return next(filter(None, map(_crashing, value)), "")
    if _is_number(value) and float(value) <= -(2.0**63):
        return f"has {value}, and integers below {_LOWEST} cannot be followed"
    return ""


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


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


MAX_COMPARED = 64


def choices_as_any_of(root: Schema) -> Schema:
    """Return the schema with anyOf in place of each oneOf whose schemas are known to exclude one another.

    The grammar compiler accepts no other oneOf, and does not follow references to see that. pydantic writes a union of
    classes as a oneOf of references.

    A oneOf is kept if there is an anyOf beside it, or if it has more than MAX_COMPARED schemas.
    """

    def change(schema: Any) -> Any:
        if not isinstance(schema, dict):
            return schema
        branches = schema.get("oneOf")
        if isinstance(branches, list) and "anyOf" not in schema and _exclude_one_another(root, branches):
            schema = {"anyOf" if key == "oneOf" else key: value for key, value in schema.items()}
        return map_schemas(schema, change)

    changed: Schema = change(root)
    return changed


def _exclude_one_another(root: Schema, branches: list[Any]) -> bool:
    if len(branches) > MAX_COMPARED:
        return False
    targets = [_target(root, branch) for branch in branches]
    return all(_are_disjoint(one, other) for one, other in combinations(targets, 2))


def _target(root: Schema, branch: Any) -> Schema:
    """Return a branch, or the schema that it refers to. If that is unclear, return {}, which accepts anything."""
    for _ in range(8):
        if not isinstance(branch, dict):
            return {}
        if "$ref" not in branch:
            return branch
        branch = resolve(root, branch["$ref"])
    return {}


def _are_disjoint(one: Schema, other: Schema) -> bool:
    types = _types(one), _types(other)
    if types[0] and types[1] and not types[0] & types[1]:
        return True
    given = _properties(one), _properties(other)
    shared = given[0].keys() & given[1].keys() & set(_required(one)) & set(_required(other))
    if shared and types == ({"object"}, {"object"}):
        values = [(_values(given[0][name]), _values(given[1][name])) for name in shared]
        return any(left and right and not left & right for left, right in values)
    return False


def _types(schema: Schema) -> set[str]:
    """Return the types that a value of the schema can have; empty if it can have any. "integer" counts as "number"."""
    types = schema.get("type")
    found = {str(item) for item in (types if isinstance(types, list) else [types]) if item is not None}
    return {"number" if name == "integer" else name for name in found}


def _properties(schema: Schema) -> Schema:
    found = schema.get("properties")
    return found if isinstance(found, dict) else {}


def _required(schema: Schema) -> list[str]:
    found = schema.get("required")
    return [name for name in found if isinstance(name, str)] if isinstance(found, list) else []


def _values(schema: Any) -> set[str]:
    """Return the values of a schema's `const` or `enum` if all are texts; otherwise an empty set."""
    if not isinstance(schema, dict):
        return set()
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    # Numbers are left out because they have several spellings. Branches nearly always differ by a text.
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        return set()
    return set(values)


# Formats that the grammar compiler supports. The value is the maximum length of the text in characters; None if the
# compiler itself sets a limit. JSON Schema lets a validator ignore other formats, so they are removed.
_FORMATS: dict[str, int | None] = {
    "date-time": 35,
    "time": 24,
    "duration": 32,
    "email": 64,  # validators take no more before the @, and a small model does not end an address by itself
    "hostname": 253,
    **dict.fromkeys(("date", "ipv4", "ipv6", "uuid", "uri")),
}
# Keywords without effect on the values that fit a schema.
_ANNOTATIONS = frozenset({"$schema", "$id", "$defs", "definitions", "title", "description"})
# One blank, or one line break and an indentation: the forms in which models have seen JSON. Without a limit a small
# model may write blanks forever.
GAP = r"\x20|\n(\x20{0,16}|\t{1,4})"


# In these keywords, null is a value. In all others it means that the keyword is absent, as serializers write it.
_NULL_IS_A_VALUE = frozenset({"const", "default", "example"})


def parse_schema(text: str) -> Schema:
    """Return the schema in a JSON text, without keywords whose value is null.

    Raise SchemaError if it is too large, too deep or not a JSON object.
    """
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
        raise SchemaError(f"the schema must be a JSON object, not {kind_of(schema)}")
    _check_depth(schema)
    given: Schema = _without_nulls(schema)
    return given


def object_schema(schema: Schema) -> Schema:
    """Return the schema restricted to objects.

    Raise SchemaError if the schema allows no object, or if its `$ref` leads in a circle.
    """
    chain = [schema]
    while True:
        kind = chain[-1].get("type", "object")
        if kind != "object" and not (isinstance(kind, list) and "object" in kind):
            raise SchemaError(f"`type` at # is {str(kind)[:40]!r}; the arguments of a tool must be an object")
        if "$ref" not in chain[-1]:
            break
        if len(chain) > MAX_CHAIN:
            raise SchemaError(f"`$ref` at # leads in a circle, or through more than {MAX_CHAIN} schemas")
        found = resolve(schema, chain[-1]["$ref"])
        if not isinstance(found, dict):
            return schema
        chain.append(found)
    rest = {key: value for key, value in schema.items() if key != "$ref"}
    if len(chain) == 2 and not rest.keys() & chain[1].keys() - _ANNOTATIONS:
        # The schema may refer to itself. The compiler cannot follow that through a $ref beside other keywords.
        return {**chain[1], **rest, "type": "object"}
    return {**schema, "type": "object"}


def followable(schema: Schema, *, lenient: bool, limit: WorkLimit | None = None) -> Schema:
    """Return the schema in the form that is compiled: with closed objects and the compiler's options.

    lenient: the compiler ignores keywords that it does not support. limit: bounds the work; pass the same object for
    all schemas of a request. Raise SchemaError if too many schemas describe the same objects.
    """
    schema = close_objects(choices_as_any_of(_adapted(schema)), limit)
    options = {"whitespace_pattern": GAP, "lenient": lenient, "json_allow_general_unicode_escapes": True}
    return {**schema, "x-guidance": options}


def _check_depth(schema: object) -> None:
    layer: list[tuple[Place, object]] = [((), schema)]
    for _ in range(MAX_SCHEMA_DEPTH + 1):
        layer = [((*place, key), child) for place, value in layer for key, child in _children(value)]
        if not layer:
            return
    raise SchemaError(f"the schema is nested deeper than {MAX_SCHEMA_DEPTH} at {path_of(layer[0][0])}")


def _children(value: object) -> Iterable[tuple[str | int, object]]:
    match value:
        case dict():
            return value.items()
        case list():
            return enumerate(value)
        case _:
            return ()


def _without_nulls(schema: Any) -> Any:
    """Return a schema without keywords that are null, in all subschemas too. A subschema that is null allows all."""
    if schema is None:
        return True
    if not isinstance(schema, dict):
        return schema
    given = {key: value for key, value in schema.items() if value is not None or key in _NULL_IS_A_VALUE}
    for key in ("required", "allOf", "anyOf", "oneOf"):
        if isinstance(given.get(key), list):
            given[key] = [item for item in given[key] if item is not None]
    if isinstance(given.get("type"), list):  # YAML's null for "null"
        given["type"] = ["null" if name is None else name for name in given["type"]]
    return map_schemas(given, _without_nulls)


def _adapted(schema: Any) -> Any:
    """Return a schema with its keywords adapted to the compiler, in all subschemas too.

    Unknown formats, options of the compiler, `uniqueItems: false` and limits that no answer reaches are removed.
    """
    if not isinstance(schema, dict):
        return schema
    schema = {key: value for key, value in schema.items() if key != "x-guidance"}
    if schema.get("uniqueItems") is False:
        del schema["uniqueItems"]
    return _with_named_keys(_with_format(_with_limits(map_schemas(schema, _adapted))))


# The compiler fails at some limits of 64 bits, which languages with such types write into their schemas. It rounds the
# lowest integers of 64 bits to -2**63, which it cannot compile.
_LONGEST = 2**31 - 1
_LOWEST = -(2**63) + 1024
_WIDEST = 9e18


def _with_limits(schema: Schema) -> Schema:
    """Return the schema with limits that the compiler can follow. A limit that no answer reaches is left out."""
    limited = dict(schema)
    for low, high in _BOUNDS:
        for keyword in (low, high):
            if isinstance(value := limited.get(keyword), float) and value.is_integer():
                limited[keyword] = int(value)
        if _is_number(limited.get(high)) and limited[high] > _LONGEST:
            del limited[high]
    types = schema.get("type")
    is_whole = isinstance(types, str | list) and "integer" in types and "number" not in types
    for low, high in _NUMBER_BOUNDS:
        for keyword in (low, high):
            if is_whole and _is_number(value := limited.get(keyword)) and value < _LOWEST:
                limited[keyword] = _LOWEST
        if not is_whole and _is_number(limited.get(low)) and limited[low] < -_WIDEST:
            del limited[low]
        if not is_whole and _is_number(limited.get(high)) and limited[high] > _WIDEST:
            del limited[high]
    return limited


def _with_format(schema: Schema) -> Schema:
    """Return the schema without an unknown format. Add a `maxLength` if nothing else limits the text."""
    name = schema.get("format")
    if not isinstance(name, str):
        return schema
    if name not in _FORMATS:
        return {key: value for key, value in schema.items() if key != "format"}
    bound, longest = _FORMATS[name], schema.get("maxLength")
    if bound is None or "pattern" in schema or (isinstance(longest, int) and longest <= bound):
        return schema
    return {**schema, "maxLength": bound}


def _with_named_keys(schema: Schema) -> Schema:
    """Return the schema with `propertyNames` replaced by keywords that the compiler knows, if they mean the same."""
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


MAX_CACHED = 64
# The most keywords of one schema that are named.
MAX_NAMED = 4


@dataclass(frozen=True, slots=True)
class Wanted:
    """The schema of a format or of a tool's arguments, as the client sent it. `is_call`: only objects fit."""

    text: str
    strict: bool
    is_call: bool


@dataclass(frozen=True, slots=True)
class ReadSchema:
    """A schema in the form that is compiled, and a warning if keywords were left out, otherwise an empty text."""

    schema: Schema
    warning: str = ""


class SchemaReader:
    """Reads schemas, and caches the latest relaxed ones, for each partition (see CachePolicy) its own.

    `try_schema` compiles a schema alone; see `faults.Try`.
    """

    def __init__(self, try_schema: Try) -> None:
        self._try = try_schema
        self._relaxed: PartitionCache[Wanted, ReadSchema] = PartitionCache(MAX_CACHED)

    def read(self, partition: str, wanted: Wanted, limit: WorkLimit) -> ReadSchema:
        """Return a schema that may still be refused by the compiler; then call `relax`. `limit` is the request's.

        Raise SchemaError if it cannot be used.
        """
        return self._relaxed.get(partition, wanted) or self._without(wanted, forbidden_keywords, limit)

    def relax(self, partition: str, wanted: Wanted, why: str) -> ReadSchema:
        """Return a schema that the compiler accepts; raise SchemaError if it is strict. `why`: why it was refused."""
        parts = (forbidden_keywords, plain_faults, lambda schema: pattern_faults(schema, self._try))
        relaxed = self._without(wanted, lambda schema: [fault for find in parts for fault in find(schema)], WorkLimit())
        if (reason := self._try(relaxed.schema)) is not None:
            if wanted.strict:
                doubts = unknown_keywords(parse_schema(wanted.text))
                raise SchemaError(str(doubts[0]) if doubts else f"the schema cannot be followed: {reason or why}")
            relaxed = _anything(wanted, reason)
        self._relaxed.put(partition, wanted, relaxed)
        return relaxed

    def _without(self, wanted: Wanted, find: Callable[[Schema], list[Fault]], limit: WorkLimit) -> ReadSchema:
        """Return a schema without the keywords that `find` returns; without any if it passes a bound.

        Raise SchemaError if it is strict and has such keywords or passes a bound.
        """
        try:
            return self._followed(wanted, find, limit)
        except SchemaError as error:
            refused = error
        except RecursionError:
            # Each reference may add as many layers as a schema can have.
            refused = SchemaError("its references lead through too many layers")
        if wanted.strict:
            raise refused
        return _anything(wanted, str(refused))

    def _followed(self, wanted: Wanted, find: Callable[[Schema], list[Fault]], limit: WorkLimit) -> ReadSchema:
        schema = parse_schema(wanted.text)
        faults = find(schema)
        if faults and wanted.strict:
            raise SchemaError(str(faults[0]))
        left = without(schema, faults) if faults else schema
        left = object_schema(left) if wanted.is_call else left
        more = f" and {len(faults) - MAX_NAMED} more" if len(faults) > MAX_NAMED else ""
        named = ", ".join(f"{fault} and is ignored" for fault in faults[:MAX_NAMED])
        return ReadSchema(followable(left, lenient=not wanted.strict, limit=limit), named + more)


def _anything(wanted: Wanted, why: str) -> ReadSchema:
    """Return the schema that any answer, or any object as the arguments of a call, fits."""
    schema = {"type": "object"} if wanted.is_call else {}
    return ReadSchema(followable(schema, lenient=True), f"the schema cannot be followed and is ignored: {why}")
