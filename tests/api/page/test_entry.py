"""The way into the page: a one-time link, the token that it becomes, and what the page may do with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus
from websockets.typing import Origin

from edgeagent.api.gate.access import TOKEN_SUBPROTOCOL
from edgeagent.config import Config, ServerConfig
from edgeagent.credentials.keys import KeyRing, Scope, add_client, clients, ensure_token, remove_client
from tests.backends.fake import FakeBackend
from tests.daemon.running import Running, running
from tests.patience import patient


class Page:
    """A browser with the daemon's page: what its requests look like, and its token."""

    def __init__(self, daemon: Running) -> None:
        self.origin = daemon.url
        self.token = ""
        self._http = daemon.http

    async def ask(self, path: str, body: dict[str, Any] | None = None, origin: str = "") -> httpx.Response:
        # Browsers send Origin with every POST, and with no GET of their own origin.
        headers = {"sec-fetch-site": "same-origin", "sec-fetch-mode": "cors", "user-agent": "Mozilla/5.0"}
        headers |= {"authorization": f"Bearer {self.token}"} if self.token else {}
        if body is None:
            return await self._http.get(self.origin + path, headers=headers)
        return await self._http.post(
            self.origin + path, headers={**headers, "origin": origin or self.origin}, json=body
        )

    async def enter(self, secret: str) -> int:
        answer = await self.ask("/edgeagent/page/token", {"secret": secret})
        if answer.status_code == 200:
            self.token = answer.json()["token"]
            assert answer.headers["cache-control"] == "no-store"
        return answer.status_code

    async def open_socket(self) -> str:
        """Open the WebSocket as a browser does; return the first event of an answer."""
        url = self.origin.replace("http", "ws") + "/v1/responses"
        protocols: Any = ["edgeagent", *([TOKEN_SUBPROTOCOL + self.token] if self.token else [])]
        async with connect(url, origin=Origin(self.origin), subprotocols=protocols) as socket:
            assert socket.subprotocol == "edgeagent"
            await socket.send('{"type": "response.create", "input": "hi"}')
            return str(await socket.recv())


async def link(daemon: Running, token: str, **body: Any) -> str:
    """Return the secret of a new link, as `edgeagent open` gets it."""
    headers = {"authorization": f"Bearer {token}"}
    answer = await daemon.http.post(f"{daemon.url}/edgeagent/page/link", headers=headers, json=body)
    assert answer.status_code == 200, answer.text
    path = answer.json()["path"]
    assert path.startswith("/#link=")
    return str(path.removeprefix("/#link="))


@pytest.fixture(params=[False, True], ids=["loopback", "token required"])
async def daemon(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Running]:
    ensure_token(tmp_path)
    config = Config(state_dir=tmp_path, server=ServerConfig(token_required=request.param))
    async with running(FakeBackend(), config, keys=KeyRing(tmp_path)) as daemon:
        yield daemon


async def test_a_link_becomes_a_token_of_the_owners_browser(tmp_path: Path, daemon: Running) -> None:
    page, owner = Page(daemon), ensure_token(tmp_path)
    assert await page.enter(await link(daemon, owner)) == 200
    [browser] = clients(tmp_path)
    assert (browser.name, browser.label[:8], browser.scopes) == ("", "browser-", frozenset(Scope))
    assert (await page.ask("/v1/models")).status_code == 200
    assert (await page.ask("/edgeagent/status")).status_code == 200
    assert (await page.ask("/edgeagent/page/markdown", {"text": "*a*"})).status_code == 200
    assert '"response.created"' in await page.open_socket()
    remove_client(tmp_path, browser.label)
    assert (await page.ask("/v1/models")).status_code == 401


async def test_without_a_token_the_page_gets_nothing(daemon: Running) -> None:
    page = Page(daemon)
    assert (await page.ask("/edgeagent/page/markdown", {"text": "*a*"})).status_code in (401, 403)
    assert (await page.ask("/edgeagent/page/link", {})).status_code in (401, 403)
    with pytest.raises(InvalidStatus) as refused:
        await page.open_socket()
    assert refused.value.response.status_code in (401, 403)
    for secret in ("x", "x" * 43):
        assert await page.enter(secret) == 401
    assert (await page.ask("/edgeagent/page/token", {"secret": ""})).status_code == 400


async def test_a_link_is_used_once_and_by_no_other_page(tmp_path: Path, daemon: Running) -> None:
    page, secret = Page(daemon), await link(daemon, ensure_token(tmp_path))
    for origin in ("http://evil.example", "null", "http://localhost:1"):
        assert (await page.ask("/edgeagent/page/token", {"secret": secret}, origin)).status_code == 403
    assert [await page.enter(secret) for _ in range(2)] == [200, 401]
    assert len(clients(tmp_path)) == 1


async def test_a_second_link_replaces_the_browsers_token(tmp_path: Path, daemon: Running) -> None:
    page, owner = Page(daemon), ensure_token(tmp_path)
    await page.enter(await link(daemon, owner))
    [first] = clients(tmp_path)
    earlier = page.token
    await page.enter(await link(daemon, owner, scopes=["infer"]))
    [second] = clients(tmp_path)
    assert (second.label, second.scopes, page.token != earlier) == (first.label, frozenset({Scope.INFER}), True)
    assert (await page.ask("/v1/models")).status_code == 200
    assert (await page.ask("/edgeagent/status")).status_code == 403


async def test_only_an_admin_makes_links(tmp_path: Path, daemon: Running) -> None:
    page, owner = Page(daemon), ensure_token(tmp_path)
    await page.enter(await link(daemon, owner, scopes=["infer"]))
    assert (await page.ask("/edgeagent/page/link", {})).status_code == 403
    assert (await page.ask("/edgeagent/page/link", {"scopes": ["all"]})).status_code == 403


async def test_no_token_but_the_owners_makes_links(tmp_path: Path, daemon: Running) -> None:
    page, owner = Page(daemon), ensure_token(tmp_path)
    await page.enter(await link(daemon, owner))
    for token in (page.token, add_client(tmp_path, "operator", [Scope.ADMIN])):
        answer = await daemon.http.post(
            f"{daemon.url}/edgeagent/page/link", headers={"authorization": f"Bearer {token}"}, json={}
        )
        assert (answer.status_code, "makes no links" in answer.text) == (403, True)


async def test_a_stranger_sends_no_large_body(daemon: Running) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b'{"secret": "x"}'

    url, headers = f"{daemon.url}/edgeagent/page/token", {"content-type": "application/json"}
    for content in (b"{" + b" " * 4096, b" " * 100_000, pieces()):
        assert (await daemon.http.post(url, headers=headers, content=content)).status_code == 413
    assert (await daemon.http.post(url, headers=headers, content=b'{"secret": "x"}')).status_code == 401


async def test_a_page_without_a_token_reads_no_conversations(tmp_path: Path) -> None:
    allowed = "http://other.example"
    config = Config(state_dir=tmp_path, server=ServerConfig(allowed_origins=(allowed,)))
    owner = ensure_token(tmp_path)
    async with running(FakeBackend(), config, keys=KeyRing(tmp_path)) as daemon:
        made = await daemon.http.post(f"{daemon.url}/v1/responses", headers={"origin": allowed}, json={"input": "a"})
        for path in ("", f"/{made.json()['id']}"):
            url = f"{daemon.url}/edgeagent/conversations{path}"
            assert (await daemon.http.get(url, headers={"origin": allowed})).status_code == 403
            shown = {"origin": allowed, "authorization": f"Bearer {owner}"}
            assert (await daemon.http.get(url, headers=shown)).status_code == 200


async def test_the_page_has_the_owners_responses(tmp_path: Path, daemon: Running) -> None:
    page, owner = Page(daemon), ensure_token(tmp_path)
    await page.enter(await link(daemon, owner))
    made = await daemon.http.post(
        f"{daemon.url}/v1/responses", headers={"authorization": f"Bearer {owner}"}, json={"input": "hello there"}
    )
    [listed] = (await page.ask("/edgeagent/conversations")).json()["data"]
    assert (listed["id"], listed["title"]) == (made.json()["id"], "hello there")


async def test_the_sockets_of_a_removed_browser_end(tmp_path: Path, daemon: Running) -> None:
    page = Page(daemon)
    await page.enter(await link(daemon, ensure_token(tmp_path)))
    protocols: Any = ["edgeagent", TOKEN_SUBPROTOCOL + page.token]
    url = daemon.url.replace("http", "ws") + "/v1/responses"
    async with connect(url, origin=Origin(daemon.url), subprotocols=protocols) as socket:
        remove_client(tmp_path, clients(tmp_path)[0].label)
        async with asyncio.timeout(patient(30)):
            await socket.wait_closed()
        assert socket.close_code == 1008
