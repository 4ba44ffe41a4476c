"""Predicts how long steps with drafts take. The predictions are kept for a few steps."""

from __future__ import annotations

from edgeagent.engine.costs.cost_model import CostModel
from edgeagent.engine.costs.step_shape import StepShape
from edgeagent.engine.speculation.allocation import MAX_DRAFTED
from edgeagent.engine.speculation.draft_model import DraftModel

# Measured times change slowly, so they are looked up again only after this many steps.
_STEPS_PER_LOOKUP = 16


class StepTimes:
    """The expected seconds of the target's steps with drafts, and of the draft model's steps."""

    def __init__(self, costs: CostModel, model: DraftModel | None, max_tokens: int) -> None:
        """`costs` are those of the target's steps. `max_tokens`: the most tokens of a draft."""
        self._costs, self._model, self._max_tokens = costs, model, max_tokens
        self._looked_up_at = 0
        self._times: dict[tuple[int, int], tuple[list[float], list[float]]] = {}

    def look_up(
        self, plain: StepShape, num_draftable: int, plan_s: float, num_steps: int
    ) -> tuple[list[float], list[float]]:
        """Return two lists of expected seconds.

        Item n of the first list is for a target step with n draft tokens, up to the most that a step may have. Item n
        of the second list is for a draft step for n sequences; without a draft model, that list is empty.

        - `plain`: the shape of the target step without drafts.
        - `num_draftable`: how many sequences may have drafts.
        - `plan_s`: the seconds of planning drafts. Each target step with drafts includes them.
        - `num_steps`: how many steps there were so far.

        Before the first measurement, each target step counts as 1 s.
        """
        if num_steps - self._looked_up_at >= _STEPS_PER_LOOKUP:
            self._times.clear()
            self._looked_up_at = num_steps
        known = self._times.get((plain.num_tokens, num_draftable))
        if known is None:
            most = min(MAX_DRAFTED, self._max_tokens * num_draftable)
            # Before the first measurement, all lengths count as equally expensive.
            depth = plain.num_pairs / plain.num_tokens
            target_steps_s = self._costs.predict_added(plain, range(most + 1), depth) or [1.0] * (most + 1)
            target_steps_s[1:] = [step_s + plan_s for step_s in target_steps_s[1:]]
            known = target_steps_s, [] if self._model is None else self._model.steps_s(num_draftable, int(depth))
            self._times[plain.num_tokens, num_draftable] = known
        return known
