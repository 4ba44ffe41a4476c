"""Estimates how often drafted tokens are accepted, by source of drafts and position in a draft.

A sequence begins with the rates that all sequences have shown (the prior), and its own drafts scale them.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Callable
from collections.abc import Sequence as Items
from itertools import accumulate
from operator import mul

import numpy as np

from edgeagent.engine.runner import Logits

# Tokens are grouped by the draft model's probability for them, finely where most tokens are.
_EDGES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98)
# Each verified token multiplies the weight of earlier tokens in its group by this.
_MEMORY = 0.99
# The draft model's own probability has the weight of this many verified tokens.
_WEIGHT_OF_OWN = 1.0


class Confidence:
    """Estimates how often a drafted token is accepted from the probability that the draft model gave it."""

    def __init__(self) -> None:
        self._verified = [0.0] * (len(_EDGES) + 1)
        self._accepted = [0.0] * (len(_EDGES) + 1)
        self._buffer = np.empty(0, np.float32)

    def probability(self, logits: Logits, token: int) -> float:
        """Return the draft model's probability of `token`, which must be the likeliest one of `logits`."""
        if self._buffer.shape != logits.shape:
            self._buffer = np.empty(logits.shape, np.float32)
        np.subtract(logits, logits[token], out=self._buffer)
        np.exp(self._buffer, out=self._buffer)
        return 1.0 / float(self._buffer.sum())

    def chance(self, probability: float) -> float:
        """Return the chance that a token with this probability is accepted, given that all before it are accepted."""
        group = bisect(_EDGES, probability)
        return (self._accepted[group] + _WEIGHT_OF_OWN * probability) / (self._verified[group] + _WEIGHT_OF_OWN)

    def observe(self, probabilities: Items[float], num_accepted: int) -> None:
        """Record that `num_accepted` leading tokens of a draft were accepted and the next one, if any, was refused.

        `probabilities`: what the draft model gave to each token of the draft. Tokens after the first refused one are
        ignored.
        """
        for position, probability in enumerate(probabilities[: num_accepted + 1]):
            group = bisect(_EDGES, probability)
            self._verified[group] = self._verified[group] * _MEMORY + 1.0
            self._accepted[group] = self._accepted[group] * _MEMORY + (position < num_accepted)


def min_chances(rate: float, acceptance_rate: float, step_s: Items[float]) -> list[float]:
    """Return the `min_chances` of an Ending.

    A further token is worth its time if it does not lower the tokens per second of the whole step (the marginal value
    theorem). Kernels work in tiles, so several further tokens may pay although one does not.

    - `rate`: the tokens per second that the plan gives.
    - `acceptance_rate`: how often a drafted token is accepted.
    - `step_s[n]`: the seconds of the whole step if this draft has n tokens.
    """
    found = []
    for count in range(1, len(step_s) - 1):
        expected, share, least = 0.0, 1.0, math.inf
        for end in range(count + 1, len(step_s)):
            share *= acceptance_rate
            expected += share
            least = min(least, rate * (step_s[end] - step_s[count]) / expected)
        found.append(least)
    return found


class Ending:
    """Decides after each token of a draft whether to draft another one.

    After the token at index n, the draft continues if the chance that all its tokens so far are accepted is at least
    `min_chances[n]`, or if there is no such element. It always ends after a token that ends the answer.
    """

    def __init__(
        self,
        confidence: Confidence,
        min_chances: Items[float] = (),
        is_end: Callable[[int], bool] = lambda _: False,
        *,
        count: int = 0,
    ) -> None:
        """`is_end` says whether a token ends the answer. `count`: how many tokens were to be drafted."""
        self.probabilities: list[float] = []
        """The draft model's probability of each drafted token."""
        self.is_early = False
        """Whether the draft ended before its planned length, since the draft model was unsure."""
        self._count = count
        self._confidence = confidence
        self._min_chances = min_chances
        self._is_end = is_end
        self._chance = 1.0

    def cut(self, num_tokens: int) -> None:
        """Forget the draft's tokens after the first `num_tokens`. The target does not verify them."""
        if num_tokens < len(self.probabilities):
            del self.probabilities[num_tokens:]
            self.is_early = False

    def record_and_decide(self, logits: Logits, token: int) -> bool:
        """Record the token that was just drafted. Return whether to draft another one.

        `token` must be the likeliest one of `logits`. Nothing follows a token that ends the answer.
        """
        probability = self._confidence.probability(logits, token)
        self._chance *= self._confidence.chance(probability)
        number = len(self.probabilities)
        self.probabilities.append(probability)
        is_end = self._is_end(token)
        if is_end or (number < len(self._min_chances) and self._chance < self._min_chances[number]):
            self.is_early = not is_end and len(self.probabilities) < self._count
            return False
        return True


# The assumed acceptance rate before any draft is verified. It is high enough that drafting is tried.
_FIRST_RATE = 0.8
# Each new draft multiplies the weight of earlier drafts by this: within its sequence, and across sequences. So a
# sequence forgets within some 16 drafts, for texts change, and a source within 100.
_SEQUENCE_MEMORY = 0.94
_SHARED_MEMORY = 0.99
# A prior has the weight of this many verified tokens. The first rate is the prior of a source, whose rate is the prior
# of each of its positions; with 4, two unlucky drafts at the beginning ended all drafts. These rates are the prior of a
# sequence; with 12, the drafts of a text that has changed go on for too long.
_WEIGHT_IN_SOURCE = 12.0
_WEIGHT_IN_SEQUENCE = 5.0
# A source that has not drafted for a sequence counts as unused for this many steps: its trial comes soon.
_FIRST_UNUSED = 16


class _Counts:
    """Counts of tokens by their position in a draft: those that were verified, and those that were accepted.

    Tokens of older drafts count less, so the counts are not integers.
    """

    def __init__(self, max_tokens: int, memory: float) -> None:
        """Each new draft multiplies the weight of earlier ones by `memory`."""
        self.verified = [0.0] * max_tokens
        self.accepted = [0.0] * max_tokens
        self._memory = memory

    def add(self, num_verified: int, num_accepted: int) -> None:
        """Add the result of one draft: the numbers of its tokens that were verified and accepted."""
        for position in range(len(self.verified)):
            self.verified[position] = self.verified[position] * self._memory + (position < num_verified)
            self.accepted[position] = self.accepted[position] * self._memory + (position < num_accepted)

    def rates(self, prior: Items[float], weight: float) -> list[float]:
        """Return the acceptance rate at each position, given that all tokens before it were accepted.

        `prior` has the weight of `weight` verified tokens.
        """
        return [
            (accepted + weight * rate) / (verified + weight)
            for accepted, verified, rate in zip(self.accepted, self.verified, prior, strict=True)
        ]


class SharedAcceptance:
    """How often the drafts of one source are accepted, over all sequences. This is the prior of each sequence."""

    def __init__(self, max_tokens: int) -> None:
        self.counts = _Counts(max_tokens, _SHARED_MEMORY)
        self.num_drafts = 0
        """How many drafts were added."""

    @property
    def rate(self) -> float:
        """The share of all verified tokens that were accepted. With few tokens it is close to an assumed rate."""
        accepted, verified = sum(self.counts.accepted), sum(self.counts.verified)
        return (accepted + _WEIGHT_IN_SOURCE * _FIRST_RATE) / (verified + _WEIGHT_IN_SOURCE)

    def rates(self) -> list[float]:
        """Return the acceptance rate at each position of a draft, given that all tokens before it were accepted."""
        return self.counts.rates([self.rate] * len(self.counts.verified), _WEIGHT_IN_SOURCE)

    def add(self, num_verified: int, num_accepted: int) -> None:
        self.num_drafts += 1
        self.counts.add(num_verified, num_accepted)


class Acceptance:
    """How often one source's drafts for one sequence are accepted."""

    def __init__(self, shared: SharedAcceptance) -> None:
        self.shared = shared
        self.num_steps_unused = _FIRST_UNUSED
        """How many steps there were since the sequence's latest draft of this source."""
        self._counts = _Counts(len(shared.counts.verified), _SEQUENCE_MEMORY)
        self._chances: tuple[float, ...] = ()
        self._computed_at = -1  # the number of shared drafts when the chances were computed

    @property
    def chances(self) -> tuple[float, ...]:
        """For each position of a draft, the chance that the token and all tokens before it are accepted."""
        if self._computed_at != self.shared.num_drafts:
            self._computed_at = self.shared.num_drafts
            self._chances = tuple(accumulate(self._counts.rates(self.shared.rates(), _WEIGHT_IN_SEQUENCE), mul))
        return self._chances

    def observe(self, num_drafted: int, num_accepted: int) -> None:
        """Record that `num_accepted` leading tokens of a draft were accepted and the next one, if any, was refused.

        Tokens after the first refused one count as not verified.
        """
        num_verified = min(num_drafted, num_accepted + 1)
        self._counts.add(num_verified, num_accepted)
        self.shared.add(num_verified, num_accepted)


class Experience:
    """What verified drafts have shown: acceptance by source and kind of sampler, and confidence by kind of sampler."""

    def __init__(self, max_tokens: int) -> None:
        """`max_tokens`: the most tokens of a draft."""
        self._max_tokens = max_tokens
        self._shared: dict[tuple[str, str], SharedAcceptance] = {}
        self._confidence: dict[str, Confidence] = {}

    def shared(self, source: str, sampler: str) -> SharedAcceptance:
        """Return the acceptance of a source's drafts over all sequences with this kind of sampler."""
        return self._shared.setdefault((source, sampler), SharedAcceptance(self._max_tokens))

    def confidence(self, sampler: str) -> Confidence:
        """Return how far the draft model's probabilities can be trusted with this kind of sampler."""
        return self._confidence.setdefault(sampler, Confidence())
