"""What each path needs of who asks: the table of rules, and the tokens that requests show.

A path without a rule needs everything. The rules see the path that the router sees, `scope["path"]`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from starlette.requests import HTTPConnection
from starlette.routing import compile_path
from starlette.types import Scope as AsgiScope

from edgeagent.credentials import OWNER, Client, Keys, Scope
from edgeagent.errors import EdgeAgentError, Forbidden, Overloaded, Unauthorized

TOKEN_SUBPROTOCOL = "openai-insecure-api-key."  # noqa: S105 the prefix a browser puts before its key
CLIENT_KEY = "edgeagent.client"
MAX_FAILURES = 20
FAILURES_WINDOW_S = 10.0


@dataclass(frozen=True, slots=True)
class Rule:
    """What a path needs. Scope None: nothing. `is_owners`: a token even where others need none."""

    scope: Scope | None
    is_owners: bool = False


_OPEN, _INFER, _MODELS, _ADMIN = Rule(None), Rule(Scope.INFER), Rule(Scope.MODELS), Rule(Scope.ADMIN)
# Other users of the machine share its loopback: what changes the daemon itself is not theirs.
_OWNER = Rule(Scope.ADMIN, is_owners=True)

RULES: dict[str, Rule] = {
    "/health": _OPEN,
    "/": _INFER,
    "/ready": _INFER,
    "/version": _INFER,
    "/docs": _INFER,
    "/openapi.json": _INFER,
    "/asyncapi.json": _INFER,
    "/v1": _INFER,
    "/v1/models": _INFER,
    "/v1/models/{model_id:path}": _INFER,
    "/v1/chat/completions": _INFER,
    "/v1/completions": _INFER,
    "/v1/embeddings": _INFER,
    "/tokenize": _INFER,
    "/detokenize": _INFER,
    "/apply-template": _INFER,
    "/props": _INFER,
    "/slots": _INFER,
    "/slots/{slot_id}": _INFER,
    "/v1/responses": _INFER,
    "/v1/responses/compact": _INFER,
    "/v1/responses/input_tokens": _INFER,
    "/v1/responses/{response_id}": _INFER,
    "/v1/responses/{response_id}/cancel": _INFER,
    "/v1/responses/{response_id}/input_items": _INFER,
    "/api/version": _INFER,
    "/api/tags": _INFER,
    "/api/show": _INFER,
    "/api/ps": _INFER,
    "/api/chat": _INFER,
    "/api/generate": _INFER,
    "/api/embed": _INFER,
    "/api/embeddings": _INFER,
    "/api/pull": _MODELS,
    "/api/create": _MODELS,
    "/api/copy": _MODELS,
    "/api/push": _MODELS,
    "/api/delete": _MODELS,
    "/api/blobs/{digest}": _MODELS,
    "/metrics": _ADMIN,
    "/edgeagent/status": _ADMIN,
    "/edgeagent/cache": _OWNER,
    "/edgeagent/cache/purge": _OWNER,
    "/edgeagent/cache/warm": _OWNER,
    "/edgeagent/reload": _OWNER,
    "/edgeagent/stop": _OWNER,
}
_PATTERNS = [(compile_path(template)[0], template) for template in RULES]


def template_of(path: str) -> str | None:
    """Return the template that a path fits, None for a path without a rule."""
    return next((template for pattern, template in _PATTERNS if pattern.match(path)), None)


def rule_of(path: str) -> Rule:
    """Return what a path needs."""
    template = template_of(path)
    return _ADMIN if template is None else RULES[template]


def client_of(connection: HTTPConnection) -> str:
    """Return who asks, by the token alone: a client's name, "" for the owner and for whoever needs none."""
    name: str = connection.scope.get(CLIENT_KEY, "")
    return name


class Access:
    """Judges who asks. `is_token_required` says whether those without a token may do what is not the owner's alone."""

    def __init__(self, keys: Keys, *, is_token_required: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._keys = keys
        self._is_token_required = is_token_required
        self._failures = _Failures(clock)

    def judge(self, scope: AsgiScope) -> Client:
        """Return who asks; raise Unauthorized, Forbidden, or Overloaded after too many wrong tokens."""
        rule = rule_of(scope["path"])
        if rule.scope is None or is_unix(scope):
            return OWNER
        shown = bearer_tokens(scope) + subprotocol_tokens(scope)
        client = self._keys.find(shown[0]) if len(shown) == 1 else None
        if client is not None:
            if rule.scope not in client.scopes:
                raise Forbidden(f"the token of {client.name!r} does not open this: it lacks the scope {rule.scope}")
            return client
        # Clients of OpenAI's API must send something as a key; where none is needed, any will do.
        if self._is_token_required or rule.is_owners:
            raise self._failures.add() if shown else _missing()
        return OWNER


class _Failures:
    """Counts wrong tokens. Beyond the limit they get another answer; the right one still passes, or any program on the
    machine could lock the owner out.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._num_failures = 0
        self._since_s = clock()

    def add(self) -> EdgeAgentError:
        now_s = self._clock()
        if now_s - self._since_s > FAILURES_WINDOW_S:
            self._num_failures, self._since_s = 0, now_s
        self._num_failures += 1
        if self._num_failures > MAX_FAILURES:
            wait_s = max(1.0, self._since_s + FAILURES_WINDOW_S - now_s)
            return Overloaded("too many wrong tokens; wait, and check the token", retry_after_s=wait_s)
        return Unauthorized("the token is wrong; the right one is in the file `token` in the state folder")


def _missing() -> Unauthorized:
    return Unauthorized(
        "this request needs the token: Authorization: Bearer <the content of `token` in the state folder>"
    )


def is_unix(scope: AsgiScope) -> bool:
    """Whether a request came over a Unix socket: the transport lets only the owner's own processes in there."""
    server = scope.get("server")
    return server is not None and server[1] is None


def values(scope: AsgiScope, name: bytes) -> list[bytes]:
    """Return the values of all headers of this name (in lower case)."""
    return [value.strip() for key, value in scope["headers"] if key.lower() == name]


def bearer_tokens(scope: AsgiScope) -> list[bytes]:
    """Return the tokens of a request's Authorization headers."""
    credentials = [value.partition(b" ") for value in values(scope, b"authorization")]
    return [token.strip() for scheme, _, token in credentials if scheme.lower() == b"bearer"]


def subprotocol_tokens(scope: AsgiScope) -> list[bytes]:
    """Return the tokens among a WebSocket's offered subprotocols, where a browser has to put it."""
    offered: Iterable[str] = scope.get("subprotocols") or ()
    tokens = [name.removeprefix(TOKEN_SUBPROTOCOL) for name in offered if name.startswith(TOKEN_SUBPROTOCOL)]
    return [token.encode() for token in tokens]
