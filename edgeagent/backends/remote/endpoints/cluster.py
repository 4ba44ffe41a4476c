"""A remote's endpoints, and what its requests share: the key, the ledger, pseudonyms and the retry budget."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterator
from typing import Protocol

from edgeagent.backends.prompt_size import prompt_bytes
from edgeagent.backends.remote.access import KEY_IS_MENDED, Access, FindKey, Headers
from edgeagent.backends.remote.endpoints.choose import choose
from edgeagent.backends.remote.endpoints.endpoint import Endpoint
from edgeagent.backends.remote.endpoints.health import RetryBudget
from edgeagent.backends.remote.endpoints.probe import Prober
from edgeagent.backends.remote.failures import Failure, Kind
from edgeagent.backends.remote.pseudonyms import Pseudonyms
from edgeagent.backends.remote.transport import tls_context
from edgeagent.errors import ModelNotFound
from edgeagent.remotes import Remote
from edgeagent.types import GenerateRequest, Permit, ProbePermit

_BYTES_PER_TOKEN = 4
_NETWORK_CHECK_S = 1.0

logger = logging.getLogger(__name__)


class EgressRecorder(Protocol):
    """Records every request to a remote before it is sent. `egress.ledger.Ledger` implements it."""

    def begin(
        self,
        permit: Permit | ProbePermit,
        host: str,
        model: str,
        num_bytes: int,
        num_prompt_tokens: int = 0,
        max_tokens: int = 0,
    ) -> int:
        """Write the row of a request or a probe, reserve its tokens, and return the row's number.

        Raise RemoteUnavailable if nothing may be sent.
        """
        ...

    def end(
        self,
        row: int,
        outcome: str,
        num_prompt_tokens: int = 0,
        num_output_tokens: int = 0,
        *,
        differs: bool = False,
    ) -> None:
        """Write the outcome and the token counts of the row with this number."""
        ...

    def why_blocked(self, remote: str, client: str, num_prompt_tokens: int = 0, max_tokens: int = 0) -> str | None:
        """Return why a client may not send this much to a remote today; None if it may."""
        ...

    def tokens_left(self, remote: str, client: str, num_prompt_tokens: int) -> int | None:
        """Return how many tokens the answer to a prompt of this length may have; None if no budget limits it."""
        ...


class Cluster:
    """The endpoints of one remote, and what they share: the key, the ledger, pseudonyms and the retry budget.

    The constructor raises ConfigError if the remote's TLS files cannot be used.
    """

    def __init__(
        self, remote: Remote, find_key: FindKey, ledger: EgressRecorder, clock: Callable[[], float] = time.monotonic
    ) -> None:
        context = tls_context(remote.tls)
        self.remote = remote
        self.ledger = ledger
        self.clock = clock
        self.access = Access(remote.key, find_key)
        self.pseudonyms = Pseudonyms(remote.name)
        self.retries = RetryBudget()
        self._network_checked_s = -_NETWORK_CHECK_S
        self.endpoints = [Endpoint(remote, config, context) for config in remote.endpoints]
        self.probers = [Prober(endpoint, ledger) for endpoint in self.endpoints]
        self._has_opened = asyncio.Event()

    @property
    def has_open_breaker(self) -> bool:
        """Whether the breaker of at least one endpoint is open, so that the endpoint gets no requests."""
        now_s = self.clock()
        return any(endpoint.breaker.state(now_s) == "open" for endpoint in self.endpoints)

    async def wait_for_open_breaker(self, seconds: float) -> bool:
        """Wait until the breaker of an endpoint opens; return False if none opens within `seconds`."""
        self._has_opened.clear()
        try:
            await asyncio.wait_for(self._has_opened.wait(), seconds)
        except TimeoutError:
            return False
        return True

    @property
    def name(self) -> str:
        """The backend's name for this remote."""
        return f"remote:{self.remote.name}"

    def model_there(self, model: str) -> str:
        """Return the remote's own name for a model; raise ModelNotFound if the remote does not serve it.

        Unless the owner maps names, a model that the remote lists as a path or a file is meant by its bare name too.
        """
        if not self.remote.serves_any:
            if model in self.remote.models:
                return self.remote.models[model]
        elif model:
            known = self.known_models()
            if not known or model in known:
                return model
            alike = [name for name in known if _bare(name) == _bare(model)]
            if len(alike) == 1:
                return alike[0]
        raise ModelNotFound(f"{self.name} does not serve model {model!r:.200}", served_by=self.name)

    def known_models(self) -> list[str]:
        """Return the models that the endpoints list; empty until every endpoint has listed at least one."""
        if not all(endpoint.models for endpoint in self.endpoints):
            return []
        return list(dict.fromkeys(model for endpoint in self.endpoints for model in endpoint.models))

    def fits(self, model: str, num_prompt_tokens: int) -> bool:
        """Whether a prompt of this estimated size may fit a model's context at the remote.

        `model` is the remote's own name. A context that is not known counts as long enough.
        """
        if self.remote.context_length:
            return num_prompt_tokens <= self.remote.context_length
        return any(endpoint.fits(model, num_prompt_tokens) for endpoint in self.endpoints)

    def order(self, model: str, num_prompt_tokens: int, session: str) -> Iterator[tuple[Endpoint, Prober]]:
        """Yield the endpoints to try, best first. If there is only one, yield it twice.

        If no endpoint is usable, yield those that `Breaker.accepts_last_resort` allows and that are not paused. The
        router sends such a request only if no other backend can serve it.
        """
        now_s = self.clock()
        views = [endpoint.view(model, num_prompt_tokens, now_s) for endpoint in self.endpoints]
        chosen = choose(views, num_prompt_tokens, session)
        if not chosen:
            chosen = [index for index, endpoint in enumerate(self.endpoints) if endpoint.accepts_last_resort(now_s)]
        for index in chosen * 2 if len(chosen) == 1 else chosen:
            yield self.endpoints[index], self.probers[index]

    def seconds_until_next(self) -> float:
        """Return the seconds until the first endpoint may be tried; 0 if one may be tried now."""
        now_s = self.clock()
        return min(
            max(endpoint.breaker.seconds_left(now_s), endpoint.pause.seconds_left(now_s)) for endpoint in self.endpoints
        )

    def renew_if_network_changed(self) -> None:
        """Use new connections and forget earlier failures if the network has changed or the machine has slept.

        The network is checked at most once a second.
        """
        now_s = self.clock()
        if now_s - self._network_checked_s < _NETWORK_CHECK_S:
            return
        self._network_checked_s = now_s
        for endpoint in self.endpoints:
            if endpoint.transport.renew_if_network_changed():
                endpoint.breaker.forgive()

    def note_failure(
        self,
        endpoint: Endpoint,
        failure: Failure,
        headers: Headers,
        since_s: float = math.inf,
        *,
        had_begun: bool = False,
    ) -> None:
        """Record the failure of a probe or a request at an endpoint.

        `headers`: the headers with which the key was sent. `since_s`: since when the request waited for content;
        infinity for a probe. `had_begun`: the answer already had content.
        """
        now_s = self.clock()
        was_open = endpoint.breaker.state(now_s) == "open"
        endpoint.note_failure(failure, now_s, since_s, had_begun=had_begun)
        if failure.kind is Kind.REFUSED_KEY:
            self.access.refuse(failure.status, headers)
            logger.warning("%s: %s; it gets no requests until %s", self.name, failure.message, KEY_IS_MENDED)
        elif not was_open and endpoint.breaker.state(now_s) == "open":
            seconds = endpoint.breaker.seconds_left(now_s)
            host = endpoint.transport.host
            logger.warning("%s: %s gets no requests for up to %.0f s: %s", self.name, host, seconds, failure.message)
            self._has_opened.set()


def _bare(name: str) -> str:
    """Return a model's name without folders, the owner's name or ".gguf". llama-server lists a model as its file."""
    return name.replace("\\", "/").rpartition("/")[2].lower().removesuffix(".gguf")


def num_prompt_tokens(request: GenerateRequest) -> int:
    """Estimate how many tokens a request's prompt has; the remote model's tokenizer is not available here."""
    return prompt_bytes(request) // _BYTES_PER_TOKEN
