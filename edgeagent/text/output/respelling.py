"""Continues an answer that another machine began. Its text may end inside one of this model's tokens.

So the text of the answer's last few tokens is generated again. The model may write it with any tokens that spell this
text. The last of them may also contain the text that follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edgeagent.text.vocabulary import Vocabulary

# A word that is cut usually has at most this many tokens.
_MAX_OPEN_TOKENS = 6


def num_open(pieces: Sequence[bytes]) -> int:
    """Return how many of the last tokens may belong to an incomplete word, from 1 to _MAX_OPEN_TOKENS.

    `pieces` are the bytes of the tokens. If there are none, the result is 0.
    """
    num = min(1, len(pieces))
    while num < min(len(pieces), _MAX_OPEN_TOKENS) and _is_inside_word(pieces[-num - 1], pieces[-num]):
        num += 1
    return num


def _is_inside_word(before: bytes, piece: bytes) -> bool:
    """Whether a piece continues a word that `before` began. A blank before a word counts as part of the word."""
    return (_is_of_word(before[-1:]) or before == b" ") and _is_of_word(piece[:1])


def _is_of_word(byte: bytes) -> bool:
    return byte.isalnum() or byte >= b"\x80"


class Inner(Protocol):
    """A further constraint on the tokens: an `engine.sampling.sampler.TokenConstraint`."""

    def allows(self, token: int) -> bool: ...
    def mask(self, likeliest: int | None = None) -> NDArray[np.bool_] | None: ...
    def instead_of(self, token: int) -> int | None: ...
    def accept(self, token: int) -> None: ...
    def forced(self) -> Sequence[int]: ...


class RespellConstraint:
    """A constraint: the next tokens must spell `text`, and the last of them may have further text after it.

    The constraint `inner` applies at the same time. It applies alone once the text is spelled, or if it allows none of
    the tokens that spell the text.
    """

    def __init__(self, vocabulary: Vocabulary, text: bytes, inner: Inner | None) -> None:
        self._vocabulary = vocabulary
        self._text = text
        self._inner = inner
        self._place = 0  # the offset of the next byte to spell; at least the text's length once all is spelled
        self.num_respelled = 0
        """The number of accepted tokens that only spelled `text` and had no further text after it."""
        self.is_settled = False
        """Set by the caller once it has corrected the answer's length limit by `num_respelled`."""
        self._fitting = _fitting_tokens(vocabulary, text)

    @property
    def is_over(self) -> bool:
        return self._place >= len(self._text)

    def allows(self, token: int) -> bool:
        """Whether `token` may come next. False for a token that does not fit the text, even if `mask` allows it."""
        if self._place < len(self._text) and not self._fits(token):
            return False
        return self._inner is None or self._inner.allows(token)

    def mask(self, likeliest: int | None = None) -> NDArray[np.bool_] | None:
        """Return which tokens may come next; None if all may."""
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
        """Return the inner constraint's replacement for a token that is not allowed; None to draw an allowed one.

        The result is None until the text is spelled.
        """
        return None if self._inner is None or self._place < len(self._text) else self._inner.instead_of(token)

    def accept(self, token: int) -> None:
        if self._place < len(self._text):
            fits = self._fits(token)
            self._place += len(self._vocabulary.piece(token)) if fits else len(self._text) + 1
            self.num_respelled += self._place <= len(self._text)
        if self._inner is not None:
            self._inner.accept(token)

    def forced(self) -> Sequence[int]:
        """Return the tokens that the inner constraint requires next; empty if none, or until the text is spelled."""
        return () if self._inner is None or self._place < len(self._text) else self._inner.forced()

    def _fits(self, token: int) -> bool:
        if self._vocabulary.is_control(token) or self._vocabulary.is_end(token):
            return False
        return _matches(self._vocabulary.piece(token), self._text, self._place)


def _fitting_tokens(vocabulary: Vocabulary, text: bytes) -> list[list[int]]:
    """Return, for each index of the text, the tokens that match the text from there."""
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
    """Whether the piece and the text from `place` on are equal up to the shorter length; False if this length is 0."""
    length = min(len(piece), len(text) - place)
    return length > 0 and piece[:length] == text[place : place + length]
