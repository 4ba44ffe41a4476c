"""Ends a draft early when the draft model is unsure, and lets it grow while the model is sure.

Verified drafts show how far the probabilities of the draft model can be trusted.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass

import numpy as np

from edgeagent.engine.runner import Logits

# Tokens are grouped by the draft model's probability for them.
_EDGES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98)
# Each verified token multiplies the weight of earlier tokens in its group by _MEMORY. A group begins with an expected
# acceptance rate, which has the weight of _WEIGHT_OF_EXPECTED verified tokens. The weight is small, since a long draft
# multiplies the error of a wrong rate.
_MEMORY = 0.99
_WEIGHT_OF_EXPECTED = 1.0
# The assumed acceptance rate, which has the weight of this many verified tokens.
_FIRST_RATE = 0.8
_WEIGHT_OF_FIRST_RATE = 4.0
# Until this many tokens were verified, planned drafts are short (acceptance.NUM_FIRST), and none ends early.
_ENOUGH = 8.0


class Confidence:
    """Estimates how often a drafted token is accepted from the probability that the draft model gave it."""

    def __init__(self) -> None:
        self._verified = [0.0] * (len(_EDGES) + 1)
        self._accepted = [0.0] * (len(_EDGES) + 1)
        self._buffer = np.empty(0, np.float32)

    @property
    def is_known(self) -> bool:
        """Whether enough drafts were verified for a good estimate."""
        return sum(self._verified) >= _ENOUGH

    @property
    def rate(self) -> float:
        """The share of all verified tokens that were accepted. With few tokens it is close to an assumed rate."""
        return (sum(self._accepted) + _WEIGHT_OF_FIRST_RATE * _FIRST_RATE) / (
            sum(self._verified) + _WEIGHT_OF_FIRST_RATE
        )

    def probability(self, logits: Logits, token: int) -> float:
        """Return the draft model's probability of `token`, which must be the likeliest one of `logits`."""
        if self._buffer.shape != logits.shape:
            self._buffer = np.empty(logits.shape, np.float32)
        np.subtract(logits, logits[token], out=self._buffer)
        np.exp(self._buffer, out=self._buffer)
        return 1.0 / float(self._buffer.sum())

    def chance(self, probability: float) -> float:
        """Return the chance that a token with this probability is accepted, given that all before it are accepted."""
        index = bisect(_EDGES, probability)
        # Tokens with a larger probability are accepted at least as often as those with a smaller one.
        of_less_likely = _blend(sum(self._accepted[:index]), sum(self._verified[:index]), probability)
        return _blend(self._accepted[index], self._verified[index], max(probability, of_less_likely))

    def observe(self, probabilities: Items[float], num_accepted: int) -> None:
        """Record that `num_accepted` leading tokens of a draft were accepted and the next one, if any, was refused.

        `probabilities`: what the draft model gave to each token of the draft. Tokens after the first refused one are
        ignored.
        """
        for position, probability in enumerate(probabilities[: num_accepted + 1]):
            index = bisect(_EDGES, probability)
            self._verified[index] = self._verified[index] * _MEMORY + 1.0
            self._accepted[index] = self._accepted[index] * _MEMORY + (position < num_accepted)


def _blend(accepted: float, verified: float, expected: float) -> float:
    return (accepted + _WEIGHT_OF_EXPECTED * expected) / (verified + _WEIGHT_OF_EXPECTED)


@dataclass(frozen=True, slots=True)
class DraftPlan:
    """The drafts planned for a step, and the expected times.

    - `target_steps_s[n]`: the seconds of the target's step with n draft tokens.
    - `draft_steps_s[n]`: the seconds of a draft step for n sequences.
    - `num_sequences`: how many sequences decode.
    - `num_drafted`: how many draft tokens are planned for all sequences together.
    - `gain`: the expected factor by which the drafts raise the tokens per second. 0 if nothing is drafted, if
      the step has a trial, or if clients have set the lengths of all its drafts.
    - `max_s`: the most seconds that the step may take.
    """

    target_steps_s: Items[float]
    draft_steps_s: Items[float]
    num_sequences: int
    num_drafted: int
    gain: float
    max_s: float

    def min_chances(self, acceptance_rate: float, count: int, num_drafting: int, room: int) -> list[float]:
        """Return the `min_chances` of Ending for a draft of `count` tokens; empty if `gain` is 0.

        A further token is worth its time if it does not lower the tokens per second of the whole step (the marginal
        value theorem). If there is only one stream, its draft may become longer than `count`, up to `room` tokens,
        while the draft model is sure. `acceptance_rate`: how often a drafted token is accepted. `num_drafting`: how
        many sequences draft.
        """
        if not self.gain:
            return []
        rate = self.gain * self.num_sequences / max(self.target_steps_s[0], 1e-9)
        if self.num_sequences == 1:
            return self._min_chances_alone(rate, acceptance_rate, room)
        # The costs are divided equally among the tokens.
        token_s = (self.target_steps_s[self.num_drafted] - self.target_steps_s[0]) / self.num_drafted
        token_s += self.draft_steps_s[num_drafting] / num_drafting
        return [rate * token_s / acceptance_rate] * (count - 1)

    def _min_chances_alone(self, rate: float, acceptance_rate: float, room: int) -> list[float]:
        """Return `min_chances` if there is only one stream. `rate`: the tokens per second that the plan gives.

        Each element is the lowest chance of the tokens so far at which it pays to draft one or more further tokens.
        """
        most, step_s, target_steps_s = (
            min(len(self.target_steps_s) - 1, room),
            self.draft_steps_s[1],
            self.target_steps_s,
        )
        while most > 1 and target_steps_s[most] + most * step_s > self.max_s:
            most -= 1
        min_chances = []
        for count in range(1, most):
            expected, share, least = 0.0, 1.0, math.inf
            for end in range(count + 1, most + 1):
                share *= acceptance_rate
                expected += share
                extra_s = (end - count) * step_s + target_steps_s[end] - target_steps_s[count]
                least = min(least, rate * extra_s / expected)
            min_chances.append(least)
        return min_chances


class Ending:
    """Decides after each token of a draft whether to draft another one.

    After the token at index n, the draft continues if the chance that all tokens so far are accepted is at least
    `min_chances[n]`, or if `min_chances` has no such element. A draft always ends after a token that ends the answer.
    """

    def __init__(
        self,
        confidence: Confidence,
        min_chances: Items[float] = (),
        is_end: Callable[[int], bool] = lambda _: False,
        *,
        num_planned: int = 0,
    ) -> None:
        """`min_chances`: see the class; if empty, no draft ends early. `is_end` says whether a token ends the answer.

        `num_planned`: the planned length of the draft. With `min_chances`, a draft may become shorter or longer.
        """
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
