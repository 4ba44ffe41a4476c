"""The outermost ASGI middleware. It gives each request an id, counts its outcome, and answers uncaught exceptions.

If an answer came before the request's body was read, it also keeps the connection open for a moment. If a server closes
a socket with unread bytes, the system resets the connection, and a client that is still sending may lose the answer. So
the rest of the body is read and thrown away first, within limits.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Awaitable, Callable
from contextlib import suppress

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edgeagent import metrics
from edgeagent.api.gate.access import Paths, header_values
from edgeagent.api.gate.security import has_body
from edgeagent.api.wire.body import WARNINGS_KEY, WarningLog, Warnings
from edgeagent.api.wire.errors import ANTHROPIC_PREFIX
from edgeagent.api.wire.request_id import begin_request

logger = logging.getLogger(__name__)

LINGER_S = 2.0
MAX_LINGER_BYTES = 64 << 20


class Lingering:
    """The `receive` and `send` of one HTTP request. The end of an answer waits for the rest of an unread body."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        # A client that waits for `100 Continue` has sent nothing yet.
        is_waiting = bool(header_values(scope, b"expect"))
        self._is_read = scope["type"] != "http" or not has_body(scope) or is_waiting

    async def receive(self) -> Message:
        """Return the request's next message."""
        message = await self._receive()
        if message["type"] != "http.request" or not message.get("more_body", False):
            self._is_read = True
        return message

    async def send(self, message: Message) -> None:
        """Send a message of the answer."""
        is_last = message["type"] == "http.response.body" and not message.get("more_body", False)
        if not is_last or self._is_read:
            await self._send(message)
            return
        await self._send({**message, "more_body": True})
        num_bytes = 0
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER_S):
                while not self._is_read and num_bytes < MAX_LINGER_BYTES:
                    num_bytes += len((await self.receive()).get("body", b""))
        await self._send({"type": "http.response.body", "body": b""})


WEBSOCKET = "WS"
"""The method under which WebSockets are counted."""
OTHER = "other"
METHODS = frozenset({"GET", "POST", "DELETE", "OPTIONS", "HEAD", "PUT", "PATCH", WEBSOCKET})

# llama-server's other names of routes.
ALIASES = {
    "/v1/health": "/health",
    "/models": "/v1/models",
    "/chat/completions": "/v1/chat/completions",
    "/completions": "/completion",
    "/embeddings": "/embedding",
    "/responses": "/v1/responses",
    **dict.fromkeys(("/rerank", "/reranking", "/v1/reranking"), "/v1/rerank"),
}
# Routes that answer HEAD and have no GET.
_HEAD_ONLY = "/api/blobs/"

AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]


class Envelope:
    """The outermost middleware. `answer_unhandled` answers an HTTP request with status 500 after an uncaught exception.

    If the answer had begun before, or on a WebSocket, the exception is raised again instead. ClientDisconnect is
    ignored.
    """

    def __init__(self, app: ASGIApp, paths: Paths, answer_unhandled: AsgiApp) -> None:
        self._app = app
        self._paths = paths
        self._answer_unhandled = answer_unhandled
        self._log = WarningLog()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        request_id = begin_request(scope["headers"])
        warnings = Warnings(self._log)
        method = WEBSOCKET if scope["type"] == "websocket" else scope["method"]
        scope = {**scope, WARNINGS_KEY: warnings, "path": ALIASES.get(scope["path"], scope["path"])}
        if method == "HEAD" and not scope["path"].startswith(_HEAD_ONLY):
            scope["method"] = "GET"  # the server leaves out the body
        outcome = "disconnected"

        async def send_named(message: Message) -> None:
            nonlocal outcome
            match message["type"]:
                case "http.response.start" | "websocket.http.response.start":
                    outcome = str(message["status"])
                    own = [(b"x-request-id", request_id.encode()), *warnings.headers()]
                    if scope["path"].startswith(ANTHROPIC_PREFIX):
                        own.append((b"request-id", request_id.encode()))
                    message = {**message, "headers": [*message.get("headers", ()), *own]}
                case "websocket.accept":
                    outcome = "101"
            await send(message)

        try:
            lingering = Lingering(scope, receive, send_named)
            await self._app(scope, lingering.receive, lingering.send)
        except ClientDisconnect:
            return  # the client has disconnected
        except Exception as error:
            # The exception's text is not logged, because it may quote a prompt. Its type and place are enough.
            places = {"places": "".join(traceback.format_tb(error.__traceback__))}
            logger.error("%s %r failed: %s", request_id, scope["path"], type(error).__name__, extra=places)
            if scope["type"] != "http" or outcome != "disconnected":
                raise
            await self._answer_unhandled(scope, receive, send_named)
        finally:
            method = method if method in METHODS else OTHER
            metrics.requests_total.labels(self._paths.template_of(scope["path"]) or OTHER, method, outcome).inc()
