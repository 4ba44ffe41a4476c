"""Compares the vocabularies of two models' files, token by token."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import zip_longest
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgeagent.store.gguf.header import GgufHeader

_LENGTH = struct.Struct("<Q")
_MAX_SHOWN_CHARS = 40


def first_difference(model: GgufHeader, draft: GgufHeader) -> str | None:
    """Return a text with the first token that differs between two models; None if all tokens are the same.

    The result is also None if a file has no vocabulary. A file that was changed after its header was read is not
    detected. Raise OSError if a file cannot be read.
    """
    mine, theirs = (_tokens_of(header) for header in (model, draft))
    if mine == theirs or not mine or not theirs:
        return None
    for number, (one, other) in enumerate(zip_longest(_tokens(mine), _tokens(theirs))):
        if one != other:
            return f"token {number} is {_shown(one)} in {model.path} and {_shown(other)} in {draft.path}"
    return None


def _tokens_of(header: GgufHeader) -> bytes:
    """Return the bytes of the token array in the file."""
    place = header.tokens_at
    with header.path.open("rb") as file:
        file.seek(place.start)
        return file.read(len(place))


def _tokens(array: bytes) -> Iterator[bytes]:
    at = 0
    while at + _LENGTH.size <= len(array):
        (num_bytes,) = _LENGTH.unpack_from(array, at)
        at += _LENGTH.size
        yield array[at : at + num_bytes]
        at += num_bytes


def _shown(token: bytes | None) -> str:
    if token is None:
        return "missing"
    text = token.decode("utf-8", "replace")
    return repr(text if len(text) <= _MAX_SHOWN_CHARS else f"{text[:_MAX_SHOWN_CHARS]}…")
