"""A real daemon on a machine with a policy: forbidden things do not happen, and every interface says why."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from edgeagent.cli import main
from edgeagent.egress import PROBE
from edgeagent.egress.rows import folder_of, read_rows
from edgeagent.remotes import EndpointConfig, Remote
from edgeagent.remotes.file import add_remote
from tests.backends.remote.fault_server import faults, models, stream
from tests.backends.remote.streams import answer
from tests.integration.conftest import start_daemon, stop_daemon
from tests.patience import patient

Output = pytest.CaptureFixture[str]
BODY = {"model": "elsewhere", "messages": [{"role": "user", "content": "canary"}]}
HOST = {"/v1/models": models("tiny")}


async def steady(http: httpx.AsyncClient, mode: str) -> None:
    """Wait until the daemon has this mode."""
    async with asyncio.timeout(patient(10)):
        while (await http.get("/edgeagent/status")).json()["route"]["mode"] != mode:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def write(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o644)


@pytest.fixture
async def http(tmp_path: Path, machine_policy: Path) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a daemon that was started under an invalid policy."""
    write(machine_policy, "route = 'prefer_locall'")
    program = ("-m", "tests.integration.policed", str(machine_policy))
    daemon = start_daemon(tmp_path / "state", "builtin", program=program)
    try:
        async with httpx.AsyncClient(base_url=daemon.url, timeout=patient(20.0)) as client:
            yield client
        assert b"prefer_locall" in daemon.log.read_bytes(), "serve says what is wrong"
    finally:
        stop_daemon(daemon)


async def test_the_policy_outranks_the_owner(
    http: httpx.AsyncClient, tmp_path: Path, machine_policy: Path, capsys: Output
) -> None:
    state = tmp_path / "state"
    async with faults(stream(answer("Hel", "lo")), gets=HOST) as server:
        add_remote(state, Remote("gpu", (EndpointConfig(server.url),), models={"elsewhere": "tiny"}))

        async def refused(why: str) -> None:
            reply = await http.post("/v1/chat/completions", json=BODY)
            assert reply.status_code == 503, reply.text
            assert why in reply.json()["error"]["message"] and str(machine_policy) in reply.json()["error"]["message"]
            assert main(["remote", "status", "--state-dir", str(state)]) == 0
            assert why in " ".join(capsys.readouterr().out.split())
            assert server.num_connections == 0

        await refused("prefer_locall")
        pull = await http.post("/api/pull", json={"model": "org/model", "stream": False})
        assert pull.status_code == 403 and "prefer_locall" in pull.text
        write(machine_policy, "remote_hosts = ['gpu.example']")
        await refused("is not among its remote_hosts")
        write(machine_policy, "route = 'local_only'")
        await refused("says route = local_only")
        write(machine_policy, f"remote_hosts = ['127.0.0.1:{server.port}']")
        await steady(http, "prefer_local")
        reply = await http.post("/v1/chat/completions", json=BODY)
        assert reply.status_code == 200 and reply.json()["choices"][0]["message"]["content"] == "Hello"
        rows = [row for row in read_rows(folder_of(state)) if row.reason != PROBE]
        assert len(rows) == len(server.posts) == 1
