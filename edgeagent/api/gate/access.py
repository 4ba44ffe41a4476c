"""The scope that each path needs, and the decision whether a client has it, from all that is known of the asker.

A path that is not in the table needs `admin`. The table sees the path that the router sees, `scope["path"]`.
docs/access.md states the same rule in words; a test holds the two together.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from starlette.requests import HTTPConnection
from starlette.routing import compile_path
from starlette.types import Scope as AsgiScope

from edgeagent.credentials.keys import OWNER, TOKEN_PREFIX, Client, Keys, Scope, Shown, Standing
from edgeagent.errors import EdgeAgentError, Forbidden, Overloaded, Unauthorized

TOKEN_SUBPROTOCOL = "openai-insecure-api-key."  # noqa: S105 the prefix a browser puts before its key
CLIENT_KEY = "edgeagent.client"
PEER_KEY = "edgeagent.peer"
MAX_FAILURES = 20
FAILURES_WINDOW_S = 10.0

NEEDS: dict[str, Scope | None] = {
    "/health": None,
    "/": Scope.INFER,
    "/ready": Scope.INFER,
    "/version": Scope.INFER,
    "/docs": Scope.INFER,
    "/openapi.json": Scope.INFER,
    "/asyncapi.json": Scope.INFER,
    "/v1": Scope.INFER,
    "/v1/models": Scope.INFER,
    "/v1/models/{model_id:path}": Scope.INFER,
    "/v1/chat/completions": Scope.INFER,
    "/v1/completions": Scope.INFER,
    "/v1/embeddings": Scope.INFER,
    "/v1/rerank": Scope.INFER,
    "/tokenize": Scope.INFER,
    "/detokenize": Scope.INFER,
    "/apply-template": Scope.INFER,
    "/v1/responses": Scope.INFER,
    "/v1/responses/compact": Scope.INFER,
    "/v1/responses/input_tokens": Scope.INFER,
    "/v1/responses/{response_id}": Scope.INFER,
    "/v1/responses/{response_id}/cancel": Scope.INFER,
    "/v1/responses/{response_id}/input_items": Scope.INFER,
    "/api/version": Scope.INFER,
    "/api/tags": Scope.INFER,
    "/api/show": Scope.INFER,
    "/api/chat": Scope.INFER,
    "/api/generate": Scope.INFER,
    "/api/embed": Scope.INFER,
    "/api/embeddings": Scope.INFER,
    "/v1/models/pull": Scope.MODELS,
    "/api/pull": Scope.MODELS,
    "/api/create": Scope.MODELS,
    "/api/copy": Scope.MODELS,
    "/api/push": Scope.MODELS,
    "/api/delete": Scope.MODELS,
    "/api/blobs/{digest}": Scope.MODELS,
    "/api/ps": Scope.ADMIN,
    "/props": Scope.ADMIN,
    "/slots": Scope.ADMIN,
    "/slots/{slot_id}": Scope.ADMIN,
    "/metrics": Scope.ADMIN,
    "/edgeagent/status": Scope.ADMIN,
    "/edgeagent/cache": Scope.ADMIN,
    "/edgeagent/cache/purge": Scope.ADMIN,
    "/edgeagent/cache/warm": Scope.ADMIN,
    "/edgeagent/egress": Scope.ADMIN,
    "/edgeagent/egress/purge": Scope.ADMIN,
    "/edgeagent/reload": Scope.ADMIN,
    "/edgeagent/load": Scope.ADMIN,
    "/edgeagent/unload": Scope.ADMIN,
    "/edgeagent/stop": Scope.ADMIN,
}
"""What each path needs: a scope, or nothing. The owner has all scopes, a token those that it was given."""

_PLAIN = frozenset(template for template in NEEDS if "{" not in template)
_PATTERNS = [(compile_path(template)[0], template) for template in NEEDS if template not in _PLAIN]
_PAGE_HEADERS = frozenset({b"origin", b"referer", b"cookie"})
_FETCH_PREFIX = b"sec-fetch-"
# Quotes come from files of variables that no shell has read.
_QUOTES = b"\"'"
_INFER_ONLY = frozenset({Scope.INFER})


class Listener(StrEnum):
    """The kind of socket that a request came in by."""

    UNIX = "unix"
    """A Unix socket, private to the daemon's user."""
    LOOPBACK = "loopback"
    """A port that only this machine reaches."""
    LOCKED = "locked"
    """A port where every client needs a token: other machines reach it, or the owner asked for that."""


_IN_WORDS = {Listener.UNIX: "the Unix socket", Listener.LOOPBACK: "loopback", Listener.LOCKED: "TCP"}


@dataclass(frozen=True, slots=True)
class User:
    """The user of the process at the other end of a connection. `uid` is None if the system cannot tell."""

    uid: int | None = None
    is_own: bool = False


UNKNOWN_USER = User()
OWN_USER = User(is_own=True)


class Peer(Protocol):
    """The other end of a connection; the transport puts it into the scope."""

    async def user(self) -> User:
        """Return the user of the process at the other end."""
        ...


@dataclass(frozen=True, slots=True)
class Asker:
    """Everything that is known of the asker. `is_page`: a web page may have made a browser send the request."""

    listener: Listener
    user: User
    shown: Shown
    is_page: bool = False

    def described(self) -> str:
        """Return a description of the asker for the log: names, and never a key."""
        client = self.shown.client
        key = f"the token of {client.name or 'the owner'!r}" if client is not None else str(self.shown.standing)
        user = "" if self.user.uid is None else f" of the user {self.user.uid}"
        return f"{key}{user} over {_IN_WORDS[self.listener]}{', from a web page' if self.is_page else ''}"


def decide(need: Scope | None, asker: Asker) -> Client | EdgeAgentError:
    """Return the asker as a client with its scopes, or the refusal. The first of these that applies:

    1. every request may use a path that needs nothing;
    2. a token of ours that is unknown, or cannot be checked, is refused; so are several keys with one of ours;
    3. a known token of ours opens its scopes and nothing else;
    4. where every client needs a token, any other key, or none, is refused;
    5. the daemon's own user is the owner, but a request that a web page may have sent can only infer;
    6. other users of this machine can only infer, each of them apart from all others.
    """
    if need is None:
        return Client("", frozenset())
    match asker.shown.standing:
        case Standing.UNUSABLE:
            return Unauthorized(f"no token can be checked, so none is accepted: {asker.shown.reason}")
        case Standing.UNKNOWN:
            return Unauthorized(_UNKNOWN)
        case Standing.SEVERAL:
            return Unauthorized("the request shows several keys; show one token, and nothing beside it")
        case Standing.HELD:
            assert asker.shown.client is not None, "a token that is held has a holder"
            return _opened(need, asker.shown.client)
    if asker.listener is Listener.LOCKED:
        return Unauthorized(_MISSING if asker.shown.standing is Standing.NOTHING else _WRONG)
    if asker.listener is Listener.UNIX and not asker.user.is_own:
        return Forbidden("this socket is another user's; only the daemon's own user may use it")
    client = _local_client(asker)
    return client if need in client.scopes else Unauthorized(f"{_OWNERS}, with the scope {need}")


_HOW_TO_SHOW = (
    "Authorization: Bearer <the content of `token` in the state folder>, or a client's own, which "
    "`edgeagent token add NAME` makes"
)
_MISSING = f"this request needs a token: {_HOW_TO_SHOW}"
_WRONG = f"this request needs a token, and its key is not one of this daemon; show {_HOW_TO_SHOW}"
_UNKNOWN = (
    "this token opens nothing here: it was removed or replaced, or it is another daemon's; the owner's is in the file "
    "`token` in the state folder, and `edgeagent token add NAME` makes one for a client"
)
_OWNERS = (
    "this is the owner's: ask as the user that the daemon runs as (not from a web page), or show a token "
    "(Authorization: Bearer <the content of `token` in the state folder>, or a client's own)"
)


def _opened(need: Scope, client: Client) -> Client | EdgeAgentError:
    if need in client.scopes:
        return client
    return Forbidden(f"the token of {client.name!r} does not open this: it lacks the scope {need}")


def _local_client(asker: Asker) -> Client:
    if asker.user.is_own:
        return Client(OWNER.name, _INFER_ONLY) if asker.is_page else OWNER
    # No client's name has a colon, so no client has the name of another user's partition.
    return Client("uid:unknown" if asker.user.uid is None else f"uid:{asker.user.uid}", _INFER_ONLY)


def template_of(path: str) -> str | None:
    """Return the template that a path fits, None for a path that is not in the table."""
    if path in _PLAIN:
        return path
    return next((template for pattern, template in _PATTERNS if pattern.match(path)), None)


def need_of(path: str) -> Scope | None:
    """Return the scope that a path needs; None if it needs none."""
    template = template_of(path)
    return Scope.ADMIN if template is None else NEEDS[template]


def client_of(connection: HTTPConnection) -> str:
    """Return the asker's partition: "" for the owner, a client's name, `uid:1001` for another user of this machine.

    Stored responses and cached prompts are kept apart by it. Raises KeyError for a request that was not judged.
    """
    name: str = connection.scope[CLIENT_KEY]
    return name


def is_owners(connection: HTTPConnection) -> bool:
    """Whether the owner sent this, and not a web page. Only the owner may change the machine beyond one answer."""
    return client_of(connection) == OWNER.name and not is_page(connection.scope)


class Access:
    """Gathers the facts about the asker, and decides."""

    def __init__(self, keys: Keys, *, is_token_required: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._keys = keys
        self._is_token_required = is_token_required
        self._failures = _Failures(clock)

    async def judge(self, scope: AsgiScope) -> tuple[Client | EdgeAgentError, Asker]:
        """Return the decision and the asker. After many wrong tokens, their refusal is an Overloaded."""
        need = need_of(scope["path"])
        asker = await self._asker(scope, is_user_asked=need is not None)
        verdict = decide(need, asker)
        is_wrong = asker.shown.standing in (Standing.FOREIGN, Standing.UNKNOWN, Standing.SEVERAL)
        if is_wrong and not isinstance(verdict, Client):
            verdict = self._failures.count(verdict)
        return verdict, asker

    async def _asker(self, scope: AsgiScope, *, is_user_asked: bool) -> Asker:
        shown = self._keys.judge(bearer_tokens(scope) + subprotocol_tokens(scope))
        listener = self._listener(scope)
        user = UNKNOWN_USER
        if listener is Listener.UNIX:
            user = OWN_USER  # the transport has refused all other users
        elif listener is Listener.LOOPBACK and is_user_asked and shown.standing is not Standing.HELD:
            peer: Peer | None = scope.get(PEER_KEY)
            user = await peer.user() if peer is not None else UNKNOWN_USER
        return Asker(listener, user, shown, is_page=is_page(scope))

    def _listener(self, scope: AsgiScope) -> Listener:
        if is_unix(scope):
            return Listener.UNIX
        return Listener.LOCKED if self._is_token_required else Listener.LOOPBACK


class _Failures:
    """Counts wrong tokens. Beyond the limit they get another answer; right ones still pass, or any program on the
    machine could lock the owner out.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._num_failures = 0
        self._since_s = clock()

    def count(self, refusal: EdgeAgentError) -> EdgeAgentError:
        """Return the refusal of a wrong token, or another one beyond the limit."""
        now_s = self._clock()
        if now_s - self._since_s > FAILURES_WINDOW_S:
            self._num_failures, self._since_s = 0, now_s
        self._num_failures += 1
        if self._num_failures <= MAX_FAILURES:
            return refusal
        wait_s = max(1.0, self._since_s + FAILURES_WINDOW_S - now_s)
        return Overloaded("too many wrong tokens; wait, and check the token", retry_after_s=wait_s)


def is_unix(scope: AsgiScope) -> bool:
    """Whether a request came over a Unix socket: the transport lets only the owner's own processes in there."""
    server = scope.get("server")
    return server is not None and server[1] is None


def is_browser(scope: AsgiScope) -> bool:
    """Whether a browser may have sent this, even if no header names the page.

    A page can post a form, text/plain, or (from a Blob) no type at all to another site without a preflight. A current
    browser then adds Origin and Sec-Fetch-Site, which no script can leave out. Every browser calls itself Mozilla, and
    a page can change that only after a preflight.
    """
    names = [name.lower() for name, _ in scope["headers"]]
    if any(name in _PAGE_HEADERS or name.startswith(_FETCH_PREFIX) for name in names):
        return True
    return any(agent.startswith(b"Mozilla/") for agent in values(scope, b"user-agent"))


def is_page(scope: AsgiScope) -> bool:
    """Whether a web page may have made a browser send this: true for a browser, unless its user typed the address.

    For a typed address the browser navigates. An extension's fetch comes from no site either, but does not navigate.
    Node's fetch sends Sec-Fetch-Mode, too, but is not a browser: browsers also send Sec-Fetch-Site.
    """
    is_typed = values(scope, b"sec-fetch-site") == [b"none"] and values(scope, b"sec-fetch-mode") == [b"navigate"]
    headers = [(name, value) for name, value in scope["headers"] if name.lower() != b"sec-fetch-mode"]
    if not is_browser({**scope, "headers": headers}):
        return False
    return not is_typed or bool(values(scope, b"origin"))


def values(scope: AsgiScope, name: bytes) -> list[bytes]:
    """Return the values of all headers of this name (in lower case)."""
    return [value.strip() for key, value in scope["headers"] if key.lower() == name]


def bearer_tokens(scope: AsgiScope) -> list[bytes]:
    """Return the tokens of a request's Authorization headers.

    A token of this daemon counts under any scheme, and without one. Otherwise a client that shows its token in a wrong
    form would be taken for one that shows none.
    """
    tokens = []
    for value in values(scope, b"authorization"):
        words = [word.strip(_QUOTES) for word in value.split()]
        if words and words[0].lower() == b"bearer":
            tokens.append(b" ".join(words[1:]))
        else:
            shown = (*words[-1:], *_name_and_password(words))
            tokens += [word for word in shown if word.startswith(TOKEN_PREFIX.encode())]
    return tokens


def _name_and_password(words: list[bytes]) -> list[bytes]:
    """Return the name and password of Basic authentication (clients send it for `http://TOKEN@host`), else nothing."""
    match words:
        case [scheme, encoded] if scheme.lower() == b"basic":
            with suppress(ValueError):
                return base64.b64decode(encoded).split(b":", 1)
    return []


def subprotocol_tokens(scope: AsgiScope) -> list[bytes]:
    """Return the tokens among a WebSocket's offered subprotocols: a browser has no other place for a token."""
    offered: Iterable[str] = scope.get("subprotocols") or ()
    tokens = [name.removeprefix(TOKEN_SUBPROTOCOL) for name in offered if name.startswith(TOKEN_SUBPROTOCOL)]
    return [token.encode() for token in tokens]
