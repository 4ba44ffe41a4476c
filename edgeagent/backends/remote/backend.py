"""The backend of one remote, as the router sees it.

It sends nothing without a permit and a usable key, or while a budget or the limit of running requests is used up.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import suppress
from typing import Any

from edgeagent.backends.base import CONTEXT, UNREACHABLE, Estimate
from edgeagent.backends.remote.access import FindKey
from edgeagent.backends.remote.bodies.chat import unsupported
from edgeagent.backends.remote.control import Cause
from edgeagent.backends.remote.endpoints.choose import LONG_PROMPT_TOKENS, score
from edgeagent.backends.remote.endpoints.cluster import Cluster, EgressRecorder, num_prompt_tokens
from edgeagent.backends.remote.endpoints.probe import Prober
from edgeagent.backends.remote.failures import COUNT_AGAINST_HEALTH, Failure
from edgeagent.backends.remote.run import Run
from edgeagent.backends.remote.transport import Call, check_permit
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
    Step,
    TextQuery,
    TokenPrompt,
    WorkerState,
)

_RETRY_AFTER_S = 1.0
# Some obstacles last until the owner changes a setting or the day's budget is renewed. Frequent retries do not help.
_LASTING_RETRY_S = 60.0
_PROBE_INTERVAL_S = 10.0
# While a breaker is open, the endpoints are probed more often: after a random delay, whose upper bound starts at
# _FIRST_DELAY_S and doubles up to _MAX_DELAY_S.
_FIRST_DELAY_S, _MAX_DELAY_S = 1.0, 5.0
# Probes stop this long after the last request, so that an idle daemon sends nothing.
_PROBED_AFTER_USE_S = 60.0
# Servers close idle connections after a few seconds (uvicorn: 5).
_WARM_INTERVAL_S = 4.0
_NUM_WARM = 4
_STAND_BY_INTERVAL_S = 60.0

logger = logging.getLogger(__name__)


class RemoteBackend:
    """The backend of one remote. `probes` returns a permit for probes, or None while nothing may leave this machine."""

    def __init__(
        self,
        remote: Remote,
        *,
        keys: FindKey,
        ledger: EgressRecorder,
        probes: Callable[[], ProbePermit | None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.remote = remote
        self.name = f"remote:{remote.name}"
        self._ledger = ledger
        self._probes = probes
        self._clock = clock
        self._chance = chance
        self._live: dict[str, Run] = {}
        self._used_s: float | None = None
        self._prober: asyncio.Task[None] | None = None
        self._warmed_s: float | None = None
        self._stood_by_s = -math.inf
        self._warming: set[asyncio.Task[None]] = set()
        self._cluster: Cluster | None = None
        self._trouble = ""
        try:
            self._cluster = Cluster(remote, keys, ledger, clock)
        except ConfigError as error:
            self._trouble = error.message

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
            run.control.end(Cause.WITHDRAWN, reason)
        probing = self._warming | ({self._prober} if self._prober is not None else set())
        for task in probing:
            task.cancel()
        if probing:
            await asyncio.wait(probing)
        if self._cluster is not None:
            await asyncio.gather(*(endpoint.transport.drop() for endpoint in self._cluster.endpoints))

    def forgive_key(self) -> None:
        """Allow a refused key to be sent again: the owner may have made it valid at the remote."""
        if self._cluster is not None:
            self._cluster.access.forgive()

    def check_network(self) -> None:
        """If requests are running, renew the connections if the network has changed.

        A new request makes this check itself.
        """
        if self._cluster is not None and self._live:
            self._cluster.renew_if_network_changed()

    def warm(self) -> None:
        """Open connections to the usable endpoints, and probe all, because requests are likely to follow.

        Send nothing if probes are not permitted, or if the key or the TLS files cannot be used. Return at once.
        Frequent calls are harmless.
        """
        self._note_use()
        now_s = self._clock()
        if self._cluster is None or (permit := self._probes()) is None or self._obstacle()[0]:
            return
        if self._warmed_s is None or now_s - self._warmed_s >= _WARM_INTERVAL_S:
            self._warmed_s = now_s
            for endpoint, prober in zip(self._cluster.endpoints, self._cluster.probers, strict=True):
                if endpoint.accepts_requests(now_s):
                    self._in_background(self._open_ahead(prober, permit))

    def stand_by(self) -> None:
        """Probe the endpoints once a minute, because a request that runs elsewhere may need them.

        So it is known which endpoints can be reached, and how soon they answer. Return at once.
        """
        now_s = self._clock()
        if self._cluster is None or self._prober is not None or now_s - self._stood_by_s < _STAND_BY_INTERVAL_S:
            return
        if (permit := self._probes()) is None or self._obstacle()[0]:
            return
        self._stood_by_s = now_s
        for index in range(len(self._cluster.endpoints)):
            self._in_background(self._probe(self._cluster, index, permit))

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._warming.add(task)
        task.add_done_callback(self._warming.discard)

    async def _open_ahead(self, prober: Prober, permit: ProbePermit) -> None:
        with suppress(RemoteUnavailable):  # it could not be recorded, so nothing was sent
            await prober.open_ahead(permit, _NUM_WARM)

    @property
    def models(self) -> RemoteBackend:
        """This backend itself: it knows which models the remote has."""
        return self

    def statuses(self) -> list[ModelStatus]:
        """Return the models under their local names: those that the owner configured, or else those the remote lists.

        While the key or the TLS files cannot be used, all models are FAILED, and `cause` says why.
        """
        names = list(self.remote.models)
        if self.remote.serves_any and self._cluster is not None:
            names = self._cluster.known_models()
        kind, trouble = self._obstacle()
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
        endpoints = self._cluster.endpoints if self._cluster is not None else []
        return RemoteStatus(
            self.remote.name,
            self._obstacle()[1],
            len(self._live),
            tuple(endpoint.status(now_s) for endpoint in endpoints),
        )

    def estimate(self, request: GenerateRequest) -> Estimate:
        """Return an estimate for a request. This may start probes, and renew connections after a change of network.

        Raise ModelNotFound for a model the remote does not serve, or RemoteUnavailable if the TLS files cannot be used.
        """
        cluster = self._served()
        model = cluster.model_there(request.model)
        cluster.renew_if_network_changed()
        now_s = self._clock()
        num_tokens = num_prompt_tokens(request)
        views = [endpoint.view(model, num_tokens, now_s) for endpoint in cluster.endpoints]
        is_long = num_tokens >= LONG_PROMPT_TOKENS
        known = [score(view, is_long=is_long) for view in views if view.is_usable and view.first_token_s is not None]
        rates = [rate for endpoint in cluster.endpoints if (rate := endpoint.averages.token_s(now_s)) is not None]
        wait_s = cluster.seconds_until_next()
        obstacle, trouble = self._obstacle_of(request, num_tokens, wait_s)
        return Estimate(
            self.name,
            is_local=False,
            num_live=len(self._live),
            max_live=self.remote.limits.max_concurrent,
            retry_after_s=max(_LASTING_RETRY_S if trouble else _RETRY_AFTER_S, wait_s),
            obstacle=obstacle,
            trouble=trouble,
            first_token_s=min(known, default=None),
            token_s=min(rates, default=None),
            is_last_resort=obstacle == UNREACHABLE
            and any(each.accepts_last_resort(now_s) for each in cluster.endpoints),
        )

    def cancel(self, request_id: str) -> None:
        """Cancel a request; its generator still yields Finished(cancelled)."""
        if (run := self._live.get(request_id)) is not None:
            run.control.end(Cause.CANCELLED)

    async def generate(
        self, request: GenerateRequest, permit: Permit | None = None, so_far: AnswerSoFar | None = None
    ) -> AsyncGenerator[Step, None]:
        """Run a request; see the contract in backends.base.Backend.

        Raise Forbidden, and send nothing, if `permit` is None or does not cover this request.
        """
        if permit is None:
            raise Forbidden(f"there is no permit to send this to remote {self.remote.name!r}", served_by=self.name)
        check_permit(permit, self.remote.name, Call("", b"", request_id=request.id))
        run = self._accept(request, permit, so_far)
        self._live[request.id] = run
        try:
            step = await run.begin()
            while True:
                yield step
                if run.is_over:
                    return
                step = await run.next()
        finally:
            del self._live[request.id]
            self._note_use()
            await run.close()

    def _accept(self, request: GenerateRequest, permit: Permit, so_far: AnswerSoFar | None) -> Run:
        cluster = self._served()
        cluster.renew_if_network_changed()
        kind, trouble = self._obstacle()
        if kind:
            raise RemoteUnavailable(f"{self.name}: {trouble}", served_by=self.name)
        if len(self._live) >= self.remote.limits.max_concurrent:
            reason = f"{len(self._live)} requests are running at {self.name}"
            raise Overloaded.full_queue(reason, retry_after_s=_RETRY_AFTER_S, served_by=self.name)
        return Run(cluster, request, permit, so_far)

    def _served(self) -> Cluster:
        if self._cluster is None:
            raise RemoteUnavailable(f"{self.name}: {self._trouble}", served_by=self.name)
        return self._cluster

    def _obstacle(self) -> tuple[str, str]:
        if self._cluster is None:
            return "unusable", self._trouble
        return self._cluster.access.obstacle(self._clock())

    def _obstacle_of(self, request: GenerateRequest, num_tokens: int, wait_s: float) -> tuple[str, str]:
        """Return the values of `Estimate.obstacle` and `Estimate.trouble` for a request."""
        kind, trouble = self._obstacle()
        if kind:
            return kind, trouble
        if unsupported(request) or self._is_prompt_unsupported(request):
            return "unsupported", ""
        if self._awaits_probe():
            return UNREACHABLE, ""
        cluster, now_s = self._served(), self._clock()
        if not cluster.fits(cluster.model_there(request.model), num_tokens):
            return CONTEXT, ""
        if why := self._ledger.why_blocked(self.remote.name, request.client, num_tokens, request.max_tokens or 0):
            return "budget", why
        if not wait_s:
            return "", ""
        is_open = all(endpoint.breaker.seconds_left(now_s) for endpoint in cluster.endpoints)
        return (UNREACHABLE if is_open else "backing_off"), ""

    def _awaits_probe(self) -> bool:
        """Whether requests wait for a probe, because every usable endpoint hung and has answered no probe since.

        If so, start probing. Return False if probes are not permitted: then only a request can show whether the
        endpoints answer again.
        """
        cluster, now_s = self._served(), self._clock()
        usable = [endpoint for endpoint in cluster.endpoints if endpoint.accepts_requests(now_s)]
        if not usable or not all(endpoint.breaker.wants_probe(now_s) for endpoint in usable):
            return False
        if self._probes() is None:
            return False
        self._note_use()
        return True

    def _is_prompt_unsupported(self, request: GenerateRequest) -> bool:
        """Whether the remote's protocol cannot express this kind of prompt."""
        endpoints = self._served().endpoints
        takes_tokens = any(endpoint.dialect.takes_token_prompts for endpoint in endpoints)
        return isinstance(request.prompt, TokenPrompt) and not takes_tokens

    def _note_use(self) -> None:
        """Note that the remote is in use. If probes are permitted, make sure that a task probes its endpoints.

        The task ends once the remote has been unused for _PROBED_AFTER_USE_S seconds, or may no longer be probed.
        """
        self._used_s = self._clock()
        if self._cluster is not None and self._probes() is not None and self._prober is None:
            self._prober = asyncio.get_running_loop().create_task(self._probe_while_used(self._cluster))
            self._prober.add_done_callback(self._forget_prober)

    def _forget_prober(self, task: asyncio.Task[None]) -> None:
        if self._prober is task:
            self._prober = None
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("probing %s ended: %s", self.name, type(error).__name__)

    async def _probe_while_used(self, cluster: Cluster) -> None:
        most_s = _FIRST_DELAY_S
        while self._used_s is not None and self._clock() - self._used_s <= _PROBED_AFTER_USE_S:
            if (permit := self._probes()) is None or self._obstacle()[0]:
                return
            cluster.renew_if_network_changed()
            await asyncio.gather(*(self._probe(cluster, index, permit) for index in range(len(cluster.endpoints))))
            if cluster.has_open_breaker or await cluster.wait_for_open_breaker(_PROBE_INTERVAL_S):
                # Full jitter: many machines may have seen the same failure, and should not all probe at the same time.
                await asyncio.sleep(self._chance() * most_s)
                most_s = min(2 * most_s, _MAX_DELAY_S)
            else:
                most_s = _FIRST_DELAY_S

    async def _probe(self, cluster: Cluster, index: int, permit: ProbePermit) -> None:
        endpoint, prober = cluster.endpoints[index], cluster.probers[index]
        try:
            headers = cluster.access.headers()
        except ConfigError:
            return
        try:
            await prober.check(permit, headers)
        except RemoteUnavailable:
            return  # the probe could not be recorded, so nothing was sent
        except Failure as failure:
            if failure.kind in COUNT_AGAINST_HEALTH:
                endpoint.breaker.note_down()
            cluster.note_failure(endpoint, failure, headers)
        else:
            endpoint.breaker.recover(self._clock())
