"""The numbers that stand for the embeddings of images and sounds among the tokens of a prompt.

They are made from a hash of the medium, so that equal prefixes have equal numbers, and the prefix tree and its blocks
hold text and media alike. They are negative, so none of them is a token of a vocabulary.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence

import numpy as np

# The lowest bits of -1 - number: whether it follows another number of its chunk, whether that chunk is whole, and
# whether its cells cannot be told apart.
_FOLLOWS, _IS_WHOLE, _IS_ONE = 1, 2, 4


def is_medium(token: int) -> bool:
    """Whether a number stands for an embedding, and not for a token of the vocabulary."""
    return token < 0


def media_tokens(key: bytes, num_tokens: int, *, is_whole: bool, is_one: bool = False) -> array[int]:
    """Return the numbers for a chunk of `num_tokens` embeddings.

    `key` stands for everything that the embeddings depend on. `is_whole`: no prefix may end within the chunk, since its
    embeddings attend to each other in both directions. `is_one`: no block may end within it either, since its cells
    have one position (M-RoPE). Such a chunk is whole.
    """
    hashed = np.frombuffer(hashlib.shake_256(key).digest(4 * num_tokens), "<u4") >> 1
    numbers = (hashed & ~np.uint32(_FOLLOWS | _IS_WHOLE | _IS_ONE)).astype(np.int64)
    numbers |= _IS_WHOLE * (is_whole or is_one) | _IS_ONE * is_one
    numbers[1:] |= _FOLLOWS
    return array("i", (-1 - numbers).astype(np.int32).tobytes())


def following(token: int) -> int:
    """Return the number of a chunk as one that follows another number of its chunk."""
    return -1 - (-1 - token | _FOLLOWS)


def cut_before_media(tokens: Sequence[int], length: int) -> int:
    """Return where a prefix of at most `length` tokens can end: before a whole chunk that would be cut."""
    while 0 < length < len(tokens) and _has(tokens[length], _FOLLOWS | _IS_WHOLE):
        length -= 1
    return length


def is_within_one(token: int) -> bool:
    """Whether no block may end before this token."""
    return _has(token, _FOLLOWS | _IS_ONE)


def end_beside_one(tokens: Sequence[int], end: int, least: int) -> int:
    """Return where a block of the first `end` tokens ends instead, if no block may end there.

    It ends before the chunk if it then has at least `least` tokens, and otherwise behind the chunk.
    """
    before = behind = end
    while before > 0 and is_within_one(tokens[before]):
        before -= 1
    while behind < len(tokens) and is_within_one(tokens[behind]):
        behind += 1
    return before if before >= least else behind


def _has(token: int, bits: int) -> bool:
    return token < 0 and (-1 - token) & bits == bits
