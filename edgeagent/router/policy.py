"""Decides which backends may serve a request, in which order, and why. Pure: it sees estimates, never backends.

This is the one place that lets a request off the machine: it alone makes permits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from edgeagent.backends.base import Estimate
from edgeagent.config import RouterConfig
from edgeagent.types import GenerateRequest, Permit, ProbePermit, RouteMode, Tier

# A conversation returns to this machine once its estimates are below this part of the target.
_COMFORT = 0.5
# The assumed time of a remote that was never measured: about a round trip and a short prompt.
_UNKNOWN_FIRST_TOKEN_S = 0.5
# The assumed time of a local model that is not loaded yet, since loading takes long.
_UNLOADED_FIRST_TOKEN_S = 3.0
REMOTE_PREFIX = "remote:"
"""What the names of backends on other machines begin with."""
LOCAL_FAILED = "local_failed"
"""The reason of a request that leaves because this machine was tried for it first."""


@dataclass(frozen=True, slots=True)
class Target:
    """The latency that a tier asks for: seconds to the first token, and from one token to the next."""

    first_token_s: float
    token_s: float


Targets = Mapping[Tier, Target]


def targets_of(router: RouterConfig) -> Targets:
    """Return the targets of each tier."""
    return {
        Tier.REALTIME: Target(router.realtime_first_token_s, router.realtime_token_s),
        Tier.INTERACTIVE: Target(router.interactive_first_token_s, router.interactive_token_s),
        Tier.BATCH: Target(router.batch_first_token_s, router.batch_token_s),
    }


TARGETS = targets_of(RouterConfig())
"""The default targets."""


@dataclass(frozen=True, slots=True)
class Route:
    """A backend, the reason for its place in the order, and the permit to use it if it is not on this machine."""

    backend: str
    reason: str
    permit: Permit | None = None
    expected_s: float | None = None
    """The predicted time to the first token."""

    @property
    def is_local(self) -> bool:
        """Whether nothing leaves the machine."""
        return self.permit is None


@dataclass(frozen=True, slots=True)
class Order:
    """The routes that a request may take, best first; empty if nothing can serve it.

    `hedge_after_s`: start the second route as well if the first has given no token by then. `is_fallback_likely`: this
    machine is near its limits, so that the next remote should be ready.
    """

    routes: tuple[Route, ...]
    hedge_after_s: float | None = None
    is_fallback_likely: bool = False


def choose_routes(
    request: GenerateRequest,
    mode: RouteMode,
    estimates: Sequence[Estimate],
    placed: str | None = None,
    *,
    has_failed: bool = False,
    targets: Targets = TARGETS,
) -> Order:
    """Return where a request may run. `placed` is the backend that its conversation runs on.

    `has_failed`: this machine was tried for the request and failed, so that its estimate is left out.

    1. local_only: this machine, whatever is expected of it; its own error says what is wrong.
    2. remote_only: the remotes without obstacle, the quickest first.
    3. prefer_remote: as 2, then this machine.
    4. prefer_local, and this machine meets the tier's target: this machine, then the remotes as in 2. If this machine
       is near the target, a realtime request is hedged. A conversation on a remote returns to this machine once its
       estimates are half of the target.
    5. prefer_local otherwise: the remotes that meet the target, then all other places by predicted first token.
    Places that cannot serve the request are left out. This machine stays in if there is no other place. If no place can
    serve the request, remotes are tried whose obstacle may have gone.
    """
    target = targets[request.tier]
    here = [estimate for estimate in estimates if estimate.is_local]
    local = here[0] if here else None
    if mode is RouteMode.LOCAL_ONLY:  # 1
        return Order(tuple(Route(each.backend, "local_only", None, each.first_token_s) for each in here))
    remotes = sorted(
        _remotes(estimates, is_local_allowed=mode is not RouteMode.REMOTE_ONLY),
        key=lambda estimate: (estimate.backend != placed, _first_token_s(estimate)),
    )
    places = _Places(request, mode, here, remotes)
    if mode is RouteMode.REMOTE_ONLY:  # 2
        return Order(places.away(remotes, mode))
    if mode is RouteMode.PREFER_REMOTE:  # 3
        return Order(places.away(remotes, mode) + places.home("no_remote"))
    is_away = placed is not None and placed.startswith(REMOTE_PREFIX)
    if local is None:
        bound = LOCAL_FAILED if has_failed else "model_unknown"
        return places.target_first(target, bound, f"{bound}_everywhere")
    if bound := why_bound(local, target):
        return places.target_first(target, bound, f"{bound}_everywhere")
    if is_away and not _is_comfortable(local, target):
        return places.target_first(target, "conversation", "prefer_local")
    return places.local_first(local, target)


@dataclass(frozen=True, slots=True)
class _Places:
    """Where a request may run: on this machine, and on remotes, the quickest first."""

    request: GenerateRequest
    mode: RouteMode
    here: Sequence[Estimate]
    remotes: Sequence[Estimate]

    def away(self, chosen: Sequence[Estimate], reason: str) -> tuple[Route, ...]:
        """Return the routes to these remotes."""
        return tuple(_remote_route(self.request, self.mode, estimate, reason) for estimate in chosen)

    def home(self, reason: str) -> tuple[Route, ...]:
        """Return the route that stays on this machine; none if only a remote can serve the request."""
        able = [each for each in self.here if not self.remotes or not _obstacle(each)]
        return tuple(Route(each.backend, reason, None, each.first_token_s) for each in able)

    def local_first(self, local: Estimate, target: Target) -> Order:
        """Return case 4 of choose_routes."""
        routes = self.home("prefer_local") + self.away(self.remotes, LOCAL_FAILED)
        if len(routes) == 1:
            return Order(routes)
        is_near = not _is_comfortable(local, target)
        is_hedged = is_near and self.request.tier is Tier.REALTIME
        is_likely = is_near or 2 * local.num_live >= local.max_live
        return Order(routes, _COMFORT * target.first_token_s if is_hedged else None, is_likely)

    def target_first(self, target: Target, away_reason: str, home_reason: str) -> Order:
        """Return case 5 of choose_routes."""
        meeting = [estimate for estimate in self.remotes if not why_bound(estimate, target)]
        missing = [estimate for estimate in self.remotes if estimate not in meeting]
        rest = [(_first_token_s(each), self.home(home_reason)) for each in self.here]
        rest += [(_first_token_s(each), self.away([each], away_reason)) for each in missing]
        behind = [route for _, routes in sorted(rest, key=lambda pair: pair[0]) for route in routes]
        return Order(self.away(meeting, away_reason) + tuple(behind))


def probe_permit(remote: str, mode: RouteMode) -> ProbePermit | None:
    """Return permission to probe a remote; None if nothing may leave the machine."""
    return None if mode is RouteMode.LOCAL_ONLY else ProbePermit(remote, mode)


def why_bound(estimate: Estimate, target: Target) -> str:
    """Return, in one word, why a place does not meet a target; empty if it does, or if too little is known."""
    if obstacle := _obstacle(estimate):
        return obstacle
    if estimate.strain:
        return estimate.strain
    if estimate.first_token_s is not None and estimate.first_token_s > target.first_token_s:
        return "first_token"
    return "tokens" if estimate.token_s is not None and estimate.token_s > target.token_s else ""


def is_sooner(remote: Estimate, local: Estimate) -> bool:
    """Whether an answer whose worker died continues sooner on a remote than on the next worker."""
    if _obstacle(remote):
        return False
    return _obstacle(local) != "" or local.first_token_s is None or _first_token_s(remote) < local.first_token_s


def _remotes(estimates: Sequence[Estimate], *, is_local_allowed: bool) -> list[Estimate]:
    """Return the remotes that can serve a request. If no place can, return the remotes that may be tried."""
    away = [estimate for estimate in estimates if not estimate.is_local]
    able = [estimate for estimate in away if not _obstacle(estimate)]
    if able or (is_local_allowed and any(each.is_local and not _obstacle(each) for each in estimates)):
        return able
    return [estimate for estimate in away if estimate.may_be_tried and estimate.num_live < estimate.max_live]


def _obstacle(estimate: Estimate) -> str:
    return estimate.obstacle or ("queue_full" if estimate.num_live >= estimate.max_live else "")


def _first_token_s(estimate: Estimate) -> float:
    if estimate.first_token_s is not None:
        return estimate.first_token_s
    return _UNLOADED_FIRST_TOKEN_S if estimate.is_local else _UNKNOWN_FIRST_TOKEN_S


def _is_comfortable(local: Estimate, target: Target) -> bool:
    eased = Target(_COMFORT * target.first_token_s, _COMFORT * target.token_s)
    return local.first_token_s is not None and not why_bound(local, eased)


def _remote_route(request: GenerateRequest, mode: RouteMode, estimate: Estimate, reason: str) -> Route:
    name = estimate.backend.removeprefix(REMOTE_PREFIX)
    return Route(
        estimate.backend, reason, Permit(request.id, name, mode, reason, request.client), estimate.first_token_s
    )
