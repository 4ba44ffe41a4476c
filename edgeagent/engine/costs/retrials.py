"""Says when to try a rejected value of a self-tuned choice again."""

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


# A retrial may cost this share of the time since the last one, and comes after at least _LEAST_USES uses.
_SHARE = 0.02
_LEAST_USES = 8


class Retrials:
    """Says when to use the value of a choice that seems slower, so that its time is measured again.

    A value may have been rejected for a single disturbed measurement, or before the machine changed. Without retrials
    it would never be measured again.
    """

    def __init__(self) -> None:
        self._saved_s = 0.0
        self._num_uses = 0

    def record(self, used_s: float) -> None:
        """Record that the better value was used, which took `used_s` seconds."""
        self._saved_s += _SHARE * used_s
        self._num_uses += 1

    def is_due(self, extra_s: float) -> bool:
        """Whether to try the other value now, which is expected to take `extra_s` seconds more."""
        return self._num_uses >= _LEAST_USES and self._saved_s >= extra_s

    def reset(self) -> None:
        """Record that the other value was tried."""
        self._saved_s, self._num_uses = 0.0, 0
