"""Chooses where a request runs now, from the backends' estimates and the policy's order.

Nothing here awaits. The only state is the backend of each conversation, on which the conversation stays if it can.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping

from edgeagent import metrics
from edgeagent.backends.base import CONTEXT, MEDIA, Backend, Estimate
from edgeagent.backends.media import kinds, words
from edgeagent.backends.prompts import conversation_of, num_prompt_tokens
from edgeagent.errors import (
    BackendUnavailable,
    ContextLengthExceeded,
    DeadlineUnreachable,
    EdgeAgentError,
    Forbidden,
    ModelNotFound,
    NotSupported,
    Overloaded,
    TokenBudgetExceeded,
)
from edgeagent.router.policy import (
    NOTHING_LEFT_OUT,
    TARGETS,
    Order,
    Route,
    Targets,
    choose_routes,
    is_over_budget,
    is_sooner,
    misses,
    patience_s,
    strictest,
    target_of,
)
from edgeagent.router.remote_backends import RemoteBackends
from edgeagent.types import GenerateRequest, RouteMode, Target, is_remote

_MAX_CONVERSATIONS = 4096


class Conversations:
    """The backends of the most recent conversations."""

    def __init__(self, max_conversations: int = _MAX_CONVERSATIONS) -> None:
        self._max = max_conversations
        self._backends: OrderedDict[tuple[str, str], str] = OrderedDict()

    def find(self, request: GenerateRequest) -> str | None:
        """Return the backend that a request's conversation ran on last; None if it is unknown."""
        return self._backends.get(conversation_of(request))

    def note(self, request: GenerateRequest, backend: str) -> None:
        """Record that a request's conversation runs on a backend."""
        key = conversation_of(request)
        self._backends[key] = backend
        self._backends.move_to_end(key)
        while len(self._backends) > self._max:
            self._backends.popitem(last=False)


class RouteChooser:
    """Chooses backends for requests. It reads the machine's mode again for each decision."""

    def __init__(
        self,
        backends: Mapping[str, Backend],
        machine_mode: Callable[[], RouteMode],
        remotes: RemoteBackends | None = None,
        why_local: Callable[[], str] = lambda: "",
        targets: Targets = TARGETS,
    ) -> None:
        """`why_local` returns why the machine's policy keeps all requests on this machine, or "" if it does not."""
        self.backends = backends
        self._remotes = remotes
        self.conversations = Conversations()
        self.is_stopping = False
        self._machine_mode = machine_mode
        self.why_local = why_local
        self._targets = targets

    def target(self, request: GenerateRequest) -> Target:
        return target_of(request, self._targets)

    def mode(self, request: GenerateRequest) -> RouteMode:
        """Return the mode that applies to a request: the strictest of the machine's, its token's and its own.

        With PREFER_REMOTE, a request for remotes alone gets what it asks for, since nothing more leaves the machine.
        """
        mode = strictest(self._machine_mode(), request.route) or RouteMode.LOCAL_ONLY
        is_for_remotes = request.asked_route is RouteMode.REMOTE_ONLY
        return RouteMode.REMOTE_ONLY if is_for_remotes and mode is RouteMode.PREFER_REMOTE else mode

    def overruled(self, request: GenerateRequest) -> str:
        """Return which stricter mode applies instead of the one that a request asks for; empty if its own applies."""
        asked, mode = request.asked_route, self.mode(request)
        if asked is None or asked is mode:
            return ""
        return f"the request asked for {asked.value}, and the stricter mode {mode.value} applies to it"

    def is_kept_here(self, request: GenerateRequest) -> bool:
        """Whether a request must stay on this machine although the owner has remotes.

        Remotes that the machine's policy forbids count as well.
        """
        is_local_only = self.mode(request) is RouteMode.LOCAL_ONLY
        return is_local_only and (any(map(is_remote, self.backends)) or bool(self.why_local()))

    def note(self, request: GenerateRequest, route: Route, reason: str, first_token_s: float) -> None:
        """Record that an answer has begun on a route after `first_token_s` seconds.

        `reason` is the reason that was sent to the client.
        """
        if len(self.backends) > 1:
            self.conversations.note(request, route.backend)
        metrics.placements_total.labels(route.backend, reason).inc()
        if route.expected_s is not None:
            metrics.prediction_error_seconds.labels(route.backend).observe(abs(first_token_s - route.expected_s))

    def choose(self, request: GenerateRequest, left_out: Mapping[str, str] = NOTHING_LEFT_OUT) -> Order:
        """Return the routes that a request may take, without the backends in `left_out` (see `choose_routes`).

        Raise the error for the client if there is no route, or if the first route's backend is full. A request for
        remotes alone never gets the route on this machine: if its mode sends it there, it is refused.
        """
        began_s = time.perf_counter()
        try:
            return self._choose(request, left_out)
        finally:
            metrics.placement_seconds.observe(time.perf_counter() - began_s)

    def _choose(self, request: GenerateRequest, left_out: Mapping[str, str]) -> Order:
        if self._remotes is not None:
            self._remotes.refresh()
        mode = self.mode(request)
        estimates, unknown = self._estimates(request, mode, left_out)
        # Without a choice, a long conversation's digest would be made for nothing.
        placed = self.conversations.find(request) if len(estimates) > 1 else None
        known = list(estimates.values())
        order = choose_routes(request, mode, known, placed, left_out=left_out, targets=self._targets)
        self._prepare(order, estimates)
        if request.asked_route is RouteMode.REMOTE_ONLY:
            if mode is RouteMode.LOCAL_ONLY or (order.routes and order.routes[0].reason == RouteMode.PREFER_LOCAL):
                raise self._not_elsewhere(request, mode)
            order = Order(tuple(route for route in order.routes if not route.is_local))
            estimates = {name: estimate for name, estimate in estimates.items() if not estimate.is_local}
            mode = RouteMode.REMOTE_ONLY
        if not order.routes:
            raise _no_route(request, mode, estimates, unknown, is_alone=not self.backends)
        first = estimates[order.routes[0].backend]
        if first.is_full:
            raise _full(estimates)
        return order

    def _not_elsewhere(self, request: GenerateRequest, mode: RouteMode) -> Forbidden:
        """Return the error of a request for remotes alone that a stricter mode keeps on this machine."""
        if request.choices:
            why = "choices are computed on this machine alone"
        elif self._machine_mode() is not mode:
            why = f"its token, its conversation or the edgeagents that forwarded it allow {mode.value} at most"
        else:
            why = f"this machine's mode is {mode.value}" + (f", as {self.why_local()}" if self.why_local() else "")
        if mode is RouteMode.PREFER_LOCAL:
            why += ", and this machine can serve it"
        return Forbidden(
            f"the request asks for remote_only, but {why}; it was not computed here. Ask for another route",
            param="edgeagent.route",
        )

    def _prepare(self, order: Order, estimates: Mapping[str, Estimate]) -> None:
        """Probe the remotes: now and then if this machine serves the request well, and often otherwise."""
        if self._remotes is None:
            return
        is_served_well = bool(order.routes) and order.routes[0].reason == RouteMode.PREFER_LOCAL
        prepare = self._remotes.stand_by if is_served_well else self._remotes.warm
        for estimate in estimates.values():
            if not estimate.is_local:
                prepare(estimate.backend)

    def after_loss(self, request: GenerateRequest, route: Route, left_out: Mapping[str, str]) -> Order:
        """Return the routes on which a dead worker's answer would continue sooner than on the worker's replacement.

        `route` is the dead worker's route. If there are no such routes, the order has only the time for which to wait
        for the replacement.
        """
        mode = self.mode(request)
        estimates, _ = self._estimates(request, mode, left_out)
        local = estimates.pop(route.backend, None)
        if local is None:
            return Order(())
        gone = {**left_out, route.backend: "worker_lost"}
        order = choose_routes(request, mode, list(estimates.values()), left_out=gone, targets=self._targets)
        routes = tuple(each for each in order.routes if is_sooner(estimates[each.backend], local))
        return Order(routes, None if routes else patience_s(local, self.target(request)))

    def can_take_over(self, request: GenerateRequest, left_out: Mapping[str, str]) -> bool:
        """Whether a remote can serve a request now whose backend is late. `left_out` includes this backend.

        Remotes that are only a last resort do not count: the late backend is one too, and has already begun.
        """
        mode = self.mode(request)
        estimates, _ = self._estimates(request, mode, left_out)
        able = [estimate for estimate in estimates.values() if not estimate.obstacle]
        return bool(choose_routes(request, mode, able, left_out=left_out, targets=self._targets).routes)

    def _estimates(
        self, request: GenerateRequest, mode: RouteMode, left_out: Mapping[str, str]
    ) -> tuple[dict[str, Estimate], EdgeAgentError | None]:
        """Return the estimates of the backends that know the model, by name, and one error of the other backends.

        The error is the first BackendUnavailable, or else the first ModelNotFound; None if there is no error. Backends
        in `left_out`, and backends that the mode excludes, are not asked.
        """
        estimates: dict[str, Estimate] = {}
        unknown: ModelNotFound | None = None
        unusable: BackendUnavailable | None = None
        for name, backend in self.backends.items():
            barred_by = RouteMode.LOCAL_ONLY if is_remote(name) else RouteMode.REMOTE_ONLY
            if name in left_out or mode is barred_by:
                continue
            try:
                estimates[name] = backend.estimate(request)
            except ModelNotFound as error:
                unknown = unknown or error
            except BackendUnavailable as error:
                unusable = unusable or error
        return estimates, unusable or unknown


def _no_route(
    request: GenerateRequest,
    mode: RouteMode,
    estimates: Mapping[str, Estimate],
    unknown: EdgeAgentError | None,
    *,
    is_alone: bool,
) -> EdgeAgentError:
    """Return the error for a client whose request has no route. `is_alone`: the daemon has no backend at all."""
    if is_alone:
        return BackendUnavailable(
            "the daemon has no model of its own and no remote; start it with a model (`edgeagent serve MODEL`), "
            "or add a remote (`edgeagent remote add`)"
        )
    if not estimates and unknown is not None:
        return unknown
    if is_over_budget(request):
        return TokenBudgetExceeded(
            f"the prompt has about {num_prompt_tokens(request)} tokens and may have {request.longest_prompt} "
            "(max_prompt_tokens): shorten it",
            param="input",
        )
    limit_s = request.latest_first_token_s
    late = [estimate.first_token_s for estimate in estimates.values() if misses(estimate, limit_s)]
    if limit_s is not None and late and len(late) == len(estimates):
        return DeadlineUnreachable.predicted(min(each for each in late if each is not None), limit_s)
    if any(estimate.is_full for estimate in estimates.values()):
        return _full(estimates)
    if estimates and all(estimate.obstacle == CONTEXT for estimate in estimates.values()):
        return ContextLengthExceeded(f"the prompt does not fit the context of any remote that serves {request.model!r}")
    if estimates and all(estimate.obstacle == MEDIA for estimate in estimates.values()):
        what = words(kinds(request))
        known = "; ".join(f"{name}: {each.trouble}" for name, each in estimates.items() if each.trouble)
        return NotSupported(f"no backend reads {what} for model {request.model!r}" + (known and f" ({known})"))
    if mode is RouteMode.LOCAL_ONLY:
        return BackendUnavailable("the daemon has no model of its own, and the request is local only")
    obstacles = ", ".join(f"{name}: {each.trouble or each.obstacle}" for name, each in estimates.items())
    none = "there is no remote" if mode is RouteMode.REMOTE_ONLY else "there is none"
    return BackendUnavailable(
        f"no backend can serve model {request.model!r} now ({obstacles or none})",
        retry_after_s=min((estimate.retry_after_s for estimate in estimates.values()), default=None),
    )


def _full(estimates: Mapping[str, Estimate]) -> Overloaded:
    num_live = sum(estimate.num_live for estimate in estimates.values())
    retry_after_s = min(estimate.retry_after_s for estimate in estimates.values())
    return Overloaded.full_queue(f"{num_live} requests are running or waiting", retry_after_s=retry_after_s)
