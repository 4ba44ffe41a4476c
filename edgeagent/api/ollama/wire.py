"""What all routes of the Ollama API share: how a failure, a line of a stream, a time and a model's name look.

It knows neither what is generated nor which routes there are.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import suppress
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from pydantic_core import to_json
from starlette.responses import Response

from edgeagent.api.wire.errors import OllamaRefusal, error_body, error_headers, http_status, told
from edgeagent.api.wire.sse import Stream
from edgeagent.errors import EdgeAgentError, Overloaded
from edgeagent.service.service import Service
from edgeagent.store.names.parsing import without_latest

logger = logging.getLogger(__name__)

LATEST = ":latest"
# Ollama's own words, two spaces included, which clients look for.
_BUSY = "server busy, please try again.  maximum pending requests exceeded"


class OllamaRoute(APIRoute):
    """A route whose failures are {"error": text}."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the route's handler, which answers failures itself."""
        handle = super().get_route_handler()

        async def answer(request: Request) -> Response:
            try:
                return await handle(request)
            except EdgeAgentError as error:
                return _error_response(request, error)

        return answer


def _error_response(request: Request, error: EdgeAgentError) -> JSONResponse:
    # A full queue is 503 to Ollama's clients, where OpenAI's expect 429.
    is_busy = isinstance(error, Overloaded)
    status = HTTPStatus.SERVICE_UNAVAILABLE if is_busy else HTTPStatus(http_status(error))
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR and not is_busy:
        logger.warning("%s %s: %s: %s", request.method, request.url.path, error.code, error.message)
    return JSONResponse(error_line(error), status_code=status, headers=error_headers(error))


def error_line(error: EdgeAgentError) -> OllamaRefusal:
    """Return {"error": text}, the body of a refusal and the last line of a stream that failed."""
    return {"error": _BUSY if isinstance(error, Overloaded) else error_body(error)["message"]}


def line(document: object) -> bytes:
    """Return a line of a stream. JSON text holds no raw line break; a blank line would break ollama's own client."""
    return to_json(document) + b"\n"


class LineStream(Stream):
    """Sends whole lines of JSON, each a document."""

    media_type = "application/x-ndjson"


async def guarded(lines: AsyncGenerator[bytes, None], name: str) -> AsyncGenerator[bytes, None]:
    """Yield the lines. If they fail, the last line is the error."""
    try:
        async for each in lines:
            yield each
    except Exception as error:
        yield line(error_line(told(name, error)))
    finally:
        await lines.aclose()


def rfc3339(at: datetime | None = None) -> str:
    """Return a time in UTC, by default the present."""
    return (at or datetime.now(UTC)).isoformat().replace("+00:00", "Z")


def tagged(name: str) -> str:
    """Return a model's name as Ollama lists it: always with a tag."""
    return name if ":" in name.rpartition("/")[2] else name + LATEST


def known_name(service: Service, name: str) -> str:
    """Return the service's name of a model that a client calls by Ollama's rules: no tag means the same as :latest.

    A model that the service does not know keeps its name; the request for it will fail with the reason.
    """
    for each in (name, without_latest(name)):
        with suppress(EdgeAgentError):
            return service.find_model(each)
    return without_latest(name)
