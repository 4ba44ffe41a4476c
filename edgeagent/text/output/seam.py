"""The position at which an answer from another machine continues; it may lie inside one of this model's tokens.

The last few tokens of its text are generated again, as any tokens that spell that text and continue it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edgeagent.text.vocabulary import Vocabulary

# A cut word usually has at most this many tokens.
_MAX_OPEN_TOKENS = 6


def num_open(pieces: Sequence[bytes]) -> int:
    """Return how many of the last tokens may belong to an incomplete word; at least one if there are any."""
    num = min(1, len(pieces))
    while num < min(len(pieces), _MAX_OPEN_TOKENS) and _is_inside_word(pieces[-num - 1], pieces[-num]):
        num += 1
    return num


def _is_inside_word(before: bytes, piece: bytes) -> bool:
    """Whether a piece continues a word that `before` began; most words' tokens begin with their blank."""
    return (_is_of_word(before[-1:]) or before == b" ") and _is_of_word(piece[:1])


def _is_of_word(byte: bytes) -> bool:
    return byte.isalnum() or byte >= b"\x80"


class Inner(Protocol):
    """What else the tokens must be: an `engine.sampling.constraint.TokenConstraint`."""

    def allows(self, token: int) -> bool: ...
    def mask(self, likeliest: int | None = None) -> NDArray[np.bool_] | None: ...
    def instead_of(self, token: int) -> int | None: ...
    def accept(self, token: int) -> None: ...
    def forced(self) -> Sequence[int]: ...


class Seam:
    """A constraint: the next tokens spell `text`, and the last may continue it; from then on only `inner` holds."""

    def __init__(self, vocabulary: Vocabulary, text: bytes, inner: Inner | None) -> None:
        self._vocabulary = vocabulary
        self._text = text
        self._inner = inner
        self._place = 0  # of what comes next in the text; its length where nothing more must come
        self.num_again = 0
        """How many tokens said again what was there, and nothing behind it."""
        self.is_settled = False
        """Whether the owner has drawn its conclusions from that."""
        self._fitting = _fitting_tokens(vocabulary, text)

    @property
    def is_over(self) -> bool:
        """Whether what was there has been said again."""
        return self._place >= len(self._text)

    def allows(self, token: int) -> bool:
        """Whether `token` may come next."""
        if self._place < len(self._text) and not self._fits(token):
            return False
        return self._inner is None or self._inner.allows(token)

    def mask(self, likeliest: int | None = None) -> NDArray[np.bool_] | None:
        """Return which tokens may come next; None when all may."""
        inner = None if self._inner is None else self._inner.mask(likeliest)
        if self._place >= len(self._text):
            return inner
        mask = np.zeros(self._vocabulary.num_tokens, dtype=np.bool_)
        mask[self._fitting[self._place]] = True
        if inner is None:
            return mask
        mask &= inner
        # If the grammar allows none of these tokens, allow what it allows.
        return mask if mask.any() else inner

    def instead_of(self, token: int) -> int | None:
        """Return what comes next where the likeliest token is not allowed."""
        return None if self._inner is None or self._place < len(self._text) else self._inner.instead_of(token)

    def accept(self, token: int) -> None:
        """Take a token as generated."""
        if self._place < len(self._text):
            fits = self._fits(token)
            self._place += len(self._vocabulary.piece(token)) if fits else len(self._text) + 1
            self.num_again += self._place <= len(self._text)
        if self._inner is not None:
            self._inner.accept(token)

    def forced(self) -> Sequence[int]:
        """Return the tokens that must come next."""
        return () if self._inner is None or self._place < len(self._text) else self._inner.forced()

    def _fits(self, token: int) -> bool:
        if self._vocabulary.is_control(token) or self._vocabulary.is_end(token):
            return False
        return _matches(self._vocabulary.piece(token), self._text, self._place)


def _fitting_tokens(vocabulary: Vocabulary, text: bytes) -> list[list[int]]:
    """Return for each place in the text the tokens that may begin there."""
    fitting: list[list[int]] = [[] for _ in text]
    places: dict[int, list[int]] = {}
    for place, byte in enumerate(text):
        places.setdefault(byte, []).append(place)
    for token in range(vocabulary.num_tokens):
        piece = vocabulary.piece(token)
        if piece and piece[0] in places and not (vocabulary.is_control(token) or vocabulary.is_end(token)):
            for place in places[piece[0]]:
                if _matches(piece, text, place):
                    fitting[place].append(token)
    return fitting


def _matches(piece: bytes, text: bytes, place: int) -> bool:
    """Whether a piece is the text from a place on, or the beginning of that, or continues it."""
    length = min(len(piece), len(text) - place)
    return length > 0 and piece[:length] == text[place : place + length]
