"""One base URL of a remote: its connections, and what is known about its health, speed and models."""

from __future__ import annotations

import math
import random
import ssl
from collections.abc import Callable
from typing import Literal

from edgeagent.backends.remote.dialect import UNKNOWN, Dialect
from edgeagent.backends.remote.failures import COUNT_AGAINST_HEALTH, WAS_NOT_SENT, Failure, Kind
from edgeagent.backends.remote.transport import Transport
from edgeagent.remotes import EndpointConfig, Remote
from edgeagent.types import EndpointStatus

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


UNKNOWN_FIRST_TOKEN_S = 0.2
"""The assumed time to the first token of an endpoint that has answered nothing yet, besides a probe's round trip.

It is short, so that a new endpoint is tried.
"""
# The assumed wait for each request in the endpoint's own queue.
_WAITING_S = 0.2
# A prompt certainly does not fit if its estimated size is more than this many times the context length.
_CERTAIN = 1.5
# The weight of a new value in an average, and after which time without a new one the average is forgotten, so that a
# slow endpoint is tried again.
_WEIGHT, _FORGOTTEN_AFTER_S = 0.2, 300.0
# Times to the first token are averaged for prompts of similar length: the bounds are in tokens.
_BOUNDS = (256, 1024, 4096, 16_384)


class Average:
    """A moving average. Its value is None before the first sample, and once the last sample is too old."""

    def __init__(self) -> None:
        self._value: float | None = None
        self._at_s = 0.0

    def add(self, value: float, now_s: float) -> None:
        known = self.value(now_s)
        self._value = value if known is None else known + _WEIGHT * (value - known)
        self._at_s = now_s

    def value(self, now_s: float) -> float | None:
        return None if now_s - self._at_s > _FORGOTTEN_AFTER_S else self._value


class Endpoint:
    """One endpoint. Its methods' `now_s` and `since_s` are times of the backend's clock."""

    def __init__(
        self,
        remote: Remote,
        config: EndpointConfig,
        context: ssl.SSLContext,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.url = config.url
        self.region = config.region
        self.transport = Transport(remote, config.url, context)
        self.breaker = Breaker(chance)
        self.dialect: Dialect = UNKNOWN
        self.models: tuple[str, ...] = ()
        self.is_identified = False
        self.num_live = 0
        # What probes have found: see `probe`.
        self.health_path: str | None = None
        self.has_metrics = True
        self.round_trip_s: float | None = None
        self.num_waiting: int | None = None
        self.kv_usage: float | None = None
        self._contexts: dict[str, int] = {}
        self._learns_contexts = not remote.context_length  # a context length set by the owner takes precedence
        self._first_token = [Average() for _ in (*_BOUNDS, 0)]
        self._token = Average()

    def begin(self, now_s: float) -> None:
        """Count a request that is sent to this endpoint."""
        self.breaker.begin(now_s)
        self.num_live += 1

    def end(self) -> None:
        self.num_live -= 1

    def note_content(self, num_prompt_tokens: int, seconds: float, now_s: float) -> None:
        """Note that an answer's first content arrived, `seconds` after the request was sent."""
        self.breaker.succeed(now_s)
        self._first_token[_size(num_prompt_tokens)].add(seconds, now_s)

    def note_tokens(self, num_tokens: int, seconds: float, now_s: float) -> None:
        """Note how many seconds the tokens after the first took; `num_tokens` counts only these."""
        if num_tokens > 0:
            self._token.add(seconds / num_tokens, now_s)

    def note_failure(self, failure: Failure, now_s: float, since_s: float) -> None:
        """Note a failure. `since_s`: since when the request waited for content; infinity for a probe."""
        if failure.kind in WAS_NOT_SENT:
            self.breaker.note_down()
        if failure.kind is Kind.TIMEOUT or failure.was_reused:
            # This connection may be dead, and the other pooled connections too.
            self.transport.renew()
        if failure.kind is Kind.OVERLOADED:
            self.breaker.pause(now_s, failure.retry_after_s)
        elif failure.kind in COUNT_AGAINST_HEALTH and not failure.was_reused:
            self.breaker.fail(now_s, failure.message, hung=failure.kind is Kind.TIMEOUT, since_s=since_s)

    def note_context(self, model: str, num_tokens: int) -> None:
        """Note a model's context length in tokens. Ignore 0, and any value if the owner has set a context length."""
        if num_tokens and self._learns_contexts:
            self._contexts[model] = num_tokens

    def context(self, model: str) -> int:
        """Return a model's context length in tokens; 0 if unknown."""
        return self._contexts.get(model, 0)

    def fits(self, model: str, num_prompt_tokens: int) -> bool:
        """Whether a prompt of this estimated size may fit a model's context."""
        room = self.context(model)
        return not room or num_prompt_tokens <= _CERTAIN * room

    def token_s(self, now_s: float) -> float | None:
        """Return the average time from one token to the next, in seconds; None if unknown."""
        return self._token.value(now_s)

    def first_token_s(self, num_prompt_tokens: int, now_s: float) -> float | None:
        """Predict the seconds to the first token; None if nothing is known.

        The prediction is the average of earlier prompts of the most similar length, or else the last probe's round trip
        and UNKNOWN_FIRST_TOKEN_S. The endpoint's own queue is added.
        """
        known = self._average(num_prompt_tokens, now_s)
        if known is None and self.round_trip_s is not None:
            known = UNKNOWN_FIRST_TOKEN_S + self.round_trip_s
        return None if known is None else known + _WAITING_S * (self.num_waiting or 0)

    def _average(self, num_prompt_tokens: int, now_s: float) -> float | None:
        size = _size(num_prompt_tokens)
        values = [average.value(now_s) for average in self._first_token]
        nearest = sorted(range(len(values)), key=lambda other: abs(other - size))
        return next((value for other in nearest if (value := values[other]) is not None), None)

    def status(self, now_s: float) -> EndpointStatus:
        """Return the endpoint's status, as clients and the command line show it."""
        pause_s = self.breaker.pause_left_s(now_s)
        return EndpointStatus(
            url=self.url,
            region=self.region,
            breaker=self.breaker.state(now_s),
            cause=self.breaker.cause or (f"overloaded; it gets no requests for {pause_s:.0f} s" if pause_s else ""),
            num_live=self.num_live,
            first_token_s=self._average(0, now_s),
            token_s=self.token_s(now_s),
            num_waiting=self.num_waiting,
            kv_usage=self.kv_usage,
        )


def _size(num_prompt_tokens: int) -> int:
    return next((size for size, bound in enumerate(_BOUNDS) if num_prompt_tokens < bound), len(_BOUNDS))
