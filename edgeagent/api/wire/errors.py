"""Which HTTP status, type and headers each error gets, and its body in the form of OpenAI, Anthropic or Ollama.

The text of an error is where the error is raised. `error_answer` makes each answer over HTTP, `ollama_refusal` the last
line of Ollama's streams, `anthropic_refusal` the last event of Anthropic's, and `error_event` the event of a WebSocket.

WIRE_FORMS has a row for each class of errors.py, and a test checks that. The message of an InternalError is not sent to
clients, because it is not written for them. Paths of files are sent only to clients that manage models or the daemon.
"""

from __future__ import annotations

import logging
import math
import re
import traceback
from contextvars import ContextVar
from dataclasses import dataclass
from http import HTTPStatus
from typing import Literal, NotRequired

from starlette.responses import JSONResponse

from edgeagent import errors
from edgeagent.api.wire.request_id import REQUEST_ID
from edgeagent.api.wire.shape import Shape
from edgeagent.errors import EdgeAgentError, printable

logger = logging.getLogger(__name__)

MAY_SEE_PATHS: ContextVar[bool] = ContextVar("may_see_paths", default=True)
"""Whether the current request's client may learn where files are on this machine.

Only a client that has the scope `models` or `admin` may.
"""

OLLAMA_PREFIX = "/api/"
ANTHROPIC_PREFIX = "/v1/messages"
# Ollama's text, with its two spaces: clients search for it.
_OLLAMA_BUSY = "server busy, please try again.  maximum pending requests exceeded"
EXPECTED_HEADER = "x-edgeagent-expected-ms"
"""The header with the predicted milliseconds to the first token."""


@dataclass(frozen=True, slots=True)
class WireForm:
    """How a class of error looks on the wire.

    `retry`: the value of x-should-retry for OpenAI's clients; None leaves it out. `may_pass`: a later try may succeed,
    so Retry-After is sent, also if the error has no delay of its own.
    """

    status: int
    type: str
    retry: bool | None = None
    may_pass: bool = False


class Error(Shape):
    """What went wrong."""

    message: str
    """What happened, the value that caused it, and what to do."""
    type: str
    param: str | None
    """The field at fault; null if there is none."""
    code: str
    """One of the codes in the OpenAPI document's description. A code never changes."""
    late_stage: NotRequired[str]
    """The stage in which the request's own limit of time passed, as in `edgeagent.slo.late_stage` of an answer."""


class Refusal(Shape):
    """The body of every error, except in the APIs of Anthropic and Ollama."""

    error: Error


class AnthropicDetails(Shape):
    """What a program reads of an error: one of the codes in the OpenAPI document, and the field at fault or null.

    `late_stage`: the stage in which the request's own limit of time passed.
    """

    error_code: str
    param: str | None
    late_stage: NotRequired[str]


class AnthropicError(Shape):
    """What went wrong, in Anthropic's form."""

    type: str
    message: str
    details: AnthropicDetails


class AnthropicRefusal(Shape):
    """The body of an error on a route under /v1/messages, and the last event of a stream that failed."""

    type: Literal["error"]
    error: AnthropicError
    request_id: str


class OllamaRefusal(Shape):
    """The body of an error on a route under /api/."""

    error: str


class ErrorEvent(Shape):
    """A request was refused before its response was created, or a message was not understood.

    `headers` are those that an HTTP answer would have, for example Retry-After.
    """

    type: Literal["error"]
    status: int
    error: Error
    headers: NotRequired[dict[str, str]]
    stream_id: NotRequired[str]


WIRE_FORMS: dict[type[EdgeAgentError], WireForm] = {
    EdgeAgentError: WireForm(500, "server_error"),
    errors.InvalidRequest: WireForm(400, "invalid_request_error"),
    errors.ContextLengthExceeded: WireForm(400, "invalid_request_error"),
    errors.TokenBudgetExceeded: WireForm(400, "invalid_request_error"),
    errors.InvalidToolSchema: WireForm(400, "invalid_request_error"),
    errors.TemplateTooSlow: WireForm(400, "invalid_request_error"),
    # 501 would be retried by openai clients, and a missing feature stays missing.
    errors.NotSupported: WireForm(400, "invalid_request_error"),
    errors.MethodNotAllowed: WireForm(405, "invalid_request_error"),
    errors.PayloadTooLarge: WireForm(413, "invalid_request_error"),
    errors.NotFound: WireForm(404, "not_found_error"),
    errors.ModelNotFound: WireForm(404, "not_found_error"),
    # 400, not 404: the path exists, the field previous_response_id is at fault (OpenAI's own choice).
    errors.ResponseNotFound: WireForm(400, "invalid_request_error"),
    errors.Unauthorized: WireForm(401, "authentication_error"),
    errors.Forbidden: WireForm(403, "permission_error"),
    errors.Overloaded: WireForm(429, "rate_limit_error", may_pass=True),
    errors.DeadlineUnreachable: WireForm(429, "rate_limit_error", may_pass=True),
    errors.ModelLoading: WireForm(503, "unavailable_error", may_pass=True),
    errors.RequestTimeout: WireForm(504, "timeout_error", retry=False),
    errors.ModelLoadFailed: WireForm(500, "model_error", retry=False),
    # 422: 5xx would be retried by many clients, and a damaged file stays damaged.
    errors.ModelDamaged: WireForm(422, "model_error", retry=False),
    errors.ModelOutOfMemory: WireForm(503, "unavailable_error", may_pass=True),
    errors.WorkerCrashed: WireForm(503, "server_error", may_pass=True),
    errors.ModelChanged: WireForm(503, "server_error", may_pass=True),
    errors.BackendUnavailable: WireForm(503, "unavailable_error", may_pass=True),
    errors.LocalUnavailable: WireForm(503, "unavailable_error", may_pass=True),
    errors.RemoteUnavailable: WireForm(503, "unavailable_error", may_pass=True),
    errors.InternalError: WireForm(500, "server_error"),
    errors.ConfigError: WireForm(500, "server_error", retry=False),
    errors.StoreError: WireForm(500, "server_error", retry=False),
}

# The types that have another name in Anthropic's API.
_ANTHROPIC_TYPES = {
    "rate_limit_error": "overloaded_error",  # there, a rate limit is that of an account
    "unavailable_error": "overloaded_error",
    "server_error": "api_error",
    "model_error": "api_error",
}

_INTERNAL_MESSAGE = "An internal error occurred; the daemon's log has the details under this request's id."

_MAY_NAME_PATHS = (errors.ModelLoadFailed, errors.ConfigError, errors.StoreError)
_PATH = re.compile(r"""(?:^|[\s'"(,=])(?:/|[A-Za-z]:[\\/]|\\\\)\S""")
_NO_PATH_MESSAGE = (
    "this machine cannot use the model; its owner finds the reason in `edgeagent list` and in the daemon's log"
)


def wire_form(error: EdgeAgentError | type[EdgeAgentError]) -> WireForm:
    """Return the form of an error: the row of its class in WIRE_FORMS, or of the nearest ancestor that has a row."""
    kind = error if isinstance(error, type) else type(error)
    return next(WIRE_FORMS[cls] for cls in kind.__mro__ if cls in WIRE_FORMS)


def error_codes() -> dict[str, type[EdgeAgentError]]:
    """Return the error class of each code: those in WIRE_FORMS, and their subclasses in modules imported so far."""
    classes = list(WIRE_FORMS)
    for cls in classes:
        ours = (child for child in cls.__subclasses__() if child.__module__.startswith("edgeagent."))
        # By name, because the order in which modules are imported changes.
        classes += sorted((child for child in ours if child not in classes), key=lambda child: child.__qualname__)
    # A subclass without a code of its own has that of its base.
    return {cls.code: cls for cls in classes if cls in WIRE_FORMS or "code" in vars(cls)}


def http_status(error: EdgeAgentError) -> int:
    return wire_form(error).status


def error_body(error: EdgeAgentError) -> Error:
    """Return the JSON object that describes an error. HTTP answers have it in the field `error` of a Refusal."""
    body: Error = {
        "message": printable(_message(error)),
        "type": wire_form(error).type,
        "param": None if error.param is None else printable(error.param),
        "code": error.code,
    }
    if error.late_stage:
        body["late_stage"] = error.late_stage
    return body


def _message(error: EdgeAgentError) -> str:
    if type(error) in (EdgeAgentError, errors.InternalError):
        return _INTERNAL_MESSAGE
    if isinstance(error, _MAY_NAME_PATHS) and not MAY_SEE_PATHS.get() and _PATH.search(error.message):
        logger.warning("%s: %s", error.code, error.message)
        return _NO_PATH_MESSAGE
    return error.message


def ollama_refusal(error: EdgeAgentError) -> OllamaRefusal:
    """Return the body that answers a failed request on Ollama's routes. It is also the last line of a failed stream."""
    is_busy = isinstance(error, errors.Overloaded) and not isinstance(error, errors.DeadlineUnreachable)
    return {"error": _OLLAMA_BUSY if is_busy else error_body(error)["message"]}


def anthropic_refusal(error: EdgeAgentError) -> AnthropicRefusal:
    """Return the body that answers a failed request on Anthropic's routes. It is also the last event of a stream."""
    body = error_body(error)
    kind, message = _ANTHROPIC_TYPES.get(body["type"], body["type"]), body["message"]
    if isinstance(error, errors.PayloadTooLarge):
        kind = "request_too_large"
    if isinstance(error, errors.ContextLengthExceeded):
        # Claude Code searches for these words, and then shortens the conversation.
        message = f"prompt is too long: {message}"
    details: AnthropicDetails = {"error_code": body["code"], "param": body["param"]}
    if error.late_stage:
        details["late_stage"] = error.late_stage
    return {
        "type": "error",
        "error": {"type": kind, "message": message, "details": details},
        "request_id": REQUEST_ID.get(),
    }


def error_answer(path: str, error: EdgeAgentError, status: int | None = None) -> JSONResponse:
    """Return the HTTP answer for an error, in the form of the API that the path belongs to.

    `status`: the HTTP status, if it is not the usual one of the error.
    """
    if status is None:
        status = http_status(error)
    if path.startswith(ANTHROPIC_PREFIX):
        refusal = anthropic_refusal(error)
        if refusal["error"]["type"] == "overloaded_error":
            status = 529
        return JSONResponse(refusal, status, error_headers(error))
    if not path.startswith(OLLAMA_PREFIX):
        return JSONResponse(Refusal(error=error_body(error)), status, error_headers(error))
    if isinstance(error, errors.Overloaded):
        # A full queue is 503 to Ollama's clients, where OpenAI's expect 429.
        status = HTTPStatus.SERVICE_UNAVAILABLE
    return JSONResponse(ollama_refusal(error), status, error_headers(error))


def error_event(error: EdgeAgentError, stream_id: str | None) -> ErrorEvent:
    """Return the WebSocket message for a `response.create` that failed before its response began.

    The session also sends it for messages that it does not understand.
    """
    event: ErrorEvent = {"type": "error", "status": http_status(error), "error": error_body(error)}
    if headers := error_headers(error):
        event["headers"] = headers
    if stream_id is not None:
        event["stream_id"] = stream_id
    return event


def to_client_error(name: str, error: Exception) -> EdgeAgentError:
    """Return the error that is sent to the client for an exception. An EdgeAgentError loses only its traceback.

    Any other exception becomes an InternalError, and its type and place are logged with `name`. The exception's text is
    not logged, because it may quote a prompt.
    """
    if isinstance(error, EdgeAgentError):
        return error.without_traceback()
    places = {"places": "".join(traceback.format_tb(error.__traceback__))}
    logger.error("%s failed: %s", name, type(error).__name__, extra=places)
    return errors.InternalError(type(error).__name__)


def error_headers(error: EdgeAgentError) -> dict[str, str]:
    """Return the headers of an error response: when to retry, whether to retry, and how to authenticate."""
    headers: dict[str, str] = {}
    if isinstance(error, errors.Unauthorized):
        headers["www-authenticate"] = "Bearer"
    form = wire_form(error)
    if form.retry is not None:
        headers["x-should-retry"] = "true" if form.retry else "false"
    delay_s = error.retry_after_s
    if delay_s is None and form.may_pass:
        delay_s = 1.0
    if delay_s is not None:
        # openai clients ignore Retry-After over 120 s and then give up altogether.
        delay_s = min(max(delay_s, 0.001), 120.0)
        headers["retry-after"] = str(math.ceil(delay_s))
        headers["retry-after-ms"] = str(math.ceil(delay_s * 1000))
    if isinstance(error, errors.DeadlineUnreachable) and error.expected_s is not None:
        headers[EXPECTED_HEADER] = str(round(error.expected_s * 1000))
    return headers
