"""A share of the time, for work that may be worth nothing: trials, plans, catch-ups."""

from __future__ import annotations


class TimeShare:
    """Saves up a share of the time that passes, until it is spent."""

    def __init__(self, share: float) -> None:
        self._share = share
        self.saved_s = 0.0
        """The seconds that may be spent now. Negative after work that took longer than what was saved."""

    def add(self, seconds: float, max_s: float) -> None:
        """Save the share of `seconds` that have passed. At most `max_s` are saved up."""
        self.saved_s = min(max_s, self.saved_s + self._share * seconds)

    def spend(self, seconds: float) -> None:
        """Record work that took `seconds`."""
        self.saved_s -= seconds
