"""The measured error of answers from similarity, and the test that ends their reuse. No clock, no randomness.

**Test.** The promise: of the first n given answers, at most n times `max_error` are expected to be wrong, for each n.
A single one may be wrong with more. Let b be `max_error`. Answer i is wrong with the probability p_i, and is checked
with the probability c_i, whatever was seen before. For a stake k, the product over the checked answers of

    1 + k w_i (x_i - b), x_i = 1 if the answer was wrong, otherwise 0; w_i = MIN_CHECKED / c_i

is expected to grow by 1 + k MIN_CHECKED (p_i - b) with each given answer, checked or not. The product of these factors
is at most 1 while the promise holds, since 1 + y <= exp(y). So the first product is at most a martingale that begins
with 1, and so is the mean of such products over several stakes. By Ville's inequality (1939) it reaches 1 / FALSE_ALARM
with a probability of at most FALSE_ALARM, ever, however long one looks. So that is when reuse ends: a cache that keeps
its promise is turned off wrongly in at most one of a hundred cases.

Which answers are checked may depend on what was expected of them. A check that is left out must not depend on whether
the answer was right. It is left out if other requests leave no time, for example.
"""

from __future__ import annotations

import math

FALSE_ALARM = 0.01
MIN_CHECKED = 0.05
"""At least this share of the given answers is chosen to be checked. More are while the boundary is less sure.

A larger share takes more idle time, and ends a wrong reuse sooner: at a bound of 1 % an error of 10 % ends it after 36
checks (median), which are 720 answers, and an error of 3 % after 404 checks, which are 8,100 answers.
"""
_TIMES = (1.5, 3.0, 10.0, 50.0)
"""The stakes, by the errors that seldom checked answers show best, as multiples of `max_error`.

The largest one shows an error of four times `max_error` best where all answers are checked.
"""


class ErrorTest:
    """Counts checked answers, and compares their error with the bound."""

    def __init__(self, max_error: float) -> None:
        self.max_error = max_error
        self.num_checked = 0
        self.num_wrong = 0
        # No factor may be below 1/2.
        self._stakes = [min((times - 1.0) / (1.0 - max_error), 0.5 / max_error) for times in _TIMES]
        self._logs = [0.0] * len(_TIMES)
        self._weight = 0.0
        self._wrong_weight = 0.0
        self.is_above = False
        """Whether the measured error contradicts the bound. Once set, it stays."""

    @property
    def measured(self) -> float | None:
        """The estimated share of wrong ones among all reused answers; None before the first check.

        An answer that was checked with a probability of 1/5 counts five times, since it stands for five.
        """
        return self._wrong_weight / self._weight if self._weight else None

    def observe(self, *, is_right: bool, probability: float) -> None:
        """Count a checked answer. `probability`: with which it was chosen to be checked, above 0."""
        self.num_checked += 1
        self.num_wrong += not is_right
        self._weight += 1.0 / probability
        self._wrong_weight += 0.0 if is_right else 1.0 / probability
        gain = min(1.0, MIN_CHECKED / probability) * ((not is_right) - self.max_error)
        self._logs = [log + math.log1p(stake * gain) for log, stake in zip(self._logs, self._stakes, strict=True)]
        mean = sum(math.exp(min(value, 600.0)) for value in self._logs) / len(self._logs)
        self.is_above = self.is_above or mean >= 1.0 / FALSE_ALARM

    def state(self) -> dict[str, float | list[float]]:
        """Return everything, for `restore`."""
        counts = [float(self.num_checked), float(self.num_wrong), self._weight, self._wrong_weight]
        return {"counts": counts, "logs": self._logs, "is_above": float(self.is_above)}

    def restore(self, state: dict[str, float | list[float]]) -> bool:
        """Continue from a `state` of a test of the same bound. Return False, and change nothing, if it does not fit."""
        counts, logs = state.get("counts"), state.get("logs")
        if not isinstance(counts, list) or not isinstance(logs, list) or (len(counts), len(logs)) != (4, len(_TIMES)):
            return False
        self.num_checked, self.num_wrong = int(counts[0]), int(counts[1])
        self._weight, self._wrong_weight = counts[2:]
        self._logs, self.is_above = list(logs), bool(state.get("is_above"))
        return True
