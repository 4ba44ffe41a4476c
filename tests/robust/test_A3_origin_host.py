"""A3: the Host, Origin, Referer and target that may reach the daemon, over HTTP, WebSocket and as a preflight."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from edgeagent.config import Config, ServerConfig
from tests.backends.fake import FakeBackend
from tests.daemon.running import Running, exchange, has_ipv6_loopback, running
from tests.robust.raw import KEY_HEADERS, PAGE, get, post, upgrade

HI = '{"messages":[{"role":"user","content":"hi"}]}'

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def daemon() -> AsyncIterator[Running]:
    server = ServerConfig(allowed_origins=(PAGE,), allowed_hosts=("box.example", "FD00:0::1", "proxy.example:8443"))
    async with running(FakeBackend(), Config(server=server)) as daemon:
        yield daemon


GOOD_HOSTS = ["127.0.0.1:{port}", "localhost:{port}", "[::1]:{port}", "LOCALHOST:{port}", "box.example", "BOX.example"]
GOOD_HOSTS += ["box.example:{port}", "box.example:443", "[fd00::1]:{port}", "[fd00::1]", "proxy.example:8443"]
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
    "box.example:",
    "box.example:0443",
    "box.example:http",
    "box.example.:{port}",
    "box.example:1:2",
    "a.box.example",
    "proxy.example",
    "proxy.example:{port}",
    "fd00::1",
    "[fd00::2]:{port}",
    "127.0.0.1:{port}\u00e9",
    "ⓛocalhost".encode().decode("latin-1") + ":{port}",
]
BAD_ORIGINS = [
    "null",
    "",
    "*",
    "http://evil.example",
    "http://127.0.0.1:{port}",
    "https://127.0.0.1:{port}",
    "ws://127.0.0.1:{port}",
    "HTTP://127.0.0.1:{port}",
    "http://127.0.0.1:{port}/",
    "http://127.0.0.1:{port}0",
    "http://127.0.0.1:0{port}",
    "http://127.0.0.1",
    "http://127.0.0.1:80",
    "http://127.0.0.1.:{port}",
    "http://127.0.0.1:{port}.evil.example",
    "http://user@127.0.0.1:{port}",
    "http://user:secret@127.0.0.1:{port}",
    "http://127.0.0.1:{port}@evil.example",
    "http://127.0.0.1:{port}, http://127.0.0.1:{port}",
    "http://[::1]:{port}",
    "http://[::ffff:127.0.0.1]:{port}",
    "http://2130706433:{port}",
    "127.0.0.1:{port}",
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


async def test_a_refusal_ends_the_connection(daemon: Running) -> None:
    own = f"Host: 127.0.0.1:{daemon.port}"
    assert (await get(daemon, "Host: evil.example")).headers["connection"] == "close"
    assert "connection" not in (await get(daemon, own)).headers


@pytest.mark.parametrize("host", GOOD_HOSTS)
async def test_own_hosts_are_admitted(daemon: Running, host: str) -> None:
    assert (await get(daemon, f"Host: {host}")).status == 200
    assert (await upgrade(daemon, f"Host: {host}")).status == 101


async def test_nobody_is_told_to_allow_the_origin_null(daemon: Running) -> None:
    for origin, advice in (("null", "cannot be allowed"), ("http://evil.example", "add it to server.allowed_origins")):
        message = str((await get(daemon, "Host: 127.0.0.1:{port}", f"Origin: {origin}")).error()["message"])
        assert advice in message


@pytest.mark.parametrize("host", BAD_HOSTS)
async def test_other_hosts_are_refused(daemon: Running, host: str) -> None:
    for target in ("/v1/models", "/health", "/nothing"):
        reply = await get(daemon, f"Host: {host}", target=target)
        assert (reply.status, reply.error()["code"]) == (403, "forbidden")
        assert f"use 127.0.0.1:{daemon.port}, or" in str(reply.error()["message"])
    assert (
        await get(daemon, f"Host: {host}", f"Origin: {PAGE}", "Access-Control-Request-Method: POST", method="OPTIONS")
    ).status == 403
    # Some are so malformed that the WebSocket library itself answers 400 first.
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
        # "//host/path" is a path without a route.
        assert reply.status == (404 if target.startswith("//") else 400)
    reply = await get(
        daemon,
        "Host: 127.0.0.1:{port}",
        "Upgrade: websocket",
        "Connection: Upgrade",
        KEY_HEADERS,
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
    # An allowed Origin does not outweigh a foreign Referer.
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
    assert (await get(daemon, host, f"Origin: {PAGE}", f"Origin: {PAGE}")).status == 403, "two are none"


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("127.0.0.1:{port}", "http://127.0.0.1:{port}"),
        # Another program may listen under these names, on the other loopback address.
        ("localhost:{port}", "http://localhost:{port}"),
        ("[::1]:{port}", "http://[::1]:{port}"),
        ("localhost:{port}", "http://LOCALHOST:{port}"),
        ("localhost:{port}", "http://localhost.:{port}"),
        ("localhost:{port}", "http://127.0.0.1:{port}"),
        ("[::1]:{port}", "http://[0:0:0:0:0:0:0:1]:{port}"),
        ("[::1]:{port}", "http://::1:{port}"),
        ("[::1]:{port}", "http://[::1%25lo]:{port}"),
        # A page that rebinds its name to this machine has a Host of its own.
        ("evil.example:{port}", "http://evil.example:{port}"),
        ("localhost.evil.example:{port}", "http://localhost.evil.example:{port}"),
        ("localhost:3000", "http://localhost:3000"),
        ("127.0.0.1:1", "http://127.0.0.1:1"),
        # Hosts that the owner allows may be a proxy's; their names can be rebound.
        ("box.example:{port}", "http://box.example:{port}"),
        ("box.example", "http://box.example"),
        ("proxy.example:8443", "https://proxy.example:8443"),
    ],
)
async def test_the_daemons_own_address_is_no_page_that_may_use_it(daemon: Running, host: str, origin: str) -> None:
    for reply in (
        await get(daemon, f"Host: {host}", f"Origin: {origin}"),
        await get(daemon, f"Host: {host}", f"Referer: {origin}/"),
        await upgrade(daemon, f"Host: {host}", f"Origin: {origin}"),
    ):
        assert reply.status == 403
        assert "access-control-allow-origin" not in reply.headers


async def test_no_page_no_cors_headers(daemon: Running) -> None:
    reply = await get(daemon, "Host: 127.0.0.1:{port}")
    assert not [name for name in reply.headers if name.startswith("access-control")]
    assert (await get(daemon, "Host: 127.0.0.1:{port}", method="OPTIONS")).status == 405


@pytest.mark.parametrize(
    "lines",
    [
        ["Content-Type: text/plain"],
        ["Content-Type: text/plain;application/json"],
        ["Content-Type: application/x-www-form-urlencoded", "Content-Type: text/plain"],
        ["Content-Type: "],
        ["Content-Type: multipart/form-data; boundary=x"],
        ["Content-Type: application/jsonp"],
        ["Content-Type: application/json", "Content-Type: text/plain"],
        ["Content-Type: application/json", "Content-Encoding: gzip"],
    ],
)
async def test_a_body_that_is_not_json(daemon: Running, lines: list[str]) -> None:
    assert (await post(daemon, HI, *lines)).status == 415


UNSAID = pytest.mark.parametrize(
    "types", [[], ["Content-Type: application/x-www-form-urlencoded"]], ids=["no-type", "curl-type"]
)


@UNSAID
@pytest.mark.parametrize("agent", [[], ["User-Agent: curl/8.5.0"]], ids=["no-agent", "curl"])
async def test_a_program_need_not_say_that_its_body_is_json(
    daemon: Running, types: list[str], agent: list[str]
) -> None:
    assert (await post(daemon, HI, *types, *agent)).status == 200
    reply = await post(daemon, "model=default&messages=hi", *types, *agent)
    assert (reply.status, reply.error()["code"]) == (400, "invalid_value")


@UNSAID
@pytest.mark.parametrize(
    "page",
    [
        f"Origin: {PAGE}",
        f"Referer: {PAGE}/",
        "Cookie: a=1",
        "Sec-Fetch-Site: none",
        "Sec-Fetch-Mode: no-cors",
        "User-Agent: Mozilla/5.0 (X11; Linux x86_64)",
    ],
)
async def test_a_page_must_say_so(daemon: Running, types: list[str], page: str) -> None:
    """Without this rule, any page could post to the daemon without a preflight, even if it cannot read the answer."""
    assert (await post(daemon, HI, *types, page)).status == 415


async def test_a_wrong_path_is_told_before_a_wrong_type(daemon: Running) -> None:
    for line in ("Content-Type: text/plain", "Content-Encoding: gzip"):
        reply = await post(daemon, HI, line, target="/v1/chat/completion")
        assert (reply.status, reply.error()["code"]) == (404, "not_found")


async def test_json_with_a_charset(daemon: Running) -> None:
    content = '{"messages":[{"role":"user","content":"hi"}]}'
    assert (await post(daemon, content, "Content-Type: Application/JSON; charset=utf-8")).status == 200


@pytest.mark.skipif(not has_ipv6_loopback(), reason="no ::1 here")
async def test_listening_on_ipv6() -> None:
    async with running(FakeBackend(), Config(server=ServerConfig(host="::1"))) as daemon:
        request = f"GET /v1/models HTTP/1.1\r\nHost: [::1]:{daemon.port}\r\n\r\n"
        assert (await exchange(daemon.port, request.encode(), host="::1")).status == 200
