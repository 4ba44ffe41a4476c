"""One base URL of a remote: its connections, and what is known about its health, speed and models."""

from __future__ import annotations

import random
import ssl
from collections.abc import Callable

from edgeagent.backends.remote.dialect import UNKNOWN, Dialect
from edgeagent.backends.remote.endpoints.averages import Averages
from edgeagent.backends.remote.endpoints.choose import LONG_PROMPT_TOKENS, UNKNOWN_FIRST_TOKEN_S, View
from edgeagent.backends.remote.endpoints.context import CERTAIN
from edgeagent.backends.remote.endpoints.health import Breaker, Pause
from edgeagent.backends.remote.failures import COUNT_AGAINST_HEALTH, WAS_NOT_SENT, Failure, Kind
from edgeagent.backends.remote.transport import Transport
from edgeagent.remotes import EndpointConfig, Remote
from edgeagent.types import EndpointStatus


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
        self.breaker = Breaker()
        self.pause = Pause(chance)
        self.averages = Averages()
        self.dialect: Dialect = UNKNOWN
        self.models: tuple[str, ...] = ()
        self.is_identified = False
        self._contexts: dict[str, int] = {}
        self._learns_contexts = not remote.context_length  # a context length set by the owner takes precedence
        self.round_trip_s: float | None = None  # of the last answered probe
        self.num_waiting: int | None = None
        self.kv_usage: float | None = None
        self._num_long = 0
        self._num_short = 0

    @property
    def num_live(self) -> int:
        """How many of this machine's requests run at this endpoint."""
        return self._num_long + self._num_short

    def begin(self, num_prompt_tokens: int) -> None:
        """Count a request that is sent to this endpoint."""
        self.breaker.begin()
        if num_prompt_tokens >= LONG_PROMPT_TOKENS:
            self._num_long += 1
        else:
            self._num_short += 1

    def end(self, num_prompt_tokens: int) -> None:
        """Count the end of a request. `note_content` and `note_failure` are called before, and note how it went."""
        self.breaker.give_up()
        if num_prompt_tokens >= LONG_PROMPT_TOKENS:
            self._num_long -= 1
        else:
            self._num_short -= 1

    def note_content(self, num_prompt_tokens: int, seconds: float, now_s: float) -> None:
        """Note that an answer's first content arrived, `seconds` after the request was sent."""
        self.breaker.hear(now_s)
        self.breaker.succeed()
        self.pause.clear()
        self.averages.note_first_token(num_prompt_tokens, seconds, now_s)

    def note_failure(self, failure: Failure, now_s: float, since_s: float, *, had_begun: bool = False) -> None:
        """Note a failure. `since_s`: since when the request waited for content. `had_begun`: the answer had content."""
        if failure.kind in WAS_NOT_SENT:
            self.breaker.note_down()
        if failure.kind is Kind.TIMEOUT or failure.was_reused:
            # This connection may be dead, and the other pooled connections too.
            self.transport.renew()
        if failure.kind is Kind.OVERLOADED:
            self.pause.refuse(now_s, failure.retry_after_s)
        elif failure.kind in COUNT_AGAINST_HEALTH and not failure.was_reused:
            hung = failure.kind is Kind.TIMEOUT
            self.breaker.fail(now_s, failure.message, hung=hung, since_s=since_s, had_begun=had_begun)

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
        return not room or num_prompt_tokens <= CERTAIN * room

    def accepts_requests(self, now_s: float) -> bool:
        """Whether a request may be sent to this endpoint now."""
        return self.breaker.accepts_requests(now_s) and not self.pause.seconds_left(now_s)

    def accepts_last_resort(self, now_s: float) -> bool:
        """Whether a request that no other backend can serve may be sent here now, even if the breaker is open."""
        return self.breaker.accepts_last_resort(now_s) and not self.pause.seconds_left(now_s)

    def view(self, model: str, num_prompt_tokens: int, now_s: float) -> View:
        """Return the view of this endpoint that `choose` needs for a request to one of its models."""
        return View(
            url=self.url,
            region=self.region,
            is_usable=self.accepts_requests(now_s) and self.fits(model, num_prompt_tokens),
            is_on_trial=self.breaker.state(now_s) != "closed",
            first_token_s=self._first_token_s(num_prompt_tokens, now_s),
            num_long=self._num_long,
            num_short=self._num_short,
            num_waiting=self.num_waiting or 0,
            kv_usage=self.kv_usage or 0.0,
        )

    def _first_token_s(self, num_prompt_tokens: int, now_s: float) -> float | None:
        """Predict the time to the first token from earlier answers, or else from the last probe; None if unknown."""
        known = self.averages.first_token_s(num_prompt_tokens, now_s)
        return UNKNOWN_FIRST_TOKEN_S + self.round_trip_s if known is None and self.round_trip_s is not None else known

    def status(self, now_s: float) -> EndpointStatus:
        """Return the endpoint's status, as clients and the command line show it."""
        pause_s = self.pause.seconds_left(now_s)
        return EndpointStatus(
            url=self.url,
            region=self.region,
            breaker=self.breaker.state(now_s),
            cause=self.breaker.cause or (f"overloaded; it gets no requests for {pause_s:.0f} s" if pause_s else ""),
            num_live=self.num_live,
            first_token_s=self.averages.first_token_s(0, now_s),
            token_s=self.averages.token_s(now_s),
            num_waiting=self.num_waiting,
            kv_usage=self.kv_usage,
        )
