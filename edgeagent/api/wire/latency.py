"""What a request asks of edgeagent itself, on every wire: its latency in body and headers, its route, its caches."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from edgeagent.api.wire.body import Settings, validate
from edgeagent.api.wire.fields import EdgeagentBody, Milliseconds, answers_of, drafts_of, is_storable, route_of
from edgeagent.api.wire.request_id import OWN_HEADERS
from edgeagent.config import TierName
from edgeagent.errors import InvalidRequest
from edgeagent.types import CachePolicy, GenerateRequest, Need, Tier, replace


class LatencyHeaders(Settings):
    """The headers that say what the fields of `edgeagent` do, for bodies that have no room for these.

    On a WebSocket, those of the handshake hold for each `response.create`.
    """

    model_config = ConfigDict(strict=False)

    tier: Annotated[TierName | None, Field(alias="x-edgeagent-tier")] = None
    ttft_ms: Annotated[Milliseconds | None, Field(alias="x-edgeagent-ttft-ms")] = None
    itl_ms: Annotated[Milliseconds | None, Field(alias="x-edgeagent-itl-ms")] = None
    deadline_ms: Annotated[Milliseconds | None, Field(alias="x-edgeagent-deadline-ms")] = None


_OF_SERVICE_TIER = {
    "priority": Tier.REALTIME,
    "default": Tier.INTERACTIVE,
    "flex": Tier.BATCH,
    "batch": Tier.BATCH,
}
ServiceTier = Literal["priority", "default", "flex"]
_SERVICE_TIERS: dict[Tier, ServiceTier] = {
    Tier.REALTIME: "priority",
    Tier.INTERACTIVE: "default",
    Tier.BATCH: "flex",
}


def service_tier_of(tier: Tier) -> ServiceTier:
    """Return OpenAI's name of a tier, for the field `service_tier` of an answer."""
    return _SERVICE_TIERS[tier]


@dataclass(frozen=True, slots=True)
class Latency:
    """What a request asks of its latency; see GenerateRequest."""

    tier: Tier
    need: Need
    timeout_s: float | None


def asked_latency(service_tier: str | None, *bodies: EdgeagentBody | None) -> Latency:
    """Return what a request asks of its latency.

    `service_tier`: OpenAI's field. `bodies`: the field `edgeagent` of the body, then that of its `options`. The headers
    are those of the current request. Of several values for a time or a number, the smallest holds. Raise
    InvalidRequest if they name different tiers, or if a header is wrong.
    """
    given = OWN_HEADERS.get()
    headers = validate(LatencyHeaders, given) if given else None
    places: list[tuple[str, EdgeagentBody | LatencyHeaders | None]] = [("x-edgeagent-", headers)]
    places += zip(("edgeagent.", "options.edgeagent."), bodies, strict=False)
    named = {"service_tier": tier} if (tier := _OF_SERVICE_TIER.get(service_tier or "")) is not None else {}
    named |= {f"{place}tier": Tier(each.tier) for place, each in places if each is not None and each.tier is not None}
    if len(set(named.values())) > 1:
        said = " and ".join(f"{name} names the tier {tier.value}" for name, tier in named.items())
        raise InvalidRequest(f"{said}; send one of them", param=next(iter(named)))
    sent = [each for _, each in places if each is not None]
    need = Need(
        first_token_s=_least_s(each.ttft_ms for each in sent),
        token_s=_least_s(each.itl_ms for each in sent),
        max_prompt_tokens=min(
            (body.max_prompt_tokens for body in bodies if body and body.max_prompt_tokens), default=None
        ),
        names_tier=bool(named),
    )
    timeout_s = _least_s(each.deadline_ms for each in sent)
    return Latency(next(iter(named.values()), Tier.INTERACTIVE), need, timeout_s)


def with_own_fields(
    request: GenerateRequest,
    latency: Latency,
    *bodies: EdgeagentBody | None,
    partition: str,
    is_cached: bool = True,
    is_kept: bool = True,
) -> GenerateRequest:
    """Return a request with its latency, and with what its `edgeagent` fields and its client say.

    `partition`: the client's partition of the caches. `is_cached`: the caches may be used. `is_kept`: it may be stored,
    as far as its other fields say.
    """
    is_kept = is_kept and is_storable(*bodies)
    answers = answers_of(*bodies, is_kept=is_kept and is_cached)
    return replace(
        request,
        tier=latency.tier,
        timeout_s=latency.timeout_s,
        need=latency.need,
        cache=CachePolicy(is_cached, is_cached, partition, persist=is_kept, answers=answers),
        route=route_of(*bodies),
        draft_tokens=drafts_of(*bodies),
    )


def _least_s(values_ms: Iterable[float | None]) -> float | None:
    """Return the smallest of several times in seconds; None if there is none."""
    return min((value_ms / 1000 for value_ms in values_ms if value_ms is not None), default=None)
