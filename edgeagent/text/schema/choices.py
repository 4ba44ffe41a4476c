"""Turns `oneOf` into `anyOf` if no value can fit two of its schemas.

The grammar compiler accepts no other `oneOf`. It makes this change itself, but does not follow references for it. The
schema of a union of classes, as pydantic writes it, is a `oneOf` of references.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any

from edgeagent.text.schema.closing import Schema, map_schemas, resolve

MAX_COMPARED = 64


def choices_as_any_of(root: Schema) -> Schema:
    """Return the schema with anyOf in place of each oneOf whose schemas are known to exclude one another.

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
