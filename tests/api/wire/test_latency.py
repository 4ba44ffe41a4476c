"""What a request asks of its latency reaches the service in the same form on every wire, and what is wrong is named."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from websockets.asyncio.client import connect

from edgeagent.api.wire.fields import EdgeagentBody
from edgeagent.api.wire.latency import Latency, asked_latency, service_tier_of
from edgeagent.api.wire.request_id import begin_request
from edgeagent.errors import InvalidRequest
from edgeagent.types import GenerateRequest, Need, Tier
from tests.backends.fake import FakeBackend
from tests.daemon.running import Running, running

MESSAGES = [{"role": "user", "content": "hello"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/responses": {"input": "hello"},
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/completions": {"prompt": "hello"},
    "/completion": {"prompt": "hello"},
    "/infill": {"input_prefix": "a", "input_suffix": "b"},
    "/v1/messages": {"model": "default", "max_tokens": 9, "messages": MESSAGES},
    "/api/chat": {"model": "default", "messages": MESSAGES, "stream": False},
    "/api/generate": {"model": "default", "prompt": "hello", "stream": False},
}
SOCKET, OPTIONS = "the WebSocket", "options of /api/chat"
WIRES = (*BODIES, SOCKET, OPTIONS)
FIELDS = {"tier": "batch", "ttft_ms": 500, "itl_ms": 40.5, "deadline_ms": 90_000, "max_prompt_tokens": 2000}
HEADERS = {
    "x-edgeagent-tier": "batch",
    "x-edgeagent-ttft-ms": "500",
    "X-EdgeAgent-ITL-ms": "40.5",
    "x-edgeagent-deadline-ms": "90000",
}
WITHOUT_BOUND = Latency(Tier.BATCH, Need(0.5, 0.0405, names_tier=True), 90.0)
FULL = Latency(Tier.BATCH, Need(0.5, 0.0405, 2000, names_tier=True), 90.0)
NOTHING = Latency(Tier.INTERACTIVE, Need(), None)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def daemon() -> AsyncIterator[Running]:
    async with running(FakeBackend()) as daemon:
        yield daemon


async def asked(daemon: Running, wire: str, field: object, headers: dict[str, str]) -> Latency | str:
    """Return what reached the service, or the text of the refusal."""
    backend = daemon.service
    assert isinstance(backend, FakeBackend)
    num_before = len(backend.requests)
    said = {} if field is None else {"edgeagent": field}
    if wire == SOCKET:
        error = await _over_socket(daemon, said, headers)
    else:
        path = "/api/chat" if wire == OPTIONS else wire
        body = BODIES[path] | ({"options": said} if wire == OPTIONS else said)
        reply = await daemon.http.post(f"{daemon.url}{path}", json=body, headers=headers)
        error = "" if reply.status_code == 200 else reply.text
    if error:
        assert len(backend.requests) == num_before
        return error
    return _latency(backend.requests[-1])


async def _over_socket(daemon: Running, said: dict[str, object], headers: dict[str, str]) -> str:
    async with connect(f"ws://127.0.0.1:{daemon.port}/v1/responses", additional_headers=headers) as socket:
        await socket.send(json.dumps({"type": "response.create", "input": "hello"} | said))
        while True:
            event = json.loads(await socket.recv())
            if event["type"] in ("response.completed", "error"):
                return "" if event["type"] == "response.completed" else json.dumps(event)


def _latency(request: GenerateRequest) -> Latency:
    return Latency(request.tier, request.need, request.timeout_s)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("wire", WIRES)
async def test_the_same_need_arrives_from_every_wire(daemon: Running, wire: str) -> None:
    assert await asked(daemon, wire, FIELDS, {}) == FULL
    assert await asked(daemon, wire, None, HEADERS) == WITHOUT_BOUND
    assert await asked(daemon, wire, {"ttft_ms": 600, "itl_ms": 30}, HEADERS) == Latency(
        Tier.BATCH, Need(0.5, 0.03, names_tier=True), 90.0
    )
    # The next request on the same connection has no headers of its own.
    assert await asked(daemon, wire, {"tier": None, "ttft_ms": None}, {}) == NOTHING


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("wire", WIRES)
async def test_what_is_wrong_is_refused_with_the_name_of_its_place(daemon: Running, wire: str) -> None:
    field = "options.edgeagent" if wire == OPTIONS else "edgeagent"
    for name, value, why in (
        ("tier", "fast", "must be 'realtime', 'interactive' or 'batch', not 'fast'"),
        ("ttft_ms", 0, "must be from 1 to 2147483647, not 0"),
        ("max_prompt_tokens", 1.5, "must be a valid integer"),
    ):
        refused = await asked(daemon, wire, {name: value}, {})
        assert isinstance(refused, str) and f"{field}.{name} {why}" in json.dumps(refused).replace("\\", "")
    refused = await asked(daemon, wire, None, {"x-edgeagent-ttft-ms": "soon"})
    assert isinstance(refused, str) and "x-edgeagent-ttft-ms must be a number" in refused
    refused = await asked(daemon, wire, {"tier": "realtime"}, {"x-edgeagent-tier": "batch"})
    assert isinstance(refused, str)
    assert f"x-edgeagent-tier names the tier batch and {field}.tier names the tier realtime; send one" in refused


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("path", BODIES)
async def test_a_service_tier_arrives_from_every_wire(daemon: Running, path: str) -> None:
    backend = daemon.service
    assert isinstance(backend, FakeBackend)
    for service_tier, tier in (("priority", Tier.REALTIME), ("flex", Tier.BATCH), ("standard_only", Tier.INTERACTIVE)):
        reply = await daemon.http.post(f"{daemon.url}{path}", json=BODIES[path] | {"service_tier": service_tier})
        assert reply.status_code == 200 and "service_tier" not in reply.headers.get("x-edgeagent-warning", "")
        assert backend.requests[-1].tier is tier


@pytest.mark.parametrize(
    ("service_tier", "tier"),
    [
        ("priority", Tier.REALTIME),
        ("default", Tier.INTERACTIVE),
        ("flex", Tier.BATCH),
        ("batch", Tier.BATCH),
        ("auto", Tier.INTERACTIVE),
        ("another", Tier.INTERACTIVE),
        (None, Tier.INTERACTIVE),
    ],
)
async def test_a_service_tier_names_a_tier(service_tier: str | None, tier: Tier) -> None:
    begin_request([])
    assert asked_latency(service_tier).tier is tier
    assert asked_latency(service_tier, EdgeagentBody(tier=tier.value)).tier is tier
    assert asked_latency(service_tier_of(tier)).tier is tier


async def test_two_names_of_different_tiers_are_refused_by_both() -> None:
    begin_request([])
    with pytest.raises(InvalidRequest) as caught:
        asked_latency("flex", EdgeagentBody(tier="realtime"))
    assert caught.value.message == (
        "service_tier names the tier batch and edgeagent.tier names the tier realtime; send one of them"
    )
    # `auto` leaves the choice to the server.
    assert asked_latency("auto", EdgeagentBody(tier="realtime")).tier is Tier.REALTIME
