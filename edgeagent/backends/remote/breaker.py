"""Decides whether an endpoint may get requests now. It does no I/O: time and randomness are passed in."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

MAX_FAILURES = 5
OPEN_S = 30.0
MAX_OPEN_S = 600.0
MAX_PAUSE_S = 120.0
ONE_FAILURE_S = 1.0
LAST_RESORT_S = 1.0
# The longest pause of an overloaded endpoint that does not say when to come back. It is random, so that the requests of
# several machines do not come back at the same time.
_OWN_PAUSE_S = 2.0

State = Literal["closed", "open", "half_open"]


class Breaker:
    """The circuit breaker of one endpoint. Requests are sent only while it is closed and not paused.

    It opens after five failures in a row, or after one hang, since a hang costs a whole timeout. Failures within a
    second count as one, because they may have one cause: several nodes may be behind one endpoint. A hang while other
    answers go on counts as an ordinary failure.

    It stays open for 30 s. This time doubles each time that it opens again without a success in between, up to 600 s.
    Then it is half-open: an answered probe closes it, and one more failure opens it again. A probe closes it early only
    if the endpoint had been down, that is, had accepted no connection or answered no probe. The first content of an
    answer closes it at any time.

    While it is not closed, a request that no other backend can serve may be tried once a second, but not while it is
    open because of a hang.

    An overloaded endpoint is paused for the time that it names. Overload is no failure, and does not open the breaker.
    """

    def __init__(self, chance: Callable[[], float]) -> None:
        """`chance` returns a random number from 0 to 1."""
        self._chance = chance
        self._num_failures = 0
        self._num_openings = 0
        self._open_until_s: float | None = None
        self._paused_until_s = -math.inf
        self._has_hung = False
        self._is_down = False
        self._heard_s = self._failed_s = self._counted_s = self._tried_s = -math.inf
        self.cause = ""

    def state(self, now_s: float) -> State:
        """Return "closed", "open", or "half_open" if the endpoint has rested and waits for a probe."""
        if self._open_until_s is None:
            return "closed"
        return "open" if now_s < self._open_until_s else "half_open"

    def accepts_requests(self, now_s: float) -> bool:
        """Whether a request may be sent to the endpoint."""
        return self._open_until_s is None and not self.pause_left_s(now_s)

    def accepts_last_resort(self, now_s: float) -> bool:
        """Whether the endpoint may get a request that no other backend can serve."""
        if self.accepts_requests(now_s):
            return True
        is_hung = self._has_hung and self.state(now_s) == "open"
        is_spent = now_s < max(self._failed_s, self._tried_s) + LAST_RESORT_S
        return not (is_hung or is_spent or self.pause_left_s(now_s))

    def begin(self, now_s: float) -> None:
        """Note that a request is sent to the endpoint."""
        if self._open_until_s is not None:
            self._tried_s = now_s

    def hear(self, now_s: float) -> None:
        """Note that a running answer has got more content."""
        self._heard_s = now_s

    def succeed(self, now_s: float) -> None:
        """Note that the first content of an answer has arrived."""
        self._heard_s = now_s
        self._num_failures = self._num_openings = 0
        self._open_until_s = None
        self._is_down = False
        self.cause = ""

    def fail(self, now_s: float, cause: str, *, hung: bool = False, since_s: float = math.inf) -> None:
        """Note the failure of a request or a probe.

        `hung`: it timed out. `since_s`: since when the request waited for content; infinity for a probe.
        """
        hung = hung and self._heard_s <= since_s
        is_same = now_s - self._counted_s < ONE_FAILURE_S and not hung
        self.cause, self._failed_s = cause, now_s
        if is_same or self.state(now_s) == "open":
            return
        self._counted_s = now_s
        self._num_failures += 1
        if hung or self._num_failures >= MAX_FAILURES:
            self._open_until_s = now_s + min(OPEN_S * 2**self._num_openings, MAX_OPEN_S)
            self._num_openings += 1
            self._has_hung = hung

    def note_down(self) -> None:
        """Note that the endpoint accepted no connection, or did not answer a probe."""
        self._is_down = True

    def recover(self, now_s: float) -> None:
        """Note an answered probe."""
        was_down, self._is_down = self._is_down, False
        if was_down or self.state(now_s) == "half_open":
            self._close()

    def forgive(self) -> None:
        """Close an open breaker, since the network has changed."""
        self._close()
        self._num_openings = 0

    def _close(self) -> None:
        """Close an open breaker, so that one more failure opens it again."""
        if self._open_until_s is not None:
            self._open_until_s = None
            self._num_failures = MAX_FAILURES - 1
            self._counted_s = -math.inf

    def pause(self, now_s: float, retry_after_s: float | None) -> None:
        """Note that the endpoint is overloaded, and pause for the delay that it names, or for a random time."""
        if retry_after_s is None:
            retry_after_s = self._chance() * _OWN_PAUSE_S
        self._paused_until_s = max(self._paused_until_s, now_s + min(retry_after_s, MAX_PAUSE_S))

    def pause_left_s(self, now_s: float) -> float:
        """Return for how many more seconds the endpoint is paused."""
        return max(0.0, self._paused_until_s - now_s)

    def seconds_left(self, now_s: float) -> float:
        """Return the seconds until the endpoint may be tried again; 0 if it may be tried now."""
        open_s = 0.0 if self._open_until_s is None else max(0.0, self._open_until_s - now_s)
        return max(open_s, self.pause_left_s(now_s))
