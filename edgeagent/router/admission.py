"""Whether a request is accepted now, and on which route. Pure and bounded: a full queue refuses at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgeagent.backends.base import Estimate
from edgeagent.router.policy import Route


@dataclass(frozen=True, slots=True)
class Admitted:
    """Accept on this route."""

    route: Route


@dataclass(frozen=True, slots=True)
class Refused:
    """Refuse; retry after `retry_after_s`."""

    retry_after_s: float
    num_live: int


def admit(routes: Sequence[Route], estimates: Sequence[Estimate]) -> Admitted | Refused:
    """Return the first route whose backend has room, or a refusal. There must be a route."""
    by_name = {estimate.backend: estimate for estimate in estimates}
    candidates = [by_name[route.backend] for route in routes]
    for route, estimate in zip(routes, candidates, strict=True):
        if estimate.num_live < estimate.max_live:
            return Admitted(route)
    return Refused(
        retry_after_s=min(estimate.retry_after_s for estimate in candidates),
        num_live=sum(estimate.num_live for estimate in candidates),
    )
