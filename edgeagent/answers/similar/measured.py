"""The measured error of answers from similarity, and the test that ends their reuse. No clock, no randomness.

**Test.** While the bound holds, each reused answer is wrong with a probability of at most e, whatever was seen before:
e is `max_error`, or what was expected of that answer if it is more. Then, for any rate q above e, the product over the
checked answers of

    q / e if the answer was wrong, (1 - q) / (1 - e) if it was right

is a supermartingale that begins with 1, and so is the mean of such products over several rates. By Ville's inequality
(1939) it reaches 1 / FALSE_ALARM with a probability of at most FALSE_ALARM, ever, however long one looks. So that is
when reuse ends: a cache whose bound holds is turned off wrongly in at most one of a hundred cases.

Which answers are checked may depend on their similarity, since the bound holds for each of them.
"""

from __future__ import annotations

import math

FALSE_ALARM = 0.01
_TIMES = (1.5, 3.0, 10.0)  # the rates q, as multiples of e


class ErrorTest:
    """Counts checked answers, and compares their error with the bound."""

    def __init__(self, max_error: float) -> None:
        self.max_error = max_error
        self.num_checked = 0
        self.num_wrong = 0
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

    def observe(self, *, is_right: bool, probability: float, error: float = 0.0) -> None:
        """Count a checked answer.

        `probability`: with which it was chosen to be checked, above 0. `error`: that it is wrong, as was expected.
        """
        self.num_checked += 1
        self.num_wrong += not is_right
        self._weight += 1.0 / probability
        self._wrong_weight += 0.0 if is_right else 1.0 / probability
        most = max(error, self.max_error)
        for index, times in enumerate(_TIMES):
            rate = min(times * most, (1.0 + most) / 2.0)
            ratio = (1.0 - rate) / (1.0 - most) if is_right else rate / most
            self._logs[index] += math.log(ratio)
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
