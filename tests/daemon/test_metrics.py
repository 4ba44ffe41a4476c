"""GET /metrics of a whole server: it parses, its numbers change as they should, and clients cannot make it grow."""

from __future__ import annotations

import asyncio
import json
import math
import time
import timeit
from collections.abc import Iterable

import httpx
from prometheus_client.parser import text_string_to_metric_families
from websockets.asyncio.client import connect

from edgeagent.config import Config, ServerConfig
from edgeagent.errors import Overloaded
from edgeagent.metrics.meter import Meter
from edgeagent.service.client_sink import Ending
from edgeagent.types import GenerateRequest, Started, Step, Target, TextDelta, TextPrompt
from tests.backends.fake import Act, FakeBackend, Gate, echo
from tests.daemon.running import TOKEN, Running, running

CHAT = {"messages": [{"role": "user", "content": "one two three"}]}

ANSWER = {"model": "fake", "tier": "interactive", "served_by": "local"}

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


async def scrape(server: Running) -> Samples:
    """Return every sample, by name and labels."""
    response = await server.http.get(f"{server.url}/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }


class Change:
    """The change between two scrapes; the registry belongs to the process, and other tests use it too."""

    def __init__(self, before: Samples, after: Samples) -> None:
        self._before = before
        self.after = after

    def of(self, name: str, **labels: str) -> float:
        key = (f"edgeagent_{name}", frozenset(labels.items()))
        return self.after.get(key, 0.0) - self._before.get(key, 0.0)


async def test_numbers_move_as_they_should() -> None:
    gate = Gate()

    def script(request: GenerateRequest) -> object:
        yield from list(echo(request))[:-1]
        yield gate
        yield list(echo(request))[-1]

    async with running(FakeBackend(script)) as server:  # type: ignore[arg-type]
        before = await scrape(server)
        asking = asyncio.create_task(server.http.post(f"{server.url}/v1/chat/completions", json=CHAT))
        await gate.reached.wait()
        during = Change(before, await scrape(server))
        assert during.of("live_requests", model="fake", state="running") == 1
        assert during.of("first_token_seconds_count", **ANSWER) == 1
        assert during.of("generation_seconds_count", **ANSWER) == 0
        gate.opened.set()
        assert (await asking).status_code == 200
        change = Change(before, await scrape(server))
    route = "/v1/chat/completions"
    assert change.of("requests_total", route=route, method="POST", outcome="200") == 1
    assert change.of("requests_total", route="/metrics", method="GET", outcome="200") == 2
    assert change.of("generations_total", model="fake", end="stop") == 1
    assert change.of("live_requests", model="fake", state="running") == 0
    assert change.of("live_requests", model="fake", state="waiting") == 0
    assert change.of("inter_token_seconds_count", **ANSWER) == 2
    assert change.of("generation_seconds_bucket", **ANSWER, le="+Inf") == 1
    assert change.of("usable_seconds_count", **ANSWER) == 1
    assert change.of("answers_total", **ANSWER, outcome="met") == 1
    assert change.of("decode_tokens_total", model="fake") == 3
    assert change.of("prefill_tokens_total", model="fake") == 3
    assert change.of("stage_seconds_count", stage="prefill", tier="interactive", served_by="local") == 1
    assert change.after["edgeagent_model_ready", frozenset({("model", "fake")})] == 1
    assert change.after["edgeagent_open_connections", frozenset()] >= 1


async def test_what_may_never_happen_is_there_from_the_beginning() -> None:
    async with running(FakeBackend()) as server:
        samples = await scrape(server)
    for transport in ("http", "websocket"):
        assert ("edgeagent_slow_clients_cut_total", frozenset({("transport", transport)})) in samples


async def test_the_ledger_of_latency_targets() -> None:
    tiers = {"realtime": "priority", "interactive": "default", "batch": "flex"}

    def slow(request: GenerateRequest) -> Iterable[Act]:
        time.sleep(0.002)
        return echo(request)

    async with running(FakeBackend(slow)) as server:
        for tier, name in tiers.items():
            need = {"ttft_ms": 1} if tier == "interactive" else {}
            body = {**CHAT, "service_tier": name, "edgeagent": need}
            assert (await server.http.post(f"{server.url}/v1/chat/completions", json=body)).status_code == 200
        await server.http.get(f"{server.url}/ready")
        report = (await server.http.get(f"{server.url}/edgeagent/slo")).json()
        samples = await scrape(server)
    assert report["objective"] == 0.99
    assert report["targets"]["interactive"] == {"ttft_ms": 3000.0, "itl_ms": 200.0}
    for figures in report["tiers"]:
        [route] = figures["routes"]
        assert (figures["num_answers"], route["num_answers"], route["served_by"]) == (1, 1, "local")
        assert {name: times["num"] for name, times in route["times"].items()} == {
            "first_token": 1,
            "usable": 1,
            "token": 2,
            "total": 1,
        }
        key = frozenset({("tier", figures["tier"]), ("window", figures["window"])})
        assert samples["edgeagent_slo_attainment", key] == figures["attainment"]
        is_late = figures["tier"] == "interactive"
        assert figures["attainment"] == (0.0 if is_late else 1.0)
        assert sum(route["late"].values()) == int(is_late)
        assert figures["budget_burn"] == (100.0 if is_late else 0.0)
    assert [(each["window"], each["tier"]) for each in report["tiers"]] == [
        (window, tier) for window in ("1h", "1d") for tier in tiers
    ]


async def test_websockets() -> None:
    async with running(FakeBackend()) as server:
        before = await scrape(server)
        async with connect(f"{server.url.replace('http', 'ws')}/v1/responses") as socket:
            for body in ({"input": "a b"}, {"input": 7}):
                await socket.send(json.dumps({"type": "response.create", **body}))
                while json.loads(await socket.recv())["type"] not in ("response.completed", "error"):
                    pass
            during = Change(before, await scrape(server))
        route = "/v1/responses"
        assert during.of("open_websockets") == 1
        assert during.of("requests_total", route=route, method="WS", outcome="completed") == 1
        assert during.of("requests_total", route=route, method="WS", outcome="400") == 1
        while (after := Change(before, await scrape(server))).of("open_websockets"):
            pass
        assert after.of("requests_total", route=route, method="WS", outcome="101") == 1


async def test_refusals_by_reason() -> None:
    def full(request: GenerateRequest) -> object:
        raise Overloaded("full", retry_after_s=1.0)

    async with running(FakeBackend(full)) as server:  # type: ignore[arg-type]
        before = await scrape(server)
        assert (await server.http.post(f"{server.url}/v1/chat/completions", json=CHAT)).status_code == 429
        assert (await server.http.get(f"{server.url}/health", headers={"origin": "http://x.com"})).status_code == 403
        change = Change(before, await scrape(server))
    assert change.of("refused_total", reason="queue_full") == 1
    assert change.of("refused_total", reason="forbidden") == 1
    assert change.of("generations_total", model="fake", end="queue_full") == 1


async def test_what_clients_say_is_no_label() -> None:
    async with running(FakeBackend()) as server:
        await scrape(server)
        before = await scrape(server)
        for number in range(20):
            await server.http.get(f"{server.url}/nowhere/{number}")
            await server.http.get(f"{server.url}/v1/models/name-{number}")
            await server.http.request(f"METHOD{number}", f"{server.url}/health")
            await server.http.post(f"{server.url}/v1/chat/completions", json={**CHAT, "model": f"name-{number}"})
        after = await scrape(server)
    # New series: 404 of unknown paths, of models and of chats, 405 of other methods, the end of a request for an
    # unknown model, and one from the scrape itself.
    assert len(after) - len(before) <= 6
    assert not [key for key in after if any("name-" in value or "METHOD" in value for _, value in key[1])]


async def test_it_is_an_owner_s_where_tokens_are_asked_for() -> None:
    async with running(FakeBackend(), Config(server=ServerConfig(token_required=True))) as server:
        assert (await server.http.get(f"{server.url}/metrics")).status_code == 401
        authorized = httpx.Headers({"authorization": f"Bearer {TOKEN}"})
        assert (await server.http.get(f"{server.url}/metrics", headers=authorized)).status_code == 200


def test_a_token_costs_little() -> None:
    """The time limit is generous, for noisy machines: 50 times what a token takes."""
    request = GenerateRequest("r", "cost", TextPrompt("one"))
    meter = Meter(lambda: "cost", Ending(), request, Target(math.inf, 0.005))
    meter.put(Step((Started(1, 0), TextDelta("a")), (1,), at_s=1.0))
    step = Step((TextDelta("a"),), (1,), at_s=1.01)
    seconds = min(timeit.repeat(lambda: meter.put(step), number=1000, repeat=5)) / 1000
    meter.end()
    assert seconds < 50e-6
