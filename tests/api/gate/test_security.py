"""The security middleware, request by request and without a server. Hosts, targets and pages: robust/test_A3."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import HTTPConnection
from starlette.types import Message, Receive, Scope, Send

from edgeagent import metrics
from edgeagent.api.gate.access import PEER_KEY, Access, client_of, is_page
from edgeagent.api.gate.security import Policy, Security
from edgeagent.api.routes import PATHS
from edgeagent.api.wire.body import CLIENT_KEY
from edgeagent.config import ServerConfig
from edgeagent.credentials.decision import UNKNOWN_USER, Listener, Sender, User
from edgeagent.credentials.grants import GRANT, Grant, Grants
from edgeagent.credentials.keys import (
    OWNER,
    CheckedKeys,
    Client,
    KeyRing,
    KeyStatus,
    add_browser,
    add_client,
    ensure_token,
    remove_client,
)
from edgeagent.credentials.keys import Scope as Right
from edgeagent.errors import Unauthorized

PAGE, OTHER_PAGE = "http://page.example", "https://other.example"
PORT = 8127


@dataclass
class _Peer:
    found: User
    client: str | None = None

    async def user(self) -> User:
        return self.found


OWN = _Peer(User(0, is_own=True))
STRANGER = _Peer(User(1001))


@dataclass
class App:
    """Reads each body to its end and answers; records the scopes, the grants and the body."""

    scopes: list[Scope] = field(default_factory=list)
    grants: list[Grant | None] = field(default_factory=list)
    body: bytes = b""
    subprotocol: str | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scopes.append(scope)
        self.grants.append(GRANT.get())
        if scope["type"] == "http":
            is_more = True
            while is_more:
                message = await receive()
                self.body += message.get("body", b"")
                is_more = message.get("more_body", False)
            await send({"type": "http.response.start", "status": 200, "headers": [(b"x-own", b"1")]})
            await send({"type": "http.response.body", "body": b"hi"})
        elif scope["type"] == "websocket":
            await send({"type": "websocket.accept", "subprotocol": self.subprotocol})


class Door:
    """The security middleware in front of an app."""

    def __init__(self, folder: Path, **server: Any) -> None:
        self.app = App()
        keys = KeyRing(folder)
        policy = Policy(ServerConfig(allowed_origins=(PAGE, OTHER_PAGE), **server), keys, PATHS)
        self._security = Security(self.app, policy, Grants(keys))

    async def ask(self, scope: Scope, *parts: Message | Callable[[], Message]) -> list[Message]:
        """Return the messages sent for a request with a body of these parts."""
        sent: list[Message] = []
        waiting = list(parts or [{"type": "http.request", "body": b""}])

        async def receive() -> Message:
            part = waiting.pop(0)
            return part() if callable(part) else part

        async def send(message: Message) -> None:
            sent.append(message)

        await self._security(scope, receive, send)
        return sent


@pytest.fixture
def door(tmp_path: Path) -> Door:
    ensure_token(tmp_path)
    return Door(tmp_path)


def request(
    *headers: tuple[str, str], kind: str = "http", path: str = "/v1/models", host: str | None = f"127.0.0.1:{PORT}"
) -> Scope:
    """Return the scope of a request from the daemon's own user over loopback."""
    own = [] if host is None else [("host", host)]
    return {
        "type": kind,
        "method": "GET",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "headers": [(name.encode(), value.encode()) for name, value in (*own, *headers)],
        "server": ("127.0.0.1", PORT),
        "subprotocols": [],
        PEER_KEY: OWN,
    }


def bearer(token: str) -> tuple[str, str]:
    return "authorization", f"Bearer {token}"


def posted(*headers: tuple[str, str], path: str = "/v1/responses") -> Scope:
    return {**request(("content-length", "2"), *headers, path=path), "method": "POST"}


JSON = ("content-type", "application/json")


def status(sent: list[Message]) -> int:
    code: int = sent[0]["status"]
    return code


def headers_of(sent: list[Message]) -> dict[bytes, bytes]:
    return dict(sent[0]["headers"])


async def test_what_the_server_asks_itself_goes_through(door: Door) -> None:
    assert await door.ask({"type": "lifespan"}) == []
    assert [scope["type"] for scope in door.app.scopes] == ["lifespan"]


async def test_who_asks_is_told_to_the_app(tmp_path: Path, door: Door) -> None:
    token = add_client(tmp_path, "kiosk", [Right.INFER])
    for scope, client in (
        (request(), OWNER.name),
        (request(bearer(token)), "kiosk"),
        ({**request(), PEER_KEY: STRANGER}, "uid:1001"),
        ({**request(), PEER_KEY: None}, "uid:unknown"),
    ):
        assert status(await door.ask(scope)) == 200
        assert door.app.scopes[-1][CLIENT_KEY] == client


OWN_ORIGIN = ("origin", f"http://127.0.0.1:{PORT}")


async def test_the_daemons_own_page_needs_a_token(tmp_path: Path, door: Door) -> None:
    token = bearer(add_browser(tmp_path, [Right.INFER]))
    for path in ("/v1/models", "/v1/responses", "/edgeagent/status"):
        assert status(await door.ask(request(OWN_ORIGIN, path=path))) in (401, 403)
        assert status(await door.ask(request(OWN_ORIGIN, bearer("sk-other"), path=path))) in (401, 403)
    # What needs no scope needs no token: the page gets its token there.
    assert status(await door.ask(posted(OWN_ORIGIN, JSON, path="/edgeagent/page/token"))) == 200
    sent = await door.ask(request(OWN_ORIGIN, token))
    assert status(sent) == 200 and b"access-control-allow-origin" not in headers_of(sent)
    assert door.app.scopes[-1][CLIENT_KEY] == OWNER.name
    assert status(await door.ask(request(OWN_ORIGIN, token, path="/edgeagent/status"))) == 403
    for origin in (f"https://127.0.0.1:{PORT}", f"http://localhost:{PORT}", "http://127.0.0.1", "null"):
        assert status(await door.ask(request(("origin", origin), token))) == 403
    assert status(await door.ask(request(OWN_ORIGIN, OWN_ORIGIN, token))) == 403
    socket = {**request(OWN_ORIGIN, token, kind="websocket", path="/v1/responses"), "scheme": "ws"}
    assert (await door.ask(socket))[0]["type"] == "websocket.accept"


async def test_a_browsers_token_is_no_other_users(tmp_path: Path, door: Door) -> None:
    """A program that took the port of a stopped daemon could get the token from an open page."""
    browser, client = bearer(add_browser(tmp_path, [Right.INFER])), bearer(add_client(tmp_path, "kiosk", [Right.INFER]))
    stranger, unknown = {PEER_KEY: STRANGER}, {PEER_KEY: _Peer(UNKNOWN_USER)}
    assert status(await door.ask({**request(browser), **stranger})) == 401
    assert status(await door.ask({**request(client), **stranger})) == 200
    assert status(await door.ask({**request(browser), **unknown})) == 200
    # Where every client needs a token, a proxy of another user may stand between.
    locked = Door(tmp_path, token_required=True)
    assert status(await locked.ask({**request(browser), **stranger})) == 200


async def test_an_answer_to_a_page_keeps_its_own_headers(door: Door) -> None:
    sent = await door.ask(request(("origin", PAGE)))
    assert sent[0]["headers"] == [
        (b"x-own", b"1"),
        (b"access-control-allow-origin", PAGE.encode()),
        (b"access-control-expose-headers", headers_of(sent)[b"access-control-expose-headers"]),
        (b"vary", b"Origin"),
    ]
    assert sent[1] == {"type": "http.response.body", "body": b"hi"}
    assert (await door.ask(request()))[0]["headers"] == [(b"x-own", b"1")]


async def test_a_preflight_is_answered_at_the_door(door: Door) -> None:
    asked = ("access-control-request-method", "POST")
    sent = await door.ask({**request(("origin", PAGE), asked), "method": "OPTIONS"})
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
    assert (status(sent), sent[1]["body"]) == (204, b"")
    found = headers_of(sent)
    assert found[b"access-control-allow-origin"] == PAGE.encode()
    assert (
        b"authorization" in found[b"access-control-allow-headers"] and b"POST" in found[b"access-control-allow-methods"]
    )
    assert (int(found[b"access-control-max-age"]), found[b"vary"]) == (600, b"Origin")
    assert b"access-control-allow-private-network" not in found
    private = ("access-control-request-private-network", "true")
    found = headers_of(await door.ask({**request(("origin", PAGE), asked, private), "method": "OPTIONS"}))
    assert found[b"access-control-allow-private-network"] == b"true"
    assert door.app.scopes == []
    # These requests are not preflights.
    for scope in (
        {**request(("origin", PAGE)), "method": "OPTIONS"},
        request(("origin", PAGE), asked),
        {**request(asked), "method": "OPTIONS"},
    ):
        assert status(await door.ask(scope)) == 200


@pytest.mark.parametrize(
    ("scope", "code"),
    [
        (posted(JSON), 200),
        (posted(("content-type", "Application/JSON; charset=utf-8")), 200),
        (posted(), 200),
        (posted(("content-type", "application/x-www-form-urlencoded")), 200),
        (posted(("content-type", "text/plain")), 415),
        (posted(JSON, JSON), 415),
        (posted(("user-agent", "Mozilla/5.0")), 415),
        (posted(("content-type", "text/plain"), path="/api/chat"), 200),
        (posted(("content-type", "text/plain"), ("user-agent", "Mozilla/5.0"), path="/api/chat"), 415),
        (posted(JSON, ("content-encoding", "gzip")), 415),
        (posted(JSON, ("content-encoding", "Identity")), 200),
        (posted(("content-type", "text/plain"), path="/no/such/route"), 200),
        (request(("transfer-encoding", "chunked"), ("content-type", "text/plain")), 415),
        (request(("content-length", "0"), ("content-type", "text/plain")), 200),
        (request(("content-type", "text/plain")), 200),
        (request(("content-length", "2"), ("content-type", "text/plain"), kind="websocket"), 0),
    ],
)
async def test_how_a_body_is_declared(door: Door, scope: Scope, code: int) -> None:
    sent = await door.ask(scope)
    assert sent[0].get("status", 0) == code
    assert len(door.app.scopes) == (code in (0, 200))


async def test_a_page_may_read_why_its_body_was_refused(door: Door) -> None:
    sent = await door.ask(posted(("content-type", "text/plain"), ("origin", PAGE)))
    assert status(sent) == 415
    assert headers_of(sent)[b"access-control-allow-origin"] == PAGE.encode()


async def test_a_refusal_is_one_whole_answer(door: Door) -> None:
    for kind, prefix in (("http", "http.response"), ("websocket", "websocket.http.response")):
        sent = await door.ask(request(bearer("edge_wrong"), ("origin", PAGE), kind=kind))
        assert [message["type"] for message in sent] == [f"{prefix}.start", f"{prefix}.body"]
        found, body = headers_of(sent), sent[1]["body"]
        assert status(sent) == 401
        assert found[b"content-type"] == b"application/json"
        assert int(found[b"content-length"]) == len(body)
        assert found[b"www-authenticate"] == b"Bearer"
        assert found[b"access-control-allow-origin"] == PAGE.encode()
        # The body was not read, so the connection must close; a handshake's connection closes in any case.
        assert found.get(b"connection") == (b"close" if kind == "http" else None)
        assert "opens nothing here" in json.loads(body)["error"]["message"]
    sent = await door.ask(request(bearer("edge_wrong"), path="/api/tags"))
    assert isinstance(json.loads(sent[1]["body"])["error"], str)
    assert b"access-control-allow-origin" not in headers_of(sent)
    assert door.app.scopes == []


def num_refused(code: str) -> float:
    return metrics.REGISTRY.get_sample_value("edgeagent_refused_total", {"reason": code}) or 0.0


async def test_refusals_are_counted_and_those_of_someone_are_logged(
    door: Door, caplog: pytest.LogCaptureFixture
) -> None:
    before = [num_refused("forbidden"), num_refused("invalid_value")]
    with caplog.at_level(logging.WARNING):
        await door.ask(posted(("content-type", "text/plain")))
        assert caplog.messages == [], "its form alone is wrong"
        await door.ask(request(host="evil.example"))
        await door.ask(request(host="other.example", path="/secret"))
        await door.ask({**request(bearer("edge_wrong")), PEER_KEY: STRANGER})
    assert caplog.messages == [
        "refused (forbidden): the Host 'evil.example', at /v1/models",
        "refused (forbidden): the Host 'other.example', at no route of ours",
        "refused (invalid_api_key): an unknown, removed or expired token of the user 1001 over loopback, at /v1/models",
    ]
    assert [num_refused("forbidden"), num_refused("invalid_value")] == [before[0] + 2, before[1] + 1]


@pytest.mark.parametrize(("key", "said"), [(None, "needs a token:"), ("sk-x", "is not one of this daemon")])
async def test_where_all_need_a_token_it_is_said_what_is_wrong(tmp_path: Path, key: str | None, said: str) -> None:
    ensure_token(tmp_path)
    locked = Door(tmp_path, token_required=True)
    sent = await locked.ask(request(*([] if key is None else [bearer(key)])))
    assert status(sent) == 401
    assert said in json.loads(sent[1]["body"])["error"]["message"]


def test_who_asked_is_described_without_a_key() -> None:
    described = {
        Sender(Listener.UNIX, UNKNOWN_USER, CheckedKeys(KeyStatus.NONE)): "no key over the Unix socket",
        Sender(Listener.LOOPBACK, STRANGER.found, CheckedKeys(KeyStatus.FOREIGN), is_page=True): (
            "another key of the user 1001 over loopback, from a web page"
        ),
        Sender(Listener.LOCKED, UNKNOWN_USER, CheckedKeys(KeyStatus.KNOWN, OWNER)): "the token of 'the owner' over TCP",
        Sender(Listener.LOCKED, UNKNOWN_USER, CheckedKeys(KeyStatus.KNOWN, Client("kiosk", frozenset()))): (
            "the token of 'kiosk' over TCP"
        ),
    }
    assert {asker: asker.described() for asker in described} == described


async def test_a_grant_is_of_its_request_alone(tmp_path: Path, door: Door) -> None:
    token = add_client(tmp_path, "kiosk", [Right.INFER])
    await door.ask(request(bearer(token)))
    await door.ask(request())
    first, second = door.app.grants
    assert first is not None and first.client.name == "kiosk"
    assert second is None


def part(body: bytes, is_more: bool | None) -> Message:
    return {"type": "http.request", "body": body} | ({} if is_more is None else {"more_body": is_more})


@pytest.mark.parametrize("is_more", [None, False])
async def test_a_token_that_ends_while_the_body_comes_opens_nothing(
    tmp_path: Path, door: Door, is_more: bool | None
) -> None:
    token = add_client(tmp_path, "kiosk", [Right.INFER])

    def ended(*, message: Message) -> Callable[[], Message]:
        def come() -> Message:
            with suppress(Exception):
                remove_client(tmp_path, "kiosk")
            return message

        return come

    scope = posted(JSON, bearer(token))
    with pytest.raises(Unauthorized):
        await door.ask(scope, part(b"1", True), ended(message=part(b"2", True)), part(b"3", is_more))
    assert door.app.body == b"12", "only a whole body is judged again"


async def test_a_token_that_holds_opens_to_the_end(tmp_path: Path, door: Door) -> None:
    token = add_client(tmp_path, "kiosk", [Right.INFER])
    sent = await door.ask(posted(JSON, bearer(token)), part(b"1", True), part(b"2", False))
    assert (status(sent), door.app.body) == (200, b"12")
    # A body that comes without a token is not judged again, and neither is a request whose client disconnects.
    assert status(await door.ask(posted(JSON), part(b"1", False))) == 200

    def leave() -> Message:
        remove_client(tmp_path, "kiosk")
        return {"type": "http.disconnect"}

    await door.ask(posted(JSON, bearer(token)), leave)


def offering(*names: str, headers: Iterable[tuple[str, str]] = ()) -> Scope:
    return {**request(*headers, kind="websocket"), "subprotocols": list(names)}


async def test_a_token_among_the_subprotocols_is_taken_out(tmp_path: Path, door: Door) -> None:
    shown = f"openai-insecure-api-key.{add_client(tmp_path, 'kiosk', [Right.INFER])}"
    sent = await door.ask(offering(shown, "realtime", "other"))
    assert sent == [{"type": "websocket.accept", "subprotocol": "realtime"}]
    assert door.app.scopes[-1]["subprotocols"] == ["realtime", "other"]
    assert door.app.scopes[-1][CLIENT_KEY] == "kiosk"
    assert door.app.grants[-1] is not None
    door.app.subprotocol = "other"
    assert (await door.ask(offering("realtime", shown, "other")))[0]["subprotocol"] == "other"
    door.app.subprotocol = None
    assert await door.ask(offering("realtime")) == [{"type": "websocket.accept", "subprotocol": None}]
    assert door.app.scopes[-1]["subprotocols"] == ["realtime"]
    sent = await door.ask(offering(shown))
    assert status(sent) == 400 and b"realtime" in sent[1]["body"]


async def test_wrong_tokens_change_no_other_answer(tmp_path: Path) -> None:
    right = ensure_token(tmp_path)
    removed = add_client(tmp_path, "kiosk", [Right.INFER])
    access = Access(PATHS, KeyRing(tmp_path), is_token_required=False)
    remove_client(tmp_path, "kiosk")
    for _ in range(100):
        assert isinstance((await access.authorize(request(bearer("edge_wrong"))))[0], Unauthorized)
    assert isinstance((await access.authorize(request(bearer(removed))))[0], Unauthorized)
    assert (await access.authorize(request(bearer(right))))[0] == OWNER


def basic(text: str) -> tuple[str, str]:
    return "authorization", f"Basic {base64.b64encode(text.encode()).decode()}"


async def test_in_which_forms_a_token_counts_as_shown(tmp_path: Path) -> None:
    token = add_client(tmp_path, "kiosk", [Right.INFER])
    access = Access(PATHS, KeyRing(tmp_path), is_token_required=False)

    async def key_status(*headers: tuple[str, str]) -> KeyStatus:
        return (await access.authorize(request(*headers)))[1].keys.status

    for value in (
        f"Bearer {token}",
        f"bearer '{token}'",
        f'Bearer "{token}"',
        token,
        f"Token {token}",
        f"edge_x {token}",
    ):
        assert await key_status(("authorization", value)) is KeyStatus.KNOWN, value
    for shown in (basic(f"{token}:"), basic(f"user:{token}"), basic(token)):
        assert await key_status(shown) is KeyStatus.KNOWN, shown
    # A second word makes it a different key.
    assert await key_status(("authorization", f"Bearer {token} x")) is KeyStatus.UNKNOWN
    for shown in (
        basic("user:password"),
        basic(f"user:x:{token}"),
        ("authorization", "Basic &"),
        ("authorization", ""),
    ):
        assert await key_status(shown) is KeyStatus.NONE, shown
    assert await key_status(bearer(token), basic(f"{token}:")) is KeyStatus.SEVERAL


@pytest.mark.parametrize("header", ["cookie", "sec-fetch-mode", "Sec-Fetch-Dest"])
async def test_a_form_that_a_browser_sends_is_no_declared_body(door: Door, header: str) -> None:
    assert status(await door.ask(posted((header, "x")))) == 415
    assert status(await door.ask(posted(("x-other", "x"), ("user-agent", "curl/8 (Mozilla/5.0)")))) == 200


@pytest.mark.parametrize(
    ("headers", "is_from_page"),
    [
        ({}, False),
        ({"user-agent": "curl/8"}, False),
        ({"user-agent": "Mozilla/5.0"}, True),
        ({"sec-fetch-mode": "cors"}, False),
        ({"sec-fetch-site": "none", "sec-fetch-mode": "navigate"}, False),
        ({"sec-fetch-site": "none", "sec-fetch-mode": "navigate", "user-agent": "Mozilla/5.0"}, False),
        ({"sec-fetch-site": "none", "sec-fetch-mode": "navigate", "origin": PAGE}, True),
        ({"sec-fetch-site": "none", "sec-fetch-mode": "cors"}, True),
        ({"sec-fetch-site": "same-origin", "sec-fetch-mode": "navigate"}, True),
        ({"cookie": "a=b"}, True),
    ],
)
async def test_the_owners_browser_may_do_all_only_where_its_user_typed_the_address(
    door: Door, headers: dict[str, str], is_from_page: bool
) -> None:
    scope = request(*headers.items(), path="/metrics")
    assert is_page(scope) == is_from_page
    assert status(await door.ask(scope)) == (401 if is_from_page else 200)


def test_a_request_that_was_not_judged_has_no_client() -> None:
    assert client_of(HTTPConnection({**request(), CLIENT_KEY: "kiosk"})) == "kiosk"
    with pytest.raises(KeyError):
        client_of(HTTPConnection(request()))
