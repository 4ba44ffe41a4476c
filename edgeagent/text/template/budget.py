"""Limits the operations, the text and the CPU time of one rendering of a template.

If a result may be much larger than its operands, its size is charged before the result is computed.
"""

from __future__ import annotations

import re
import time
from collections.abc import ItemsView, KeysView, Mapping, ValuesView
from typing import Any

from jinja2 import Undefined
from jinja2.exceptions import SecurityError

MAX_OUTPUT_CHARS = 8 << 20
MAX_RANGE = 100_000
_MAX_TEXT_CHARS = MAX_OUTPUT_CHARS
_MAX_TOTAL_CHARS = 128 << 20
_MAX_OPERATIONS = 2_000_000
_CHARS_PER_ELEMENT = 8
_MAX_VALUES = 250_000
_MAX_INTEGER_BITS = 4096
_CPU_S = 1.0
_OPERATIONS_PER_CLOCK = 64
# An operation on a longer text takes milliseconds, so the clock is read before each one.
_LONG_CHARS = 64 << 10
_HOLDERS = (list, tuple, Mapping, KeysView, ValuesView, ItemsView)
_SIMPLE_FORMAT = re.compile(r"(?:[^%]|%[sdi%])*")


class Budget:
    """The budget of one rendering. Its methods raise SecurityError if the budget is exceeded."""

    def __init__(self) -> None:
        self._num_operations = 0
        self._num_chars = 0
        self._deadline_s = time.thread_time() + _CPU_S

    def spend_on(self, value: object) -> None:
        """Charge for reading all elements of a value, or all characters of a text."""
        self.spend(len(value) if isinstance(value, str) else weigh(value) * _CHARS_PER_ELEMENT)

    def spend(self, num_chars: int = 0) -> None:
        """Charge for one operation. `num_chars` is the size of its result in characters; see `size_of`."""
        self._num_operations += 1
        self._num_chars += num_chars
        if num_chars > _MAX_TEXT_CHARS or self._num_chars > _MAX_TOTAL_CHARS:
            raise SecurityError("the template produces too much text")
        if self._num_operations > _MAX_OPERATIONS:
            raise SecurityError(f"the template takes more than {_MAX_OPERATIONS} operations")
        is_timed = num_chars > _LONG_CHARS or self._num_operations % _OPERATIONS_PER_CLOCK == 0
        if is_timed and time.thread_time() > self._deadline_s:
            raise SecurityError(f"the template takes more than {_CPU_S:g} s")


def size_of(value: object) -> int:
    """Return the size of a new string, list, tuple or dict in characters; 0 for all other values, which are small.

    An element of a container counts as _CHARS_PER_ELEMENT characters.
    """
    match value:
        case str():
            return len(value)
        case list() | tuple() | dict():
            return len(value) * _CHARS_PER_ELEMENT
        case _:
            return 0


def num_chars(value: object) -> int:
    """Return the approximate length of a value's text. Raise SecurityError if it is too long or not plain.

    A list can contain another list many times, so its text can be exponentially longer than its memory.
    """
    total = 0
    stack = [value]
    for _ in range(_MAX_VALUES):
        if not stack:
            return total
        item = stack.pop()
        if isinstance(item, str):
            total += len(item) + 2
        elif isinstance(item, Mapping):
            stack.extend(item.keys())
            stack.extend(item.values())
        elif isinstance(item, list | tuple | KeysView | ValuesView | ItemsView):
            stack.extend(item)
        elif item is None or isinstance(item, int | float | range | Undefined):
            total += 24
        else:
            raise SecurityError(f"templates cannot turn a {type(item).__name__} into text")
        if total > _MAX_TEXT_CHARS:
            break
    raise SecurityError("the template produces too much text")


def weigh(value: object) -> int:
    """Return how many values a comparison or hash of this value may visit; 0 if it is not a container.

    A list that is contained several times counts each time, because a comparison visits it each time. Raise
    SecurityError if there are more than _MAX_VALUES.
    """
    if not isinstance(value, _HOLDERS):
        return 0
    stack: list[object] = [value]
    for num_values in range(_MAX_VALUES):
        if not stack:
            return num_values
        item = stack.pop()
        if isinstance(item, Mapping):
            stack.extend(item.values())
        elif isinstance(item, _HOLDERS):
            stack.extend(item)
    raise SecurityError("the template compares too much")


def replaced_size(text: str, old: str, new: str) -> int:
    """Return an upper limit, in characters, of the length of `text` after every `old` is replaced by `new`."""
    num_places = text.count(old) if old else len(text) + 1
    return len(text) + num_places * len(new)


def result_size(operator: str, left: Any, right: Any) -> int:
    """Return the size of an operation's result in characters, without computing the result; see `size_of`.

    Raise SecurityError if the result is too large an integer, or if % is used with an unknown format.
    """
    match operator, left, right:
        case "+", (str() | list() | tuple()), (str() | list() | tuple()):
            return size_of(left) + size_of(right)
        case "*", (str() | list() | tuple()), int():
            return _repeated_size(left, right)
        case "*", int(), (str() | list() | tuple()):
            return _repeated_size(right, left)
        case "*", int(), int():
            _check_integer(left.bit_length() + right.bit_length())
        case "**", int(), int():
            _check_integer(left.bit_length() * abs(right))
        case "%", str(), _:
            if not _SIMPLE_FORMAT.fullmatch(left):
                raise SecurityError("templates may format with %s, %d and %i only")
            return len(left) + num_chars(right)
    return 0


def _repeated_size(sequence: str | list[Any] | tuple[Any, ...], count: int) -> int:
    return size_of(sequence) * max(count, 0)


def _check_integer(num_bits: int) -> None:
    if num_bits > _MAX_INTEGER_BITS:
        raise SecurityError("the template computes a number that is too large")
