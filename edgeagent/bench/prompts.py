"""Prompts of a given length: cold ones that no cache has seen, and warm ones that differ only at their end."""

from __future__ import annotations

import random
from dataclasses import dataclass

_TEXT = (
    "apple arrow autumn basket bridge bottle candle castle circle copper cotton dinner dragon eagle engine feather "
    "finger forest garden ginger hammer harbor island jacket kettle ladder lemon market meadow mirror morning needle "
    "number orange paper pencil pepper pillow planet pocket rabbit ribbon river rocket saddle silver spider spring "
    "summer table temple thunder ticket timber tunnel valley velvet violin wagon water window winter yellow zebra"
)
WORDS = _TEXT.split()
ENDLESS = "Write a very long story with all of these words. Do not stop early."
NUM_TAIL_WORDS = 8


@dataclass(frozen=True, slots=True)
class TokenCounting:
    """How a server counts tokens: the tokens in each word, and the tokens that every prompt has besides its words."""

    tokens_per_word: float = 1.0
    num_fixed_tokens: float = 0.0

    def words(self, num_tokens: int) -> int:
        """Return how many words make a prompt of about `num_tokens` tokens."""
        return max(1, round((num_tokens - self.num_fixed_tokens) / self.tokens_per_word))


@dataclass(frozen=True, slots=True)
class Prompts:
    """Generates the prompts for one server. The same seed, server label and name give the same prompt.

    The first word of a prompt is made from these three. So two labels never share a cached prompt, even if they stand
    for the same server. The other words do not depend on the label, so both servers get prompts of the same kind. Only
    the result of `text` has no such first word.
    """

    seed: int
    server_label: str
    counting: TokenCounting = TokenCounting()

    def cold(self, name: str, num_tokens: int) -> str:
        """Return a prompt of about `num_tokens` tokens. Prompts of other names have other first words.

        The same `name` gives the same prompt.
        """
        return f"{self._mark(name)} {self._words(name, self.counting.words(num_tokens))}. {ENDLESS}"

    def warm(self, name: str, num_tokens: int) -> str:
        """Return a prompt that differs only in its last few words from the other warm prompts of this length."""
        return self.ending("warm", name, num_tokens)

    def ending(self, beginning: str, name: str, num_tokens: int) -> str:
        """Return a prompt that differs only in its last few words from others with this `beginning` and length."""
        shared = max(1, self.counting.words(num_tokens) - NUM_TAIL_WORDS)
        tail = self._words(f"tail {name}", NUM_TAIL_WORDS)
        return f"{self._mark(beginning)} {self._words(beginning, shared)}. {ENDLESS} {tail}"

    def text(self, name: str, num_tokens: int) -> str:
        """Return words of about `num_tokens` tokens for a later turn; the same `name` gives the same words.

        Unlike in a cold prompt, the first word is not unique.
        """
        return self._words(name, max(1, round(num_tokens / self.counting.tokens_per_word)))

    def _mark(self, name: str) -> str:
        # These letters are a few tokens in any vocabulary. The first of these tokens is nearly always unique.
        letters = self._random(f"{self.server_label} {name}")
        return "".join(letters.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(8))

    def _words(self, name: str, count: int) -> str:
        return " ".join(self._random(name).choices(WORDS, k=count))

    def _random(self, name: str) -> random.Random:
        # A string as seed gives the same sequence in every process, since `hash()` is not used for it.
        return random.Random(f"{self.seed} {name}")  # noqa: S311 no secret


def fit_token_counting(few: int, few_tokens: int, many: int, many_tokens: int) -> TokenCounting:
    """Compute how a server counts tokens from its token counts for two prompts, of `few` and of `many` words.

    Return the default TokenCounting if the longer prompt has no more tokens than the shorter one.
    """
    per_word = (many_tokens - few_tokens) / (many - few)
    if per_word <= 0:
        return TokenCounting()
    return TokenCounting(per_word, max(0.0, few_tokens - few * per_word))
