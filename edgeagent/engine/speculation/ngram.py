"""Drafts from a sequence's own text: if its last tokens occurred before, it proposes the tokens that followed there.

It needs no draft model. It pays if an answer repeats its prompt: edits, quotes, code.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass, field

import numpy as np

from edgeagent.engine.sequence import Sequence

# A draft is made only if the last _LENGTH tokens occurred before.
_LENGTH = 3
_TOKEN_BITS = 20
# Only the latest _MAX_PLACES earlier occurrences are compared, each over at most _MAX_MATCH tokens.
_MAX_PLACES = 4
_MAX_MATCH = 32
# Tokens of a long prompt that are indexed in one step.
_MAX_INDEXED = 8192
# Up to this many tokens are indexed one by one: for so few, NumPy takes longer.
_FEW = 16
# If an answer repeats an earlier text with some tokens replaced, drafts continue from that text up to this many tokens
# after the last match. By then the last tokens match again, or the answer does not repeat that text.
_MAX_REPLACED = 4


class NgramIndex:
    """An index of a growing sequence of tokens: the latest places where each run of three tokens ended."""

    def __init__(self) -> None:
        self._places: dict[int, list[int]] = {}
        self._num_indexed = _LENGTH - 1  # a place is the number of tokens before it

    def extend(self, tokens: Items[int]) -> bool:
        """Index the tokens that were added since the last call; return False if some are left for the next call.

        `tokens`: all tokens of the sequence. Its present end is not indexed: the last tokens would match themselves.
        """
        start, end = self._num_indexed, min(len(tokens) - 1, self._num_indexed + _MAX_INDEXED)
        if end - start <= _FEW:
            for place in range(start + 1, end + 1):
                self._add(_key(tokens[place - _LENGTH : place]), place)
        else:
            run = np.asarray(tokens[start + 1 - _LENGTH : end], np.int64)
            keys = run[: len(run) - _LENGTH + 1].copy()
            for offset in range(1, _LENGTH):
                keys = keys << _TOKEN_BITS | run[offset : offset + len(keys)]
            for place, key in enumerate(keys.tolist(), start + 1):
                self._add(key, place)
        self._num_indexed = max(start, end)
        return self._num_indexed >= len(tokens) - 1

    def find(self, tokens: Items[int]) -> tuple[int, int]:
        """Return (end, length) of the longest earlier run that equals the last tokens; (0, 0) if there is none.

        Only the latest few occurrences of the last three tokens are compared, over at most _MAX_MATCH tokens.
        """
        if len(tokens) <= _LENGTH:
            return 0, 0
        best = (0, 0)
        for place in reversed(self._places.get(_key(tokens[-_LENGTH:]), ())):
            length = _match(tokens, place)
            if length > best[1]:
                best = place, length
        return best

    def _add(self, key: int, place: int) -> None:
        places = self._places.setdefault(key, [])
        places.append(place)
        if len(places) > _MAX_PLACES:
            del places[0]


def _key(tokens: Items[int]) -> int:
    """Return one number for a run of tokens."""
    key = 0
    for token in tokens:
        key = key << _TOKEN_BITS | token
    return key


def _match(tokens: Items[int], place: int) -> int:
    """Return how many tokens before `place` equal the last ones, at most _MAX_MATCH."""
    end, length = len(tokens), 0
    while length < min(place, _MAX_MATCH) and tokens[place - 1 - length] == tokens[end - 1 - length]:
        length += 1
    return length


@dataclass(slots=True)
class _Text:
    """The n-gram index of one sequence, and its latest match.

    `distance`: the number of tokens from the end of the earlier run to the end of the later run that equals it; 0 if
    nothing has matched.
    """

    index: NgramIndex = field(default_factory=NgramIndex)
    distance: int = 0


class NgramDrafter:
    """Proposes tokens from the sequences' own texts."""

    def __init__(self) -> None:
        self._texts: dict[str, _Text] = {}

    def find(self, sequence: Sequence, max_tokens: int) -> tuple[tuple[int, ...], int]:
        """Return the tokens that followed an earlier occurrence of the last tokens, and how many tokens matched.

        If the answer repeats an earlier text, but has just replaced a few of its tokens, the draft continues in that
        text after them. Then the number of matching tokens is 0. Return no tokens if nothing matches, or if the text is
        not fully indexed yet.
        """
        text, tokens = self._texts.setdefault(sequence.id, _Text()), sequence.tokens
        if not text.index.extend(tokens):
            return (), 0
        place, length = text.index.find(tokens)
        if length:
            text.distance = len(tokens) - place
        elif text.distance and _continues(tokens, text.distance):
            place = len(tokens) - text.distance
        else:
            return (), 0
        return tuple(_following(tokens, place, max_tokens)), length

    def release(self, sequence: Sequence) -> None:
        self._texts.pop(sequence.id, None)


def _continues(tokens: Items[int], distance: int) -> bool:
    """Whether the text still repeats what it had `distance` tokens earlier, apart from one to four last tokens."""
    end = len(tokens)
    for replaced in range(1, _MAX_REPLACED + 1):
        later, earlier = end - replaced, end - replaced - distance
        if earlier < _LENGTH:
            return False
        if tokens[later - _LENGTH : later] == tokens[earlier - _LENGTH : earlier]:
            return True
    return False


def _following(tokens: Items[int], place: int, count: int) -> list[int]:
    """Return the `count` tokens from index `place` on. If there are fewer, repeat them."""
    found = list(tokens[place : place + count])
    period = len(tokens) - place
    while len(found) < count:
        found.append(found[len(found) - period])
    return found
