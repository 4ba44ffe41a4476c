"""The HTTP application: its routes, what they share, and how any failure becomes an OpenAI-shaped answer."""

from __future__ import annotations

import logging
import secrets
import traceback
from collections.abc import Callable
from http import HTTPStatus

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edgeagent.api import admin, chat, models, ollama, responses, websocket
from edgeagent.api.context import Context
from edgeagent.api.errors import error_body, error_headers, http_status
from edgeagent.api.history import ResponseStore
from edgeagent.api.limits import BodyLimit
from edgeagent.api.live import LiveRequests
from edgeagent.api.probe import Probe
from edgeagent.api.security import Policy, Security
from edgeagent.api.service import Service
from edgeagent.config import Config
from edgeagent.credentials import Keys
from edgeagent.errors import EdgeAgentError, InternalError

logger = logging.getLogger(__name__)


def create_app(
    config: Config,
    service: Service,
    *,
    keys: Keys,
    history: ResponseStore | None = None,
    stop: Callable[[], None] = lambda: None,
    num_connections: Callable[[], int] = lambda: 0,
) -> FastAPI:
    """Return the application that serves `service`; its Context is at `app.state.context`.

    `keys` tell whose a token is; whether every client needs one follows from config.server.
    """
    app = FastAPI(
        title="edgeagent",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        exception_handlers={EdgeAgentError: _answer_error, HTTPException: _answer_http_exception},
        middleware=[
            Middleware(Envelope),
            Middleware(Security, policy=Policy(config.server, keys)),
            Middleware(BodyLimit, max_bytes=config.server.max_body_bytes),
        ],
    )
    live = LiveRequests(service)
    app.state.context = Context(
        config=config,
        service=live,
        probe=Probe(live),
        history=history if history is not None else ResponseStore(config.server.max_stored_responses),
        stop=stop,
        num_connections=num_connections,
    )
    for module in (chat, responses, websocket, models, ollama, admin):
        app.include_router(module.router)
    return app


class Envelope:
    """The outermost ASGI middleware: names each HTTP request, and logs what nothing else caught, a bare 500 to HTTP."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_id = f"req_{secrets.token_hex(12)}"
        is_started = scope["type"] != "http"

        async def send_named(message: Message) -> None:
            nonlocal is_started
            if message["type"] == "http.response.start":
                is_started = True
                message = {**message, "headers": [*message.get("headers", ()), (b"x-request-id", request_id.encode())]}
            await send(message)

        try:
            await self._app(scope, receive, send_named)
        except ClientDisconnect:
            return  # nobody is left to be answered
        except Exception as error:
            # Not the exception's own text, which may quote a prompt: its type and place are enough to find the bug.
            places = "".join(traceback.format_tb(error.__traceback__))
            logger.error("%s %r failed: %s\n%s", request_id, scope["path"], type(error).__name__, places)
            if is_started:
                raise
            await _error_response(InternalError("unhandled"))(scope, receive, send_named)


def _error_response(error: EdgeAgentError, status: int | None = None) -> JSONResponse:
    return JSONResponse(
        {"error": error_body(error)}, status_code=status or http_status(error), headers=error_headers(error)
    )


async def _answer_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, EdgeAgentError)
    if http_status(error) >= HTTPStatus.INTERNAL_SERVER_ERROR:
        logger.warning("%s %s: %s: %s", request.method, request.url.path, error.code, error.message)
    return _error_response(error)


async def _answer_http_exception(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    path = request.scope["path"]
    code, message = {
        HTTPStatus.NOT_FOUND: (
            "not_found",
            f"there is no {path[:256]}; see /v1/models, /v1/responses, /v1/chat/completions",
        ),
        HTTPStatus.METHOD_NOT_ALLOWED: ("method_not_allowed", f"{request.method} is not possible on {path[:256]}"),
    }.get(HTTPStatus(error.status_code), ("invalid_value", str(error.detail)))
    body = {"message": message, "type": "invalid_request_error", "param": None, "code": code}
    return JSONResponse({"error": body}, status_code=error.status_code, headers=error.headers)
