"""A real daemon keeps the ceilings of tiers and their token budgets, and its answers say so."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
from websockets.asyncio.client import connect

from edgeagent.credentials.keys import Scope, add_client
from edgeagent.types import Tier
from tests.integration.conftest import Daemon, start_daemon, stop_daemon
from tests.patience import patient

TIERS = "[tiers.batch]\nmax_prompt_tokens = 120\nmax_output_tokens = 4\n[tiers.interactive]\nmax_output_tokens = 6\n"
LONG = [{"role": "user", "content": f"{number} sheep, and one more"} for number in range(60)]
HELLO = [{"role": "user", "content": "Hello!"}]


async def test_ceilings_and_budgets(tmp_path: Path) -> None:
    file, policy, state = tmp_path / "config.toml", tmp_path / "policy.toml", tmp_path / "state"
    file.write_text(TIERS)
    policy.write_text("tier = 'interactive'")
    policy.chmod(0o644)
    program = ("-m", "tests.integration.policed", str(policy))
    daemon = await asyncio.to_thread(start_daemon, state, "builtin", "--config", str(file), program=program)
    token = add_client(state, "indexer", [Scope.INFER], tier=Tier.BATCH)
    try:
        headers = {"Authorization": f"Bearer {token}"}
        async with httpx.AsyncClient(base_url=daemon.url, timeout=patient(60.0)) as http:
            await _keeps_the_owner_below_the_policy(http)
            http.headers.update(headers)
            await _keeps_a_client_below_its_ceiling(http)
            await _keeps_the_budget_of_prompts(http)
        await _says_so_on_a_socket(daemon, headers)
    finally:
        await asyncio.to_thread(stop_daemon, daemon)


async def _keeps_the_owner_below_the_policy(http: httpx.AsyncClient) -> None:
    body = {"messages": HELLO, "service_tier": "priority", "temperature": 0}
    reply = await http.post("/v1/chat/completions", json=body)
    answer = reply.json()
    assert (answer["service_tier"], answer["choices"][0]["finish_reason"]) == ("default", "length")
    assert answer["usage"]["completion_tokens"] == 6
    assert reply.headers.get_list("x-edgeagent-warning") == [
        "the tier is interactive instead of realtime: the policy of this machine allows no more",
        "the answer has at most 6 tokens: max_output_tokens of the tier interactive",
    ]
    body |= {"stream": True, "max_tokens": 3}
    lines = (await http.post("/v1/chat/completions", json=body)).text.splitlines()
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert chunks[0]["service_tier"] == chunks[-1]["service_tier"] == "default"
    assert len(chunks[0]["edgeagent"]["warnings"]) == 1


async def _keeps_a_client_below_its_ceiling(http: httpx.AsyncClient) -> None:
    reply = await http.post("/v1/responses", json={"input": "Hello!", "edgeagent": {"tier": "realtime"}})
    answer = reply.json()
    assert (answer["service_tier"], answer["usage"]["output_tokens"]) == ("flex", 4)
    assert answer["incomplete_details"] == {"reason": "max_output_tokens"}
    assert answer["edgeagent"]["warnings"][0] == (
        "the tier is batch instead of realtime: the token of 'indexer' allows no more"
    )
    for tier in ("flex", None):
        asked = {"prompt": "Hello!", "service_tier": tier, "max_tokens": 3}
        assert "x-edgeagent-warning" not in (await http.post("/v1/completions", json=asked)).headers


async def _keeps_the_budget_of_prompts(http: httpx.AsyncClient) -> None:
    flex = {"service_tier": "flex"}

    async def refused(path: str, body: dict[str, Any]) -> str:
        reply = await http.post(path, json=body)
        assert reply.status_code == 400, reply.text
        if path.startswith("/v1/"):
            assert reply.json()["error"]["code"] == "token_budget_exceeded"
        return reply.text

    for path, body in (
        ("/v1/chat/completions", {"messages": LONG} | flex),
        ("/v1/responses", {"input": LONG} | flex),
        ("/v1/completions", {"prompt": "sheep " * 300} | flex),
        ("/api/chat", {"model": "builtin", "messages": LONG, "truncate": False, "edgeagent": {"tier": "batch"}}),
    ):
        assert "tokens, but the budget of the tier batch is 120 (max_prompt_tokens)." in await refused(path, body)
    own = {"input": LONG, "edgeagent": {"tier": "batch", "max_prompt_tokens": 50}}
    assert "tokens, but the request's own limit is 50 (max_prompt_tokens)." in await refused("/v1/responses", own)
    for budget, field in ((120, flex), (50, {"edgeagent": own["edgeagent"]})):
        answer = (await http.post("/v1/responses", json={"input": LONG, "truncation": "auto"} | field)).json()
        assert budget // 3 < answer["usage"]["input_tokens"] <= budget
        assert answer["edgeagent"]["dropped_items"] > 0
    chat = {"model": "builtin", "messages": LONG, "stream": False, "edgeagent": {"tier": "batch"}}
    assert (await http.post("/api/chat", json=chat)).json()["prompt_eval_count"] <= 120


async def _says_so_on_a_socket(daemon: Daemon, headers: dict[str, str]) -> None:
    async with connect(f"ws://127.0.0.1:{daemon.port}/v1/responses", additional_headers=headers) as socket:
        await socket.send(json.dumps({"type": "response.create", "input": "Hello!", "service_tier": "priority"}))
        while (event := json.loads(await socket.recv()))["type"] != "response.incomplete":
            pass
    assert event["response"]["service_tier"] == "flex"
    assert event["response"]["edgeagent"]["warnings"][0].startswith("the tier is batch instead of realtime")
