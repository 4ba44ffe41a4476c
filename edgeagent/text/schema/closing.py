"""Closes the objects of a JSON schema, so that the model cannot write keys that the schema does not name.

JSON Schema allows further keys if `additionalProperties` is absent. Most schemas of clients leave it out and mean a
closed object. A model that may add keys adds them until its context is full. This module is independent of grammars.

Schemas are joined if they describe the same object: by allOf, or by anyOf, oneOf or $ref beside other keywords. A
choice is the list of an anyOf or oneOf. A schema is open if it allows keys that it does not name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import Any
from urllib.parse import unquote

# Keywords by how their values contain schemas. Keywords in no set have plain values.
SCHEMA_MAPS = frozenset({"properties", "patternProperties", "$defs", "definitions"})
SCHEMA_LISTS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems", "items"})
SCHEMA_VALUES = frozenset({"items", "additionalItems", "additionalProperties"})
# Keywords that join schemas, and those that say something about an object's keys.
_CHOICES = ("anyOf", "oneOf")
_JOINING = ("allOf", *_CHOICES)
_OPENING = ("additionalProperties", "patternProperties")
_ABOUT_KEYS = ("$ref", *_JOINING, "properties", "required", *_OPENING, "unevaluatedProperties")
# The key of the open copies of definitions. Schemas that are joined with others refer to them.
_COPIES = "x-open"
# How many joined schemas, and keys that they name, are looked at for all schemas of one request together. More could
# not be compiled either, and without a limit a small schema could take minutes. These take a quarter of a second.
MAX_JOINED_WORK = 100_000
# The size of a schema is limited, so an index into one of its lists has no more digits.
_MAX_INDEX_DIGITS = 6

Schema = dict[str, Any]


class SchemaError(ValueError):
    """A schema that cannot be used, and why. The text names the keyword and its path."""


def close_objects(schema: Schema, limit: WorkLimit | None = None) -> Schema:
    """Return the schema with every object closed that has `properties` but no `additionalProperties`.

    A closed object allows the keys in its `properties` and in its `required`, and those of all schemas that are joined
    with its own. Paths within the schema do not change. `limit` bounds the work: pass the same one for all schemas of a
    request. Raise SchemaError if it is exceeded.
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


@dataclass(frozen=True, slots=True)
class _Keys:
    """The keys that joined schemas name for an object, in order.

    `is_open`: one of the schemas allows other keys. `is_to_close`: one of them has `properties`, or sets
    `unevaluatedProperties` to false.
    """

    names: tuple[str, ...] = ()
    is_open: bool = False
    is_to_close: bool = False

    def __or__(self, other: _Keys) -> _Keys:
        names = tuple(dict.fromkeys(self.names + other.names))
        return _Keys(names, self.is_open or other.is_open, self.is_to_close or other.is_to_close)


_NO_KEYS = _Keys()


class WorkLimit:
    """Counts and limits the work for the schemas of one request."""

    def __init__(self) -> None:
        self._num_left = MAX_JOINED_WORK

    def count(self, number: int) -> None:
        """Count this many schemas and keys. Raise SchemaError if there are too many."""
        self._num_left -= number
        if self._num_left < 0:
            raise SchemaError(
                f"allOf, anyOf, oneOf and $ref join more than {MAX_JOINED_WORK} schemas and keys in all (one counts "
                "for each object that it describes); give the parts objects of their own"
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

    def _close(self, schema: Any, beside: _Keys = _NO_KEYS) -> Any:
        """Return a schema that allows an object only its own keys and those of `beside`, which describes it too.

        If the schema has choices, each of their alternatives is closed by itself: it does not allow the keys of others.
        """
        if schema is True and beside != _NO_KEYS:
            schema = {}
        if not isinstance(schema, dict):
            return schema
        if beside == _NO_KEYS:
            match [key for key in _ABOUT_KEYS if key in schema]:
                case [] | ["$ref" | "anyOf" | "oneOf"]:
                    return map_schemas(schema, self._close)
                case ["allOf"] if isinstance(schema["allOf"], list) and len(schema["allOf"]) == 1:
                    return map_schemas(schema, self._close)
        self._limit.count(len(beside.names))
        choices: list[list[Any]] = []
        keys = beside | self._keys([schema], choices)
        opened = self._open(schema, self._beside(choices, keys))
        if choices or keys.is_open or not keys.is_to_close:
            return opened
        if beside == _NO_KEYS and not any(key in schema for key in ("type", "$ref", *_JOINING, "enum", "const")):
            # A schema with properties means an object. Without a type, the grammar would accept any other value too.
            opened = {"type": "object", **opened}
        return _closed(opened, keys.names)

    def _beside(self, choices: list[list[Any]], keys: _Keys) -> dict[int, _Keys]:
        """Return, by the `id()` of each choice, the keys that an object has from all schemas outside of the choice.

        `choices` are all choices of the object, `keys` are its keys from outside of all choices.
        """
        named = [self._keys(choice).names for choice in choices]
        num_choices = Counter(chain.from_iterable(named))
        beside: dict[int, _Keys] = {}
        for choice, own in zip(choices, map(frozenset, named), strict=True):
            self._limit.count(len(keys.names) + len(num_choices))
            others = tuple(name for name, num in num_choices.items() if num > (name in own))
            beside[id(choice)] = keys | _Keys(others)
        return beside

    def _open(self, schema: Any, beside: dict[int, _Keys]) -> Any:
        """Return a schema that stays open because it is joined with others. Objects in its values are closed.

        `beside` is the result of `_beside`. The alternatives of the choices in it are closed.
        """
        if not isinstance(schema, dict):
            return schema
        result: Schema = {}
        for key, value in schema.items():
            if key in _JOINING and isinstance(value, list):
                keys = beside.get(id(value))
                result[key] = [self._open(item, beside) if keys is None else self._close(item, keys) for item in value]
            elif key == "$ref" and isinstance(resolve(self._root, value), dict):
                result[key] = f"#/{_COPIES}/{self._copies.setdefault(value, len(self._copies))}"
            elif key != "unevaluatedProperties" or not isinstance(value, bool):  # `_keys` handles a bool
                result |= map_schemas({key: value}, self._close)
        return result

    def _keys(self, schemas: list[Any], choices: list[list[Any]] | None = None) -> _Keys:
        """Return the keys that an object may have by these schemas and all that are joined with them.

        The choices that are found without following a reference are added to `choices`, and their keys are left out.
        Other choices are followed, or all if `choices` is None. Whether their alternatives are open does not count.
        """
        names: dict[str, None] = {}
        is_open = is_to_close = is_in_choice = False
        seen = set[int]()
        followed: list[list[Any]] = []
        # A keyword, its value, and where its choices are added.
        waiting: list[tuple[str, Any, list[list[Any]]]] = [("allOf", schemas, followed if choices is None else choices)]
        while waiting or followed:
            if not waiting:
                is_in_choice = True
                waiting.append(("allOf", followed.pop(0), followed))
            key, value, found = waiting.pop()
            match key, value:
                case "anyOf" | "oneOf", list():
                    found.append(value)
                case "allOf", list():
                    for part in reversed(value):
                        if isinstance(part, dict) and id(part) not in seen:
                            seen.add(id(part))
                            self._limit.count(1)
                            waiting += [(name, inner, found) for name, inner in reversed(part.items())]
                case "$ref", _:
                    target = resolve(self._root, value)
                    waiting.append(("allOf", [target], followed))
                    is_open |= not isinstance(target, dict) and not is_in_choice
                case ("properties", dict()) | ("required", list()):
                    self._limit.count(len(value))
                    names |= dict.fromkeys(name for name in value if isinstance(name, str))
                    is_to_close |= isinstance(value, dict)
                case "unevaluatedProperties", _:
                    is_to_close |= value is False
                    is_open |= value is not False and not is_in_choice
                case "additionalProperties" | "patternProperties", _:
                    is_open |= not is_in_choice
                case "then" | "else", {"properties": dict() as given}:
                    names |= dict.fromkeys(given)  # only a lenient format accepts these: their keys stay possible
        return _Keys(tuple(names), is_open, is_to_close)


def _closed(schema: Schema, names: tuple[str, ...]) -> Schema:
    """Return the schema with only these keys allowed; unchanged if it allows no object, or has `enum` or `const`."""
    types = schema.get("type", "object")
    if "object" not in (types if isinstance(types, list) else [types]) or "enum" in schema or "const" in schema:
        return schema
    if "$ref" in schema or any(key in schema for key in _JOINING):
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
