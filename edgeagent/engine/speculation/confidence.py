"""Ends a draft early when the draft model is unsure, and lets it grow while the model is sure.

Verified drafts show how far the probabilities of the draft model can be trusted.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Callable
from collections.abc import Sequence as Items

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
        num_planned: int = 0,
    ) -> None:
        """`is_end` says whether a token ends the answer. `num_planned`: the planned length of the draft."""
        self.probabilities: list[float] = []
        """The draft model's probability of each drafted token."""
        self.is_early = False
        """Whether the draft ended before its planned length, since the draft model was unsure."""
        self._num_planned = num_planned
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
            self.is_early = not is_end and len(self.probabilities) < self._num_planned
            return False
        return True
