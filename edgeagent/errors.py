"""The error tree. Each class has a stable `code`; which HTTP or WebSocket status it gets is the table in api/errors.py.

EdgeAgentError
├── InvalidRequest                 the client's mistake; names the field
│   ├── ContextLengthExceeded      prompt (plus what was asked for) does not fit
│   ├── TemplateTooSlow            the model's chat template was ended over this conversation
│   └── NotSupported               a real feature that this model or build does not have
├── NotFound
│   ├── ModelNotFound
│   └── ResponseNotFound
├── Unauthorized · Forbidden       the client may not do it
├── Overloaded                     a queue or a budget is full; may pass
├── ModelLoading                   not ready yet; may pass
├── RequestTimeout                 its own deadline passed
├── ModelLoadFailed                the file cannot be loaded here
├── WorkerCrashed                  the model's process ended under the request
│   └── ModelChanged               and its file was replaced by another
├── BackendUnavailable             nothing can serve it now
│   ├── LocalUnavailable           this machine cannot, and the request must not leave it
│   └── RemoteUnavailable          no remote answers
├── InternalError                  a bug of ours
├── ConfigError                    a setting is wrong
└── StoreError                     model files: download, disk, checksum

Errors cross the worker's pipe by code (`from_code`). A message says what happened, the value, and what to do.
"""

from __future__ import annotations

from typing import ClassVar


class EdgeAgentError(Exception):
    """Base of every error edgeagent raises on purpose.

    `param` names the request field at fault; `retry_after_s` is set where trying again may help; `served_by` says who
    failed: "edgeagent", "local" or "remote:<name>"; `num_delivered_tokens` how much had been delivered before.
    """

    code: ClassVar[str] = "internal_error"

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


class InvalidRequest(EdgeAgentError):
    code = "invalid_value"


class ContextLengthExceeded(InvalidRequest):
    code = "context_length_exceeded"


class InvalidToolSchema(InvalidRequest):
    code = "invalid_tool_schema"


class TemplateTooSlow(InvalidRequest):
    code = "template_too_slow"


class NotSupported(InvalidRequest):
    code = "not_supported"


class NotFound(EdgeAgentError):
    code = "not_found"


class ModelNotFound(NotFound):
    code = "model_not_found"


class ResponseNotFound(NotFound):
    code = "previous_response_not_found"


class Unauthorized(EdgeAgentError):
    code = "invalid_api_key"


class Forbidden(EdgeAgentError):
    code = "forbidden"


class PayloadTooLarge(InvalidRequest):
    code = "payload_too_large"


class Overloaded(EdgeAgentError):
    code = "queue_full"


class ModelLoading(EdgeAgentError):
    code = "model_loading"


class RequestTimeout(EdgeAgentError):
    code = "request_timeout"


class ModelLoadFailed(EdgeAgentError):
    code = "model_load_failed"


class WorkerCrashed(EdgeAgentError):
    code = "worker_crashed"


class ModelChanged(WorkerCrashed):
    code = "model_changed"


class BackendUnavailable(EdgeAgentError):
    code = "backend_unavailable"


class LocalUnavailable(BackendUnavailable):
    code = "local_unavailable"


class RemoteUnavailable(BackendUnavailable):
    code = "remote_unavailable"


class InternalError(EdgeAgentError):
    code = "internal_error"


class ConfigError(EdgeAgentError):
    code = "config_error"


class StoreError(EdgeAgentError):
    code = "store_error"


def _tree(cls: type[EdgeAgentError]) -> list[type[EdgeAgentError]]:
    return [cls, *(leaf for child in cls.__subclasses__() for leaf in _tree(child))]


def from_code(
    code: str, message: str, *, param: str | None = None, retry_after_s: float | None = None
) -> EdgeAgentError:
    """Return the error with this code (InternalError where the code is unknown); it comes from the local backend."""
    for cls in _tree(EdgeAgentError)[1:]:
        if cls.code == code:
            return cls(message, param=param, retry_after_s=retry_after_s, served_by="local")
    return InternalError(f"{code}: {message}", served_by="local")
