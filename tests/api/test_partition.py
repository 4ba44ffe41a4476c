"""The cache partition of a prompt: on every route the credential decides it, never a field of a body."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from starlette.requests import HTTPConnection
from websockets.asyncio.client import connect

from edgeagent.api.gate.access import client_of
from edgeagent.config import Config, ServerConfig
from edgeagent.credentials.decision import OWN_USER, User
from edgeagent.credentials.keys import KeyRing, Scope, add_client, ensure_token
from edgeagent.daemon.peers import TcpPeer
from edgeagent.errors import ConfigError
from tests.backends.fake import FakeBackend
from tests.daemon.running import Running, running

pytestmark = pytest.mark.asyncio(loop_scope="module")

MESSAGES = [{"role": "user", "content": "hello"}]
# Fields with which a caller might try to select another client's cache.
CLAIMS = {"partition": "", "client": "", "cache_salt": "x", "user": "owner", "prompt_cache_key": "owner"}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/responses": {"input": "hello"},
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/completions": {"prompt": "hello"},
    "/v1/messages": {"model": "default", "max_tokens": 9, "messages": MESSAGES},
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


USERS = {"": OWN_USER, "uid:1001": User(1001), "uid:unknown": User()}


@pytest.mark.parametrize("key", [{}, {"Authorization": "Bearer sk-unused"}])
@pytest.mark.parametrize("partition", USERS)
async def test_without_a_token_the_user_says_whose_it_is(
    monkeypatch: pytest.MonkeyPatch, partition: str, key: dict[str, str]
) -> None:
    async def user(_: object) -> User:
        return USERS[partition]

    monkeypatch.setattr(TcpPeer, "user", user)
    async with running(FakeBackend()) as daemon:
        for path, body in BODIES.items():
            reply = await daemon.http.post(f"{daemon.url}{path}", json=body | CLAIMS, headers=key)
            assert reply.status_code == 200, reply.text
            assert last_partition(daemon) == partition
        async with connect(f"ws://127.0.0.1:{daemon.port}/v1/responses", additional_headers=key) as socket:
            await socket.send(json.dumps({"type": "response.create", "input": "hello"} | CLAIMS))
            while json.loads(await socket.recv())["type"] != "response.completed":
                pass
        assert last_partition(daemon) == partition


async def test_what_was_not_judged_is_not_the_owners() -> None:
    with pytest.raises(KeyError):
        client_of(HTTPConnection({"type": "http"}))


@pytest.mark.parametrize("name", ["uid:1001", "uid:unknown", ":"])
async def test_no_client_can_be_named_like_a_user(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="name"):
        add_client(tmp_path, name, [Scope.INFER])
