"""One base URL of a remote: its connections, and what is known about its health, speed and models."""

from __future__ import annotations

import random
import ssl
from collections.abc import Callable

from edgeagent.backends.remote.breaker import Breaker
from edgeagent.backends.remote.dialect import UNKNOWN, Dialect
from edgeagent.backends.remote.failures import COUNT_AGAINST_HEALTH, WAS_NOT_SENT, Failure, Kind
from edgeagent.backends.remote.transport import Transport
from edgeagent.remotes import EndpointConfig, Remote
from edgeagent.types import EndpointStatus

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
        """Count the end of a request."""
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
