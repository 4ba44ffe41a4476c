"""A7: what a client's token gives access to: every scope and every route, over the real server."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import AsyncIterator, Iterator
from itertools import combinations
from pathlib import Path

import pytest
import pytest_asyncio

from edgeagent.api.documents import routes
from edgeagent.api.documents.asyncapi import asyncapi_document
from edgeagent.api.routes import NEEDS
from edgeagent.config import Config, ServerConfig
from edgeagent.credentials.keys import KeyRing, Scope, add_client, ensure_token
from edgeagent.errors import ModelDamaged
from tests.backends.fake import FakeBackend, failing
from tests.daemon.running import Running, running
from tests.robust.raw import get, upgrade
from tests.robust.test_A1_every_route import concrete, every_route

pytestmark = pytest.mark.asyncio(loop_scope="module")

CHOICES = [frozenset(some) for size in range(len(Scope) + 1) for some in combinations(Scope, size)]
TOKENS: dict[frozenset[Scope], str] = {}


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def locked(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    folder: Path = tmp_path_factory.mktemp("state")
    TOKENS[frozenset({*Scope})] = ensure_token(folder)
    for scopes in CHOICES[:-1]:
        TOKENS[scopes] = add_client(folder, f"c{'-'.join(sorted(scopes))}", scopes)
    config = Config(server=ServerConfig(token_required=True, docs=True))
    with pytest.MonkeyPatch.context() as patch:
        short = asyncapi_document() | {"paths": {}}
        patch.setattr(routes, "openapi_document", lambda: short)  # the whole one takes three seconds
        async with running(FakeBackend(), config, KeyRing(folder)) as daemon:
            yield daemon


@pytest.fixture
def stopping_is_off(locked: Running, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(locked.stop, "_num_requests", 0)
    yield
    locked.stop._num_requests = 0


@pytest.mark.parametrize("scopes", CHOICES, ids=lambda scopes: "+".join(sorted(scopes)) or "none")
async def test_a_token_opens_the_routes_of_its_scopes(
    locked: Running, scopes: frozenset[Scope], stopping_is_off: None
) -> None:
    headers = ["Host: 127.0.0.1:{port}", f"Authorization: Bearer {TOKENS[scopes]}"]
    for path, methods in every_route():
        need = NEEDS[path]
        is_open = need is None or need in scopes
        for method in methods - {"HEAD"}:
            if method == "WEBSOCKET":
                reply = await upgrade(locked, *headers, target=concrete(path))
            elif is_open and path == "/edgeagent/stop":
                continue
            else:
                reply = await get(locked, *headers, target=concrete(path), method=method)
            if path == "/edgeagent/page/link" and is_open and scopes != {*Scope}:
                assert reply.status == 403 and b"makes no links" in reply.body  # only the owner's own token may
                continue
            assert (reply.status not in (401, 403)) is is_open, (method, path, reply.status)
            if not is_open:
                assert reply.status == 403
                assert b"scope" in reply.body


async def test_only_who_manages_models_is_told_paths(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "my models" / "tiny.gguf"
    backend = FakeBackend(failing(ModelDamaged(f"{path} cannot be loaded: it holds no tensors", param="model")))
    config = Config(server=ServerConfig(token_required=True))
    body = {"model": "fake", "input": "hi", "messages": [{"role": "user", "content": "hi"}]}
    owner = ensure_token(tmp_path)
    manager = add_client(tmp_path, "manager", frozenset({Scope.INFER, Scope.MODELS}))
    user = add_client(tmp_path, "user", frozenset({Scope.INFER}))
    async with running(backend, config, KeyRing(tmp_path)) as daemon:
        for token, is_told in ((owner, True), (user, False), (manager, True)):
            headers = {"authorization": f"Bearer {token}"}
            for route in ("/v1/chat/completions", "/v1/responses", "/api/chat"):
                reply = await daemon.http.post(f"{daemon.url}{route}", json=body, headers=headers)
                assert (str(path) in reply.text) is is_told, reply.text
                assert ("my models" in reply.text) is is_told
                assert is_told or "edgeagent list" in reply.text
    assert f"model_damaged: {path} cannot be loaded" in caplog.text


@pytest.mark.parametrize(
    "form", ["{}", "Basic {}", "Token {}", "Bearer\t{}", "Bearer: {}", "bearer  {}  ", "Bearer '{}'", '"{}"']
)
async def test_a_token_in_a_wrong_form_is_no_missing_one(locked: Running, form: str) -> None:
    """Without a token, the program would get more rights if the daemon's user runs it."""
    shown = f"Authorization: {form.format(TOKENS[frozenset({Scope.INFER})])}"
    assert (await get(locked, "Host: 127.0.0.1:{port}", shown)).status == 200
    assert (await get(locked, "Host: 127.0.0.1:{port}", shown, target="/edgeagent/status")).status == 403
    removed = f"Authorization: {form.format('edge_removed')}"
    reply = await get(locked, "Host: 127.0.0.1:{port}", removed)
    assert (reply.status, "removed or replaced" in str(reply.error()["message"])) == (401, True)


@pytest.mark.parametrize("name_and_password", ["{}", "{}:", "me:{}", ":{}"])
async def test_a_token_in_an_address_is_no_missing_one(locked: Running, name_and_password: str) -> None:
    """For http://TOKEN@host a client sends Basic authentication."""
    for token, status in ((TOKENS[frozenset({Scope.INFER})], 200), ("edge_removed", 401)):
        encoded = b64encode(name_and_password.format(token).encode()).decode()
        assert (await get(locked, "Host: 127.0.0.1:{port}", f"Authorization: Basic {encoded}")).status == status


@pytest.mark.parametrize("shown", ["Authorization:", "Authorization: Basic", "Authorization: Basic eDp5"])
async def test_what_is_no_key(locked: Running, shown: str) -> None:
    reply = await get(locked, "Host: 127.0.0.1:{port}", shown)
    assert (reply.status, "needs a token: " in str(reply.error()["message"])) == (401, True)


@pytest.mark.parametrize("key", ["none", "sk-unused", "lm-studio"])
async def test_a_placeholder_is_told_how_to_get_a_token(locked: Running, key: str) -> None:
    reply = await get(locked, "Host: 127.0.0.1:{port}", f"Authorization: Bearer {key}")
    message = str(reply.error()["message"])
    assert reply.status == 401
    assert "needs a token" in message and "`edgeagent token add NAME`" in message and "Bearer" in message
    assert key not in message


async def test_a_client_may_not_pull_delete_stop_or_read_the_status(locked: Running) -> None:
    """The rules stated explicitly, so that a mistake in the table is found."""
    headers = ["Host: 127.0.0.1:{port}", f"Authorization: Bearer {TOKENS[frozenset({Scope.INFER})]}"]
    for method, path in (
        ("POST", "/api/pull"),
        ("POST", "/v1/models/pull"),
        ("DELETE", "/api/delete"),
        ("POST", "/api/copy"),
        ("POST", "/api/create"),
        ("POST", "/edgeagent/stop"),
        ("GET", "/edgeagent/status"),
        ("GET", "/metrics"),
        ("GET", "/nothing"),
    ):
        assert (await get(locked, *headers, target=path, method=method)).status == 403, path
    assert (await get(locked, *headers)).status == 200
