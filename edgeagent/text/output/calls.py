"""Reads the syntax of tool calls, with one reader for each format, and of JSON in them.

A reader is a generator. The caller sends it the text after the opening marker, one character at a time. The reader
reports calls to a sink, and raises MalformedError if the text is not a call. It returns the text that it read after the
end of the call. A reader of JSON returns the first character after its value if it had to read that character, else "".
JSON is read strictly, except that a string may contain unescaped control characters.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator
from typing import Protocol

from edgeagent.strict_json import SURROGATE
from edgeagent.text.tool_format import HERMES_CLOSE, ToolFormat

MAX_DEPTH = 64
SPACE = " \t\r\n"
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII)
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
    return SURROGATE.sub("\ufffd", json.loads("".join(text)))


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


MAX_NAME_LENGTH = 256
_ARGUMENT_KEYS = ("arguments", "parameters")
_OTHER_KEYS = ("id", "type")


class CallSink(Protocol):
    """Receives a call while it is being read."""

    def begin(self, name: str) -> None:
        """Begin a call; raise MalformedError if there is no such tool."""
        ...

    def arguments(self, text: str) -> None:
        """Add JSON text to the arguments of the call that was begun last."""
        ...

    def end(self) -> None:
        """Complete the call that was begun last."""
        ...


def read_calls(tool_format: ToolFormat, sink: CallSink) -> Reader:
    """Return the reader of one marked region: one call, or a list of them."""
    match tool_format:
        case ToolFormat.HERMES:
            return _read_hermes(sink)
        case ToolFormat.LLAMA:
            return _read_llama(sink)
        case ToolFormat.MISTRAL | ToolFormat.MISTRAL_ARGS:
            return _read_mistral(sink)


def _read_hermes(sink: CallSink) -> Reader:
    char = yield from read_space()
    yield from _read_call_object(char, sink)
    passed = ""
    while passed != HERMES_CLOSE:
        char = yield
        if char.isspace() and not passed:
            continue
        passed += char
        if not HERMES_CLOSE.startswith(passed):
            return passed
    return ""


def _read_llama(sink: CallSink) -> Reader:
    char = yield from read_space()
    while True:
        yield from _read_call_object(char, sink)
        char = yield from read_space()
        if char != ";":
            return char
        char = yield from read_space()


def _read_mistral(sink: CallSink) -> Reader:
    char = yield from read_space()
    if char != "[":
        return (yield from _read_named_call(char, sink))
    while True:
        char = yield from read_space()
        yield from _read_call_object(char, sink)
        char = yield from read_space()
        if char == "]":
            return ""
        if char != ",":
            raise MalformedError


def _read_named_call(first: str, sink: CallSink) -> Reader:
    """Read name[ARGS]{…}. [CALL_ID] and an id may follow the name, and are dropped. [ARGS] may be missing.

    A call that begins with { is read by `_read_call_object`.
    """
    if first == "{":
        yield from _read_call_object(first, sink)
        return ""
    head, char = "", first
    while char != "{":
        head += char
        if len(head) > MAX_NAME_LENGTH:
            raise MalformedError
        char = yield
    name, *marks = head.rstrip().replace("]", "[").split("[")
    if marks not in ([], ["ARGS", ""]) and not (len(marks) == 4 and (marks[0], *marks[2:]) == ("CALL_ID", "ARGS", "")):
        raise MalformedError
    sink.begin(name.strip())
    yield from read_value(char, sink.arguments)
    sink.end()
    return ""


def _read_call_object(first: str, sink: CallSink) -> Generator[None, str, None]:
    """Read {"name": …, "arguments": {…}} with the keys in any order."""
    if first != "{":
        raise MalformedError
    call = _PartialCall(sink)
    char = yield from read_space()
    while True:
        key = yield from read_string(char)
        if (yield from read_space()) != ":":
            raise MalformedError
        char = yield from read_space()
        ahead = yield from call.read_field(key, char)
        char = yield from read_space(ahead=ahead)
        if char == "}":
            break
        if char != ",":
            raise MalformedError
        char = yield from read_space()
    call.end()


class _PartialCall:
    """The part of a JSON call read so far. Arguments before the name are kept until the name is known."""

    def __init__(self, sink: CallSink) -> None:
        self._sink = sink
        self._has_name = False
        self._early = ""
        self._seen: set[str] = set()

    def read_field(self, key: str, first: str) -> Reader:
        """Read the value of a key and keep or report it. Raise MalformedError for an unknown or repeated key."""
        key = "arguments" if key in _ARGUMENT_KEYS else key
        if key in self._seen or key not in ("name", "arguments", *_OTHER_KEYS):
            raise MalformedError
        self._seen.add(key)
        if key == "name":
            name = yield from read_string(first)
            self._sink.begin(name)
            self._has_name = True
            if self._early:
                self._sink.arguments(self._early)
            return ""
        if key == "arguments":
            yield from _read_arguments(first, self._keep)
            return ""
        return (yield from read_value(first, ignore))

    def end(self) -> None:
        """Complete the call after its object was closed. Raise MalformedError if it has no name."""
        if not self._has_name:
            raise MalformedError
        if "arguments" not in self._seen:
            self._sink.arguments("{}")
        self._sink.end()

    def _keep(self, text: str) -> None:
        if self._has_name:
            self._sink.arguments(text)
        else:
            self._early += text


def _read_arguments(first: str, keep: Keep) -> Generator[None, str, None]:
    """Read a call's arguments: an object, a string with an object as JSON text, or null for an empty object.

    `keep` gets an object while it is being read, and a string's text at the end of the string.
    """
    match first:
        case "{":
            yield from read_value(first, keep)
        case '"':
            text = yield from read_string(first)
            if not _is_object(text):
                raise MalformedError
            keep(text)
        case "n":
            yield from read_value(first, ignore)
            keep("{}")
        case _:
            raise MalformedError


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
