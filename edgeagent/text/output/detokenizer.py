"""Turns tokens into text incrementally. The bytes of an incomplete character are kept until it is complete."""

from __future__ import annotations

import codecs
from collections.abc import Iterable

from edgeagent.text.vocabulary import Vocabulary

_utf8 = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """Turns one stream of tokens into text.

    Control tokens and tokens that end generation have no text, except those in `visible_control` (markers that a later
    stage parses).
    """

    def __init__(self, vocabulary: Vocabulary, visible_control: frozenset[int] = frozenset()) -> None:
        self._vocabulary = vocabulary
        self._visible_control = visible_control
        self._decoder = _utf8(errors="replace")

    def feed(self, tokens: Iterable[int]) -> str:
        """Return the text that these tokens complete. A character is never split."""
        return self._decoder.decode(b"".join(self._piece(token) for token in tokens))

    def flush(self) -> str:
        """Return a replacement character for an incomplete character at the end; usually empty."""
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return text

    def _piece(self, token: int) -> bytes:
        if token not in self._visible_control and (
            self._vocabulary.is_control(token) or self._vocabulary.is_end(token)
        ):
            return b""
        return self._vocabulary.piece(token)
