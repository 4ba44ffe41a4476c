"""Limits the time of catch-ups while a request waits for its first token, since they delay that token.

In a catch-up, the draft model computes the tokens of a sequence that it lacks.
"""

from __future__ import annotations

from collections.abc import Callable

from edgeagent.engine.speculation.draft_model import MAX_CATCH_UP_S

# The draft model may take this share of the time in which a first token is awaited. With none, the streams of a machine
# that always has a new prompt would never have drafts.
_SHARE_OF_TIME = 0.05


class CatchUpTime:
    """Saves up time for catch-ups while a first token is awaited: 5 % of that time, at most enough for one chunk."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._is_first_awaited = False
        self._saved_s, self._noted_at_s = 0.0, clock()

    def note(self, *, is_first_awaited: bool) -> None:
        """Record whether a request waits for its first token. Call it before each step."""
        now_s = self._clock()
        is_still = is_first_awaited and self._is_first_awaited
        self._saved_s = (
            min(MAX_CATCH_UP_S, self._saved_s + _SHARE_OF_TIME * (now_s - self._noted_at_s)) if is_still else 0.0
        )
        self._is_first_awaited, self._noted_at_s = is_first_awaited, now_s

    @property
    def allows(self) -> bool:
        """Whether the draft model may catch up now."""
        return not self._is_first_awaited or self._saved_s >= MAX_CATCH_UP_S

    def spend(self, seconds: float) -> None:
        """Record that a catch-up took `seconds`."""
        self._saved_s -= seconds
