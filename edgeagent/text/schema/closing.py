"""Closes the objects of a JSON schema, so that the model cannot write keys that the schema does not name.

JSON Schema allows further keys if `additionalProperties` is absent. Most schemas of clients leave it out and mean a
closed object. A model that may add keys adds them until its context is full. This module is independent of grammars.

A branch is one of the schemas in an anyOf or oneOf. A schema is open if it allows keys that it does not name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Any
from urllib.parse import unquote

# Keywords by how their values contain schemas. Keywords in no set have plain values.
SCHEMA_MAPS = frozenset({"properties", "patternProperties", "$defs", "definitions"})
SCHEMA_LISTS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems", "items"})
SCHEMA_VALUES = frozenset({"items", "additionalItems", "additionalProperties"})
# Keywords that say something about an object's keys, alone or through other schemas.
_FORKS = ("anyOf", "oneOf")
_OPENING = ("additionalProperties", "patternProperties")
_ABOUT_KEYS = ("$ref", "allOf", *_FORKS, "properties", "required", *_OPENING, "unevaluatedProperties")
# The key of the open copies of definitions. Schemas that are combined with others refer to them.
_COPIES = "x-open"
MAX_CHAIN = 32
# Limits for all schemas of one request together. More could not be compiled either.
MAX_VISITS = 30_000
MAX_NAMES = 300_000
# The size of a schema is limited, so an index into one of its lists has no more digits.
_MAX_INDEX_DIGITS = 6

Schema = dict[str, Any]


class TooManyReferencesError(ValueError):
    """A $ref beside other keywords leads through too many schemas, or anyOf and oneOf name too many keys."""


@dataclass(frozen=True, slots=True)
class _Keys:
    """The keys that a schema names for an object, in order, and whether other keys are allowed (`is_open`).

    `has_properties`: the object is to be closed, because its schema has `properties` or sets `unevaluatedProperties` to
    false.
    """

    names: tuple[str, ...] = ()
    has_properties: bool = False
    is_open: bool = False

    def __or__(self, other: _Keys) -> _Keys:
        return _union((self, other))


def close_objects(schema: Schema, limit: WorkLimit | None = None) -> Schema:
    """Return the schema with every object closed that has `properties` but no `additionalProperties`.

    A closed object allows the keys in its `properties` and in its `required`. It also allows the keys that it gets from
    allOf, anyOf, oneOf, or a $ref beside other keywords. Paths within the schema do not change. `limit` bounds the
    work: pass the same one for all schemas of a request. Raise TooManyReferencesError if it is exceeded.
    """
    return _Closer(schema, limit or WorkLimit()).close_root()


def map_schemas(schema: Schema, change: Callable[[Any], Any]) -> Schema:
    """Return the schema with each direct subschema replaced by the result of `change`."""
    changed: Schema = {}
    for key, value in schema.items():
        if key in SCHEMA_MAPS and isinstance(value, dict):
            changed[key] = {name: change(item) for name, item in value.items()}
        elif key in SCHEMA_LISTS and isinstance(value, list):
            changed[key] = [change(item) for item in value]
        elif key in SCHEMA_VALUES:
            changed[key] = change(value)
        else:
            changed[key] = value
    return changed


def resolve(root: Schema, reference: object) -> Any:
    """Return the value that a reference such as #/$defs/a names; None if it does not exist."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    found: Any = root
    for step in unquote(reference[1:]).split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict):
            found = found.get(step)
        elif isinstance(found, list) and _is_index(step) and int(step) < len(found):
            found = found[int(step)]
        else:
            return None
    return found if len(reference) < 2 or reference[1] == "/" else None


def _is_index(step: str) -> bool:
    return step.isascii() and step.isdecimal() and len(step) <= _MAX_INDEX_DIGITS


class WorkLimit:
    """Counts and limits the work for the schemas of one request. Without a limit a small schema could take minutes."""

    def __init__(self) -> None:
        self._num_visits = self._num_names = 0

    def visit(self, num_followed: int) -> None:
        """Count an object's schema, reached through `num_followed` references.

        Raise TooManyReferencesError if there are too many schemas or references.
        """
        self._num_visits += 1
        if self._num_visits > MAX_VISITS or num_followed > MAX_CHAIN:
            raise TooManyReferencesError(
                f"references beside allOf, anyOf, oneOf or properties lead through more than {MAX_CHAIN} schemas, or "
                f"to more than {MAX_VISITS} in all; refer to such definitions from properties of their own"
            )

    def name(self, names: tuple[str, ...]) -> None:
        """Count the keys that combined schemas name. Raise TooManyReferencesError if there are too many."""
        self._num_names += len(names)
        if self._num_names > MAX_NAMES:
            raise TooManyReferencesError(
                f"combined alternatives name more than {MAX_NAMES} keys in all (a key counts once for each alternative "
                "that it is combined with); give the alternatives objects of their own"
            )


class _Closer:
    def __init__(self, root: Schema, limit: WorkLimit) -> None:
        self._root = root
        self._limit = limit
        # The references that have an open copy, with the index of the copy.
        self._copies: dict[str, int] = {}

    def close_root(self) -> Schema:
        closed: Schema = self._close(self._root)
        copies: list[Schema] = []
        # Making a copy may add further references.
        while len(copies) < len(self._copies):
            copies.append(self._open(resolve(self._root, list(self._copies)[len(copies)]), {}))
        return {**closed, _COPIES: copies} if copies else closed

    def _close(self, schema: Any) -> Any:
        """Return the closed form of a schema that is not combined with others."""
        if not isinstance(schema, dict):
            return schema
        match [key for key in _ABOUT_KEYS if key in schema]:
            case [] | ["$ref" | "anyOf" | "oneOf"]:
                return map_schemas(schema, self._close)
            case ["allOf"] if isinstance(schema["allOf"], list) and len(schema["allOf"]) == 1:
                return map_schemas(schema, self._close)
        return self._close_joined(schema, _Keys())

    def _close_joined(self, schema: Schema, outer: _Keys) -> Schema:
        """Return a schema that allows only its own keys and those of `outer`, which describes the same object."""
        forks: list[list[Any]] = []
        keys = outer | self._joined_keys(schema, forks, set())
        if forks:
            return self._open(schema, self._others(forks, keys))
        opened = self._open(schema, {})
        if not keys.has_properties or keys.is_open:
            return opened
        if outer == _Keys() and not any(key in schema for key in ("type", "$ref", "allOf", "enum", "const")):
            # A schema with properties means an object. Without a type, the grammar would accept any other value too.
            opened = {"type": "object", **opened}
        self._limit.name(keys.names)
        return _closed(opened, keys.names)

    def _others(self, forks: list[list[Any]], keys: _Keys) -> dict[int, _Keys]:
        """Return, by the `id()` of each list of branches, the keys that the object gets from outside of that list.

        `forks` are the object's lists of branches, `keys` are its keys that apply in every branch.
        """
        names = [self._all_names(fork) for fork in forks]
        num_forks = Counter(chain.from_iterable(names))
        others: dict[int, _Keys] = {}
        for fork, own in zip(forks, map(frozenset, names), strict=True):
            self._limit.name((*keys.names, *num_forks))
            beside = tuple(name for name, count in num_forks.items() if count > (name in own))
            others[id(fork)] = keys | _Keys(beside)
        return others

    def _open(self, schema: Schema, others: dict[int, _Keys]) -> Schema:
        """Return a schema that stays open because it is combined with others. Objects in its values are closed.

        `others` is the result of `_others`. The branches of the lists in it are closed, all other branches stay open.
        """
        result: Schema = {}
        for key, value in map_schemas(
            {key: None if key in (*_FORKS, "allOf") else value for key, value in schema.items()}, self._close
        ).items():
            if key == "allOf" and isinstance(schema[key], list):
                result[key] = [self._open(item, others) if isinstance(item, dict) else item for item in schema[key]]
            elif key in _FORKS and isinstance(schema[key], list):
                result[key] = [self._branch(item, others.get(id(schema[key]))) for item in schema[key]]
            elif key == "$ref" and isinstance(resolve(self._root, value), dict):
                result[key] = f"#/{_COPIES}/{self._copies.setdefault(value, len(self._copies))}"
            elif key != "unevaluatedProperties" or not isinstance(value, bool):  # _keys_of handles a bool
                result[key] = value if key not in (*_FORKS, "allOf") else schema[key]
        return result

    def _branch(self, branch: Any, others: _Keys | None) -> Any:
        if not isinstance(branch, dict):
            return branch
        if others is None:
            return self._open(branch, {})
        return self._close(branch) if others == _Keys() else self._close_joined(branch, others)

    def _joined_keys(self, schema: Schema, forks: list[list[Any]], seen: set[str]) -> _Keys:
        """Return an object's keys that apply in every branch, and add its lists of branches to `forks`.

        If a branch is reached through a reference, its keys count as keys that apply in every branch. `seen` holds the
        references that led to this schema.
        """
        self._limit.visit(len(seen))
        parts: list[_Keys] = []
        for key, value in schema.items():
            if key == "$ref":
                parts.append(self._referred_keys(value, seen))
            elif key == "allOf" and isinstance(value, list):
                parts += [self._joined_keys(item, forks, seen) for item in value if isinstance(item, dict)]
            elif key in _FORKS and isinstance(value, list):
                forks.append(value)
            else:
                parts.append(_keys_of(key, value))
        return self._together(parts)

    def _referred_keys(self, reference: object, seen: set[str]) -> _Keys:
        if not isinstance(reference, str):
            return _Keys(is_open=True)
        if reference in seen:
            return _Keys()
        target = resolve(self._root, reference)
        if not isinstance(target, dict):
            return _Keys(is_open=True)
        forks: list[list[Any]] = []
        seen = seen | {reference}
        keys = self._joined_keys(target, forks, seen)
        behind = [self._branch_keys(fork, seen) for fork in forks]
        return self._together([keys, *(_Keys(fork.names, fork.has_properties) for fork in behind)])

    def _all_names(self, branches: list[Any]) -> tuple[str, ...]:
        return self._branch_keys(branches, set()).names

    def _branch_keys(self, branches: list[Any], seen: set[str]) -> _Keys:
        parts: list[_Keys] = []
        for branch in branches:
            if isinstance(branch, dict):
                inner: list[list[Any]] = []
                parts.append(self._joined_keys(branch, inner, seen))
                parts += [self._branch_keys(fork, seen) for fork in inner]
        return self._together(parts)

    def _together(self, parts: list[_Keys]) -> _Keys:
        keys = _union(parts)
        self._limit.name(keys.names)
        return keys


def _keys_of(key: str, value: Any) -> _Keys:
    """Return the keys that one keyword of a schema, with this value, gives to an object."""
    match key:
        case "properties" if isinstance(value, dict):
            return _Keys(tuple(value), has_properties=True)
        case "required" if isinstance(value, list):
            return _Keys(tuple(name for name in value if isinstance(name, str)))
        case "unevaluatedProperties":
            return _Keys(has_properties=value is False, is_open=value is not False)
        case "additionalProperties" | "patternProperties":
            return _Keys(is_open=True)
        case "then" | "else" if isinstance(value, dict):
            # Only a lenient format accepts these, and then their keys stay possible.
            return _Keys(_union(_keys_of(*item) for item in value.items()).names)
        case _:
            return _Keys()


def _union(keys: Iterable[_Keys]) -> _Keys:
    names: dict[str, None] = {}
    has_properties = is_open = False
    for each in keys:
        names |= dict.fromkeys(each.names)
        has_properties |= each.has_properties
        is_open |= each.is_open
    return _Keys(tuple(names), has_properties, is_open)


def _closed(schema: Schema, names: tuple[str, ...]) -> Schema:
    """Return the schema with only these keys allowed; unchanged if it allows no object, or has `enum` or `const`."""
    types = schema.get("type", "object")
    if "object" not in (types if isinstance(types, list) else [types]) or "enum" in schema or "const" in schema:
        return schema
    if "allOf" in schema or "$ref" in schema or any(fork in schema for fork in _FORKS):
        members = schema.get("allOf", [])
        if not isinstance(members, list):
            return schema
        closing = {"properties": dict.fromkeys(names, True), "additionalProperties": False}
        return {**schema, "allOf": [*members, closing]}
    given = schema.get("properties", {})
    if not isinstance(given, dict):
        return schema
    properties = {**given, **{name: True for name in names if name not in given}}
    return {**schema, "properties": properties, "additionalProperties": False}
