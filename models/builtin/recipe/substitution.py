"""Replaces rare words of a conversation with random ones. In a conversation, a word always gets the same replacement.

A model that has copied only words of the corpus cannot copy others, since it has never written their tokens. So in a
share of the samples, the words that a user names become random tokens of the vocabulary, both in the prompt and in the
reply. The task of the sample stays the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
from tokenizers import Tokenizer

from .chat import render
from .samples import Sample

SHARE = 0.5
NUM_FREQUENT = 320
NUM_COUNTED = 1000
_EITHER = frozenset({"facts", "absent", "follow_up", "long_prompts"})
_COPIED = frozenset({"tool_calls", "unseen_tools", "tool_answers", "sessions", "tools_not_needed", "structured"})


class Substitution:
    """Replaces words by other words of the vocabulary. Very frequent words are not replaced."""

    def __init__(self, tokenizer: Tokenizer, samples: Iterator[Sample]) -> None:
        self.tokenizer = tokenizer
        self.space = tokenizer.encode(" ").ids[0]
        words = {token: i for token, i in tokenizer.get_vocab().items() if token.removeprefix("Ġ").isascii()}
        letters = {token: i for token, i in words.items() if token.removeprefix("Ġ").isalpha()}
        self.plain = {token: i for token, i in letters.items() if not token.startswith("Ġ") and len(token) > 1}
        self.spaced = {
            token[1:]: i for token, i in letters.items() if token.startswith("Ġ") and token[1:] in self.plain
        }
        self.word_of = {i: token for token, i in self.plain.items()} | {i: token for token, i in self.spaced.items()}
        self.choices = sorted(self.plain)
        self.frequent = self._count(samples)

    def _count(self, samples: Iterator[Sample]) -> frozenset[str]:
        counts: Counter[str] = Counter()
        for sample, _ in zip(samples, range(NUM_COUNTED), strict=False):
            ids = self.tokenizer.encode(render(sample.messages, sample.tools)).ids
            counts.update(self.word_of[i] for i in ids if i in self.word_of)
        return frozenset(word for word, _ in counts.most_common(NUM_FREQUENT))

    def _words(self, text: str) -> set[str]:
        return {self.word_of[i] for i in self.tokenizer.encode(" " + text).ids if i in self.word_of} - self.frequent

    def _replaced(self, sample: Sample) -> set[str]:
        asked = self._words(" ".join(m["content"] for m in sample.messages if m["role"] == "user"))
        replies = [m for m in sample.messages if m["role"] == "assistant"]
        calls = [str(call["function"]) for m in replies for call in m.get("tool_calls", [])]
        told = self._words(" ".join([m["content"] for m in replies] + calls))
        return asked | told if sample.category in _EITHER else asked & told

    def apply(
        self, sample: Sample, pair: tuple[list[int], list[float]], rng: np.random.Generator
    ) -> tuple[list[int], list[float]]:
        """Replace words in an encoded sample, or return it unchanged. `pair` holds the tokens and their weights."""
        if sample.category not in _EITHER | _COPIED or rng.random() > SHARE:
            return pair
        chosen = [word for word in sorted(self._replaced(sample)) if rng.random() < 0.7]
        fresh = {word: self.choices[int(rng.integers(len(self.choices)))] for word in chosen}
        ids: list[int] = []
        weights: list[float] = []
        for token, weight in zip(*pair, strict=True):
            new = self._new_tokens(token, fresh)
            ids += new
            weights += [weight] * len(new)
        return ids, weights

    def _new_tokens(self, token: int, fresh: dict[str, str]) -> list[int]:
        word = fresh.get(self.word_of.get(token, ""))
        if word is None:
            return [token]
        if token == self.plain.get(self.word_of[token]):
            return [self.plain[word]]
        return [self.spaced[word]] if word in self.spaced else [self.space, self.plain[word]]
