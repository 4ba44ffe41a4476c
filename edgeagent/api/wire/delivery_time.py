"""How long a response's steps took from the engine to its client."""

from __future__ import annotations

import time
from dataclasses import dataclass


@dataclass(slots=True)
class DeliveryTime:
    """The mean time that the steps of a response take from the engine to the client."""

    total_s: float = 0.0
    num: int = 0

    def add(self, at_s: float) -> None:
        """Count a step that has just been handed to the client.

        `at_s`: when the engine made the step (time.monotonic). A step with 0 is not counted: no engine made it.
        """
        if at_s:
            self.total_s += max(0.0, time.monotonic() - at_s)
            self.num += 1

    @property
    def mean_ms(self) -> float:
        """The mean delivery time in milliseconds per step; 0 if no step was counted."""
        return 1000.0 * self.total_s / max(self.num, 1)
