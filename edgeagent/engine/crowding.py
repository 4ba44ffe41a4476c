"""Learns how much idle cells slow down a step, from steps with and without them.

Plain attention multiplies every token with all used cells; flash attention looks at each and skips those of others.
"""

from __future__ import annotations

_WEIGHT = 0.2  # of a new measurement


class Crowding:
    """Seconds that an idle cell adds to each token of a step."""

    def __init__(self) -> None:
        self._cell_s = 0.0
        self._is_measured = False

    def observe(self, num_tokens: int, num_idle: int, extra_s: float) -> None:
        """Add how much longer a step with idle cells took than one without; noise may make that negative."""
        weight = _WEIGHT if self._is_measured else 1.0
        self._cell_s += weight * (extra_s / (num_tokens * num_idle) - self._cell_s)
        self._is_measured = True

    def seconds(self, num_tokens: int, num_idle: int) -> float:
        """Return the expected seconds that idle cells add to a step of this many tokens."""
        return max(0.0, self._cell_s) * num_tokens * num_idle
