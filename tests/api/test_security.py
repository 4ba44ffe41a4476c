"""Who may talk to the daemon: raw bytes against the real server, and every route with every method."""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from edgeagent import credentials
from edgeagent.api.app import create_app
from edgeagent.api.security import is_loopback
from edgeagent.backends.fake import FakeBackend
from edgeagent.config import Config, ServerConfig
from edgeagent.credentials import OwnerKey
from tests.daemon.running import TOKEN, Reply, Running, exchange, has_ipv6_loopback, running

PAGE = "http://localhost:3000"
KEY_HEADERS = "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def daemon() -> AsyncIterator[Running]:
    server = ServerConfig(allowed_origins=(PAGE, "null"), allowed_hosts=("box.example",))
    async with running(FakeBackend(), Config(server=server)) as daemon:
        yield daemon


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def locked() -> AsyncIterator[Running]:
    server = ServerConfig(allowed_origins=(PAGE,), token_required=True)
    async with running(FakeBackend(), Config(server=server)) as daemon:
        yield daemon


async def get(daemon: Running, *lines: str, target: str = "/v1/models", method: str = "GET") -> Reply:
    """Send a request whose header lines are these; `{port}` stands for the daemon's."""
    head = "\r\n".join([f"{method} {target} HTTP/1.1", *lines, "", ""])
    return await exchange(daemon.port, head.replace("{port}", str(daemon.port)).encode("latin-1"))


async def upgrade(daemon: Running, *lines: str, target: str = "/v1/responses") -> Reply:
    """Ask for a WebSocket."""
    return await get(daemon, *lines, "Upgrade: websocket", "Connection: Upgrade", KEY_HEADERS.strip(), target=target)


GOOD_HOSTS = ["127.0.0.1:{port}", "localhost:{port}", "[::1]:{port}", "LOCALHOST:{port}", "box.example", "BOX.example"]
BAD_HOSTS = [
    "",
    " ",
    "evil.example",
    "evil.example:{port}",
    "127.0.0.1",
    "localhost",
    "[::1]",
    "127.0.0.1:1",
    "127.0.0.1:{port}0",
    "127.0.0.1:0{port}",
    "localhost.:{port}",
    "localhost.localdomain:{port}",
    "localhost.evil.example:{port}",
    "sub.localhost:{port}",
    "127.1:{port}",
    "127.0.0.2:{port}",
    "0177.0.0.1:{port}",
    "2130706433:{port}",
    "0x7f000001:{port}",
    "0.0.0.0:{port}",
    "0:{port}",
    "[::]:{port}",
    "::1:{port}",
    "[0:0:0:0:0:0:0:1]:{port}",
    "[::ffff:127.0.0.1]:{port}",
    "[::ffff:7f00:1]:{port}",
    "[fe80::1%25lo]:{port}",
    "192.168.1.10:{port}",
    "10.0.0.1:{port}",
    "169.254.169.254:{port}",
    "kiosk.local:{port}",
    "kiosk.internal:{port}",
    "user@127.0.0.1:{port}",
    "127.0.0.1:{port}@evil.example",
    "127.0.0.1:{port},evil.example",
    "127.0.0.1:{port} evil.example",
    "127.0.0.1:{port}/",
    "x/v1/../health",
    "127.0.0.1:{port}/health?",
    "127.0.0.1:{port}#",
    "http://127.0.0.1:{port}",
    "box.example:{port}",
    "127.0.0.1:{port}\u00e9",
    "ⓛocalhost".encode().decode("latin-1") + ":{port}",
]
BAD_ORIGINS = [
    "null",
    "",
    "*",
    "http://evil.example",
    "http://127.0.0.1:{port}",
    "http://localhost:{port}",
    "https://localhost:3000",
    "http://localhost:3000/",
    "http://localhost:30000",
    "http://localhost:300",
    "http://localhost",
    "http://LOCALHOST:3000",
    "http://localhost.:3000",
    "http://localhost:3000.evil.example",
    "http://localhost:3000@evil.example",
    "http://evil.example/http://localhost:3000",
    "http://127.0.0.1:3000",
    "http://[::1]:3000",
    "file://",
    "chrome-extension://abcdef",
    "http://localhost:3000, http://evil.example",
    "localhost:3000",
]
BAD_REFERERS = [
    "http://evil.example/",
    "http://localhost:3000.evil.example/",
    "http://localhost:3000@evil.example/",
    "http://localhost:30000/",
    "https://localhost:3000/",
    "about:blank",
    "null",
    "",
]


@pytest.mark.parametrize("host", GOOD_HOSTS)
async def test_own_hosts_are_admitted(daemon: Running, host: str) -> None:
    assert (await get(daemon, f"Host: {host}")).status == 200
    assert (await upgrade(daemon, f"Host: {host}")).status == 101


@pytest.mark.parametrize("host", BAD_HOSTS)
async def test_other_hosts_are_refused(daemon: Running, host: str) -> None:
    for target in ("/v1/models", "/health", "/nothing"):
        reply = await get(daemon, f"Host: {host}", target=target)
        assert (reply.status, reply.error()["code"]) == (403, "forbidden")
    assert (
        await get(daemon, f"Host: {host}", f"Origin: {PAGE}", "Access-Control-Request-Method: POST", method="OPTIONS")
    ).status == 403
    # Some are so broken that the WebSocket library itself says 400 before anyone is asked.
    assert (await upgrade(daemon, f"Host: {host}")).status in (400, 403)


@pytest.mark.parametrize(
    "lines",
    [
        [],
        ["Host: 127.0.0.1:{port}", "Host: 127.0.0.1:{port}"],
        ["Host: 127.0.0.1:{port}", "Host: evil.example"],
        ["Host: evil.example", "Host: 127.0.0.1:{port}"],
        ["Host: 127.0.0.1:{port}", "host: localhost:{port}"],
        ["X-Forwarded-Host: 127.0.0.1:{port}"],
        ["X-Forwarded-Host: 127.0.0.1:{port}", "Host: evil.example"],
        ["Host : 127.0.0.1:{port}"],
        ["Host: evil.example", " 127.0.0.1:{port}"],
    ],
)
async def test_one_host_exactly(daemon: Running, lines: list[str]) -> None:
    assert (await get(daemon, *lines)).status in (400, 403)
    assert (await upgrade(daemon, *lines)).status in (400, 403)


@pytest.mark.parametrize(
    "target",
    [
        "http://evil.example/v1/models",
        "http://127.0.0.1:{port}/v1/models",
        "HTTP://127.0.0.1:{port}/health",
        "http://127.0.0.1:{port}@evil.example/v1/models",
        "//evil.example/v1/models",
        "evil.example/v1/models",
        "?x=/v1/models",
        "*",
    ],
)
async def test_a_target_that_is_not_a_path(daemon: Running, target: str) -> None:
    for method in ("GET", "OPTIONS"):
        reply = await get(daemon, "Host: 127.0.0.1:{port}", target=target, method=method)
        # "//host/path" is a path that no route has.
        assert reply.status == (404 if target.startswith("//") else 400)
    reply = await get(
        daemon,
        "Host: 127.0.0.1:{port}",
        "Upgrade: websocket",
        "Connection: Upgrade",
        KEY_HEADERS.strip(),
        target=target,
    )
    assert reply.status in (400, 403, 404)


async def test_connect_is_refused(daemon: Running) -> None:
    reply = await get(daemon, "Host: 127.0.0.1:{port}", target="127.0.0.1:{port}", method="CONNECT")
    assert reply.status == 400


@pytest.mark.parametrize("origin", BAD_ORIGINS)
async def test_other_origins_are_refused(daemon: Running, origin: str) -> None:
    host = "Host: 127.0.0.1:{port}"
    replies = [
        await get(daemon, host, f"Origin: {origin}"),
        await get(daemon, host, f"Origin: {origin}", "Access-Control-Request-Method: POST", method="OPTIONS"),
        await upgrade(daemon, host, f"Origin: {origin}"),
        await get(daemon, host, f"Origin: {PAGE}", f"Origin: {origin}"),
    ]
    for reply in replies:
        assert reply.status == 403
        assert "access-control-allow-origin" not in reply.headers
        assert "access-control-allow-private-network" not in reply.headers


@pytest.mark.parametrize("referer", BAD_REFERERS)
async def test_other_referers_are_refused(daemon: Running, referer: str) -> None:
    host = "Host: 127.0.0.1:{port}"
    assert (await get(daemon, host, f"Referer: {referer}")).status == 403
    assert (await upgrade(daemon, host, f"Referer: {referer}")).status == 403
    # An allowed Origin does not outweigh it.
    assert (await get(daemon, host, f"Origin: {PAGE}", f"Referer: {referer}")).status == 403


@pytest.mark.parametrize(
    ("site", "status"), [("cross-site", 403), ("same-site", 403), ("none", 200), ("same-origin", 200)]
)
async def test_a_page_that_hides_its_origin(daemon: Running, site: str, status: int) -> None:
    assert (await get(daemon, "Host: 127.0.0.1:{port}", f"Sec-Fetch-Site: {site}")).status == status


async def test_an_allowed_page(daemon: Running) -> None:
    host = "Host: 127.0.0.1:{port}"
    reply = await get(daemon, host, f"Origin: {PAGE}", f"Referer: {PAGE}/chat?x=1", "Sec-Fetch-Site: cross-site")
    assert reply.status == 200
    assert reply.headers["access-control-allow-origin"] == PAGE
    assert reply.headers["vary"] == "Origin"
    assert "access-control-allow-credentials" not in reply.headers
    preflight = await get(
        daemon,
        host,
        f"Origin: {PAGE}",
        "Access-Control-Request-Method: POST",
        method="OPTIONS",
        target="/v1/chat/completions",
    )
    assert preflight.status == 204
    assert preflight.headers["access-control-allow-origin"] == PAGE
    assert "POST" in preflight.headers["access-control-allow-methods"]
    assert "authorization" in preflight.headers["access-control-allow-headers"]
    assert (await upgrade(daemon, host, f"Origin: {PAGE}")).status == 101


async def test_no_page_no_cors_headers(daemon: Running) -> None:
    reply = await get(daemon, "Host: 127.0.0.1:{port}")
    assert not [name for name in reply.headers if name.startswith("access-control")]
    assert (await get(daemon, "Host: 127.0.0.1:{port}", method="OPTIONS")).status == 405


def _routes(routes: list[Any]) -> Iterator[tuple[str, set[str]]]:
    for route in routes:
        if hasattr(route, "original_router"):
            yield from _routes(route.original_router.routes)
        elif hasattr(route, "methods"):
            yield route.path, set(route.methods)
        else:
            yield route.path, {"WEBSOCKET"}


def every_route() -> list[tuple[str, set[str]]]:
    app = create_app(Config(), FakeBackend(), keys=OwnerKey(TOKEN))
    return list(_routes(app.router.routes))


WRONG_TOKENS = [
    [],
    ["Authorization: Bearer wrong"],
    ["Authorization: Basic x"],
    [f"Authorization: {TOKEN}"],
    [f"X-Api-Key: {TOKEN}"],
    [f"Authorization: Bearer {TOKEN}x"],
    [f"Authorization: Bearer {TOKEN[:-1]}"],
    ["Authorization: Bearer "],
    [f"Authorization: Bearer {TOKEN}", f"Authorization: Bearer {TOKEN}"],
]


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"])
async def test_every_route_needs_the_token(locked: Running, method: str) -> None:
    paths = {path.replace("{model_id:path}", "fake") for path, _ in every_route()}
    assert {"/v1/chat/completions", "/v1/responses", "/v1/models/fake", "/edgeagent/stop"} <= paths
    for path in [*paths, "/", "/nothing", "/docs", "/openapi.json"]:
        for lines in WRONG_TOKENS:
            reply = await get(locked, "Host: 127.0.0.1:{port}", *lines, target=path, method=method)
            if path == "/health":
                assert reply.status in (200, 405), (path, lines)
            else:
                assert reply.status == 401, (path, lines)
                assert reply.headers["www-authenticate"] == "Bearer"


async def test_every_websocket_needs_the_token(locked: Running) -> None:
    paths = [path for path, methods in every_route() if methods == {"WEBSOCKET"}]
    assert "/v1/responses" in paths
    for path in [*paths, "/health", "/nothing"]:
        for lines in WRONG_TOKENS:
            reply = await upgrade(locked, "Host: 127.0.0.1:{port}", *lines, target=path)
            assert reply.status in ((403,) if path == "/health" else (400, 401)), (path, lines)


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


async def test_a_page_reads_why_it_was_refused(locked: Running) -> None:
    reply = await get(locked, "Host: 127.0.0.1:{port}", f"Origin: {PAGE}")
    assert reply.status == 401
    assert reply.headers["access-control-allow-origin"] == PAGE


async def test_the_open_path_says_nothing(locked: Running) -> None:
    reply = await get(locked, "Host: 127.0.0.1:{port}", target="/health")
    assert json.loads(reply.body) == {"status": "ok"}


async def test_the_token_among_subprotocols(locked: Running) -> None:
    url = f"ws://127.0.0.1:{locked.port}/v1/responses"
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


async def test_stopping_needs_the_token_even_where_nothing_else_does() -> None:
    host = "Host: 127.0.0.1:{port}"
    async with running(FakeBackend()) as daemon:
        assert (await get(daemon, host, method="POST", target="/edgeagent/stop")).status == 401
        assert not daemon.stop.is_requested
        token = f"Authorization: Bearer {TOKEN}"
        assert (await get(daemon, host, token, method="POST", target="/edgeagent/stop")).status == 202
        assert daemon.stop.is_requested


def body(content: str, *lines: str) -> list[str]:
    return ["Host: 127.0.0.1:{port}", *lines, f"Content-Length: {len(content)}", "", content]


@pytest.mark.parametrize(
    "lines",
    [
        [],
        ["Content-Type: text/plain"],
        ["Content-Type: text/plain;application/json"],
        ["Content-Type: application/x-www-form-urlencoded"],
        ["Content-Type: multipart/form-data; boundary=x"],
        ["Content-Type: application/jsonp"],
        ["Content-Type: application/json", "Content-Type: text/plain"],
        ["Content-Type: application/json", "Content-Encoding: gzip"],
    ],
)
async def test_a_body_that_is_not_json(daemon: Running, lines: list[str]) -> None:
    head = "\r\n".join(["POST /v1/chat/completions HTTP/1.1", *body('{"messages":[]}', *lines)])
    reply = await exchange(daemon.port, head.replace("{port}", str(daemon.port)).encode())
    assert reply.status == 415


async def test_json_with_a_charset(daemon: Running) -> None:
    content = '{"messages":[{"role":"user","content":"hi"}]}'
    head = "\r\n".join(
        ["POST /v1/chat/completions HTTP/1.1", *body(content, "Content-Type: Application/JSON; charset=utf-8")]
    )
    assert (await exchange(daemon.port, head.replace("{port}", str(daemon.port)).encode())).status == 200


@pytest.mark.skipif(not has_ipv6_loopback(), reason="no ::1 here")
async def test_listening_on_ipv6() -> None:
    async with running(FakeBackend(), Config(server=ServerConfig(host="::1"))) as daemon:
        request = f"GET /v1/models HTTP/1.1\r\nHost: [::1]:{daemon.port}\r\n\r\n"
        assert (await exchange(daemon.port, request.encode(), host="::1")).status == 200


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.0.0.53", True),
        ("::1", True),
        ("[::1]", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("*", False),
        ("", False),
        ("192.168.1.2", False),
        ("localhost.evil.example", False),
        ("example.com", False),
    ],
)
async def test_is_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


async def test_other_machines_always_need_the_token() -> None:
    server = ServerConfig(host="0.0.0.0", allowed_hosts=("box.example",))
    async with running(FakeBackend(), Config(server=server)) as daemon:
        assert (await get(daemon, "Host: box.example")).status == 401
        assert (await get(daemon, "Host: box.example", f"Authorization: Bearer {TOKEN}")).status == 200
        assert (await get(daemon, "Host: 0.0.0.0:{port}", f"Authorization: Bearer {TOKEN}")).status == 403


async def test_secrets_are_compared_in_constant_time() -> None:
    """The digest is never an operand of == or `in`."""
    for node in ast.walk(ast.parse(inspect.getsource(credentials))):
        if isinstance(node, ast.Compare):
            assert "digest" not in ast.unparse(node) and "token" not in ast.unparse(node).replace("tokens", "")
