"""A remote's endpoints, and what its requests share: the key, the ledger and pseudonyms."""

from __future__ import annotations

import hashlib
import hmac
import logging
import math
import random
import secrets
import time
from collections.abc import Callable

from edgeagent.backends.prompts import conversation_of
from edgeagent.backends.remote.access import KEY_IS_MENDED, Access, FindKey, Headers
from edgeagent.backends.remote.endpoint import UNKNOWN_FIRST_TOKEN_S, Endpoint
from edgeagent.backends.remote.failures import Failure, Kind
from edgeagent.backends.remote.transport import tls_context
from edgeagent.egress.ledger import Ledger
from edgeagent.errors import ConfigError, ModelNotFound
from edgeagent.remotes import Remote
from edgeagent.types import GenerateRequest, remote_backend

_NETWORK_CHECK_S = 1.0
_DAY_S = 86_400.0
# An endpoint is chosen by its predicted time to the first token. These are taken off and added, in seconds: what the
# cached prefix of the conversation's own endpoint saves, and how much sooner another region than the owner's first one
# must answer.
_HOME_S, _OTHER_REGION_S = 0.5, 0.5

logger = logging.getLogger(__name__)


class Cluster:
    """The endpoints of one remote, and what they share: the key, the ledger and pseudonyms.

    If the remote's TLS files cannot be used, it has no endpoints, and `trouble` says why.
    """

    def __init__(
        self,
        remote: Remote,
        find_key: FindKey,
        ledger: Ledger,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.remote = remote
        self.ledger = ledger
        self.clock = clock
        self.access = Access(remote.key, find_key)
        self.pseudonyms = Pseudonyms(remote.name)
        self.trouble = ""
        self.endpoints: list[Endpoint] = []
        try:
            context = tls_context(remote.tls)
        except ConfigError as error:
            self.trouble = error.message
        else:
            self.endpoints = [Endpoint(remote, config, context, chance) for config in remote.endpoints]
        self._network_checked_s = -_NETWORK_CHECK_S

    @property
    def name(self) -> str:
        return remote_backend(self.remote.name)

    def obstacle(self) -> tuple[str, str]:
        """Return why no request can be sent, as one word and as a sentence; both are empty if requests can be sent."""
        return ("unusable", self.trouble) if self.trouble else self.access.obstacle(self.clock())

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

    def order(self, model: str, num_prompt_tokens: int, session: str) -> list[Endpoint]:
        """Return the endpoints to try, best first. If there is only one, return it twice.

        The best is predicted to give its first token soonest. The first region in the owner's order, and in it the
        conversation's own endpoint, have an advantage. If no endpoint accepts requests, return those that
        `Breaker.accepts_last_resort` allows. The router sends such a request only if no other backend can serve it.
        """
        now_s = self.clock()
        able = [endpoint for endpoint in self.endpoints if endpoint.fits(model, num_prompt_tokens)]
        usable = [endpoint for endpoint in able if endpoint.breaker.accepts_requests(now_s)]
        if not usable:
            usable = [endpoint for endpoint in self.endpoints if endpoint.breaker.accepts_last_resort(now_s)]
        near = [endpoint for endpoint in usable if endpoint.region == usable[0].region]
        # Rendezvous hashing: if an endpoint is added or removed, only its own conversations move.
        home = max(near, key=lambda endpoint: _weight(session, endpoint.url), default=None)

        def score(endpoint: Endpoint) -> float:
            seconds = endpoint.first_token_s(num_prompt_tokens, now_s)
            seconds = UNKNOWN_FIRST_TOKEN_S if seconds is None else seconds
            return seconds - _HOME_S * (endpoint is home) + _OTHER_REGION_S * (endpoint not in near)

        ordered = sorted(usable, key=score)
        return ordered * 2 if len(ordered) == 1 else ordered

    def first_token_s(self, model: str, num_prompt_tokens: int) -> float | None:
        """Predict the seconds to the first token at the soonest endpoint that accepts requests; None if unknown."""
        now_s = self.clock()
        return min(
            (
                seconds
                for endpoint in self.endpoints
                if endpoint.breaker.accepts_requests(now_s)
                and endpoint.fits(model, num_prompt_tokens)
                and (seconds := endpoint.first_token_s(num_prompt_tokens, now_s)) is not None
            ),
            default=None,
        )

    def token_s(self) -> float | None:
        """Return the average time between tokens at the fastest endpoint, in seconds; None if unknown."""
        now_s = self.clock()
        return min(
            (seconds for endpoint in self.endpoints if (seconds := endpoint.token_s(now_s)) is not None), default=None
        )

    def seconds_until_next(self) -> float:
        """Return the seconds until the first endpoint may be tried; 0 if one may be tried now."""
        now_s = self.clock()
        return min(endpoint.breaker.seconds_left(now_s) for endpoint in self.endpoints)

    @property
    def is_resting(self) -> bool:
        """Whether the breaker of at least one endpoint is not closed, so that a probe may bring the endpoint back."""
        now_s = self.clock()
        return any(endpoint.breaker.state(now_s) != "closed" for endpoint in self.endpoints)

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

    def note_failure(self, endpoint: Endpoint, failure: Failure, headers: Headers, since_s: float = math.inf) -> None:
        """Record the failure of a probe or a request at an endpoint.

        `headers`: the headers with which the key was sent. `since_s`: since when the request waited for content;
        infinity for a probe.
        """
        now_s = self.clock()
        was_open = endpoint.breaker.state(now_s) == "open"
        endpoint.note_failure(failure, now_s, since_s)
        if failure.kind is Kind.REFUSED_KEY:
            self.access.refuse(failure.status, headers)
            logger.warning("%s: %s; it gets no requests until %s", self.name, failure.message, KEY_IS_MENDED)
        elif not was_open and endpoint.breaker.state(now_s) == "open":
            seconds = endpoint.breaker.seconds_left(now_s)
            host = endpoint.transport.host
            logger.warning("%s: %s gets no requests for up to %.0f s: %s", self.name, host, seconds, failure.message)


def _weight(session: str, url: str) -> bytes:
    return hashlib.blake2b(f"{session}\n{url}".encode(), digest_size=8).digest()


def _bare(name: str) -> str:
    """Return a model's name without folders, the owner's name or ".gguf". llama-server lists a model as its file."""
    return name.replace("\\", "/").rpartition("/")[2].lower().removesuffix(".gguf")


class Pseudonyms:
    """Makes random names for conversations and clients, so that a remote does not learn who the client is.

    They are derived from a secret that is new with each start of the daemon, and with each change of the remote. At
    0:00 UTC all conversations get new names. Until then a conversation keeps its name, so that its turns reach the same
    endpoint and its cached prefix.
    """

    def __init__(self, remote: str, secret: bytes | None = None) -> None:
        self._remote = remote
        self._secret = secret or secrets.token_bytes(32)

    def session(self, request: GenerateRequest, now_s: float) -> str:
        """Return the name of a request's conversation on this UTC day; `now_s` is in seconds since 1970.

        Every request gets a name, because vLLM's router sends all requests without a name to the same engine.
        """
        return self._name("session", str(int(now_s // _DAY_S)), *conversation_of(request))

    def cache_salt(self, request: GenerateRequest) -> str:
        """Return the salt that keeps one client's requests from hitting another client's cached prefixes."""
        return self._name("salt", request.cache.partition)

    def _name(self, *parts: str) -> str:
        text = "\0".join((self._remote, *parts))
        return hmac.digest(self._secret, text.encode(), hashlib.sha256).hex()[:32]
