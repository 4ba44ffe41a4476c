"""Limits generated JSON in ways that JSON's grammar does not.

The limits are on the digits of a number, on unusual white space, and on what repeats: text in a string, equal elements
of an array, and keys of an object. Without them, a model that has begun to repeat a digit may repeat it until its
context is full. A blank before a colon or a comma is valid JSON too, but models were not trained on such text and
continue it badly.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

# The digits of the largest integers that every client reads exactly (2**53). The limit also holds after the point.
MAX_DIGITS = 16
# With more digits in its exponent, a number may be infinite as a double.
MAX_EXPONENT_DIGITS = 2
# The longest run of one digit, or of white space, in a string. Hashes and tables have no longer runs. A model that
# writes a longer run does not end it.
MAX_REPEATS = 128
# A string also has to end if its last bytes are one text of at most MAX_PERIOD bytes, again and again.
MAX_PERIODIC_BYTES, MAX_PERIOD = 1024, 64
# How many equal elements may follow one another in an array.
MAX_EQUAL_ELEMENTS = 128
_DIGITS = frozenset(b"0123456789")
_BLANKS = frozenset(b" \t")
_SPACE_ESCAPES = frozenset(b"nrt")
_BEFORE_VALUES = frozenset(b"{[,")

Mask = NDArray[np.bool_]
Tokens = NDArray[np.int64]


class TokenStarts:
    """The tokens of a vocabulary, grouped by how they begin. `pieces` are the bytes of all tokens, in order."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        first = np.frombuffer(bytes(piece[0] if piece else 0 for piece in pieces), dtype=np.uint8)

        def beginning(chars: bytes) -> Tokens:
            return np.flatnonzero(np.isin(first, list(chars)))

        self.digits = beginning(b"0123456789")
        self.num_digits = np.zeros(len(pieces), dtype=np.int32)
        self.num_digits[self.digits] = [_num_digits(pieces[token]) for token in self.digits]
        self.zeros = np.array([token for token in self.digits if not pieces[token].strip(b"0")], dtype=np.int64)
        self.lines, self.blanks = beginning(b"\r\n"), beginning(b" \t")
        self.spaces = np.concatenate((self.lines, self.blanks))
        self.is_blank, self.is_space = np.isin(first, list(b" \t")), np.isin(first, list(b"\r\n \t"))
        self.is_quote = first == ord('"')
        self.quotes = beginning(b'"')
        self.closing = beginning(b"}]")
        spaced = [token for token in self.blanks if pieces[token].lstrip(b" \t")[:1] in (b",", b":")]
        self.separators = np.concatenate((beginning(b",:"), np.array(spaced, dtype=np.int64)))
        self.is_separator = np.zeros(len(pieces), dtype=np.bool_)
        self.is_separator[self.separators] = True
        self._pieces = pieces
        self.commas = np.array([token for token, piece in enumerate(pieces) if b"," in piece], dtype=np.int64)
        self.has_comma = np.zeros(len(pieces), dtype=np.bool_)
        self.has_comma[self.commas] = True

    def piece(self, token: int) -> bytes:
        return self._pieces[token]


@dataclass(slots=True)
class _Container:
    """An open object or array.

    `text`: the current key or element; a nested container is in it as a hash. `keys`: the hashes of the object's keys.
    `num_equal`: how often the array's last element, with the hash `element`, was repeated. `must_close`: nothing more
    may be written into it, because an object has a key twice, or an array has too many equal elements.
    """

    is_object: bool
    text: bytearray = field(default_factory=bytearray)
    keys: set[int] = field(default_factory=set)
    element: int = 0
    num_equal: int = 0
    digest: int = 0
    must_close: bool = False

    def copy(self) -> _Container:
        return replace(self, text=self.text[:], keys=set(self.keys))

    def end_key(self) -> None:
        """Record that the current key is complete."""
        key = hash(bytes(self.text))
        self.must_close |= key in self.keys
        self.keys.add(key)

    def end_element(self) -> None:
        """Record that the current element, or pair of key and value, is complete."""
        element = hash(bytes(self.text))
        self.text.clear()
        self.digest = hash((self.digest, element))
        self.num_equal = self.num_equal + 1 if element == self.element else 0
        self.element = element
        self.must_close |= not self.is_object and self.num_equal >= MAX_EQUAL_ELEMENTS - 1

    @property
    def may_overrun(self) -> bool:
        """Whether another element may be too much."""
        return self.must_close or (not self.is_object and self.num_equal >= MAX_EQUAL_ELEMENTS - 2)


class JsonGuard:
    """Follows one JSON text and finds the tokens that would exceed the limits. It ignores text around the JSON."""

    def __init__(self, starts: TokenStarts) -> None:
        self._starts = starts
        self._is_in_string = self._is_escaped = self._is_exponent = False
        self._num_digits = 0
        self._depth = 0
        # The last byte that is not white space, and whether a line has ended after a value.
        self._last = ord("{")
        self._is_on_new_line = False
        # How often a string has repeated its last character, if that is a digit or white space.
        self._num_repeats, self._last_in_string = 0, 0
        self._end_of_string = bytearray()
        self._is_periodic = False
        self._open: list[_Container] = []
        # Whether a container got more although it must close.
        self._has_overrun = False

    def copy(self) -> JsonGuard:
        twin = copy(self)
        twin._end_of_string, twin._open = self._end_of_string[:], [each.copy() for each in self._open]
        return twin

    @property
    def is_in_string(self) -> bool:
        """Whether the text so far ends inside a string, at a place where a quote mark would end it."""
        return self._is_in_string and not self._is_escaped

    def refuses(self, token: int) -> bool:
        """Whether a token exceeds the limits. If the grammar allows no other token, `narrowed` still allows it."""
        if self._overruns(token):
            return True
        if self._is_in_string:
            return self._has_to_end and not self._starts.is_quote[token]
        if self._starts.is_space[token]:
            is_usual = self._last in _BEFORE_VALUES
            return self._depth > 0 and not is_usual and not (self._last == ord(":") and self._starts.is_blank[token])
        if self._is_on_new_line and self._starts.is_separator[token]:
            return True
        return bool(self._starts.num_digits[token] > self._room)

    def narrowed(self, mask: Mask) -> Mask:
        """Return the mask without the tokens that exceed the limits; the unchanged mask if no other token is left."""
        if any(each.may_overrun for each in self._open) and (self._is_in_string or mask[self._starts.closing].any()):
            mask = _without(mask, [token for token in self._starts.commas if mask[token] and self._overruns(token)])
        if self._is_in_string:
            return self._with_quotes(mask) if self._has_to_end else mask
        if self._depth > 0:
            mask = self._with_usual_space(mask)
        digits = self._starts.digits
        beyond = digits[self._starts.num_digits[digits] > self._room]
        if not mask[beyond].any():
            return mask
        # The grammar may require more digits: for a const, or for a number that must not be 0 (after 0.000).
        shorter = _without(mask, beyond)
        return _without(mask, self._starts.zeros) if shorter is mask else shorter

    def _with_quotes(self, mask: Mask) -> Mask:
        """Return a mask that allows only the end of the string; the unchanged mask if it does not allow the end."""
        only = np.zeros_like(mask)
        only[self._starts.quotes] = mask[self._starts.quotes]
        return only if only.any() else mask

    def _with_usual_space(self, mask: Mask) -> Mask:
        """Return the mask with only usual white space: none before separators, no line break after a colon."""
        starts = self._starts
        if self._last == ord(":"):
            return _without(mask, starts.lines)
        if self._last in _BEFORE_VALUES:
            return mask
        # After a value, a new line may only begin with a closing bracket.
        can_close = bool(mask[starts.closing].any())
        if self._is_on_new_line:
            # A token may contain a bracket and a line break after which only a comma can follow. Then require the comma
            # at once.
            return _without(mask, starts.separators if can_close else starts.spaces)
        return _without(mask, starts.blanks if can_close else starts.spaces)

    def feed(self, text: bytes) -> None:
        """Process generated text."""
        for byte in text:
            if self._is_in_string:
                self._feed_string(byte)
            else:
                self._feed_plain(byte)
        end = self._end_of_string
        if self._is_in_string and len(end) >= MAX_PERIODIC_BYTES:
            del end[:-MAX_PERIODIC_BYTES]
            self._is_periodic = any(end[period:] == end[:-period] for period in range(1, MAX_PERIOD + 1))

    @property
    def _has_to_end(self) -> bool:
        """Whether the current string must end: it repeats itself too often, and a quote mark would end it."""
        return (self._num_repeats >= MAX_REPEATS or self._is_periodic) and not self._is_escaped

    def _overruns(self, token: int) -> bool:
        """Whether a token adds to a container that must close."""
        if not (self._starts.has_comma[token] and any(each.may_overrun for each in self._open)):
            return False
        after = self.copy()
        after.feed(self._starts.piece(token))
        return after._has_overrun

    @property
    def _room(self) -> int:
        return max(0, (MAX_EXPONENT_DIGITS if self._is_exponent else MAX_DIGITS) - self._num_digits)

    def _feed_plain(self, byte: int) -> None:
        if byte in b"\r\n":
            self._is_on_new_line = self._depth > 0 and self._last not in _BEFORE_VALUES
        elif byte not in _BLANKS:
            self._last, self._is_on_new_line = byte, False
        if byte in _DIGITS:
            self._num_digits += 1
        elif byte in b"eE" and self._num_digits:
            self._is_exponent, self._num_digits = True, 0
        elif not (byte in b"+-" and self._is_exponent and not self._num_digits):
            self._is_exponent, self._num_digits = False, 0
            self._is_in_string = byte == ord('"')
            self._num_repeats, self._last_in_string = 0, byte
            self._depth += (byte in b"{[") - (byte in b"}]")
        if byte not in b" \t\r\n":
            self._feed_container(byte)

    def _feed_container(self, byte: int) -> None:
        """Follow the innermost container. `byte` is not within a string, and is not white space."""
        if byte in b"{[":
            self._open.append(_Container(byte == ord("{")))
            return
        if not self._open:
            return
        container = self._open[-1]
        if byte == ord(","):
            container.end_element()
            self._has_overrun |= container.must_close
        elif byte in b"}]":
            container.end_element()
            self._open.pop()
            if self._open:
                self._open[-1].text += container.digest.to_bytes(8, "little", signed=True)
        elif byte == ord(":"):
            container.end_key()
        else:
            container.text.append(byte)

    def _feed_string(self, byte: int) -> None:
        if self._open:
            self._open[-1].text.append(byte)
        self._end_of_string.append(byte)
        if byte == ord("\\") and not self._is_escaped:
            self._is_escaped = True  # the next character decides
            return
        if byte == ord('"') and not self._is_escaped:
            self._is_in_string = self._is_periodic = False
            self._end_of_string.clear()
        # All white space counts as the same character, because a model may also alternate line breaks and blanks.
        is_space = byte in (_SPACE_ESCAPES if self._is_escaped else _BLANKS)
        char = ord(" ") if is_space else byte
        is_repeat = char == self._last_in_string and (is_space or (byte in _DIGITS and not self._is_escaped))
        self._num_repeats = self._num_repeats + 1 if is_repeat else 0
        self._last_in_string, self._is_escaped = char, False


def _num_digits(piece: bytes) -> int:
    return next((count for count, byte in enumerate(piece) if byte not in _DIGITS), len(piece))


def _without(mask: Mask, tokens: Tokens | list[np.int64]) -> Mask:
    """Return a copy of the mask without the tokens, or the mask itself if no token would be left."""
    less = mask.copy()
    less[tokens] = False
    return less if less.any() else mask
