"""What a request takes from its caller, its tier and this machine: a name, where it may run, and its limits."""

from __future__ import annotations

import pytest

from edgeagent.api.gate.access import with_caller
from edgeagent.api.wire.latency import asked_latency
from edgeagent.api.wire.request_id import begin_request
from edgeagent.config import Config, TierConfig
from edgeagent.credentials.grants import GRANT, Grant, Grants
from edgeagent.credentials.keys import Client
from edgeagent.types import CachePolicy, GenerateRequest, Need, RouteMode, TextPrompt, Tier, replace
from tests.owner_key import OwnerKey


def own(request: GenerateRequest) -> GenerateRequest:
    return with_caller(request, Config(), None)


@pytest.mark.parametrize(
    ("told", "num_hops", "route"),
    [
        ((), 0, RouteMode.PREFER_REMOTE),
        ((b"1",), 1, RouteMode.PREFER_REMOTE),
        ((b"2",), 2, RouteMode.LOCAL_ONLY),
        ((b"1", b"9999"), 2, RouteMode.LOCAL_ONLY),
        ((b"-1",), 2, RouteMode.LOCAL_ONLY),
        ((b"9" * 5000,), 2, RouteMode.LOCAL_ONLY),
    ],
)
async def test_a_request_does_not_go_round(told: tuple[bytes, ...], num_hops: int, route: RouteMode) -> None:
    begin_request([(b"host", b"x"), *((b"x-edgeagent-hops", value) for value in told)])
    asked = own(GenerateRequest("a", "fake", TextPrompt("one two"), route=RouteMode.PREFER_REMOTE))
    assert (asked.num_hops, asked.route) == (num_hops, route)


async def test_a_prefill_stays_here() -> None:
    begin_request([])
    asked = GenerateRequest("a", "fake", TextPrompt("x"), route=RouteMode.PREFER_REMOTE, prefill_only=True)
    assert own(asked).route is RouteMode.LOCAL_ONLY


async def test_a_client_has_the_name_of_its_partition() -> None:
    begin_request([])
    asked = GenerateRequest("a", "fake", TextPrompt("x"), cache=CachePolicy(partition="kiosk"))
    assert (own(asked).client, own(asked).route) == ("kiosk", None)


BATCH = TierConfig(max_prompt_tokens=100, max_output_tokens=5)
REALTIME = GenerateRequest("a", "fake", TextPrompt("x"), tier=Tier.REALTIME, need=Need(0.1, 0.01, 50, names_tier=True))


@pytest.mark.parametrize(
    ("client", "machine", "tier", "token_s", "told"),
    [
        (None, None, Tier.REALTIME, 0.01, []),
        (Tier.REALTIME, Tier.REALTIME, Tier.REALTIME, 0.1, ["itl_ms is 100 instead of 10: the token"]),
        (Tier.INTERACTIVE, None, Tier.INTERACTIVE, 0.2, ["the tier is interactive instead of realtime: the token of"]),
        (None, Tier.INTERACTIVE, Tier.INTERACTIVE, 0.2, ["the tier is interactive instead of realtime: the policy"]),
        (
            Tier.BATCH,
            Tier.INTERACTIVE,
            Tier.BATCH,
            5.0,
            ["the tier is batch instead of realtime: the token of 'kiosk'"],
        ),
    ],
)
async def test_client_and_machine_bound_the_tier(
    client: Tier | None, machine: Tier | None, tier: Tier, token_s: float, told: list[str]
) -> None:
    begin_request([])
    GRANT.set(Grant(Grants(OwnerKey("x")), Client("kiosk", frozenset(), tier=client), b""))
    bound = with_caller(REALTIME, Config(), machine)
    assert (bound.tier, bound.need) == (tier, Need(0.1, token_s, 50, names_tier=True))
    assert len(bound.warnings) == len(told) + (tier is not Tier.REALTIME)
    assert all(warning.startswith(start) for warning, start in zip(bound.warnings, told, strict=False))
    GRANT.set(None)


async def test_only_a_tier_that_a_request_names_is_lowered_with_a_warning() -> None:
    begin_request([])
    asked = GenerateRequest("a", "fake", TextPrompt("x"))
    bound = with_caller(asked, Config(), Tier.BATCH)
    assert (bound.tier, bound.warnings) == (Tier.BATCH, ())
    named = with_caller(replace(asked, need=asked_latency("default").need), Config(), Tier.BATCH)
    assert named.warnings == ("the tier is batch instead of interactive: the policy of this machine allows no more",)


async def test_a_request_has_the_budgets_of_the_tier_that_it_runs_at() -> None:
    begin_request([])
    config = Config(tiers={"batch": BATCH})
    assert with_caller(REALTIME, config, None).max_prompt_tokens is None
    bound = with_caller(REALTIME, config, Tier.BATCH)
    assert (bound.max_prompt_tokens, bound.max_tokens) == (100, 5)
    assert bound.warnings[-1] == "the answer has at most 5 tokens: max_output_tokens of the tier batch"
    for max_tokens, most in ((6, 5), (5, 5), (0, 0)):
        asked = GenerateRequest("a", "fake", TextPrompt("x"), tier=Tier.BATCH, max_tokens=max_tokens)
        bound = with_caller(asked, config, None)
        assert (bound.max_tokens, len(bound.warnings)) == (most, int(most < max_tokens))
    ahead = GenerateRequest("a", "fake", TextPrompt("x"), tier=Tier.BATCH, prefill_only=True)
    assert with_caller(ahead, config, None).warnings == ()
