"""Finds what is wrong with an answer that should follow a schema, independently of the code that constrained it."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema_rs

# A JSON string, complete or cut off at the end of the text.
_STRING = re.compile(r'"(?:\\.|[^"\\])*(?:"|\\?$)', re.DOTALL)
# One more than the grammar's limit, for a last digit that must not be 0 (for a minimum above 0, say).
_MAX_DIGITS = 17
_MAX_SPACE = 17


def fault_of(schema: dict[str, Any], text: str, *, is_cut: bool) -> str | None:
    """Return the fault of an answer; None if it is whole and valid, or was cut off where that is allowed.

    It may be cut off only if the schema leaves a string, a list or a map unbounded, and if the text so far has no run
    of white space, no endless number and no key that the schema does not name.
    """
    plain = _STRING.sub('""', text)
    if re.search(rf"\d{{{_MAX_DIGITS + 1},}}", plain):
        return "too many digits"
    if re.search(rf"\s{{{_MAX_SPACE + 1},}}|\s\s[,:]| [,:]", plain):
        return "white space"
    if not is_cut:
        return _fault_of_whole(schema, text)
    if not is_unbounded(schema):
        return "it does not end, and the schema bounds it"
    repaired = _repaired(text)
    try:
        jsonschema_rs.validate(_relaxed(schema), repaired)
    except jsonschema_rs.ValidationError as error:
        return f"as far as it came: {error.message[:200]}"
    return None


def is_unbounded(schema: Any) -> bool:
    """Return whether a schema allows a value of any length."""
    match schema:
        case {"const": _} | {"enum": _}:
            return False
        case {"type": "string"}:
            return not schema.keys() & {"maxLength", "format", "pattern"}
        case {"type": "array"} if "maxItems" not in schema:
            return True
        case {"type": "object"} if schema.get("additionalProperties"):
            return True
        case dict():
            return any(map(is_unbounded, schema.values()))
        case list():
            return any(map(is_unbounded, schema))
        case _:
            return False


def _fault_of_whole(schema: dict[str, Any], text: str) -> str | None:
    try:
        value = json.loads(text)
        jsonschema_rs.validate(schema, value)
        jsonschema_rs.validate(_relaxed(schema), value)
    except (ValueError, jsonschema_rs.ValidationError) as error:
        return str(error)[:200]
    return None


def _repaired(text: str) -> Any:
    """Return the value of a JSON text that was cut off. An incomplete last element is dropped, except a string."""
    for end in range(len(text), 0, -1):
        try:
            return json.loads(text[:end] + _closing(text[:end]))
        except ValueError:
            continue
    return {}


def _closing(text: str) -> str:
    """Return the quote and the brackets that complete a JSON text."""
    last = next((found[0] for found in reversed(list(_STRING.finditer(text))) if found.end() == len(text)), "")
    is_open = bool(last) and (last == '"' or not re.fullmatch(r'"(?:\\.|[^"\\])*"', last, re.DOTALL))
    brackets = ""
    for char in _STRING.sub("", text):
        if char in "{[":
            brackets = ("}" if char == "{" else "]") + brackets
        elif char in "}]":
            brackets = brackets[1:]
    return ('"' if is_open else "") + brackets


def _relaxed(schema: Any) -> Any:
    """Return the schema without constraints that an unfinished value cannot meet, and without additional properties."""
    if isinstance(schema, list):
        return [_relaxed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    kept: dict[str, Any] = {}
    for key, value in schema.items():
        if key in ("properties", "$defs", "definitions"):
            kept[key] = {name: _relaxed(item) for name, item in value.items()}
        elif key not in ("required", "pattern", "minItems", "minLength", "format"):
            kept["anyOf" if key == "oneOf" else key] = _relaxed(value)
    if "properties" in schema:
        kept.setdefault("additionalProperties", False)
    return kept
