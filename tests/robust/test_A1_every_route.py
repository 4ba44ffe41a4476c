"""A1: every route and method needs the token, except the one that reveals nothing; every route has a rule."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import AsyncIterator, Iterator
from functools import cache
from typing import Any

import pytest
import pytest_asyncio
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from edgeagent.api.app import create_app
from edgeagent.api.routes import NEEDS, PATHS
from edgeagent.config import Config, ServerConfig
from edgeagent.credentials.keys import Scope
from tests.backends.fake import FakeBackend
from tests.daemon.running import TOKEN, Running, running
from tests.owner_key import OwnerKey
from tests.robust.raw import PAGE, get, upgrade

pytestmark = pytest.mark.asyncio(loop_scope="module")

OPEN = {"/health", "/", "/kiosk", "/page/{name}", "/edgeagent/page/token"}
MODELS = {"/v1/models/pull", "/api/pull", "/api/copy", "/api/delete", "/api/create", "/api/push", "/api/blobs/{digest}"}
KIOSK = {"/edgeagent/kiosk", "/edgeagent/kiosk/link", "/edgeagent/kiosk/markdown"}
ADMIN = {
    *("/props", "/slots", "/slots/{slot_id}", "/metrics", "/api/ps"),
    *("/edgeagent/status", "/edgeagent/slo", "/edgeagent/reload", "/edgeagent/load", "/edgeagent/unload"),
    *("/edgeagent/stop", "/edgeagent/page/link", "/edgeagent/cache", "/edgeagent/cache/purge", "/edgeagent/cache/warm"),
    *("/edgeagent/answers", "/edgeagent/answers/list", "/edgeagent/answers/forget", "/edgeagent/answers/warm"),
    *("/edgeagent/egress", "/edgeagent/egress/purge", "/edgeagent/egress/test"),
}


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def locked() -> AsyncIterator[Running]:
    server = ServerConfig(allowed_origins=(PAGE,), token_required=True)
    async with running(FakeBackend(), Config(server=server)) as daemon:
        yield daemon


def _routes(routes: list[Any]) -> Iterator[tuple[str, set[str]]]:
    for route in routes:
        if hasattr(route, "original_router"):
            yield from _routes(route.original_router.routes)
        elif hasattr(route, "methods"):
            yield route.path, set(route.methods)
        else:
            yield route.path, {"WEBSOCKET"}


@cache
def every_route() -> list[tuple[str, set[str]]]:
    app = create_app(Config(server=ServerConfig(docs=True)), FakeBackend(), keys=OwnerKey(TOKEN))
    return list(_routes(app.router.routes))


def concrete(path: str) -> str:
    """Return a path that a route's template matches."""
    return re.sub(r"{\w+(:path)?}", "fake", path)


async def test_every_route_has_a_need_and_every_need_a_route() -> None:
    assert {path for path, _ in every_route()} == set(NEEDS)


async def test_the_need_a_request_meets_is_its_routes() -> None:
    for path, need in NEEDS.items():
        assert PATHS.need_of(concrete(path)) is need, path
    # By hand, so that a route whose scope changes is noticed. All others need INFER.
    owners = dict.fromkeys(MODELS, Scope.MODELS) | dict.fromkeys(KIOSK, Scope.KIOSK) | dict.fromkeys(ADMIN, Scope.ADMIN)
    assert dict.fromkeys(NEEDS, Scope.INFER) | owners | dict.fromkeys(OPEN) == NEEDS
    # A path without a route needs the highest right.
    assert PATHS.need_of("/nothing") is Scope.ADMIN


WRONG_TOKENS = [
    ["Authorization: Bearer wrong"],
    ["Authorization: Basic x"],
    [f"Authorization: {TOKEN}"],
    [f"X-Api-Key: {TOKEN}x"],
    [f"X-Api-Key: {TOKEN}", f"X-Api-Key: {TOKEN}x"],
    [f"Authorization: Bearer {TOKEN}", f"X-Api-Key: {TOKEN}x"],
    [f"Authorization: Bearer {TOKEN}x"],
    [f"Authorization: Bearer {TOKEN[:-1]}"],
    ["Authorization: Bearer "],
    [f"Authorization: Bearer {TOKEN}", f"Authorization: Bearer {TOKEN}"],
]


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"])
async def test_every_route_needs_the_token(locked: Running, method: str) -> None:
    paths = {concrete(path) for path, _ in every_route()}
    assert {"/v1/chat/completions", "/v1/responses", "/v1/models/fake", "/edgeagent/stop"} <= paths
    wrong = itertools.cycle(WRONG_TOKENS)
    for path in [*sorted(paths), "/nothing", "/docs", "/openapi.json"]:
        for lines in ([], next(wrong)):
            reply = await get(locked, "Host: 127.0.0.1:{port}", *lines, target=path, method=method)
            if path in map(concrete, OPEN):
                assert reply.status not in (401, 403), (path, lines)
            else:
                assert reply.status == 401, (path, lines)
                assert reply.headers["www-authenticate"] == "Bearer"


async def test_every_websocket_needs_the_token(locked: Running) -> None:
    paths = [path for path, methods in every_route() if methods == {"WEBSOCKET"}]
    assert "/v1/responses" in paths
    for path in [*paths, "/health", "/nothing"]:
        for lines in ([], *WRONG_TOKENS):
            reply = await upgrade(locked, "Host: 127.0.0.1:{port}", *lines, target=path)
            assert reply.status in ((404,) if path in OPEN else (400, 401)), (path, lines)


@pytest.mark.parametrize(
    "target",
    [
        "/health/",
        "/health/../v1/models",
        "/health%2f..%2fv1/models",
        "//health",
        "/HEALTH",
        "/health;x",
        "/v1/models?/health",
    ],
)
async def test_what_looks_like_the_open_path_is_not(locked: Running, target: str) -> None:
    assert (await get(locked, "Host: 127.0.0.1:{port}", target=target)).status == 401


async def test_the_right_token(locked: Running) -> None:
    host = "Host: 127.0.0.1:{port}"
    for scheme in ("Bearer", "bearer", "BEARER"):
        assert (await get(locked, host, f"Authorization: {scheme} {TOKEN}")).status == 200
        assert (await upgrade(locked, host, f"Authorization: {scheme} {TOKEN}")).status == 101
    for lines in ([f"X-Api-Key: {TOKEN}"], [f"X-Api-Key: {TOKEN}", f"Authorization: Bearer {TOKEN}"]):
        assert (await get(locked, host, *lines)).status == 200


async def test_a_page_reads_why_it_was_refused(locked: Running) -> None:
    reply = await get(locked, "Host: 127.0.0.1:{port}", f"Origin: {PAGE}")
    assert reply.status == 401
    assert reply.headers["access-control-allow-origin"] == PAGE


async def test_the_open_path_says_nothing(locked: Running) -> None:
    reply = await get(locked, "Host: 127.0.0.1:{port}", target="/health")
    assert json.loads(reply.body) == {"status": "ok"}


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/realtime"])
async def test_the_token_among_subprotocols(locked: Running, path: str) -> None:
    url = f"ws://127.0.0.1:{locked.port}{path}"
    token = f"openai-insecure-api-key.{TOKEN}"
    async with connect(url, subprotocols=["realtime", token]) as socket:  # type: ignore[list-item]
        assert socket.subprotocol == "realtime"
    async with connect(url, subprotocols=[token, "realtime"]) as socket:  # type: ignore[list-item]
        assert socket.subprotocol == "realtime"
    for offered, status in (
        ([token], 400),
        ([f"{token}x", "realtime"], 401),
        ([token, token, "realtime"], 401),
        (["realtime"], 401),
    ):
        with pytest.raises(InvalidStatus) as refused:
            async with connect(url, subprotocols=offered):  # type: ignore[arg-type]
                pass
        assert refused.value.response.status_code == status
        assert json.loads(refused.value.response.body)["error"]["message"]
