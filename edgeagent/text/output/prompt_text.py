"""Returns a prompt to its client as text, with the log probabilities of its tokens if requested.

It finds where each token's text begins. The log probabilities come from elsewhere.
"""

from __future__ import annotations

import codecs
import math
from collections.abc import Iterator, Sequence

from edgeagent.text.vocabulary import Vocabulary
from edgeagent.types import PromptText, TokenLogprob, replace

# Limits of a delta, because each delta is a frame: tokens (including alternatives) and characters.
_MAX_LOGPROBS = 2560
_MAX_CHARS = 64 << 10


class PromptEcho:
    """One prompt's text, in parts that each fit into a frame.

    The parameters of the constructor: `text` is what the client wrote; None if it sent tokens. The first
    `num_added` tokens were added by edgeagent, and are not part of the text. `is_scored`: the client requested log
    probabilities.
    """

    def __init__(
        self, vocabulary: Vocabulary, tokens: Sequence[int], text: str | None, *, num_added: int, is_scored: bool
    ) -> None:
        self._vocabulary = vocabulary
        self._tokens = tokens
        decoded, starts = _decode(vocabulary, tokens, num_added)
        self.text = decoded if text is None else text
        # Some vocabularies add a blank before a text that begins with a word.
        shift = 1 if decoded == f" {self.text}" else 0
        self._starts = [min(max(0, start - shift), len(self.text)) for start in starts]
        self._logprobs = [self._first()] if is_scored else []
        self._is_scored = is_scored
        self._is_told = False

    def add(self, logprobs: Sequence[TokenLogprob]) -> None:
        """Add the log probabilities of the next tokens. Begin with the second token, because the first has none."""
        self._logprobs += logprobs

    def take(self) -> tuple[PromptText, ...]:
        """Return the whole prompt at the first call, and () later. If `is_scored`, call `add` for all tokens before."""
        if self._is_told:
            return ()
        self._is_told = True
        return tuple(self._scored_parts() if self._is_scored else self._plain_parts())

    def _first(self) -> TokenLogprob:
        return TokenLogprob(self._tokens[0], self._vocabulary.piece(self._tokens[0]), math.nan)

    def _plain_parts(self) -> Iterator[PromptText]:
        for start in range(0, len(self.text), _MAX_CHARS):
            yield PromptText(self.text[start : start + _MAX_CHARS])

    def _scored_parts(self) -> Iterator[PromptText]:
        placed = [replace(logprob, start=start) for logprob, start in zip(self._logprobs, self._starts, strict=True)]
        size = max(1, _MAX_LOGPROBS // max(1 + len(logprob.top) for logprob in placed))
        for index in range(0, len(placed), size):
            part = tuple(placed[index : index + size])
            start = part[0].start if index else 0
            end = placed[index + size].start if index + size < len(placed) else len(self.text)
            yield PromptText(self.text[start:end], part)


def _decode(vocabulary: Vocabulary, tokens: Sequence[int], num_added: int) -> tuple[str, list[int]]:
    """Return the text of all tokens except the first `num_added`, and where each token's text begins, in characters.

    Control tokens have their text. The first `num_added` tokens count as empty texts at the beginning.
    """
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    parts: list[str] = []
    starts: list[int] = []
    length = 0
    for index, token in enumerate(tokens):
        starts.append(length)
        if index >= num_added:
            parts.append(decoder.decode(vocabulary.piece(token)))
            length += len(parts[-1])
    parts.append(decoder.decode(b"", final=True))
    return "".join(parts), starts
