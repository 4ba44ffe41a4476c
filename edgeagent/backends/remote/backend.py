"""The backend of one remote, as the router sees it.

It sends nothing without a permit and a usable key, or while a budget or the limit of running requests is used up.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections.abc import Callable

from edgeagent.backends.base import CONTEXT, MEDIA, UNREACHABLE, Estimate
from edgeagent.backends.media import missing_at_remote, readable, taken_by_remote
from edgeagent.backends.prompts import num_prompt_tokens
from edgeagent.backends.remote.access import FindKey
from edgeagent.backends.remote.body import unsupported
from edgeagent.backends.remote.cluster import Cluster
from edgeagent.backends.remote.endpoint import Endpoint
from edgeagent.backends.remote.failures import COUNT_AGAINST_HEALTH, Failure
from edgeagent.backends.remote.probe import check
from edgeagent.backends.remote.run import Run
from edgeagent.backends.remote.transport import Call, check_permit
from edgeagent.egress.ledger import Ledger
from edgeagent.errors import ConfigError, Forbidden, ModelNotFound, NotSupported, Overloaded, RemoteUnavailable
from edgeagent.remotes import Remote
from edgeagent.types import (
    AnswerSoFar,
    GenerateRequest,
    ModelStatus,
    Permit,
    ProbePermit,
    QueryAnswer,
    RemoteStatus,
    Sink,
    TextQuery,
    TokenPrompt,
    WorkerState,
    remote_backend,
)

_RETRY_AFTER_S = 1.0
# Some obstacles last until the owner changes a setting or the day's budget is renewed. Frequent retries do not help.
_LASTING_RETRY_S = 60.0
# How old the last probe may be: while the remote is in use, and while a request that runs elsewhere may need it.
_PROBE_INTERVAL_S, _STAND_BY_INTERVAL_S = 10.0, 60.0
# While an endpoint rests, a random time up to this, because many machines may have seen the same failure.
_RESTING_INTERVAL_S = 4.0
# Probes stop this long after the last request, so that an idle daemon sends nothing.
_PROBED_AFTER_USE_S = 60.0

logger = logging.getLogger(__name__)


class RemoteBackend:
    """The backend of one remote. `probes` returns a permit for probes, or None while nothing may leave this machine."""

    def __init__(
        self,
        remote: Remote,
        *,
        keys: FindKey,
        ledger: Ledger,
        probes: Callable[[], ProbePermit | None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.remote = remote
        self.name = remote_backend(remote.name)
        self._ledger = ledger
        self._probes = probes
        self._clock = clock
        self._chance = chance
        self._live: dict[str, Run] = {}
        self._used_s = self._probed_s = -math.inf
        self._resting_interval_s = _RESTING_INTERVAL_S
        self._probing: set[asyncio.Task[None]] = set()
        self._cluster = Cluster(remote, keys, ledger, clock, chance)

    async def start(self) -> None:
        """Do nothing: nothing is sent before the first use."""

    async def stop(self) -> None:
        """End every request and close every connection."""
        await self.close_streams("the daemon is stopping")

    async def close_streams(self, reason: str) -> None:
        """End every request at once with this reason, and close every connection.

        Called when requests may no longer be sent to this remote.
        """
        for run in list(self._live.values()):
            run.end(reason)
        for task in self._probing:
            task.cancel()
        if self._probing:
            await asyncio.wait(self._probing)
        await asyncio.gather(*(endpoint.transport.drop() for endpoint in self._cluster.endpoints))

    def forgive_key(self) -> None:
        """Allow a refused key to be sent again: the owner may have made it valid at the remote."""
        self._cluster.access.forgive()

    def tick(self) -> None:
        """Do what is due while the remote is in use. Called a few times a second.

        Probe the endpoints, and renew the connections if the network has changed. A new request checks the network
        itself.
        """
        if self._live:
            self._cluster.renew_if_network_changed()
        if self._live or self._clock() - self._used_s <= _PROBED_AFTER_USE_S:
            self._probe(self._resting_interval_s if self._cluster.is_resting else _PROBE_INTERVAL_S)

    def warm(self) -> None:
        """Probe the endpoints from now on, because requests are likely to follow. This also opens connections.

        Return at once. Frequent calls are harmless.
        """
        self._used_s = self._clock()
        self.tick()

    def stand_by(self) -> None:
        """Probe the endpoints once a minute, because a request that runs elsewhere may need them.

        So it is known which endpoints can be reached, and how soon they answer. Return at once.
        """
        self._probe(_STAND_BY_INTERVAL_S)

    def _probe(self, max_age_s: float) -> None:
        """Probe the endpoints in the background, unless the last probe is younger than this, or none is permitted.

        Nothing is sent either if the key or the TLS files cannot be used.
        """
        now_s = self._clock()
        if self._probing or now_s - self._probed_s < max_age_s:
            return
        if (permit := self._probes()) is None or self._cluster.obstacle()[0]:
            return
        self._probed_s = now_s
        self._resting_interval_s = self._chance() * _RESTING_INTERVAL_S
        for endpoint in self._cluster.endpoints:
            task = asyncio.get_running_loop().create_task(self._check(endpoint, permit))
            self._probing.add(task)
            task.add_done_callback(self._probing.discard)

    async def _check(self, endpoint: Endpoint, permit: ProbePermit) -> None:
        try:
            headers = self._cluster.access.headers()
        except ConfigError:
            return
        try:
            await check(endpoint, self._ledger, permit, headers)
        except RemoteUnavailable:
            return  # the probe could not be recorded, so nothing was sent
        except Failure as failure:
            if failure.kind in COUNT_AGAINST_HEALTH:
                endpoint.breaker.note_down()
            self._cluster.note_failure(endpoint, failure, headers)
        else:
            endpoint.breaker.recover(self._clock())

    @property
    def models(self) -> RemoteBackend:
        """This backend itself: it knows which models the remote has."""
        return self

    def statuses(self) -> list[ModelStatus]:
        """Return the models under their local names: those that the owner configured, or else those the remote lists.

        While the key or the TLS files cannot be used, all models are FAILED, and `cause` says why.
        """
        names = list(self.remote.models)
        if self.remote.serves_any:
            names = self._cluster.known_models()
        kind, trouble = self._cluster.obstacle()
        state = WorkerState.FAILED if kind else WorkerState.READY
        progress = 0.0 if kind else 1.0
        return [ModelStatus(name, state, progress, cause=trouble or None, is_remote=True) for name in names]

    def reload(self, name: str) -> None:
        """Raise NotSupported, or an error of `find`: a remote loads its models itself."""
        self._served().model_there(name)
        raise NotSupported(f"{self.name} loads its models itself", served_by=self.name)

    def default(self) -> str:
        """Return the first model that the owner configured, or else the first that the remote lists.

        If none is configured, raise ModelNotFound until the remote has listed its models, or RemoteUnavailable if the
        TLS files cannot be used.
        """
        names = list(self.remote.models) or self._served().known_models()
        if not names:
            raise ModelNotFound(f"{self.name} has not listed its models yet; name a model", served_by=self.name)
        return names[0]

    def find(self, name: str) -> str:
        """Return a model's name; "" and "default" mean the default model. Raise ModelNotFound or RemoteUnavailable."""
        if name in ("", "default"):
            return self.default()
        self._served().model_there(name)
        return name

    async def locate(self, name: str) -> str:
        """Return the result of `find`. For a remote's model, this machine's disk is not searched."""
        return self.find(name)

    async def unload(self, name: str) -> int:
        """Raise NotSupported, or an error of `find`: a remote unloads its models itself."""
        self._served().model_there(name)
        raise NotSupported(f"{self.name} unloads its models itself", served_by=self.name)

    async def ask(self, name: str, query: TextQuery) -> QueryAnswer:
        """Raise NotSupported, or an error of `find`: a query's text does not leave this machine."""
        del query
        self._served().model_there(name)
        raise NotSupported(f"{self.name} answers no questions about text; use a local model", served_by=self.name)

    def status(self) -> RemoteStatus:
        """Return the remote's current status, with its endpoints."""
        now_s = self._clock()
        endpoints = tuple(endpoint.status(now_s) for endpoint in self._cluster.endpoints)
        return RemoteStatus(self.remote.name, self._cluster.obstacle()[1], len(self._live), endpoints)

    def estimate(self, request: GenerateRequest) -> Estimate:
        """Return an estimate for a request. This may renew connections after a change of network.

        Raise ModelNotFound for a model the remote does not serve, or RemoteUnavailable if the TLS files cannot be used.
        """
        cluster = self._served()
        model = cluster.model_there(request.model)
        cluster.renew_if_network_changed()
        now_s = self._clock()
        num_tokens = num_prompt_tokens(request)
        wait_s = cluster.seconds_until_next()
        obstacle, trouble = self._obstacle_of(request, num_tokens)
        return Estimate(
            self.name,
            num_live=len(self._live),
            is_full=len(self._live) >= self.remote.limits.max_concurrent,
            retry_after_s=max(_LASTING_RETRY_S if trouble else _RETRY_AFTER_S, wait_s),
            obstacle=obstacle,
            trouble=trouble,
            first_token_s=cluster.first_token_s(model, num_tokens),
            token_s=cluster.token_s(),
            is_last_resort=obstacle == UNREACHABLE
            and any(each.breaker.accepts_last_resort(now_s) for each in cluster.endpoints),
        )

    def cancel(self, request_id: str) -> None:
        """Cancel a request; its sink still gets a Finished(cancelled)."""
        if (run := self._live.get(request_id)) is not None:
            run.end()

    async def generate(
        self, request: GenerateRequest, sink: Sink, permit: Permit | None = None, so_far: AnswerSoFar | None = None
    ) -> None:
        """Run a request; see the contract in backends.base.Backend.

        Raise Forbidden, and send nothing, if `permit` is None or does not cover this request.
        """
        if permit is None:
            raise Forbidden(f"there is no permit to send this to remote {self.remote.name!r}", served_by=self.name)
        check_permit(permit, self.remote.name, Call("", b"", request_id=request.id))
        run = self._accept(request, permit, so_far)
        self._live[request.id] = run
        try:
            await run.run(sink)
        finally:
            del self._live[request.id]
            self._used_s = self._clock()

    def _accept(self, request: GenerateRequest, permit: Permit, so_far: AnswerSoFar | None) -> Run:
        cluster = self._served()
        cluster.renew_if_network_changed()
        kind, trouble = cluster.obstacle()
        if kind:
            raise RemoteUnavailable(f"{self.name}: {trouble}", served_by=self.name)
        if lacking := self._lacking(request):
            raise NotSupported(f"{self.name} takes no {lacking}", served_by=self.name)
        if len(self._live) >= self.remote.limits.max_concurrent:
            reason = f"{len(self._live)} requests are running at {self.name}"
            raise Overloaded.full_queue(reason, retry_after_s=_RETRY_AFTER_S, served_by=self.name)
        taken = taken_by_remote(images=self.remote.images, audio=self.remote.audio)
        return Run(cluster, readable(request, taken)[0], permit, so_far)

    def _lacking(self, request: GenerateRequest) -> str:
        return missing_at_remote(request, images=self.remote.images, audio=self.remote.audio)

    def _served(self) -> Cluster:
        """Return the cluster; raise RemoteUnavailable if the TLS files cannot be used."""
        if self._cluster.trouble:
            raise RemoteUnavailable(f"{self.name}: {self._cluster.trouble}", served_by=self.name)
        return self._cluster

    def _obstacle_of(self, request: GenerateRequest, num_tokens: int) -> tuple[str, str]:
        """Return the values of `Estimate.obstacle` and `Estimate.trouble` for a request."""
        cluster, now_s = self._cluster, self._clock()
        kind, trouble = cluster.obstacle()
        if kind:
            return kind, trouble
        takes_tokens = any(endpoint.dialect.takes_token_prompts for endpoint in cluster.endpoints)
        if unsupported(request) or (isinstance(request.prompt, TokenPrompt) and not takes_tokens):
            return "unsupported", ""
        if lacking := self._lacking(request):
            return MEDIA, f"it is not known to read {lacking} (edgeagent remote add {self.remote.name} ... --{lacking})"
        if not cluster.fits(cluster.model_there(request.model), num_tokens):
            return CONTEXT, ""
        if why := self._ledger.why_blocked(self.remote.name, request.client, num_tokens, request.max_tokens or 0):
            return "budget", why
        if any(endpoint.breaker.accepts_requests(now_s) for endpoint in cluster.endpoints):
            return "", ""
        is_paused = any(endpoint.breaker.state(now_s) == "closed" for endpoint in cluster.endpoints)
        return ("backing_off" if is_paused else UNREACHABLE), ""
