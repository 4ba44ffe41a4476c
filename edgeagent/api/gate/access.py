"""The scope that each path needs, and the facts about a request's sender: keys, socket, whether a web page sent it.

Each route declares its scope. docs/reference/http.md lists them, and a test compares the two.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from contextlib import suppress

from starlette.requests import HTTPConnection
from starlette.routing import compile_path
from starlette.types import Scope as AsgiScope

from edgeagent.api.wire.body import CLIENT_KEY
from edgeagent.api.wire.request_id import MAX_HOPS, NUM_HOPS
from edgeagent.config import Config
from edgeagent.credentials.decision import OWN_USER, UNKNOWN_USER, Listener, Peer, Sender, decide
from edgeagent.credentials.grants import GRANT
from edgeagent.credentials.keys import OWNER, TOKEN_PREFIX, Client, Keys, Scope
from edgeagent.errors import EdgeAgentError
from edgeagent.router.policy import lowered, strictest, targets_of, within_budget
from edgeagent.types import AnswerPolicy, GenerateRequest, RouteMode, Tier, replace

TOKEN_SUBPROTOCOL = "openai-insecure-api-key."  # noqa: S105 the prefix a browser puts before its key
PEER_KEY = "edgeagent.peer"

_PAGE_HEADERS = frozenset({b"origin", b"referer", b"cookie"})
_FETCH_PREFIX = b"sec-fetch-"
# A client that reads its token from a .env file may leave the quotes on. A shell would remove them.
_QUOTES = b"\"'"


class Paths:
    """The paths of all routes, as templates, and the scope that each needs."""

    def __init__(self, needs: Mapping[str, Scope | None]) -> None:
        self._needs = needs
        self._patterns = [(compile_path(template)[0], template) for template in needs if "{" in template]

    def template_of(self, path: str) -> str | None:
        """Return the template that matches a path, as the router has it; None if no template matches."""
        if path in self._needs and "{" not in path:
            return path
        return next((template for pattern, template in self._patterns if pattern.match(path)), None)

    def need_of(self, path: str) -> Scope | None:
        """Return the scope that a path needs; None if it needs no scope. A path without a route needs `admin`."""
        template = self.template_of(path)
        return Scope.ADMIN if template is None else self._needs[template]


def client_of(connection: HTTPConnection) -> str:
    """Return the partition of a request's sender: "" for the owner, otherwise the name of the client.

    The name of another user of this machine is `uid:` and the user's number, or `uid:unknown`. Clients of different
    partitions share neither stored responses nor cached prompts. Raise KeyError if Security has not let in the
    request.
    """
    name: str = connection.scope[CLIENT_KEY]
    return name


def is_owners(connection: HTTPConnection) -> bool:
    """Whether the owner sent this request, and not through a web page.

    Some fields of a request change more than its answer, for example how long a model stays loaded. They have an effect
    only in requests of the owner.
    """
    return client_of(connection) == OWNER.name and not is_page(connection.scope)


class Access:
    """Gathers the facts about the sender, and decides whether the sender may use the path."""

    def __init__(self, paths: Paths, keys: Keys, *, is_token_required: bool) -> None:
        self._paths = paths
        self._keys = keys
        self._is_token_required = is_token_required

    async def authorize(self, scope: AsgiScope) -> tuple[Client | EdgeAgentError, Sender]:
        """Return a pair. The first value is the client that is let in, or the error that refuses the request.

        The second value has the facts about the sender. Wrong tokens are not counted: they are too long to be guessed,
        and a limit for all would let any program change the answer that a client with a removed token gets.
        """
        need = self._paths.need_of(scope["path"])
        sender = await self._sender(scope, is_user_asked=need is not None)
        return decide(need, sender), sender

    async def _sender(self, scope: AsgiScope, *, is_user_asked: bool) -> Sender:
        keys = self._keys.judge(header_tokens(scope) + subprotocol_tokens(scope))
        listener = Listener.LOCKED if self._is_token_required else Listener.LOOPBACK
        user = UNKNOWN_USER
        if is_unix(scope):
            listener, user = Listener.UNIX, OWN_USER  # the transport has refused all other users
        elif listener is Listener.LOOPBACK and is_user_asked and (keys.client is None or keys.client.browser):
            peer: Peer | None = scope.get(PEER_KEY)
            user = await peer.user() if peer is not None else UNKNOWN_USER
        return Sender(listener, user, keys, is_page=is_page(scope))


def is_unix(scope: AsgiScope) -> bool:
    """Whether a request came over a Unix socket. The transport admits only processes of the owner on that socket."""
    server = scope.get("server")
    return server is not None and server[1] is None


def is_browser(scope: AsgiScope) -> bool:
    """Whether a browser may have sent this request, even if no header names the page.

    A page can send some bodies to another site without a preflight: a form, plain text, or a body without a type. A
    current browser then adds Origin and Sec-Fetch-Site, and no script can remove these headers. An older browser still
    sends a User-Agent with "Mozilla", which a page can change only after a preflight.
    """
    names = [name.lower() for name, _ in scope["headers"]]
    if any(name in _PAGE_HEADERS or name.startswith(_FETCH_PREFIX) for name in names):
        return True
    return any(agent.startswith(b"Mozilla/") for agent in header_values(scope, b"user-agent"))


def is_page(scope: AsgiScope) -> bool:
    """Whether a web page may have made a browser send this request. False if the user typed the address.

    For a typed address, Sec-Fetch-Site is `none` and Sec-Fetch-Mode is `navigate`. A request of a browser extension
    has `none` too, but another mode. Sec-Fetch-Mode alone is no sign of a browser, because Node's fetch sends it too.
    """
    sites, modes = header_values(scope, b"sec-fetch-site"), header_values(scope, b"sec-fetch-mode")
    is_typed = sites == [b"none"] and modes == [b"navigate"]
    headers = [(name, value) for name, value in scope["headers"] if name.lower() != b"sec-fetch-mode"]
    if not is_browser({**scope, "headers": headers}):
        return False
    return not is_typed or bool(header_values(scope, b"origin"))


def header_values(scope: AsgiScope, name: bytes) -> list[bytes]:
    """Return the values of all headers that are called `name`, which must be in lower case. Empty if there are none."""
    return [value.strip() for key, value in scope["headers"] if key.lower() == name]


def header_tokens(scope: AsgiScope) -> list[bytes]:
    """Return the tokens of a request's Authorization headers, and that of x-api-key, which Anthropic's clients send.

    Claude Code may send one token in both, which is then one token. An x-api-key without a value is none: Anthropic's
    library sends it if its key is the empty string.

    After the scheme Bearer, any text counts as a token. After another scheme, or without a scheme, only a text with
    TOKEN_PREFIX counts, also as the name or the password of Basic. Otherwise a client that sends its token in a wrong
    form would be treated as a client without a token.
    """
    tokens = []
    for value in header_values(scope, b"authorization"):
        words = [word.strip(_QUOTES) for word in value.split()]
        if words and words[0].lower() == b"bearer":
            tokens.append(b" ".join(words[1:]))
        else:
            shown = (*words[-1:], *_name_and_password(words))
            tokens += [word for word in shown if word.startswith(TOKEN_PREFIX.encode())]
    for value in header_values(scope, b"x-api-key"):
        words = [word.strip(_QUOTES) for word in value.split()]
        key = b" ".join(words[1:] if words and words[0].lower() == b"bearer" else words)
        if key and key not in tokens:
            tokens.append(key)
    return tokens


def _name_and_password(words: list[bytes]) -> list[bytes]:
    """Return the name and password of Basic authentication, which clients send for `http://TOKEN@host`; else []."""
    match words:
        case [scheme, encoded] if scheme.lower() == b"basic":
            with suppress(ValueError):
                return base64.b64decode(encoded).split(b":", 1)
    return []


def subprotocol_tokens(scope: AsgiScope) -> list[bytes]:
    """Return the tokens in the subprotocols that a WebSocket client offers. A browser cannot put a token elsewhere."""
    offered: Iterable[str] = scope.get("subprotocols") or ()
    tokens = [name.removeprefix(TOKEN_SUBPROTOCOL) for name in offered if name.startswith(TOKEN_SUBPROTOCOL)]
    return [token.encode() for token in tokens]


def with_caller(
    request: GenerateRequest, config: Config, ceiling: Tier | None, *, answers: bool = True
) -> GenerateRequest:
    """Return a copy of a request with its client's name, its number of hops, and the limits that apply to it.

    They are the strictest route mode, the highest tier (`ceiling` is that of the machine's policy), the budgets of its
    tier, and whether its answer may be kept (`answers` is what the machine's policy says). Its `warnings` say how it
    was changed.

    A request with `prefill_only` or `is_ahead` runs on this machine, because it fills this machine's cache; so does one
    with `choices`, for which no remote has a route. A request that was forwarded MAX_HOPS times runs here too.
    Otherwise two edgeagents could forward it to each other forever.
    """
    grant, num_hops = GRANT.get(), NUM_HOPS.get()
    client = grant.client if grant is not None else OWNER
    is_for_here = request.prefill_only or request.is_ahead or bool(request.choices)
    here = RouteMode.LOCAL_ONLY if is_for_here or num_hops >= MAX_HOPS else None
    route, asked_route = strictest(client.route, here, request.route), request.asked_route or request.route
    partition = request.cache.partition
    request = replace(request, route=route, asked_route=asked_route, client=partition, num_hops=num_hops)
    targets = targets_of(config)
    request = lowered(request, client.tier, targets, f"the token of {client.label!r} allows no more")
    request = lowered(request, ceiling, targets, "the policy of this machine allows no more")
    if not (client.answers and answers):
        request = replace(request, cache=replace(request.cache, answers=AnswerPolicy.NONE))
    return within_budget(request, config.tier(request.tier))
