"""Whose cache a prompt goes to: the credential says it at every route, and no field of a body."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from websockets.asyncio.client import connect

from edgeagent.backends.fake import FakeBackend
from edgeagent.config import Config, ServerConfig
from edgeagent.credentials import KeyRing, Scope, add_client, ensure_token
from tests.daemon.running import Running, running

pytestmark = pytest.mark.asyncio(loop_scope="module")

MESSAGES = [{"role": "user", "content": "hello"}]
# What a caller might try to name another's cache with.
CLAIMS = {"partition": "", "client": "", "cache_salt": "x", "user": "owner", "prompt_cache_key": "owner"}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/responses": {"input": "hello"},
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/completions": {"prompt": "hello"},
    "/api/chat": {"model": "default", "messages": MESSAGES, "stream": False},
    "/api/generate": {"model": "default", "prompt": "hello", "stream": False},
}
TOKENS: dict[str, str] = {}


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def locked(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    folder = tmp_path_factory.mktemp("state")
    TOKENS[""] = ensure_token(folder)
    TOKENS["kiosk"] = add_client(folder, "kiosk", [Scope.INFER])
    async with running(FakeBackend(), Config(server=ServerConfig(token_required=True)), KeyRing(folder)) as daemon:
        yield daemon


def last_partition(daemon: Running) -> str:
    assert isinstance(daemon.service, FakeBackend)
    return daemon.service.requests[-1].cache.partition


@pytest.mark.parametrize("client", ["", "kiosk"])
@pytest.mark.parametrize("path", BODIES)
async def test_the_token_says_whose_it_is(locked: Running, path: str, client: str) -> None:
    headers = {"Authorization": f"Bearer {TOKENS[client]}"}
    reply = await locked.http.post(f"{locked.url}{path}", json=BODIES[path] | CLAIMS, headers=headers)
    assert reply.status_code == 200, reply.text
    assert last_partition(locked) == client


@pytest.mark.parametrize("client", ["", "kiosk"])
async def test_on_a_socket_too(locked: Running, client: str) -> None:
    headers = {"Authorization": f"Bearer {TOKENS[client]}"}
    async with connect(f"ws://127.0.0.1:{locked.port}/v1/responses", additional_headers=headers) as socket:
        await socket.send(json.dumps({"type": "response.create", "input": "hello"} | CLAIMS))
        while json.loads(await socket.recv())["type"] != "response.completed":
            pass
    assert last_partition(locked) == client
