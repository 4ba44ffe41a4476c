"""The HTTP application: its routes, their shared context, and how failures become answers in each protocol."""

from __future__ import annotations

import logging
from collections.abc import Callable
from http import HTTPStatus

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from fastapi.telemetry import TelemetryConfig
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.types import Receive, Scope, Send

from edgeagent.api.context import Context, Responses
from edgeagent.api.gate.access import with_caller
from edgeagent.api.gate.body_limit import BodyLimit, InFlight
from edgeagent.api.gate.envelope import Envelope
from edgeagent.api.gate.security import Policy, Security
from edgeagent.api.routes import DOCUMENTS, PATHS, ROUTERS
from edgeagent.api.wire.errors import OLLAMA_PREFIX, error_answer, http_status
from edgeagent.config import Config
from edgeagent.credentials.grants import Grants
from edgeagent.credentials.keys import Keys
from edgeagent.errors import EdgeAgentError, InternalError, InvalidRequest, MethodNotAllowed, NotFound
from edgeagent.metrics.slo import SloLedger
from edgeagent.router.policy import targets_of
from edgeagent.service.live_service import LiveService, Trace
from edgeagent.service.probe import Probe
from edgeagent.service.service import Service
from edgeagent.store.hub.background import Pulls
from edgeagent.types import GenerateRequest

_PLACES = "/v1/models, /v1/responses, /v1/chat/completions"

# FastAPI's telemetry would record the texts of exceptions. Environment variables can make it export them.
_NO_TELEMETRY: TelemetryConfig = {
    "tracing": False,
    "metrics": False,
    "logs": False,
    "operation_spans": False,
    "auto_configure": False,
}

logger = logging.getLogger(__name__)


def create_app(
    config: Config,
    service: Service,
    *,
    keys: Keys,
    responses: Responses | None = None,
    stop: Callable[[], None] = lambda: None,
    trace: Trace | None = None,
    trouble: Callable[[], str | None] = lambda: None,
    slo: SloLedger | None = None,
) -> FastAPI:
    """Return the application that serves `service`; its Context is at `app.state.context`.

    `keys` checks tokens and returns the client of each. `config.server` decides which requests need a token. By
    default the stored responses are in memory only; the caller must close those that it passes. See Context for `stop`,
    `trouble` and `slo`, and `service.live_service` for `trace`.
    """
    in_flight = InFlight(config.server.max_in_flight_bytes)
    app = FastAPI(
        title="edgeagent",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        telemetry=_NO_TELEMETRY,
        exception_handlers={EdgeAgentError: _answer_error, HTTPException: _answer_http_exception},
        middleware=[
            Middleware(Envelope, paths=PATHS, answer_unhandled=_answer_unhandled),
            Middleware(Security, policy=Policy(config.server, keys, PATHS), grants=Grants(keys)),
            Middleware(BodyLimit, max_bytes=config.server.max_body_bytes, in_flight=in_flight),
        ],
    )

    def admitted(request: GenerateRequest) -> GenerateRequest:
        access = service.remote_access
        return with_caller(request, config, None if access is None else access.policy.policy.tier)

    live = LiveService(service, admitted, trace, targets_of(config))
    app.state.context = Context(
        config=config,
        service=live,
        probe=Probe(live),
        responses=responses or Responses.of(config, None),
        stop=stop,
        trouble=trouble,
        keys=keys,
        pulls=Pulls(config.store, config.state_dir),
        in_flight=in_flight,
        slo=slo or SloLedger(),
    )
    app.router.default = _answer_no_route
    for router in ROUTERS:
        app.include_router(router)
    if config.server.docs:
        # Imported here, because only a daemon that serves the documents needs these modules.
        from edgeagent.api.documents.routes import router as documents

        app.include_router(documents)
    return app


async def _answer_unhandled(scope: Scope, receive: Receive, send: Send) -> None:
    await error_answer(scope["path"], InternalError("unhandled"))(scope, receive, send)


async def _answer_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, EdgeAgentError)
    if http_status(error) >= HTTPStatus.INTERNAL_SERVER_ERROR:
        logger.warning("%s %s: %s: %s", request.method, request.url.path, error.code, error.message)
    return error_answer(request.scope["path"], error)


async def _answer_no_route(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a request for an unknown path, or a WebSocket handshake there, with status 404.

    If the server cannot send an HTTP answer to a handshake, close the WebSocket: its client then gets status 403.
    """
    if scope["type"] == "http" or "websocket.http.response" not in scope.get("extensions", {}):
        await scope["app"].router.not_found(scope, receive, send)
        return
    error = NotFound(f"there is no WebSocket at {scope['path'][:256]}; see /v1/responses")
    await error_answer(scope["path"], error)(scope, receive, send)


async def _answer_http_exception(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    answer = error_answer(request.scope["path"], _as_ours(request, error), error.status_code)
    answer.headers.update(error.headers or {})
    return answer


def _as_ours(request: Request, error: HTTPException) -> EdgeAgentError:
    path: str = request.scope["path"]
    match error.status_code:
        case HTTPStatus.NOT_FOUND if path in DOCUMENTS:
            return NotFound(f"{path} needs `edgeagent serve --docs`")
        case HTTPStatus.NOT_FOUND:
            places = "/api/chat, /api/generate, /api/tags" if path.startswith(OLLAMA_PREFIX) else _PLACES
            return NotFound(f"there is no {path[:256]}; see {places}")
        case HTTPStatus.METHOD_NOT_ALLOWED:
            return MethodNotAllowed(f"{request.method} is not possible on {path[:256]}")
    return InvalidRequest(str(error.detail))
