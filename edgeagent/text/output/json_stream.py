"""Readers of JSON: generators to which the caller sends one character at a time.

A reader raises MalformedError for invalid JSON, and if values are nested deeper than MAX_DEPTH. It is strict, except
that a string may contain unescaped line breaks and other control characters. A reader returns the first character after
its value if it had to read that character, else "".
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator

MAX_DEPTH = 64
SPACE = " \t\r\n"
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII)
_SURROGATE = re.compile("[\ud800-\udfff]")
_LITERALS = {"t": "true", "f": "false", "n": "null"}

Reader = Generator[None, str, str]
Keep = Callable[[str], object]


class MalformedError(Exception):
    """The text does not have the syntax that the reader expects."""


def ignore(_: str) -> None:
    """Discard the text."""


def read_space(keep: Keep = ignore, ahead: str = "") -> Reader:
    """Read up to the first character that is not white space, and return that character.

    `keep` gets the white space. `ahead` is a character that was read before.
    """
    char = ahead or (yield)
    while char in SPACE:
        keep(char)
        char = yield
    return char


def read_value(first: str, keep: Keep, depth: int = 0) -> Reader:
    """Read the value that begins with `first`, and pass its text to `keep`."""
    if depth > MAX_DEPTH:
        raise MalformedError
    match first:
        case '"':
            keep(first)
            return (yield from _read_string_rest(keep))
        case "{":
            keep(first)
            return (yield from _read_object_rest(keep, depth))
        case "[":
            keep(first)
            return (yield from _read_array_rest(keep, depth))
        case "t" | "f" | "n":
            keep(first)
            return (yield from _read_literal_rest(_LITERALS[first], keep))
        case _:
            return (yield from _read_number(first, keep))


def read_string(first: str) -> Generator[None, str, str]:
    """Read a string and return its value, with U+FFFD in place of lone surrogates, which UTF-8 cannot encode.

    Unlike the other readers, it does not return a character that it read after the value; it reads none.
    """
    if first != '"':
        raise MalformedError
    text = [first]
    yield from _read_string_rest(text.append)
    return _SURROGATE.sub("\ufffd", json.loads("".join(text)))


def _read_string_rest(keep: Keep) -> Reader:
    while True:
        char = yield
        if char == "\\":
            yield from _read_escape_rest(keep)
        elif char < " ":
            # Models write plain line breaks into strings, but JSON requires them to be escaped.
            keep(json.dumps(char)[1:-1])
        else:
            keep(char)
            if char == '"':
                return ""


def _read_escape_rest(keep: Keep) -> Generator[None, str, None]:
    char = yield
    if char not in '"\\/bfnrtu':
        raise MalformedError
    if char != "u":
        keep("\\" + char)
        return
    digits = ""
    while len(digits) < 4:
        digit = yield
        if digit not in "0123456789abcdefABCDEF":
            raise MalformedError
        digits += digit
    keep("\\u" + digits)


def _read_object_rest(keep: Keep, depth: int) -> Reader:
    char = yield from read_space(keep)
    while char != "}":
        if char != '"':
            raise MalformedError
        keep(char)
        yield from _read_string_rest(keep)
        char = yield from read_space(keep)
        if char != ":":
            raise MalformedError
        keep(char)
        char = yield from read_space(keep)
        ahead = yield from read_value(char, keep, depth + 1)
        char = yield from _read_comma_or("}", keep, ahead)
    keep(char)
    return ""


def _read_array_rest(keep: Keep, depth: int) -> Reader:
    char = yield from read_space(keep)
    while char != "]":
        ahead = yield from read_value(char, keep, depth + 1)
        char = yield from _read_comma_or("]", keep, ahead)
    keep(char)
    return ""


def _read_comma_or(end: str, keep: Keep, ahead: str) -> Reader:
    """Read `end`, or a comma and the first character of the next item. Return `end` or that character.

    `ahead` is the first character after the last item if it was read already, else "".
    """
    char = yield from read_space(keep, ahead)
    if char == end:
        return char
    if char != ",":
        raise MalformedError
    keep(char)
    char = yield from read_space(keep)
    if char == end:
        raise MalformedError
    return char


def _read_literal_rest(literal: str, keep: Keep) -> Reader:
    for expected in literal[1:]:
        if (yield) != expected:
            raise MalformedError
        keep(expected)
    return ""


def _read_number(first: str, keep: Keep) -> Reader:
    if first not in "-0123456789":
        raise MalformedError
    text, char = "", first
    while char in "-+.eE0123456789":
        keep(char)
        text += char
        char = yield
    if not _NUMBER.fullmatch(text):
        raise MalformedError
    return char
