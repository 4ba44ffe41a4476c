"""The routing policy: which backends may serve a request, in which order, and why.

Its functions are pure: they see estimates, never backends. A client's request leaves the machine only with a permit,
and only this module creates such permits. The owner's test of a remote creates its own permits, in `checkup`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from edgeagent.backends.base import Estimate
from edgeagent.backends.prompts import num_prompt_tokens
from edgeagent.config import Config, TierConfig
from edgeagent.types import (
    TIER_RANKS,
    GenerateRequest,
    Permit,
    ProbePermit,
    RouteMode,
    Target,
    Tier,
    is_remote,
    remote_of,
    replace,
)

if TYPE_CHECKING:
    from edgeagent.remotes import Remote

# In the order of declaration: the strictest first.
_RANKS = {mode: rank for rank, mode in enumerate(RouteMode)}


def strictest(*modes: RouteMode | None) -> RouteMode | None:
    """Return the strictest of several modes. None means no restriction; return None if all modes are None."""
    return min((mode for mode in modes if mode is not None), key=_RANKS.__getitem__, default=None)


def machine_mode(config: Config, remotes: Sequence[Remote], policy: RouteMode | None) -> RouteMode:
    """Return the stricter of the option `route` and the policy's mode; LOCAL_ONLY if there is no usable remote.

    `remotes` are the usable remotes. `policy` is the mode that the machine's policy sets; None if it sets none.
    """
    if not remotes:
        return RouteMode.LOCAL_ONLY
    option = RouteMode.PREFER_LOCAL if config.route == "auto" else RouteMode(config.route)
    return strictest(option, policy) or RouteMode.LOCAL_ONLY


# This machine is not close to missing a target if its estimates are at most this part of it (see choose_routes).
_COMFORT = 0.5
# The assumed time to the first token of a remote that was never measured: about a round trip and a short prompt.
_UNKNOWN_FIRST_TOKEN_S = 0.5
# How often its predicted time this machine may take to give content before a remote is asked instead.
_PATIENCE = 2.0
# The assumed time to the first token of a local model that is not loaded yet, since loading takes long.
_UNLOADED_FIRST_TOKEN_S = 3.0
LOCAL_LATE = "local_late"
"""The reason of a route to a remote that is taken because this machine gave no content in time."""


Targets = Mapping[Tier, Target]
_DEFAULT_TARGETS = {
    # A spoken answer must begin within half a second, and go on faster than it is spoken.
    Tier.REALTIME: Target(first_token_s=0.5, token_s=0.1),
    Tier.INTERACTIVE: Target(first_token_s=3.0, token_s=0.2),
    # No person waits for the answer to a batch request. It leaves this machine only if this machine is far too slow.
    Tier.BATCH: Target(first_token_s=120.0, token_s=5.0),
}
NOTHING_LEFT_OUT: Mapping[str, str] = MappingProxyType({})


def targets_of(config: Config) -> Targets:
    """Return the latency target of each tier: what the configuration sets, and the defaults."""
    targets = {}
    for tier, target in _DEFAULT_TARGETS.items():
        own = config.tier(tier.value)
        targets[tier] = Target(own.first_token_s or target.first_token_s, own.token_s or target.token_s)
    return targets


TARGETS = targets_of(Config())
"""The latency targets of the default configuration."""


def target_of(request: GenerateRequest, targets: Targets) -> Target:
    """Return a request's latency target: its own where it asks for one, else that of its tier.

    The first token of an answer that has a deadline is due by then.
    """
    own, of_tier = request.need, targets[request.tier]
    first_token_s = of_tier.first_token_s if own.first_token_s is None else own.first_token_s
    return Target(
        first_token_s if request.timeout_s is None else min(first_token_s, request.timeout_s),
        of_tier.token_s if own.token_s is None else own.token_s,
    )


def lowered(request: GenerateRequest, ceiling: Tier | None, targets: Targets, why: str) -> GenerateRequest:
    """Return a request whose tier is at most `ceiling` (None: as it is).

    The request may not ask for a shorter time between tokens than the target of `ceiling`: that would shorten all
    steps. A warning says `why` it gets less than it asks for. A request that names no tier asks for none.
    """
    if ceiling is None:
        return request
    need, warnings = request.need, request.warnings
    if TIER_RANKS[request.tier] < TIER_RANKS[ceiling]:
        if need.names_tier:
            warnings += (f"the tier is {ceiling.value} instead of {request.tier.value}: {why}",)
        request = replace(request, tier=ceiling)
    if need.token_s is not None and need.token_s < (token_s := targets[ceiling].token_s):
        warnings += (f"itl_ms is {1000 * token_s:g} instead of {1000 * need.token_s:g}: {why}",)
        need = replace(need, token_s=token_s)
    return replace(request, need=need, warnings=warnings)


def within_budget(request: GenerateRequest, own: TierConfig) -> GenerateRequest:
    """Return a request with the token budgets of its tier, whose options are `own`.

    A warning says if its answer may be shorter than it asks for. The worker, which counts the tokens of the prompt,
    refuses or shortens one over the budget. No remote gets one.
    """
    limit, warnings = request.max_tokens, request.warnings
    most = None if request.prefill_only else own.max_output_tokens
    if most is not None and (limit is None or limit > most):
        limit = most
        warnings += (f"the answer has at most {most} tokens: max_output_tokens of the tier {request.tier.value}",)
    return replace(request, max_tokens=limit, max_prompt_tokens=own.max_prompt_tokens, warnings=warnings)


@dataclass(frozen=True, slots=True)
class Route:
    """A backend that a request may use, the reason for the choice, and the permit if the backend is a remote."""

    backend: str
    reason: str
    permit: Permit | None = None
    expected_s: float | None = None
    """The predicted time to the first token, in seconds; None if unknown."""

    @property
    def is_local(self) -> bool:
        return not is_remote(self.backend)


@dataclass(frozen=True, slots=True)
class Order:
    """The routes that a request may take, best first; empty if there is no backend to try.

    `patience_s`: take the next route if the first gives no content in this time. None means to wait for as long as it
    takes.
    """

    routes: tuple[Route, ...]
    patience_s: float | None = None


def choose_routes(
    request: GenerateRequest,
    mode: RouteMode,
    estimates: Sequence[Estimate],
    placed: str | None = None,
    *,
    left_out: Mapping[str, str] = NOTHING_LEFT_OUT,
    targets: Targets = TARGETS,
) -> Order:
    """Return the routes that a request may take, best first.

    `placed` is the backend that the request's conversation ran on last. `left_out` says why backends that were tried
    are not among the estimates: LOCAL_LATE, or any other word for a failure.

    1. local_only: this machine, whatever its estimate. Its own error says what is wrong.
    2. remote_only: the remotes. The one that the conversation ran on last comes first, then the fastest.
    3. prefer_remote: as 2, then this machine.
    4. prefer_local, and this machine meets the tier's target: this machine, then the remotes as in 2. A conversation on
       a remote returns to this machine only when this machine's estimates are at most half of the target.
    5. prefer_local otherwise: the remotes that meet the target, then all others by predicted time to the first token.

    In cases 4 and 5, a remote takes over if this machine comes first and exceeds its patience (see `patience_s`).
    In cases 2 to 5, backends that cannot serve the request are left out. If that leaves no backend, the remotes whose
    obstacle may be gone are tried. If there is no such remote, this machine is tried, except in case 2.

    Remotes that are predicted to miss the request's own limit of the first token are left out too, and all remotes if
    the prompt is over its budget. This machine refuses such a request itself.
    """
    limit_s, is_over = request.latest_first_token_s, is_over_budget(request)
    estimates = [each for each in estimates if each.is_local or not (is_over or misses(each, limit_s))]
    target = target_of(request, targets)
    here = [estimate for estimate in estimates if estimate.is_local]
    local = here[0] if here else None
    if mode is RouteMode.LOCAL_ONLY:  # 1
        return Order(tuple(Route(each.backend, "local_only", None, each.first_token_s) for each in here))
    remotes = sorted(
        _remotes(estimates, is_local_allowed=mode is not RouteMode.REMOTE_ONLY),
        key=lambda estimate: (estimate.backend != placed, _first_token_s(estimate)),
    )
    places = _Places(request, mode, here, remotes, _why_no_remote(estimates, left_out))
    if mode is RouteMode.REMOTE_ONLY:  # 2
        return Order(places.remote_routes(remotes, mode))
    if mode is RouteMode.PREFER_REMOTE:  # 3
        return Order(places.remote_routes(remotes, mode) + places.local_routes(places.why_no_remote or "no_remote"))
    is_placed_remotely = placed is not None and is_remote(placed)
    if local is None:
        gone = next((why for name, why in left_out.items() if not is_remote(name)), "")
        why = (LOCAL_LATE if gone == LOCAL_LATE else "local_failed") if gone else "model_unknown"
        return places.target_first(target, why, f"{why}_everywhere")
    if why := why_target_missed(local, target):
        return places.target_first(target, why, f"{why}_everywhere")
    if is_placed_remotely and not _is_comfortable(local, target):
        return places.target_first(target, "conversation", "prefer_local")
    return places.local_first(local, target)


@dataclass(frozen=True, slots=True)
class _Places:
    """The estimates of the backends that a request may use: this machine, and remotes in order of preference."""

    request: GenerateRequest
    mode: RouteMode
    here: Sequence[Estimate]
    remotes: Sequence[Estimate]
    why_no_remote: str

    def remote_routes(self, chosen: Sequence[Estimate], reason: str) -> tuple[Route, ...]:
        return tuple(_remote_route(self.request, self.mode, estimate, reason) for estimate in chosen)

    def local_routes(self, reason: str) -> tuple[Route, ...]:
        """Return the route on this machine; () if this machine cannot serve the request and a remote may."""
        able = [each for each in self.here if not self.remotes or not _obstacle(each)]
        return tuple(Route(each.backend, reason, None, each.first_token_s) for each in able)

    def local_first(self, local: Estimate, target: Target) -> Order:
        """Return the order of case 4 in choose_routes."""
        reason = "prefer_local" if self.why_no_remote != "remote_failed" else self.why_no_remote
        routes = self.local_routes(reason) + self.remote_routes(self.remotes, "local_failed")
        return Order(routes, patience_s(local, target) if len(routes) > 1 else None)

    def target_first(self, target: Target, remote_reason: str, local_reason: str) -> Order:
        """Return the order of case 5 in choose_routes."""
        meeting = [estimate for estimate in self.remotes if not why_target_missed(estimate, target)]
        missing = [estimate for estimate in self.remotes if estimate not in meeting]
        rest = [(_first_token_s(each), self.local_routes(local_reason)) for each in self.here]
        rest += [(_first_token_s(each), self.remote_routes([each], remote_reason)) for each in missing]
        behind = [route for _, routes in sorted(rest, key=lambda pair: pair[0]) for route in routes]
        routes = self.remote_routes(meeting, remote_reason) + tuple(behind)
        if len(routes) > 1 and routes[0].is_local:
            return Order(routes, patience_s(self.here[0], target))
        return Order(routes)


def probe_permit(remote: str, mode: RouteMode) -> ProbePermit | None:
    """Return the permit to probe a remote; None if nothing may leave the machine."""
    return None if mode is RouteMode.LOCAL_ONLY else ProbePermit(remote, mode)


def why_target_missed(estimate: Estimate, target: Target) -> str:
    """Return one word for why a backend misses a target; empty if it meets it. An unknown time counts as met."""
    if obstacle := _obstacle(estimate):
        return obstacle
    if estimate.strain:
        return estimate.strain
    if misses(estimate, target.first_token_s):
        return "first_token"
    return "tokens" if estimate.token_s is not None and estimate.token_s / estimate.doubt > target.token_s else ""


def is_over_budget(request: GenerateRequest) -> bool:
    """Whether a prompt has more tokens, by an estimate, than its tier or the request allows."""
    most = request.longest_prompt
    return most is not None and num_prompt_tokens(request) > most


def misses(estimate: Estimate, limit_s: float | None) -> bool:
    """Whether a backend's first token is predicted to come after a limit. An unknown time and no limit are met."""
    if limit_s is None or estimate.first_token_s is None:
        return False
    return estimate.first_token_s / estimate.doubt > limit_s


def patience_s(local: Estimate, target: Target) -> float:
    """Return how long this machine may take to give content before a remote is asked instead.

    This is the target, or twice the predicted time if that is longer: then the prediction, by which this machine was
    chosen, was wrong.
    """
    return max(target.first_token_s, _PATIENCE * _first_token_s(local))


def is_sooner(remote: Estimate, local: Estimate) -> bool:
    """Whether a remote would continue the answer of a dead worker sooner than the restarted worker would.

    A remote that can serve the request also counts as sooner if the worker's time is unknown, or if the worker cannot
    serve the request.
    """
    if _obstacle(remote):
        return False
    return _obstacle(local) != "" or local.first_token_s is None or _first_token_s(remote) < local.first_token_s


def _why_no_remote(estimates: Sequence[Estimate], left_out: Mapping[str, str]) -> str:
    """Return why a request that runs here does not run on a remote; empty if there is none, or one can serve it."""
    if any(map(is_remote, left_out)):
        return "remote_failed"
    remotes = [estimate for estimate in estimates if not estimate.is_local]
    return "remote_unusable" if remotes and all(map(_obstacle, remotes)) else ""


def _remotes(estimates: Sequence[Estimate], *, is_local_allowed: bool) -> list[Estimate]:
    """Return the remotes that can serve a request. If no allowed backend can, return those to try as a last resort."""
    remotes = [estimate for estimate in estimates if not estimate.is_local]
    able = [estimate for estimate in remotes if not _obstacle(estimate)]
    if able or (is_local_allowed and any(each.is_local and not _obstacle(each) for each in estimates)):
        return able
    return [estimate for estimate in remotes if estimate.is_last_resort and not estimate.is_full]


def _obstacle(estimate: Estimate) -> str:
    return estimate.obstacle or ("queue_full" if estimate.is_full else "")


def _first_token_s(estimate: Estimate) -> float:
    if estimate.first_token_s is not None:
        return estimate.first_token_s
    return _UNLOADED_FIRST_TOKEN_S if estimate.is_local else _UNKNOWN_FIRST_TOKEN_S


def _is_comfortable(local: Estimate, target: Target) -> bool:
    eased = Target(_COMFORT * target.first_token_s, _COMFORT * target.token_s)
    return not why_target_missed(local, eased)


def _remote_route(request: GenerateRequest, mode: RouteMode, estimate: Estimate, reason: str) -> Route:
    permit = Permit(request.id, remote_of(estimate.backend), mode, reason, request.client)
    return Route(estimate.backend, reason, permit, estimate.first_token_s)
