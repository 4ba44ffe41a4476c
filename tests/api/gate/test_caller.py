"""What a request takes from its caller: its name, and where it may run."""

from __future__ import annotations

import pytest

from edgeagent.api.gate.access import with_caller
from edgeagent.api.wire.request_id import begin_request
from edgeagent.types import CachePolicy, GenerateRequest, RouteMode, TextPrompt


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
    asked = with_caller(GenerateRequest("a", "fake", TextPrompt("one two"), route=RouteMode.PREFER_REMOTE))
    assert (asked.num_hops, asked.route) == (num_hops, route)


async def test_a_prefill_stays_here() -> None:
    begin_request([])
    asked = GenerateRequest("a", "fake", TextPrompt("x"), route=RouteMode.PREFER_REMOTE, prefill_only=True)
    assert with_caller(asked).route is RouteMode.LOCAL_ONLY


async def test_a_client_has_the_name_of_its_partition() -> None:
    begin_request([])
    asked = GenerateRequest("a", "fake", TextPrompt("x"), cache=CachePolicy(partition="kiosk"))
    assert (with_caller(asked).client, with_caller(asked).route) == ("kiosk", None)
