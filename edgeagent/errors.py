"""The error tree. Each class has a stable `code`; `api.wire.errors` maps it to an HTTP or WebSocket status.

EdgeAgentError
├── InvalidRequest
│   ├── MethodNotAllowed
│   ├── ContextLengthExceeded
│   ├── TokenBudgetExceeded
│   ├── InvalidToolSchema
│   ├── TemplateTooSlow
│   ├── PayloadTooLarge
│   └── NotSupported
├── NotFound
│   ├── ModelNotFound
│   └── ResponseNotFound
├── Unauthorized · Forbidden
├── Overloaded
│   └── DeadlineUnreachable
├── ModelLoading
├── RequestTimeout
├── ModelLoadFailed
│   ├── ModelDamaged
│   └── ModelOutOfMemory
├── WorkerCrashed
│   └── ModelChanged
├── BackendUnavailable
│   ├── LocalUnavailable
│   └── RemoteUnavailable
├── InternalError
├── ConfigError
└── StoreError

Errors cross the worker's pipe by code (`from_code`). A message says what happened, the value, and what to do. The
docstring of a class is its line in the reference of errors.
"""

from __future__ import annotations

import re
from typing import ClassVar, Self

NOT_INSTALLED = "llama-cpp-python is not installed; `edgeagent doctor` shows the command that installs it"


class EdgeAgentError(Exception):
    """Base class of every error that edgeagent raises on purpose.

    `param` names the request field at fault. `retry_after_s` is set if a retry may help. `served_by` says what failed:
    "edgeagent", "local" or "remote:<name>". `num_delivered_tokens` is the number of tokens delivered before the error.
    `late_stage` is the stage in which a limit of time passed; "" if none did (see `metrics.meter.late_stage`).
    """

    code: ClassVar[str] = "internal_error"
    exit_status: ClassVar[int] = 1
    """The exit status of a command that this error ends: 2 if the user must correct an input, else 1."""
    late_stage = ""

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        retry_after_s: float | None = None,
        served_by: str = "edgeagent",
        num_delivered_tokens: int = 0,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s
        self.served_by = served_by
        self.num_delivered_tokens = num_delivered_tokens

    def without_traceback(self) -> Self:
        """Return this error without its traceback and its causes. Call it where the error is only told.

        A traceback refers to the objects of the request, and some of these to the error. Such a cycle, with all that
        the client has sent, would be freed minutes later.
        """
        self.__cause__ = self.__context__ = None
        return self.with_traceback(None)


class InvalidRequest(EdgeAgentError):
    """The request is wrong. `param` names the field."""

    code = "invalid_value"
    exit_status = 2


class MethodNotAllowed(InvalidRequest):
    """The path has no route with the request's method."""

    code = "method_not_allowed"


class ContextLengthExceeded(InvalidRequest):
    """The prompt leaves no room in the context. A remote may count the requested number of tokens too."""

    code = "context_length_exceeded"


class TokenBudgetExceeded(InvalidRequest):
    """The prompt has more tokens than its tier allows, or than the request itself allows (`max_prompt_tokens`)."""

    code = "token_budget_exceeded"


class InvalidToolSchema(InvalidRequest):
    """The JSON schema of a tool cannot be followed."""

    code = "invalid_tool_schema"


class TemplateTooSlow(InvalidRequest):
    """The model's chat template took too long for this conversation and was stopped."""

    code = "template_too_slow"


class NotSupported(InvalidRequest):
    """The feature exists, but this model or this build does not have it."""

    code = "not_supported"


class NotFound(EdgeAgentError):
    """The requested object does not exist."""

    code = "not_found"
    exit_status = 2


class ModelNotFound(NotFound):
    """No model of this name is served."""

    code = "model_not_found"
    # Whether `for_client` keeps the message as it is, because it already says "model 'NAME' not found".
    names_model = False

    @classmethod
    def for_client(cls, name: str, error: EdgeAgentError) -> ModelNotFound:
        """Return the error for a name that a client sent. `error` has the reason why it could not be resolved."""
        if isinstance(error, ModelNotFound) and error.names_model:
            return error
        return cls(f"model '{name[:256]}' not found: {error.message}", param="model")


class ResponseNotFound(NotFound):
    """There is no stored response with this id, or it belongs to another client."""

    code = "previous_response_not_found"


class Unauthorized(EdgeAgentError):
    """A token is missing, unknown, removed or cannot be checked."""

    code = "invalid_api_key"


class Forbidden(EdgeAgentError):
    """The client may not do this: its token lacks the scope, or its Host, Origin or user is not allowed.

    Also raised if the machine's policy forbids a download, if a request has no permit for a remote, or if a request for
    `remote_only` must stay on this machine.
    """

    code = "forbidden"


class PayloadTooLarge(InvalidRequest):
    """The body is larger than the limit. For a too large frame, the WebSocket closes with code 1009."""

    code = "payload_too_large"


class Overloaded(EdgeAgentError):
    """The queue or a budget is full, or the client's requests hold too many bytes. A retry may succeed."""

    code = "queue_full"

    @classmethod
    def full_queue(cls, reason: str, *, retry_after_s: float | None = None, served_by: str = "edgeagent") -> Overloaded:
        """Return the error of a full queue. `reason` is a clause that says what fills the queue.

        An example is "8 requests are running or waiting".
        """
        message = f"{reason} and no more are accepted; try again later"
        return cls(message, retry_after_s=retry_after_s, served_by=served_by)


class DeadlineUnreachable(Overloaded):
    """The request asks for its first token sooner than it can come. Nothing was computed; a later try may succeed.

    `expected_s`: the predicted seconds to the first token; None if the request waited until its time was over.
    """

    code = "deadline_unreachable"
    expected_s: float | None = None

    @classmethod
    def predicted(cls, expected_s: float, limit_s: float, *, served_by: str = "edgeagent") -> DeadlineUnreachable:
        """Return the error of a request that is predicted to miss its limit."""
        error = cls(
            f"the first token is expected in {1000 * expected_s:.0f} ms and must come within {1000 * limit_s:.0f} ms; "
            "try again later, or allow more time",
            retry_after_s=max(1.0, expected_s - limit_s),
            served_by=served_by,
        )
        error.expected_s = expected_s
        return error

    @classmethod
    def passed(cls, limit_s: float, *, served_by: str = "edgeagent") -> DeadlineUnreachable:
        """Return the error of a request whose limit has passed while it waited."""
        return cls(
            f"the first token had to come within {1000 * limit_s:.0f} ms, and the request still waited; try again "
            "later, or allow more time",
            served_by=served_by,
        )


class ModelLoading(EdgeAgentError):
    """The model is not ready yet. A retry may succeed."""

    code = "model_loading"


class RequestTimeout(EdgeAgentError):
    """The request's own deadline has passed."""

    code = "request_timeout"

    @classmethod
    def passed(
        cls, limit_s: float | None, *, served_by: str = "edgeagent", num_delivered_tokens: int = 0
    ) -> RequestTimeout:
        """Return the error of a request that did not end within its `deadline_ms`."""
        message = f"the request did not end within its deadline_ms, {1000 * (limit_s or 0):.0f}; allow more time"
        return cls(message, served_by=served_by, num_delivered_tokens=num_delivered_tokens)


class ModelLoadFailed(EdgeAgentError):
    """The model file cannot be loaded on this machine."""

    code = "model_load_failed"


class ModelDamaged(ModelLoadFailed):
    """The model's file is damaged, incomplete, or not a model for this llama.cpp. The message says what is wrong."""

    code = "model_damaged"
    exit_status = 2


class ModelOutOfMemory(ModelLoadFailed):
    """There was not enough memory for the model or its context when it was loaded."""

    code = "model_out_of_memory"


class WorkerCrashed(EdgeAgentError):
    """The model's process ended while the request ran."""

    code = "worker_crashed"


class ModelChanged(WorkerCrashed):
    """The model's process ended, and its model file has been replaced by another file."""

    code = "model_changed"


class BackendUnavailable(EdgeAgentError):
    """Nothing can serve the request at this time."""

    code = "backend_unavailable"


class LocalUnavailable(BackendUnavailable):
    """This machine cannot serve the request, and the request must not leave it."""

    code = "local_unavailable"


class RemoteUnavailable(BackendUnavailable):
    """No remote answers."""

    code = "remote_unavailable"


class InternalError(EdgeAgentError):
    """A fault in edgeagent. The daemon's log has the details under the request's id."""

    code = "internal_error"


class ConfigError(EdgeAgentError):
    """A setting is wrong."""

    code = "config_error"
    exit_status = 2


class StoreError(EdgeAgentError):
    """A model file could not be downloaded, written or verified, or a stored response could not be deleted."""

    code = "store_error"


def _tree(cls: type[EdgeAgentError]) -> list[type[EdgeAgentError]]:
    return [cls, *(leaf for child in cls.__subclasses__() for leaf in _tree(child))]


def from_code(code: str, message: str, *, param: str | None = None) -> EdgeAgentError:
    """Return the error with this code, or InternalError if the code is unknown. Its `served_by` is "local"."""
    for cls in _tree(EdgeAgentError)[1:]:
        if cls.code == code:
            return cls(message, param=param, served_by="local")
    return InternalError(f"{code}: {message}", served_by="local")


_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """Return a text with those characters escaped that move a terminal's cursor or reverse the direction of writing.

    Use it for every text that may quote a client.
    """
    return _CONTROL.sub(lambda match: match.group().encode("unicode_escape").decode(), text)
