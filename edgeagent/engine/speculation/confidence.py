"""Ends a draft when the draft model is unsure. Verified drafts show how reliable its probabilities are."""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Sequence as Items
from dataclasses import dataclass

import numpy as np

from edgeagent.engine.runner import Logits

# Tokens are grouped by the draft model's probability for them.
_EDGES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98)
# The factor on the weight of verified tokens after each later one of about the same probability, and how many verified
# tokens the draft model's own probability counts as. It counts little: where it is wrong, a long draft multiplies the
# error.
_MEMORY = 0.99
_WEIGHT_OF_PROBABILITY = 1.0
# The assumed share of all tokens that are accepted, and how many verified tokens it counts as.
_FIRST_RATE = 0.8
_WEIGHT_OF_FIRST_RATE = 4.0
# Drafts have their full length until this many of their tokens were verified.
_ENOUGH = 8.0


class Confidence:
    """How often drafted tokens are accepted, by the probability that the draft model gave them."""

    def __init__(self) -> None:
        self._judged = [0.0] * (len(_EDGES) + 1)
        self._stood = [0.0] * (len(_EDGES) + 1)
        self._buffer = np.empty(0, np.float32)

    @property
    def is_known(self) -> bool:
        """Whether enough drafts were verified to say how reliable the draft model's probabilities are."""
        return sum(self._judged) >= _ENOUGH

    @property
    def rate(self) -> float:
        """The share of all verified tokens that were accepted."""
        return (sum(self._stood) + _WEIGHT_OF_FIRST_RATE * _FIRST_RATE) / (sum(self._judged) + _WEIGHT_OF_FIRST_RATE)

    def probability(self, logits: Logits, token: int) -> float:
        """Return the probability of `token`, the likeliest one."""
        if self._buffer.shape != logits.shape:
            self._buffer = np.empty(logits.shape, np.float32)
        np.subtract(logits, logits[token], out=self._buffer)
        np.exp(self._buffer, out=self._buffer)
        return 1.0 / float(self._buffer.sum())

    def chance(self, probability: float) -> float:
        """Return the chance that a token of this probability is accepted if those before it are."""
        index = bisect(_EDGES, probability)
        expected = self._stood[index] + _WEIGHT_OF_PROBABILITY * probability
        return expected / (self._judged[index] + _WEIGHT_OF_PROBABILITY)

    def observe(self, probabilities: Items[float], num_stood: int) -> None:
        """Note how many leading tokens of a draft were accepted. Tokens after the first refused one do not count."""
        for position, probability in enumerate(probabilities[: num_stood + 1]):
            index = bisect(_EDGES, probability)
            self._judged[index] = self._judged[index] * _MEMORY + 1.0
            self._stood[index] = self._stood[index] * _MEMORY + (position < num_stood)


@dataclass(frozen=True, slots=True)
class DraftPlan:
    """The expected times of a step's parts, and how many tokens are drafted in it.

    `target_s[n]` is the time of the target's step with n draft tokens, `steps_s[n]` that of a draft step for n
    sequences. `gain`: the factor by which the drafts raise the tokens per second; 0 if they are a trial. `max_s`: the
    most that the step may take.
    """

    target_s: Items[float]
    steps_s: Items[float]
    num_sequences: int
    num_drafted: int
    gain: float
    max_s: float

    def needs(self, stand_rate: float, count: int, num_drafting: int, room: int) -> list[float]:
        """Return the `needs` of Ending for a draft of `count` tokens; empty for a trial.

        A further token is worth its time if it does not lower the tokens per second of the whole step (the marginal
        value theorem). If there is only one stream, its draft may have up to `room` tokens while the draft model is
        sure. `stand_rate`: how often a token is accepted.
        """
        if not self.gain:
            return []
        rate = self.gain * self.num_sequences / max(self.target_s[0], 1e-9)
        if self.num_sequences == 1:
            return self._needs_alone(rate, stand_rate, room)
        # Each token takes an equal part of all costs.
        token_s = (self.target_s[self.num_drafted] - self.target_s[0]) / self.num_drafted
        token_s += self.steps_s[num_drafting] / num_drafting
        return [rate * token_s / stand_rate] * (count - 1)

    def _needs_alone(self, rate: float, stand_rate: float, room: int) -> list[float]:
        """Return `needs` of the only stream, from the gain and the time of each number of further tokens."""
        most, step_s, target_s = min(len(self.target_s) - 1, room), self.steps_s[1], self.target_s
        while most > 1 and target_s[most] + most * step_s > self.max_s:
            most -= 1
        needs = []
        for count in range(1, most):
            expected, share, least = 0.0, 1.0, math.inf
            for end in range(count + 1, most + 1):
                share *= stand_rate
                expected += share
                extra_s = (end - count) * step_s + target_s[end] - target_s[count]
                least = min(least, rate * extra_s / expected)
            needs.append(least)
        return needs


class Ending:
    """Decides after each token of one draft whether to draft another. Without `needs`, drafts have their full length.

    `needs[n]`: after n + 1 tokens, the draft continues if the chance that all of them are accepted is at least this.
    """

    def __init__(self, confidence: Confidence, needs: Items[float] = ()) -> None:
        self.probabilities: list[float] = []
        self.is_early = False
        self._confidence = confidence
        self._needs = needs
        self._chance = 1.0

    def cut(self, num_tokens: int) -> None:
        """Forget the tokens drafted beyond `num_tokens`, since the target does not verify them."""
        if num_tokens < len(self.probabilities):
            del self.probabilities[num_tokens:]
            self.is_early = False

    def goes_on(self, logits: Logits, token: int) -> bool:
        """Note the next token, the likeliest of `logits`; return whether another one is worth its time."""
        probability = self._confidence.probability(logits, token)
        self._chance *= self._confidence.chance(probability)
        number = len(self.probabilities)
        self.probabilities.append(probability)
        self.is_early = number < len(self._needs) and self._chance < self._needs[number]
        return not self.is_early
