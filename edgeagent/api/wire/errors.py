"""Which HTTP status, type and headers each error gets, and the OpenAI-shaped body that carries it.

The table names every class of errors.py (a test proves it complete); a message of an InternalError never leaves the
daemon, since it is not written for clients.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from edgeagent import errors
from edgeagent.api.wire.shape import Json
from edgeagent.errors import EdgeAgentError

OLLAMA_PREFIX = "/api/"
# openai clients ignore Retry-After over 120 s and then give up altogether.
MAX_RETRY_AFTER_S = 120.0
DEFAULT_RETRY_AFTER_S = 1.0


@dataclass(frozen=True, slots=True)
class Shape:
    """How a class of error looks on the wire.

    `retry` False tells openai clients not to try a 5xx again; `may_pass` says that trying again after Retry-After may
    help.
    """

    status: int
    type: str
    retry: bool | None = None
    may_pass: bool = False


SHAPES: dict[type[EdgeAgentError], Shape] = {
    EdgeAgentError: Shape(500, "server_error"),
    errors.InvalidRequest: Shape(400, "invalid_request_error"),
    errors.ContextLengthExceeded: Shape(400, "invalid_request_error"),
    errors.InvalidToolSchema: Shape(400, "invalid_request_error"),
    errors.TemplateTooSlow: Shape(400, "invalid_request_error"),
    # 501 would be retried by openai clients, and a missing feature does not come back.
    errors.NotSupported: Shape(400, "invalid_request_error"),
    errors.PayloadTooLarge: Shape(413, "invalid_request_error"),
    errors.NotFound: Shape(404, "not_found_error"),
    errors.ModelNotFound: Shape(404, "not_found_error"),
    # 400, not 404: the path exists, the field previous_response_id is at fault (OpenAI's own choice).
    errors.ResponseNotFound: Shape(400, "invalid_request_error"),
    errors.Unauthorized: Shape(401, "authentication_error"),
    errors.Forbidden: Shape(403, "permission_error"),
    errors.Overloaded: Shape(429, "rate_limit_error", may_pass=True),
    errors.ModelLoading: Shape(503, "unavailable_error", may_pass=True),
    errors.RequestTimeout: Shape(504, "timeout_error", retry=False),
    errors.ModelLoadFailed: Shape(500, "model_error", retry=False),
    # 422: 5xx would be retried by many clients, and a damaged file stays damaged.
    errors.ModelDamaged: Shape(422, "model_error", retry=False),
    errors.ModelOutOfMemory: Shape(503, "unavailable_error", may_pass=True),
    errors.WorkerCrashed: Shape(503, "server_error", may_pass=True),
    errors.ModelChanged: Shape(503, "server_error", may_pass=True),
    errors.BackendUnavailable: Shape(503, "unavailable_error", may_pass=True),
    errors.LocalUnavailable: Shape(503, "unavailable_error", may_pass=True),
    errors.RemoteUnavailable: Shape(503, "unavailable_error", may_pass=True),
    errors.InternalError: Shape(500, "server_error"),
    errors.ConfigError: Shape(500, "server_error", retry=False),
    errors.StoreError: Shape(500, "server_error", retry=False),
}

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_INTERNAL_MESSAGE = "An internal error occurred; the daemon's log has the details under this request's id."


def error_shape(error: EdgeAgentError) -> Shape:
    """Return the wire shape of an error; a class without its own row takes its nearest ancestor's."""
    return shape_of(type(error))


def shape_of(error: type[EdgeAgentError]) -> Shape:
    """Return the wire shape of a class of errors."""
    return next(SHAPES[cls] for cls in error.__mro__ if cls in SHAPES)


def error_codes() -> dict[str, type[EdgeAgentError]]:
    """Return the class of each error code: those of the table, and those of modules that are imported by now."""
    classes = list(SHAPES)
    for cls in classes:
        ours = (child for child in cls.__subclasses__() if child.__module__.startswith("edgeagent."))
        classes += [child for child in ours if child not in classes]
    return {cls.code: cls for cls in classes}


def http_status(error: EdgeAgentError) -> int:
    """Return the HTTP status of an error."""
    return error_shape(error).status


def error_body(error: EdgeAgentError) -> dict[str, str | None]:
    """Return {"message", "type", "param", "code"}; `refusal` wraps it for HTTP."""
    is_internal = type(error) in (EdgeAgentError, errors.InternalError)
    return {
        "message": _INTERNAL_MESSAGE if is_internal else printable(error.message),
        "type": error_shape(error).type,
        "param": None if error.param is None else printable(error.param),
        "code": error.code,
    }


def refusal(path: str, error: dict[str, str | None]) -> Json:
    """Return the body of an HTTP answer with this error_body; on Ollama's routes its text alone."""
    return {"error": error["message"] if path.startswith(OLLAMA_PREFIX) else error}


def error_event(error: EdgeAgentError, stream_id: str | None) -> Json:
    """Return the WebSocket's message of a create that began no response."""
    event: Json = {"type": "error", "status": http_status(error), "error": error_body(error)}
    if headers := error_headers(error):
        event["headers"] = headers
    if stream_id is not None:
        event["stream_id"] = stream_id
    return event


def printable(text: str) -> str:
    """Return a text, which may quote a client, without characters that move a terminal's cursor or turn its lines."""
    return _CONTROL.sub(lambda match: match.group().encode("unicode_escape").decode(), text)


def error_headers(error: EdgeAgentError) -> dict[str, str]:
    """Return the headers an error response carries: when to retry, whether to, and how to authenticate."""
    headers: dict[str, str] = {}
    if isinstance(error, errors.Unauthorized):
        headers["www-authenticate"] = "Bearer"
    shape = error_shape(error)
    if shape.retry is not None:
        headers["x-should-retry"] = "true" if shape.retry else "false"
    delay_s = error.retry_after_s
    if delay_s is None and shape.may_pass:
        delay_s = DEFAULT_RETRY_AFTER_S
    if delay_s is not None:
        delay_s = min(max(delay_s, 0.001), MAX_RETRY_AFTER_S)
        headers["retry-after"] = str(math.ceil(delay_s))
        headers["retry-after-ms"] = str(math.ceil(delay_s * 1000))
    return headers
