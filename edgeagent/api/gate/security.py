"""Who may talk to the daemon: decided on the ASGI scope alone, before a body is read or a WebSocket is upgraded.

The rules, in order. Each applies to every path, unless it says otherwise:
1. The request target is a path. The HTTP server has already limited the number and size of the headers.
2. Host is one of the daemon's own names, see `Hosts`. A web page that rebinds its name to 127.0.0.1 has another Host.
3. Origin, Referer and Sec-Fetch-Site name no page, an allow-listed page, or the daemon's own page. The daemon's own
   page must show a token, except on paths that need no scope (see `api.page`).
4. A preflight of an allow-listed page is answered here.
5. The client may use the path (see `api.gate.access`).
6. A body in an HTTP request to a known path is declared as JSON. A page can do that only after a preflight. There are
   two exceptions if no browser sent the request. The body may have no type, or the type of a form, as `curl` sends it
   by default. Under `/api/` it may have any type, since clients of Ollama send any. No body may be compressed.
7. A body to a path that needs no scope has a Content-Length of at most MAX_PUBLIC_BODY_BYTES: anybody may send it.
"""

from __future__ import annotations

import ipaddress
import re
import socket
import threading
from contextlib import suppress
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edgeagent import metrics
from edgeagent.api.gate.access import (
    PEER_KEY,
    TOKEN_SUBPROTOCOL,
    Access,
    Paths,
    header_values,
    is_browser,
    is_unix,
)
from edgeagent.api.gate.refusal_log import RefusalLog
from edgeagent.api.wire.body import CLIENT_KEY
from edgeagent.api.wire.errors import MAY_SEE_PATHS, OLLAMA_PREFIX, error_answer
from edgeagent.config import ServerConfig
from edgeagent.credentials.grants import GRANT, Grant, Grants
from edgeagent.credentials.keys import NO_KEYS, OWNER, CheckedKeys, Client, Keys
from edgeagent.credentials.keys import Scope as KeyScope
from edgeagent.errors import EdgeAgentError, Forbidden, InvalidRequest, PayloadTooLarge
from edgeagent.runtime_file import bracketed

MAX_PUBLIC_BODY_BYTES = 4096
_DEFAULT_PORTS = {"http": 80, "ws": 80, "https": 443, "wss": 443}
_LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")
_WILDCARDS = ("", "*", "0.0.0.0", "::", "[::]")  # noqa: S104 compared, not bound
# A name, or an address in brackets, and a port without zeros before it.
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^\[\]:/?#@,\s]+)(?::([1-9][0-9]{0,4}))?")


class Hosts:
    """The daemon's own hosts: loopback, the address that it listens on, and the hosts that the owner allows.

    If the daemon listens beyond loopback, the machine's names and the connection's local address are own hosts too.
    """

    def __init__(self, server: ServerConfig) -> None:
        self._names = set(_LOOPBACK_NAMES)
        if server.host not in _WILDCARDS:
            self._names.add(bracketed(server.host.lower()))
        self._is_beyond_loopback = not server.is_loopback
        if self._is_beyond_loopback:
            self._names |= machine_names()
            # Finding the full name may ask the network, which may be slow.
            self.full_name = threading.Thread(target=self._add_full_name, name="full-name", daemon=True)
            self.full_name.start()
        self._allowed = {bracketed(host.lower()) for host in server.allowed_hosts}

    def is_own(self, host: str, scope: Scope) -> bool:
        """Whether the Host header `host` names this daemon, or is allowed, on the connection that `scope` describes."""
        match = _HOST.fullmatch(host.lower())
        if match is None:
            return False
        name, port = match[1], match[2]
        # A host that is allowed without a port is allowed with any port: a proxy before the daemon has its own ports.
        if name in self._allowed or host.lower() in self._allowed:
            return True
        return self._is_port_own(port, scope) and (name in self._names or self._is_local_address(name, scope))

    def example(self, scope: Scope) -> str:
        """Return a value of the Host header that this connection accepts."""
        server = scope.get("server")
        return f"127.0.0.1:{server[1]}" if server and not is_unix(scope) else "localhost"

    def _is_port_own(self, port: str | None, scope: Scope) -> bool:
        server = scope.get("server")
        own = server[1] if server else None
        if port is None:
            # Without a port, Host means the scheme's default port (RFC 9110, section 7.2). A Unix socket has no port.
            return is_unix(scope) or own == _DEFAULT_PORTS.get(scope["scheme"])
        return own is not None and int(port) == own

    def _is_local_address(self, name: str, scope: Scope) -> bool:
        server = scope.get("server")
        if not self._is_beyond_loopback or not server:
            return False
        asked, local = _address(name.strip("[]")), _address(server[0])
        return asked is not None and asked == local

    def _add_full_name(self) -> None:
        with suppress(OSError, UnicodeError):
            name = socket.getfqdn().lower()
            # Some resolvers answer with an address, or with loopback's name for every machine.
            if _HOST.fullmatch(name) and _address(name) is None and not name.startswith("localhost"):
                self._names = {*self._names, name}


def machine_names() -> set[str]:
    """Return this machine's host name, the name's first label, and its name in mDNS. Send nothing to the network.

    Return an empty set if the host name is not valid, or begins with `localhost`.
    """
    name = socket.gethostname().lower().rstrip(".")
    if not _HOST.fullmatch(name) or name.startswith("localhost"):
        return set()
    short = name.partition(".")[0]
    return {name, short, f"{short}.local"}


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


_ALLOW_METHODS = b"GET, POST, DELETE, OPTIONS"
# "*" means every header except Authorization. In a browser, the openai client sends a dozen x-stainless-* headers.
_ALLOW_HEADERS = b"authorization, *"
_EXPOSE_HEADERS = b"x-request-id, request-id, retry-after, retry-after-ms, x-should-retry, x-edgeagent-warning"
_NULL_ADVICE = "many pages have this origin, so it cannot be allowed; serve the page from an address of its own"
_ENTRY_ADVICE = "the daemon's own page needs a token; run `edgeagent open`, and use the link that it prints"
_PAGE_SCHEMES = {"ws": "http", "wss": "https"}
# The types of programs that do not declare their body: no type, or the type that `curl -d` adds by itself.
_UNSAID_TYPES: tuple[list[bytes], ...] = ([], [b"application/x-www-form-urlencoded"])

Headers = list[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Checked:
    """What the rules found in a request that they let in.

    `keys`: the result of checking the request's keys. `origin`: the origin of the allow-listed page that sent the
    request; None: no such page. If `is_preflight`, only `origin` is known: the client was not checked.
    """

    client: Client = OWNER
    keys: CheckedKeys = NO_KEYS
    origin: bytes | None = None
    is_preflight: bool = False


class RefusalError(Exception):
    """Raised if a rule refuses a request.

    `status`: the HTTP status of the answer; None: the usual status of the error. `origin`: the origin of the page that
    may read the answer; None: no page. `subject`: the sender or header that is refused, for the log. It is empty if
    only the request's form is wrong; then nothing is logged.
    """

    def __init__(
        self, error: EdgeAgentError, status: int | None = None, origin: bytes | None = None, subject: str = ""
    ) -> None:
        super().__init__(error.message)
        self.error = error
        self.origin = origin
        self.subject = subject
        self.status = status


class Policy:
    """The access rules for one daemon."""

    def __init__(self, server: ServerConfig, keys: Keys, paths: Paths) -> None:
        self.paths = paths
        self._hosts = Hosts(server)
        self._origins = frozenset(origin.encode() for origin in server.allowed_origins)
        self._access = Access(paths, keys, is_token_required=server.is_token_needed)

    async def check(self, scope: Scope) -> Checked:
        """Return what the rules found in a request, given its ASGI scope. Raise RefusalError if a rule refuses it."""
        # An absolute-form target carries a second host, and servers disagree about which of the two counts.
        if not scope["path"].startswith("/") or not (scope.get("raw_path") or b"/").startswith(b"/"):
            raise RefusalError(InvalidRequest("the request target must be a path, such as /v1/models"))
        self._check_host(scope)
        is_own_page = self._is_own_page(scope)
        origin = None if is_own_page else self._check_page(scope)
        if origin is not None and _is_preflight(scope):
            return Checked(origin=origin, is_preflight=True)
        verdict, sender = await self._access.authorize(scope)
        if not isinstance(verdict, Client):
            raise RefusalError(verdict, origin=origin, subject=sender.described())
        if is_own_page and verdict.scopes and sender.keys.client is None:
            raise RefusalError(Forbidden(_ENTRY_ADVICE), subject="the daemon's own page, without a token")
        try:
            if self.paths.template_of(scope["path"]) is not None:
                _check_media_type(scope)
            if not verdict.scopes:
                _check_public_body(scope)
        except RefusalError as refused:
            refused.origin = origin
            raise
        return Checked(verdict, sender.keys, origin)

    def _check_host(self, scope: Scope) -> None:
        """Raise RefusalError if there is not exactly one Host header, or if it does not name this daemon."""
        hosts = header_values(scope, b"host")
        if len(hosts) != 1:
            raise RefusalError(Forbidden(f"a request needs exactly one Host header, not {len(hosts)}"))
        host = hosts[0].decode("latin-1")
        if not self._hosts.is_own(host, scope):
            own = self._hosts.example(scope)
            error = f"the Host {host[:128]!r} is not this daemon's; use {own}, or add it to server.allowed_hosts"
            raise RefusalError(Forbidden(error), subject=f"the Host {host[:128]!r}")

    def _is_own_page(self, scope: Scope) -> bool:
        """Whether the Origin is the daemon's own: the scheme and the Host of this request, which was checked before.

        False if the owner allows this origin to every page.
        """
        origins, (host,) = header_values(scope, b"origin"), header_values(scope, b"host")
        scheme = _PAGE_SCHEMES.get(scope["scheme"], scope["scheme"])
        return origins == [f"{scheme}://".encode() + host] and origins[0] not in self._origins

    def _check_page(self, scope: Scope) -> bytes | None:
        """Return the Origin header; None if there is none. Raise RefusalError for a page that is not allow-listed."""
        origins = header_values(scope, b"origin")
        if len(origins) > 1 or (origins and origins[0] not in self._origins):
            raise _foreign_page("Origin", origins[0])
        for referer in header_values(scope, b"referer"):
            if not any(referer == origin or referer.startswith(origin + b"/") for origin in self._origins):
                raise _foreign_page("Referer", referer)
        # A page's <img> or <script> may send neither Origin nor Referer. Sec-Fetch-Site says that another site sent it.
        for site in header_values(scope, b"sec-fetch-site"):
            if not origins and site not in (b"same-origin", b"none"):
                raise _foreign_page("Sec-Fetch-Site", site)
        return origins[0] if origins else None


def _foreign_page(header: str, value: bytes) -> RefusalError:
    subject = f"the {header} {value[:128].decode('latin-1')!r}"
    advice = _NULL_ADVICE if value == b"null" else "an owner can add it to server.allowed_origins"
    return RefusalError(Forbidden(f"{subject} may not use this daemon; {advice}"), subject=subject)


def _is_preflight(scope: Scope) -> bool:
    return (
        scope["type"] == "http"
        and scope["method"] == "OPTIONS"
        and bool(header_values(scope, b"access-control-request-method"))
    )


def _check_media_type(scope: Scope) -> None:
    if scope["type"] != "http" or not has_body(scope):
        return
    types = [media_type.partition(b";")[0].strip().lower() for media_type in header_values(scope, b"content-type")]
    is_any_taken = types in _UNSAID_TYPES or scope["path"].startswith(OLLAMA_PREFIX)
    if types != [b"application/json"] and (not is_any_taken or is_browser(scope)):
        raise RefusalError(InvalidRequest("a body must be sent as Content-Type: application/json"), 415)
    if any(coding.lower() not in (b"", b"identity") for coding in header_values(scope, b"content-encoding")):
        raise RefusalError(InvalidRequest("a compressed body is not accepted; send it without Content-Encoding"), 415)


def _check_public_body(scope: Scope) -> None:
    if scope["type"] != "http" or not has_body(scope):
        return
    lengths = header_values(scope, b"content-length")
    is_announced = len(lengths) == 1 and lengths[0].isdigit() and not header_values(scope, b"transfer-encoding")
    if not is_announced or len(lengths[0]) > 4 or int(lengths[0]) > MAX_PUBLIC_BODY_BYTES:
        raise RefusalError(PayloadTooLarge(f"this path takes {MAX_PUBLIC_BODY_BYTES} bytes with a Content-Length"))


def has_body(scope: Scope) -> bool:
    lengths = header_values(scope, b"content-length")
    return bool(header_values(scope, b"transfer-encoding")) or any(length != b"0" for length in lengths)


class Security:
    """The ASGI middleware that applies a Policy to every HTTP request and WebSocket handshake."""

    def __init__(self, app: ASGIApp, policy: Policy, grants: Grants) -> None:
        self._app = app
        self._policy = policy
        self._grants = grants
        self._log = RefusalLog()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        try:
            checked = await self._policy.check(scope)
            scope = {**scope, CLIENT_KEY: checked.client.name}
            if scope["type"] == "websocket":
                scope, send = _hide_token(scope, send)
        except RefusalError as refused:
            metrics.refused_total.labels(refused.error.code).inc()
            if refused.subject:
                place = self._policy.paths.template_of(scope["path"]) or "no route of ours"
                self._log.write(refused.error.code, refused.subject, place)
            await _refuse(scope, receive, send, refused)
            return
        if checked.is_preflight and checked.origin is not None:
            await _answer_preflight(scope, send, checked.origin)
            return
        if checked.client.scopes and (peer := scope.get(PEER_KEY)) is not None:
            peer.client = checked.client.name
        # Set for every request, also to None: a connection's next request starts in the context of the request before.
        grant = self._grants.open(checked.keys)
        GRANT.set(grant)
        MAY_SEE_PATHS.set(bool(checked.client.scopes & {KeyScope.MODELS, KeyScope.ADMIN}))
        if grant is not None and scope["type"] == "http" and has_body(scope):
            receive = _while_held(receive, grant)
        await self._app(scope, receive, _with_cors(send, checked.origin))


def _while_held(receive: Receive, grant: Grant) -> Receive:
    """Return a `receive` that checks the token again at the body's end, because a body may take minutes to arrive.

    The `receive` raises Unauthorized if the token is no longer valid.
    """

    async def receive_held() -> Message:
        message = await receive()
        if message["type"] == "http.request" and not message.get("more_body", False):
            grant.check()
        return message

    return receive_held


def _hide_token(scope: Scope, send: Send) -> tuple[Scope, Send]:
    """Remove the token from the offered subprotocols. Return the scope, and a `send` that selects another subprotocol.

    Raise RefusalError if no other subprotocol is offered: a browser fails a handshake in which the server selects none.
    """
    offered = list(scope.get("subprotocols") or ())
    others = [name for name in offered if not name.startswith(TOKEN_SUBPROTOCOL)]
    if len(others) == len(offered):
        return scope, send
    if not others:
        raise RefusalError(
            InvalidRequest(f"offer a second subprotocol beside {TOKEN_SUBPROTOCOL}<token>, e.g. realtime")
        )

    async def send_selected(message: Message) -> None:
        if message["type"] == "websocket.accept" and not message.get("subprotocol"):
            message = {**message, "subprotocol": others[0]}
        await send(message)

    return {**scope, "subprotocols": others}, send_selected


def _cors_headers(origin: bytes) -> Headers:
    return [
        (b"access-control-allow-origin", origin),
        (b"access-control-expose-headers", _EXPOSE_HEADERS),
        (b"vary", b"Origin"),
    ]


def _with_cors(send: Send, origin: bytes | None) -> Send:
    if origin is None:
        return send

    async def send_with_cors(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *_cors_headers(origin)]}
        await send(message)

    return send_with_cors


async def _answer_preflight(scope: Scope, send: Send, origin: bytes) -> None:
    headers = [
        (b"access-control-allow-origin", origin),
        (b"access-control-allow-methods", _ALLOW_METHODS),
        (b"access-control-allow-headers", _ALLOW_HEADERS),
        (b"access-control-max-age", b"600"),
        (b"vary", b"Origin"),
    ]
    if header_values(scope, b"access-control-request-private-network") == [b"true"]:
        # Browsers ask so before a page of the internet may reach a private address. The origin is allow-listed.
        headers.append((b"access-control-allow-private-network", b"true"))
    await send({"type": "http.response.start", "status": 204, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


async def _refuse(scope: Scope, receive: Receive, send: Send, refused: RefusalError) -> None:
    """Answer a refused request or WebSocket handshake with a plain HTTP response.

    A client can then tell a refused handshake from a socket that was open and was closed.
    """
    answer = error_answer(scope["path"], refused.error, refused.status)
    if refused.origin is not None:
        answer.raw_headers += _cors_headers(refused.origin)
    if scope["type"] == "http":
        answer.headers["connection"] = "close"
    await answer(scope, receive, send)
