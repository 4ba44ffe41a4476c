"""The HTTP application: its routes, their shared context, and how failures become answers in each protocol."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Callable
from http import HTTPStatus
from typing import TYPE_CHECKING

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
from edgeagent.api.routes import DOCUMENTS, NEEDS, PATHS, ROUTES, SERVED
from edgeagent.api.wire.body import LIKENESS
from edgeagent.api.wire.errors import OLLAMA_PREFIX, error_answer, http_status
from edgeagent.config import Config
from edgeagent.credentials.grants import Grants
from edgeagent.credentials.keys import Keys
from edgeagent.errors import EdgeAgentError, InternalError, InvalidRequest, MethodNotAllowed, NotFound
from edgeagent.machine_policy import MachinePolicy
from edgeagent.metrics.slo import SloLedger
from edgeagent.router.policy import targets_of
from edgeagent.service.live_service import LiveService, Trace
from edgeagent.service.probe import Probe
from edgeagent.service.service import Service
from edgeagent.store.hub.background import Pulls
from edgeagent.types import GenerateRequest

if TYPE_CHECKING:
    from edgeagent.answers.answers import Answers
    from edgeagent.backends.remote.image_fetcher import ImageFetcher

_PLACES = "/v1/models, /v1/responses, /v1/chat/completions, /v1/messages"

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
    answers: Answers | None = None,
) -> FastAPI:
    """Return the application that serves `service`; its Context is at `app.state.context`.

    `answers`: the cache of answers in front of `service`; None if it is off.

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

    def limited(request: GenerateRequest) -> GenerateRequest:
        access = service.remote_access
        policy = MachinePolicy() if access is None else access.policy.policy
        return with_caller(request, config, policy.tier, answers=policy.answers)

    live = LiveService(answers or service, limited, trace, targets_of(config), in_flight.holding)
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
        kept=InFlight(config.server.max_in_flight_bytes),
        slo=slo or SloLedger(),
        answers=answers,
    )
    app.state.images = _image_fetcher(config, service)
    app.router.default = _answer_no_route
    app.router.routes.extend(SERVED)
    if config.server.docs:
        # Imported here, because only a daemon that serves the documents needs these modules.
        from edgeagent.api.documents.routes import router as documents

        app.include_router(documents)
    return app


def _image_fetcher(config: Config, service: Service) -> ImageFetcher | None:
    """Return what fetches images for clients; None if the owner allows no host."""
    access = service.remote_access
    if not config.server.image_hosts or access is None:
        return None
    # Imported here, because only such a daemon needs it.
    from edgeagent.backends.remote.image_fetcher import ImageFetcher

    return ImageFetcher(config.server.image_hosts, access.policy, access.ledger)


async def _answer_unhandled(scope: Scope, receive: Receive, send: Send) -> None:
    await error_answer(scope["path"], InternalError("unhandled"))(scope, receive, send)


async def _answer_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, EdgeAgentError)
    if http_status(error) >= HTTPStatus.INTERNAL_SERVER_ERROR:
        logger.warning("%s %s: %s: %s", request.method, request.url.path, error.code, error.message)
    return error_answer(request.scope["path"], error.without_traceback())


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
            return NotFound(f"there is no {path[:256]}; {_nearest(path)}")
        case HTTPStatus.METHOD_NOT_ALLOWED:
            template = PATHS.template_of(path)
            methods = [route.method for route in ROUTES.values() if route.template == template] or ["GET"]
            return MethodNotAllowed(f"{request.method} is not possible on {path[:256]}; use {' or '.join(methods)}")
    return InvalidRequest(str(error.detail))


def _nearest(path: str) -> str:
    """Return the path that is meant by one without a route, as a phrase for an error's text."""
    if path.startswith("/v1/v1/"):
        return f"the base URL ends in /v1 already, and the client adds it too: without one of them it is {path[3:256]}"
    is_ollama = path.startswith(OLLAMA_PREFIX)
    known = [each for each in NEEDS if "{" not in each and (not is_ollama or each.startswith(OLLAMA_PREFIX))]
    if near := difflib.get_close_matches(path[:64], known, 1, LIKENESS):
        return f"did you mean {near[0]}?"
    return f"see {'/api/chat, /api/generate, /api/tags' if is_ollama else _PLACES}"
