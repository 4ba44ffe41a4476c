"""Adds facts about the caller to a request: the client's name, the route mode of its token, and the number of hops."""

from __future__ import annotations

from edgeagent.api.wire.request_id import MAX_HOPS, NUM_HOPS
from edgeagent.credentials.grants import GRANT
from edgeagent.router.modes import strictest
from edgeagent.types import GenerateRequest, RouteMode, replace


def with_caller(request: GenerateRequest) -> GenerateRequest:
    """Return a copy of a request with its client's name, its number of hops, and the strictest route mode that applies.

    A request with `prefill_only` runs on this machine, because it fills this machine's cache. A request that was
    forwarded MAX_HOPS times runs here too. Otherwise two edgeagents could forward it to each other without end.
    """
    grant, num_hops = GRANT.get(), NUM_HOPS.get()
    allowed = grant.client.route if grant is not None else None
    here = RouteMode.LOCAL_ONLY if request.prefill_only or num_hops >= MAX_HOPS else None
    route = strictest(allowed, here, request.route)
    return replace(request, route=route, client=request.cache.partition, num_hops=num_hops)
