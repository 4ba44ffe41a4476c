"""Limits the time that planning drafts takes while they do not pay.

Planning a step's drafts takes some tenths of a millisecond. For the smallest models, that is half of a step's time.
"""

from __future__ import annotations

# The time for at most this many plans is saved up.
_MAX_SAVED = 4.0
# The weight of the latest plan in the average, in which it counts as at most _MOST_OFF times as long as the average.
_WEIGHT = 0.1
_MOST_OFF = 4.0


class PlanningTime:
    """Saves up time for plans, and says whether there is enough for the next one."""

    def __init__(self, share: float) -> None:
        """`share`: the part of the time that planning may take while drafts do not pay."""
        self._share = share
        self.plan_s = 0.0
        """The average seconds of a plan, without the draft model's steps."""
        self._step_s = 0.0
        self._saved_s = 0.0
        self._has_planned = self._pays = False

    def allows(self) -> bool:
        """Whether drafts may be planned for the next step. Each call saves up time, so call this once a step."""
        self._saved_s = min(self._saved_s + self._share * self._step_s, _MAX_SAVED * self.plan_s)
        return self._pays or not self._has_planned or self._saved_s >= self.plan_s

    def note(self, plan_s: float, step_s: float, *, pays: bool) -> None:
        """Record that a plan took `plan_s` seconds.

        `step_s`: the expected seconds of a step without drafts. `pays`: whether the plan led to drafts, or to work of
        the draft model. If so, the next step is planned in any case.
        """
        if self._has_planned:
            plan_s = min(plan_s, _MOST_OFF * self.plan_s)
            self.plan_s += _WEIGHT * (plan_s - self.plan_s)
        else:
            self.plan_s = plan_s
        self._saved_s = max(0.0, self._saved_s - plan_s)
        self._step_s, self._pays, self._has_planned = step_s, pays, True
