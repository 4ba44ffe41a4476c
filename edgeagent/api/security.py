"""Who may talk to the daemon: decided on the ASGI scope alone, before a body is read or a WebSocket is upgraded.

The rules, in order; each applies to every path but where it says otherwise:
1. the request target is a path, and the headers are few and short;
2. Host is one of the daemon's own names, exactly (a web page that rebinds its name to 127.0.0.1 has another Host);
3. Origin, Referer and Sec-Fetch-Site show no web page but one that was allow-listed;
4. a preflight of an allow-listed page is answered here;
5. whoever asks may have the path (api/access);
6. a body is JSON (a form or text/plain is what a page can send without asking); the Ollama API takes any type, since
   its programs send any, but not from a browser.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edgeagent import metrics
from edgeagent.api.access import CLIENT_KEY, TOKEN_SUBPROTOCOL, Access, is_unix, values
from edgeagent.api.errors import OLLAMA_PREFIX, error_body, error_headers, http_status, refusal
from edgeagent.config import ServerConfig
from edgeagent.credentials import OWNER, Client, Keys
from edgeagent.errors import EdgeAgentError, Forbidden, InvalidRequest

MAX_HEADERS = 100
MAX_HEADER_BYTES = 16 << 10

_DEFAULT_PORTS = {"http": 80, "ws": 80, "https": 443, "wss": 443}
_LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")
_ALLOW_METHODS = b"GET, POST, DELETE, OPTIONS"
# "*" stands for every header but Authorization; the openai client in a browser sends a dozen x-stainless-* ones.
_ALLOW_HEADERS = b"authorization, *"
_EXPOSE_HEADERS = b"x-request-id, retry-after, retry-after-ms, x-should-retry"
_PAGE_HEADERS = frozenset({b"origin", b"referer", b"cookie", b"sec-fetch-site"})

Headers = list[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Admission:
    """What the rules found in an admitted request: who asks, and the allow-listed page it came from, if one did."""

    client: Client = OWNER
    origin: bytes | None = None
    is_preflight: bool = False


class RefusalError(Exception):
    """A request that goes no further, and the HTTP status that says so. The page at `origin` may read why."""

    def __init__(self, error: EdgeAgentError, status: int | None = None, origin: bytes | None = None) -> None:
        super().__init__(error.message)
        self.error = error
        self.origin = origin
        self.status = http_status(error) if status is None else status


class Policy:
    """The access rules for one daemon."""

    def __init__(self, server: ServerConfig, keys: Keys) -> None:
        self._names = list(_LOOPBACK_NAMES)
        if not _is_wildcard(server.host):
            self._names.append(f"[{server.host}]" if ":" in server.host else server.host.lower())
        self._hosts = {host.lower() for host in server.allowed_hosts}
        # Every sandboxed page and local file has the origin `null`: it names nobody.
        self._origins = frozenset(origin.encode() for origin in server.allowed_origins if origin != "null")
        self._access = Access(keys, is_token_required=server.is_token_needed)

    def admit(self, scope: Scope) -> Admission:
        """Judge a request by its scope; raise RefusalError where a rule says no."""
        _check_form(scope)
        self._check_host(scope)
        origin = self._check_page(scope)
        if origin is not None and _is_preflight(scope):
            return Admission(origin=origin, is_preflight=True)
        try:
            client = self._access.judge(scope)
            _check_media_type(scope)
        except RefusalError as refused:
            refused.origin = origin
            raise
        except EdgeAgentError as error:
            raise RefusalError(error, origin=origin) from None
        return Admission(client, origin)

    def is_allowed_origin(self, origin: bytes) -> bool:
        """Whether a page of this Origin may use the daemon; `null` never may."""
        return origin in self._origins

    def _check_host(self, scope: Scope) -> None:
        hosts = values(scope, b"host")
        if len(hosts) != 1:
            raise RefusalError(Forbidden(f"a request needs exactly one Host header, not {len(hosts)}"))
        host = hosts[0].decode("latin-1").lower()
        server = scope.get("server")
        port = server[1] if server else None
        # Without a port the header means the scheme's own (RFC 9110, section 7.2); a Unix socket has none.
        own = {f"{name}:{port}" for name in self._names}
        if is_unix(scope) or port == _DEFAULT_PORTS.get(scope["scheme"]):
            own |= set(self._names)
        if host not in own and host not in self._hosts:
            raise RefusalError(
                Forbidden(
                    f"the Host {host[:128]!r} is not this daemon's; use 127.0.0.1, or add it to server.allowed_hosts"
                )
            )

    def _check_page(self, scope: Scope) -> bytes | None:
        origins = values(scope, b"origin")
        if len(origins) > 1 or (origins and not self.is_allowed_origin(origins[0])):
            raise RefusalError(_foreign_page("Origin", origins[0]))
        for referer in values(scope, b"referer"):
            if not any(referer == origin or referer.startswith(origin + b"/") for origin in self._origins):
                raise RefusalError(_foreign_page("Referer", referer))
        # A page's <img> or <script> sends neither of the two, but says here that it is another site's.
        for site in values(scope, b"sec-fetch-site"):
            if not origins and site not in (b"same-origin", b"none"):
                raise RefusalError(_foreign_page("Sec-Fetch-Site", site))
        return origins[0] if origins else None


def _is_wildcard(host: str) -> bool:
    return host in ("", "*", "0.0.0.0", "::", "[::]")  # noqa: S104 compared, not bound


def _foreign_page(header: str, value: bytes) -> Forbidden:
    shown = value[:128].decode("latin-1")
    return Forbidden(f"the {header} {shown!r} may not use this daemon; an owner can add it to server.allowed_origins")


def _check_form(scope: Scope) -> None:
    # An absolute-form target carries a second host, and servers disagree about which of the two counts.
    raw_path = scope.get("raw_path") or b"/"
    if not scope["path"].startswith("/") or not raw_path.startswith(b"/"):
        raise RefusalError(InvalidRequest("the request target must be a path, such as /v1/models"))
    headers: Headers = scope["headers"]
    if len(headers) > MAX_HEADERS or sum(len(key) + len(value) for key, value in headers) > MAX_HEADER_BYTES:
        raise RefusalError(InvalidRequest(f"more than {MAX_HEADERS} headers, or {MAX_HEADER_BYTES} bytes of them"), 431)


def _is_preflight(scope: Scope) -> bool:
    return (
        scope["type"] == "http"
        and scope["method"] == "OPTIONS"
        and bool(values(scope, b"access-control-request-method"))
    )


def _check_media_type(scope: Scope) -> None:
    if scope["type"] != "http" or not has_body(scope):
        return
    types = values(scope, b"content-type")
    is_json = len(types) == 1 and types[0].partition(b";")[0].strip().lower() == b"application/json"
    if not is_json and not (scope["path"].startswith(OLLAMA_PREFIX) and not _is_browser(scope)):
        raise RefusalError(InvalidRequest("a body must be sent as Content-Type: application/json"), 415)
    if values(scope, b"content-encoding"):
        raise RefusalError(InvalidRequest("a compressed body is not accepted; send it without Content-Encoding"), 415)


def _is_browser(scope: Scope) -> bool:
    """Whether a page may have sent this: rule 3 cannot see an old browser that was told to hide where it is.

    Every browser calls itself Mozilla, and a page that would change that has to ask first, with a preflight.
    """
    if any(name.lower() in _PAGE_HEADERS for name, _ in scope["headers"]):
        return True
    return any(agent.startswith(b"Mozilla/") for agent in values(scope, b"user-agent"))


def has_body(scope: Scope) -> bool:
    """Whether a request announces a body."""
    lengths = values(scope, b"content-length")
    return bool(values(scope, b"transfer-encoding")) or any(length != b"0" for length in lengths)


class Security:
    """The ASGI middleware that applies a Policy to every HTTP request and WebSocket handshake."""

    def __init__(self, app: ASGIApp, policy: Policy) -> None:
        self._app = app
        self._policy = policy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        try:
            admission = self._policy.admit(scope)
            scope = {**scope, CLIENT_KEY: admission.client.name}
            if scope["type"] == "websocket":
                scope, send = _hide_token(scope, send)
        except RefusalError as refused:
            metrics.refused_total.labels(refused.error.code).inc()
            await _refuse(scope, send, refused)
            return
        if admission.is_preflight and admission.origin is not None:
            await _answer_preflight(send, admission.origin)
            return
        await self._app(scope, receive, _with_cors(send, admission.origin))


def _hide_token(scope: Scope, send: Send) -> tuple[Scope, Send]:
    """Take the token out of the offered subprotocols, and select another one: browsers insist on an answer."""
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


async def _answer_preflight(send: Send, origin: bytes) -> None:
    headers = [
        (b"access-control-allow-origin", origin),
        (b"access-control-allow-methods", _ALLOW_METHODS),
        (b"access-control-allow-headers", _ALLOW_HEADERS),
        (b"access-control-max-age", b"600"),
        (b"vary", b"Origin"),
    ]
    await send({"type": "http.response.start", "status": 204, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


async def _refuse(scope: Scope, send: Send, refused: RefusalError) -> None:
    """Answer with plain HTTP, a WebSocket too: a client must not take a refusal for a socket that opened and fell."""
    body = json.dumps(refusal(scope["path"], error_body(refused.error))).encode()
    headers: Headers = [(name.encode(), value.encode()) for name, value in error_headers(refused.error).items()]
    headers += [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if refused.origin is not None:
        headers += _cors_headers(refused.origin)
    if scope["type"] == "http":
        headers.append((b"connection", b"close"))
        prefix = "http.response"
    elif "websocket.http.response" in scope.get("extensions", {}):
        prefix = "websocket.http.response"
    else:
        await send({"type": "websocket.close", "code": 1008})
        return
    await send({"type": f"{prefix}.start", "status": refused.status, "headers": headers})
    await send({"type": f"{prefix}.body", "body": body})
