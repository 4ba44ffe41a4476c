"""Parses JSON from untrusted senders: strictly, and within limits of size and depth."""

from __future__ import annotations

import json
import math
import re
from typing import AnyStr, NoReturn

from edgeagent.errors import InvalidRequest

MAX_JSON_DEPTH = 64
MAX_JSON_VALUES = 250_000
# An object costs ten times what a number costs. 4,096 messages with parts and calls, or 512 tools with 60 fields each,
# have fewer.
MAX_JSON_OBJECTS = 32_768
# An integer beyond these is a float, as it is for every client in JavaScript. No field of ours takes one; the schema of
# a tool may have one, such as the largest integer of 64 bits.
MIN_INTEGER, MAX_INTEGER = -(2**63), 2**64 - 1
_MAX_DIGITS = 400
_PIECE = 1 << 20

_SUSPECT_ESCAPE = re.compile(rb"\\u(?:d[89a-f]|0000)", re.IGNORECASE)
# Python joins the halves of a pair when it decodes the escapes, so what is left has no other half.
SURROGATE = re.compile("[\ud800-\udfff]")


def parse_json(data: bytes | str) -> object:
    """Return the value of a JSON text; raise InvalidRequest if it is not strict JSON within the limits.

    The function refuses bad syntax, invalid UTF-8, a byte-order mark, NUL, duplicate keys, NaN, Infinity, floats that
    overflow, nesting beyond MAX_JSON_DEPTH, more than MAX_JSON_VALUES values, and more than
    MAX_JSON_OBJECTS objects. Half of a surrogate pair in a string becomes U+FFFD: a text that was cut within an emoji
    would otherwise be refused with each turn that sends it again. In a key it is refused. An integer beyond 64 bits
    becomes a float.
    """
    try:
        raw = data.encode() if isinstance(data, str) else data
        text = raw.decode()
    except UnicodeError as error:
        raise InvalidRequest("the text is not valid UTF-8") from error
    if raw.startswith(b"\xef\xbb\xbf"):
        raise InvalidRequest("the text starts with a byte-order mark; send plain UTF-8")
    _check_size(raw)
    try:
        value: object = json.loads(
            text,
            object_pairs_hook=_Objects().make,
            parse_int=_integer,
            parse_float=_float,
            parse_constant=_constant,
        )
    except json.JSONDecodeError as error:
        raise InvalidRequest(
            f"the text is not valid JSON: {error.msg} at line {error.lineno}, column {error.colno}"
        ) from error
    except RecursionError as error:
        raise InvalidRequest(f"the JSON is nested deeper than {MAX_JSON_DEPTH} levels") from error
    _check_depth(value)
    return _mended(value, "") if b"\\" in raw and _SUSPECT_ESCAPE.search(raw) else value


def load_generated(text: str) -> object:
    """Return the value of JSON that a model wrote, with U+FFFD for each half of a surrogate pair, in keys too.

    A model may write half of an emoji as an escape, and no UTF-8 can hold it. Raise ValueError or RecursionError.
    """
    return _replaced(json.loads(text)) if "\\u" in text else json.loads(text)


def _replaced(value: object) -> object:
    match value:
        case str():
            return SURROGATE.sub("\ufffd", value)
        case list():
            return [_replaced(each) for each in value]
        case dict():
            return {SURROGATE.sub("\ufffd", key): _replaced(each) for key, each in value.items()}
    return value


def _check_size(raw: bytes) -> None:
    # Values are counted by the commas between them. Commas inside strings do not count. Strings, which are every second
    # piece between unescaped quotes, are left out only if there are many commas.
    if num_of(b",", raw) <= MAX_JSON_VALUES:
        return
    plain = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    # A value and its key have at most four quotes. A text with more quotes than that has too many values, and splitting
    # it would take much memory.
    if plain.count(b'"') <= 4 * (MAX_JSON_VALUES + 1):
        num_commas = sum(piece.count(b",") for piece in plain.split(b'"')[::2])
        if num_commas <= MAX_JSON_VALUES:
            return
    raise InvalidRequest(f"the JSON holds more than {MAX_JSON_VALUES} values")


def num_of(part: AnyStr, text: AnyStr) -> int:
    """Return how often a character is in a text. Other threads may run meanwhile: 16 MiB take 10 ms."""
    return sum(text.count(part, start, start + _PIECE) for start in range(0, len(text), _PIECE))


def _check_depth(value: object) -> None:
    level = [value]
    for depth in range(MAX_JSON_DEPTH + 1):
        below: list[object] = []
        for node in level:
            if isinstance(node, dict | list):
                if depth == MAX_JSON_DEPTH:
                    raise InvalidRequest(f"the JSON is nested deeper than {MAX_JSON_DEPTH} levels")
                below.extend(node.values() if isinstance(node, dict) else node)
        level = below


def _mended(value: object, place: str) -> object:
    """Return a value with its lone surrogates replaced. `place`: where it is, for the error of a NUL or a key."""
    match value:
        case str():
            if "\0" in value:
                raise InvalidRequest(f"{place or 'the text'} holds a NUL character (\\u0000)", param=place or None)
            return SURROGATE.sub("\ufffd", value)
        case list():
            return [_mended(each, f"{place}[{index}]") for index, each in enumerate(value)]
        case dict():
            for key in value:
                if "\0" in key or SURROGATE.search(key):
                    where = f"a key of {place}" if place else "a key"
                    raise InvalidRequest(
                        f"{where} holds a NUL character or half of a surrogate pair: {ascii(key)[:64]}",
                        param=place or None,
                    )
            prefix = f"{place}." if place else ""
            return {key: _mended(each, f"{prefix}{key[:64]}") for key, each in value.items()}
    return value


class _Objects:
    """Makes the objects of one JSON text, and counts them: too many are refused before the rest is read."""

    def __init__(self) -> None:
        self._num_left = MAX_JSON_OBJECTS

    def make(self, pairs: list[tuple[str, object]]) -> dict[str, object]:
        self._num_left -= 1
        if self._num_left < 0:
            raise InvalidRequest(f"the JSON holds more than {MAX_JSON_OBJECTS} objects")
        fields = dict(pairs)
        if len(fields) != len(pairs):
            seen: set[str] = set()
            duplicate = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
            raise InvalidRequest(f"the key {duplicate[:64]!r} appears twice in one object")
        return fields


def kind_of(value: object) -> str:
    """Return the name of a parsed JSON value's type for an error text, with its article: "a list", "null"."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "a list"
    return "an object"


def _integer(digits: str) -> int | float:
    # Check the length first: int() raises for more than 4,300 digits, and takes quadratic time for fewer.
    if len(digits) <= 20 and MIN_INTEGER <= (number := int(digits)) <= MAX_INTEGER:
        return number
    return _float(digits[:_MAX_DIGITS])


def _float(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise InvalidRequest(f"the number {digits[:24]} is out of range")
    return number


def _constant(name: str) -> NoReturn:
    raise InvalidRequest(f"{name} is not valid JSON")
