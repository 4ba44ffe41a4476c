"""Estimates how often drafted tokens are accepted, for each sequence and each position in a draft.

As long as a sequence has few drafts, its estimates mostly come from the drafts of all sequences (the prior).
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Items
from dataclasses import dataclass, field

# The assumed acceptance rate before any draft is verified. It is high enough that drafting is tried.
_FIRST_RATE = 0.8
NUM_FIRST = 3
"""How many tokens a source's first trial drafts. The next trials may draft more; later ones draft this many again.

A step of one sequence then has 4 tokens. On a CPU, steps of 4, 8 and 16 tokens are cheap.
"""
# Enough is known of a source after an accepted draft of this length, or after this many verified tokens.
_NUM_KNOWN = 15
# Each new draft multiplies the weight of earlier drafts by this: within its sequence, and across sequences.
_SEQUENCE_MEMORY = 0.94
_SHARED_MEMORY = 0.99
# After this many drafts of a source for other sequences, the chances of a sequence are computed again.
_DRAFTS_PER_UPDATE = 8
# A prior has the weight of this many verified tokens. With lighter ones, two or three unlucky drafts at the beginning
# of a sequence would end its drafts.
_WEIGHT_OF_FIRST_RATE = 4.0  # for the rate of a source
_WEIGHT_OF_RATE = 6.0  # for the rate of a source at one position
_WEIGHT_OF_SHARED = 12.0  # for the rate of a sequence
_WEIGHT_AT_POSITION = 20.0  # for the rate of a sequence at one position


@dataclass(slots=True)
class _Counts:
    """Counts of tokens by their position in a draft: those that were verified, and those that were accepted.

    Tokens of older drafts count less, so the counts are not integers.
    """

    verified: list[float]
    accepted: list[float]

    @classmethod
    def of(cls, length: int) -> _Counts:
        return cls([0.0] * length, [0.0] * length)

    def add(self, num_verified: int, num_accepted: int, memory: float) -> None:
        self.verified = [count * memory for count in self.verified]
        self.accepted = [count * memory for count in self.accepted]
        for position in range(num_verified):
            self.verified[position] += 1.0
            self.accepted[position] += position < num_accepted


class SharedAcceptance:
    """How often the drafts of one source are accepted, over all sequences. This is the prior of each sequence."""

    def __init__(self, max_tokens: int) -> None:
        self.max_tokens = max_tokens
        self.num_drafts = 0
        """How many drafts were added."""
        self.num_steps_unused = 0
        """How often since its last draft this source was only a sequence's second choice."""
        self._counts = _Counts.of(max_tokens)

    @property
    def num_to_try(self) -> int:
        """How many tokens to draft to learn more of the source; 0 after a refused token, or if enough is known.

        As long as all tokens were accepted, each draft is about twice as long as the one before.
        """
        num_known = sum(verified > 0 for verified in self._counts.verified)
        if num_known >= min(_NUM_KNOWN, self.max_tokens) or self._counts.accepted != self._counts.verified:
            return 0
        return min(self.max_tokens, max(NUM_FIRST, 2 * num_known + 1))

    @property
    def rate(self) -> float:
        """The share of all verified tokens that were accepted. With few tokens it is close to an assumed rate."""
        return _blend(sum(self._counts.accepted), sum(self._counts.verified), _FIRST_RATE, _WEIGHT_OF_FIRST_RATE)

    @property
    def likely_rate(self) -> float:
        """An optimistic estimate: one standard deviation above `rate` while few tokens are verified, then `rate`.

        The rate is taken to have a beta distribution with the mean `rate`.
        """
        num_verified = sum(self._counts.verified)
        if num_verified >= _NUM_KNOWN:
            return self.rate
        deviation = math.sqrt(self.rate * (1.0 - self.rate) / (num_verified + _WEIGHT_OF_FIRST_RATE + 1.0))
        return min(1.0, self.rate + deviation)

    def rates(self) -> list[float]:
        """Return the acceptance rate at each position of a draft, given that all tokens before it were accepted."""
        rate = self.rate
        return [
            _blend(accepted, verified, rate, _WEIGHT_OF_RATE)
            for accepted, verified in zip(self._counts.accepted, self._counts.verified, strict=True)
        ]

    def counts(self) -> tuple[list[float], list[float]]:
        """Return two lists by position: the counts of verified and of accepted tokens. Older tokens count less."""
        return list(self._counts.verified), list(self._counts.accepted)

    def begin_with(self, verified: Items[float], accepted: Items[float]) -> None:
        """Start with the counts of an earlier process."""
        for position, (num_verified, num_accepted) in enumerate(zip(verified, accepted, strict=False)):
            if position < self.max_tokens:
                self._counts.verified[position] = num_verified
                self._counts.accepted[position] = min(num_accepted, num_verified)

    def add(self, num_verified: int, num_accepted: int) -> None:
        """Add the result of one draft: the numbers of its tokens that were verified and accepted."""
        self.num_drafts, self.num_steps_unused = self.num_drafts + 1, 0
        self._counts.add(num_verified, num_accepted, _SHARED_MEMORY)


@dataclass(slots=True)
class Acceptance:
    """How often one source's drafts for one sequence are accepted."""

    shared: SharedAcceptance
    num_steps_since_draft: int = 0
    has_verified: bool = False  # a draft of this sequence was verified
    _counts: _Counts = field(init=False)
    _chances: tuple[float, ...] | None = None
    _num_shared_drafts: int = 0  # when the chances were computed

    def __post_init__(self) -> None:
        self._counts = _Counts.of(self.shared.max_tokens)

    @property
    def chances(self) -> tuple[float, ...]:
        """For each position of a draft, the chance that the token and all tokens before it are accepted."""
        if self._chances is None or self.shared.num_drafts >= self._num_shared_drafts + _DRAFTS_PER_UPDATE:
            self._chances, self._num_shared_drafts = self._cumulated(), self.shared.num_drafts
        return self._chances

    def observe(self, num_drafted: int, num_accepted: int) -> None:
        """Record that `num_accepted` leading tokens of a draft were accepted and the next one, if any, was refused.

        Tokens after the first refused one count as not verified.
        """
        num_verified = min(num_drafted, num_accepted + 1)
        self.has_verified = True
        self._counts.add(num_verified, num_accepted, _SEQUENCE_MEMORY)
        self.shared.add(num_verified, num_accepted)
        self._chances = None

    def _cumulated(self) -> tuple[float, ...]:
        expected = self.shared.rate
        rate = _blend(sum(self._counts.accepted), sum(self._counts.verified), expected, _WEIGHT_OF_SHARED)
        chances, chance = [], 1.0
        for position, shared in enumerate(self.shared.rates()):
            here = min(1.0, rate * shared / expected)
            chance *= _blend(
                self._counts.accepted[position], self._counts.verified[position], here, _WEIGHT_AT_POSITION
            )
            chances.append(chance)
        return tuple(chances)


def _blend(accepted: float, verified: float, expected: float, weight: float) -> float:
    return (accepted + weight * expected) / (verified + weight)
