"""Promises to the owner, checked with a real daemon and a remote: rows, budgets, modes, withdrawal, keys."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import httpx
import pytest
import pytest_asyncio

from edgeagent.cli import main
from edgeagent.egress import PROBE, Row
from edgeagent.egress.rows import folder_of, purge, read_rows
from edgeagent.errors import ConfigError
from edgeagent.remotes import Budget, EndpointConfig, Key, Remote
from edgeagent.remotes.file import add_remote, remove_remote
from edgeagent.runtime_file import write_private
from tests.backends.remote.fault_server import Act, FaultServer, faults, half, models, stream
from tests.backends.remote.streams import ROLE, answer, chunk
from tests.backends.remote.support import until
from tests.integration.conftest import Daemon
from tests.patience import patient

CANARY = "canary-4711"
SECRET = "sk-hush-0123456789"
HOST = {"/v1/models": models("tiny")}


@pytest_asyncio.fixture
async def http(daemon: Daemon) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=daemon.url, timeout=patient(20.0)) as client:
        yield client
    for name in ("gpu", "thrifty"):
        with suppress(ConfigError):
            remove_remote(daemon.state_dir, name)
    purge(folder_of(daemon.state_dir), 0.0)


def add(daemon: Daemon, server: FaultServer, name: str = "gpu", **fields: Any) -> None:
    """Add the remote for a model that this machine does not have, so that its requests must leave."""
    write_private(daemon.state_dir / "key", SECRET.encode())
    key = Key("file", str(daemon.state_dir / "key"))
    add_remote(daemon.state_dir, Remote(name, (EndpointConfig(server.url),), key, {"elsewhere": "tiny"}, **fields))


def rows(daemon: Daemon) -> list[Row]:
    """Return the rows of requests, without those of probes."""
    return [row for row in read_rows(folder_of(daemon.state_dir)) if row.reason != PROBE]


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "elsewhere", "messages": [{"role": "user", "content": CANARY}], **fields}


async def test_there_is_a_row_for_each_request_that_leaves(daemon: Daemon, http: httpx.AsyncClient) -> None:
    async with faults(stream(answer("Hel", "lo")), gets=HOST) as server:
        add(daemon, server)
        for _ in range(3):
            reply = await http.post("/v1/chat/completions", json=body())
            assert reply.status_code == 200, reply.text
            assert reply.json()["choices"][0]["message"]["content"] == "Hello"
            assert reply.json()["edgeagent"]["route"] == "remote:gpu"
        assert len(server.posts) == 3
        assert {asked.headers["authorization"] for asked in server.posts} == {f"Bearer {SECRET}"}
        told = [(row.outcome, row.host, row.num_bytes) for row in rows(daemon)]
        assert told == [("completed", f"127.0.0.1:{server.port}", len(asked.body)) for asked in server.posts]
        assert {(row.num_prompt_tokens, row.num_output_tokens, row.mode) for row in rows(daemon)} == {
            (7, 2, "prefer_local")
        }
    kept = b"".join(path.read_bytes() for path in folder_of(daemon.state_dir).iterdir())
    for text in (kept, daemon.log.read_bytes()):
        assert CANARY.encode() not in text and SECRET.encode() not in text


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/api/chat"])
async def test_what_must_stay_here_fails_here(path: str, daemon: Daemon, http: httpx.AsyncClient) -> None:
    async with faults(stream(answer("never")), gets=HOST) as server:
        add(daemon, server)
        fields = {"edgeagent": {"route": "local_only"}} | ({"input": CANARY} if path == "/v1/responses" else {})
        reply = await http.post(path, json=body(**fields))
        assert reply.status_code >= 400 and CANARY not in reply.text
        assert server.posts == [] and rows(daemon) == []


async def test_a_used_up_budget_lets_nothing_more_leave(daemon: Daemon, http: httpx.AsyncClient) -> None:
    async with faults(stream(answer("Hel", "lo")), gets=HOST) as server:
        # A remote of its own: today's tokens count for a remote by name, even after a purge.
        add(daemon, server, "thrifty", budget=Budget(tokens=9))
        assert (await http.post("/v1/chat/completions", json=body())).status_code == 200
        refused = await http.post("/v1/chat/completions", json=body())
        assert refused.status_code == 503, refused.text
        assert "budget" in refused.json()["error"]["message"]
        assert len(server.posts) == len(rows(daemon)) == 1


async def test_withdrawn_consent_cuts_what_runs(
    daemon: Daemon, http: httpx.AsyncClient, capsys: pytest.CaptureFixture[str]
) -> None:
    script = half(ROLE, chunk({"content": "One"}), Act.STALL)
    async with faults(script, gets=HOST) as server:
        add(daemon, server)
        lines: list[str] = []
        async with http.stream("POST", "/v1/chat/completions", json=body(stream=True)) as reply:
            async for line in reply.aiter_lines():
                lines.append(line)
                if "One" in line:
                    assert main(["remote", "rm", "gpu", "--state-dir", str(daemon.state_dir)]) == 0
        async with asyncio.timeout(patient(10)):
            await server.posts[0].left.wait()
        events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
        assert sum("error" in event for event in events) == 1, lines
        assert [row.outcome for row in rows(daemon)] == ["withdrawn"]
        assert (await http.post("/v1/chat/completions", json=body())).status_code == 404
        assert len(server.posts) == 1


async def test_the_row_is_there_before_the_answer(daemon: Daemon, http: httpx.AsyncClient) -> None:
    async with faults(half(Act.STALL), gets=HOST) as server:
        add(daemon, server)
        asking = asyncio.create_task(http.post("/v1/chat/completions", json=body()))
        await until(lambda: server.posts)
        assert [row.outcome for row in rows(daemon)] == ["unfinished"]
        asking.cancel()
        await until(lambda: rows(daemon)[0].outcome != "unfinished")
        assert rows(daemon)[0].outcome == "cancelled"
