"""Chooses how many tokens to draft: the number with the most expected tokens per expected time of the step.

It knows measured times and how often drafts were accepted; draft_model proposes the drafts.
"""

from __future__ import annotations

from dataclasses import dataclass

from edgeagent.engine.cost_model import CostModel

_FIRST_RATE = 0.7  # optimistic, so that drafting is tried
_WEIGHT = 0.1  # of a new acceptance or time
_MEAN_WEIGHT = 0.01  # of an acceptance in the rate that the next sequence begins with
_PROBE_WEIGHT = 0.5  # of a draft step's time if the one before is old
_PROBE_EVERY = 64  # steps of a sequence without drafts, then one is tried again
_CANDIDATES = (0, 1, 2, 3, 5, 7, 11, 15, 23, 31)


@dataclass(slots=True)
class Acceptance:
    """How often a sequence's drafts are accepted, and for how many steps there were none."""

    rate: float
    num_idle_steps: int = 0


class DraftLength:
    """Chooses how many tokens to draft for a sequence.

    With acceptance rate a for each token, K drafts give (1 - a^(K+1)) / (1 - a) tokens a step (Leviathan et al. 2023,
    equation 1); the step takes K draft steps and one target step of 1 + K tokens for each sequence.
    """

    def __init__(self, max_tokens: int, cost_model: CostModel) -> None:
        self._candidates = sorted({count for count in _CANDIDATES if count < max_tokens} | {0, max_tokens})
        self._cost_model = cost_model
        self._mean_rate = _FIRST_RATE
        self._draft_step_s = 0.0
        self._is_probe = False

    def begin(self) -> Acceptance:
        """Return the expected rate for a sequence without drafts so far."""
        return Acceptance(self._mean_rate)

    def choose(self, acceptance: Acceptance, num_decoding: int, depth: int) -> int:
        """Return how many tokens to draft in this step for one of `num_decoding` similar sequences."""
        best = self._best(acceptance.rate, num_decoding, depth)
        acceptance.num_idle_steps += 1
        if best == 0 and acceptance.num_idle_steps >= _PROBE_EVERY:
            best = self._candidates[min(1, len(self._candidates) - 1)]
            self._is_probe = True
        if best:
            acceptance.num_idle_steps = 0
        return best

    def observe(self, acceptance: Acceptance, num_drafted: int, num_accepted: int) -> None:
        """Note how many of a sequence's drafts were accepted. Drafts after the first rejected one tell nothing."""
        num_judged = min(num_drafted, num_accepted + 1)
        for index in range(num_judged):
            stood = index < num_accepted
            acceptance.rate += _WEIGHT * (stood - acceptance.rate)
            self._mean_rate += _MEAN_WEIGHT * (stood - self._mean_rate)

    def observe_draft_step(self, seconds: float) -> None:
        """Note the measured time of one draft step."""
        weight = 1.0 if self._draft_step_s == 0.0 else _PROBE_WEIGHT if self._is_probe else _WEIGHT
        self._draft_step_s += weight * (seconds - self._draft_step_s)
        self._is_probe = False

    def _best(self, rate: float, num_decoding: int, depth: int) -> int:
        steps_s = self._cost_model.compare([num_decoding * (1 + count) for count in self._candidates], depth)
        if steps_s is None:
            return self._candidates[-1]  # nothing is measured until it is tried
        # A draft model is smaller than its target, even if it was measured while the machine was busy.
        draft_step_s = min(self._draft_step_s, steps_s[0])
        best, best_rate = 0, 0.0
        for count, step_s in zip(self._candidates, steps_s, strict=True):
            # A coarse clock may have measured nothing.
            tokens_per_s = _expected_tokens(rate, count) / max(step_s + count * draft_step_s, 1e-9)
            if tokens_per_s > best_rate:
                best, best_rate = count, tokens_per_s
        return best


def _expected_tokens(rate: float, num_drafted: int) -> float:
    return sum(rate**position for position in range(num_drafted + 1))
