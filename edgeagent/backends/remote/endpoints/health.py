"""Decides whether an endpoint may get requests now: a circuit breaker for failures, and a pause for overload.

It does no I/O: time and randomness are passed in. An overloaded endpoint is paused; overload does not open the breaker.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

MAX_FAILURES = 5
OPEN_S = 30.0
MAX_OPEN_S = 600.0
MAX_PAUSE_S = 120.0
ONE_CUT_S = 1.0
LAST_RESORT_S = 1.0
_FIRST_PAUSE_S, _MOST_OWN_PAUSE_S = 0.5, 8.0

State = Literal["closed", "open", "half_open"]


class Breaker:
    """A circuit breaker. It opens after five failures in a row, or after one hang, since a hang costs a whole timeout.

    The first content of an answer closes the breaker. So does the successful end of an answer.

    Several nodes may be behind one endpoint, and the death of one node may cause many failures. Failures within a
    second therefore count as one, if they cut running answers, or if other answers continued while the failed requests
    waited. A request that hangs while other answers continue counts as an ordinary failure.

    An open breaker lets nothing through for 30 s. This time doubles each time that the breaker opens again without a
    success in between, up to 600 s. Then the breaker is half-open: it lets one request through, whose outcome closes or
    opens it. After a hang, a probe should be sent first, if probes are allowed, so that no request waits for a timeout.

    There is one exception: a request that no other backend can serve may try an endpoint with an open breaker, once a
    second, unless the endpoint hung.

    An answered probe closes an open breaker early only if the endpoint had been down, that is, had accepted no
    connection or answered no probe. An endpoint that answers probes but fails requests stays blocked for the whole
    time.
    """

    def __init__(self) -> None:
        self._num_failures = 0
        self._num_openings = 0
        self._open_until_s: float | None = None
        self._is_trying = False
        self._has_hung = False
        self._is_down = False
        self._heard_s = -math.inf
        self._cut_s = self._failed_s = -math.inf
        self.cause = ""

    def state(self, now_s: float) -> State:
        """Return whether requests pass: all ("closed"), one to try ("half_open"), or none ("open")."""
        if self._open_until_s is None:
            return "closed"
        return "open" if now_s < self._open_until_s else "half_open"

    def accepts_requests(self, now_s: float) -> bool:
        """Whether a request may be sent to the endpoint."""
        state = self.state(now_s)
        return state == "closed" or (state == "half_open" and not self._is_trying)

    def accepts_last_resort(self, now_s: float) -> bool:
        """Whether the endpoint may get a request that no other backend can serve, even if the breaker is open."""
        is_spent = self._is_trying or self._has_hung or now_s < self._failed_s + LAST_RESORT_S
        return self.accepts_requests(now_s) or not is_spent

    def wants_probe(self, now_s: float) -> bool:
        """Whether the breaker is half-open after a hang, so that a probe should be sent before the next request."""
        return self._has_hung and self.state(now_s) == "half_open"

    def begin(self) -> None:
        """Note that a request is sent to the endpoint."""
        self._is_trying = self._open_until_s is not None

    def give_up(self) -> None:
        """Note the end of a request. `succeed`, `finish` and `fail` note how it ended."""
        self._is_trying = False

    def hear(self, now_s: float) -> None:
        """Note that a running answer has got more content."""
        self._heard_s = now_s

    def finish(self) -> None:
        """Note that an answer has ended successfully.

        While the breaker is open or half-open after a hang, do nothing: the answer may have begun before the hang.
        """
        if self._open_until_s is None or not self._has_hung:
            self.succeed()

    def succeed(self) -> None:
        """Note that the first content of an answer has arrived."""
        self._num_failures = self._num_openings = 0
        self._open_until_s = None
        self._is_trying = self._is_down = False
        self.cause = ""

    def fail(
        self, now_s: float, cause: str, *, hung: bool = False, since_s: float = math.inf, had_begun: bool = False
    ) -> None:
        """Note the failure of a request or a probe.

        `hung`: the request or probe timed out. `since_s`: since when the request waited for content; infinity for a
        probe. `had_begun`: the answer already had content.
        """
        self.cause, self._failed_s = cause, now_s
        is_answering = self._heard_s > since_s
        hung = hung and not is_answering
        was_trying = self._is_trying and not had_begun
        if had_begun or (is_answering and not was_trying):
            if now_s - self._cut_s < ONE_CUT_S and not hung:
                return
            self._cut_s = now_s
        self._is_trying = self._is_trying and had_begun
        self._num_failures += 1
        if self._open_until_s is not None and (not was_trying or now_s < self._open_until_s):
            return  # already open: this request was sent before that, or as a last resort
        if hung or was_trying or self._num_failures >= MAX_FAILURES:
            self._open_until_s = now_s + min(OPEN_S * 2**self._num_openings, MAX_OPEN_S)
            self._num_openings += 1
            self._has_hung = hung

    def note_down(self) -> None:
        """Note that the endpoint accepted no connection, or did not answer a probe."""
        self._is_down = True

    def recover(self, now_s: float) -> None:
        """Note an answered probe. Close the breaker if the endpoint had been down, or if the open time is over.

        Leave the breaker as it is while the one request that it has let through is running. After it is closed, one
        more failure opens it again.
        """
        was_down, self._is_down = self._is_down, False
        if self._open_until_s is not None and not self._is_trying and (was_down or now_s >= self._open_until_s):
            self._open_until_s = None
            self._num_failures = MAX_FAILURES - 1

    def seconds_left(self, now_s: float) -> float:
        """Return the seconds until an open breaker becomes half-open; 0 if the breaker is not open."""
        return 0.0 if self._open_until_s is None else max(0.0, self._open_until_s - now_s)

    def forgive(self) -> None:
        """Close an open breaker, since the network has changed. One more failure opens it again."""
        if self._open_until_s is not None:
            self._open_until_s = None
            self._num_failures = MAX_FAILURES - 1
            self._num_openings = 0


class Pause:
    """The time for which an overloaded endpoint gets no requests.

    The endpoint may name this time. If it names none, the time is random, up to a limit that doubles with each pause.
    Refusals during a pause belong to the same burst, and do not double this limit. `chance` returns a random number
    from 0 to 1.
    """

    def __init__(self, chance: Callable[[], float]) -> None:
        self._chance = chance
        self._until_s = 0.0
        self._most_s = _FIRST_PAUSE_S / 2

    def refuse(self, now_s: float, retry_after_s: float | None) -> None:
        """Note that the endpoint is overloaded, and pause for the delay that it names, at most MAX_PAUSE_S.

        If it names none and is not paused yet, double the limit and pause for a random time.
        """
        if retry_after_s is None:
            if self.seconds_left(now_s):
                return
            self._most_s = min(2 * self._most_s, _MOST_OWN_PAUSE_S)
            retry_after_s = self._chance() * self._most_s
        self._until_s = max(self._until_s, now_s + min(retry_after_s, MAX_PAUSE_S))

    def clear(self) -> None:
        """Note that the endpoint accepts requests: reset the limit. A pause that has begun continues."""
        self._most_s = _FIRST_PAUSE_S / 2

    def seconds_left(self, now_s: float) -> float:
        """Return for how many more seconds the endpoint should get no requests."""
        return max(0.0, self._until_s - now_s)


class RetryBudget:
    """Allows one retry for every ten requests, so that retries do not add much load to a remote in trouble."""

    SHARE = 0.1
    MOST = 10.0

    def __init__(self) -> None:
        self._saved = 1.0

    def earn(self) -> None:
        """Count a request."""
        self._saved = min(self.MOST, self._saved + self.SHARE)

    def take(self) -> bool:
        """Use up one retry; return False if none is left."""
        if self._saved < 1.0:
            return False
        self._saved -= 1.0
        return True
