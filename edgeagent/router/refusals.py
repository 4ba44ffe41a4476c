"""Rules for failures: after which ones another backend is tried, and which error the client gets if all fail."""

from __future__ import annotations

from collections.abc import Sequence

from edgeagent.backends.prompt_size import prompt_bytes
from edgeagent.errors import (
    BackendUnavailable,
    ContextLengthExceeded,
    EdgeAgentError,
    InvalidRequest,
    LocalUnavailable,
    ModelLoadFailed,
    ModelLoading,
    ModelNotFound,
    NotSupported,
    Overloaded,
    RemoteUnavailable,
    RequestTimeout,
    WorkerCrashed,
)
from edgeagent.router.policy import REMOTE_PREFIX
from edgeagent.types import GenerateRequest

_USUAL_BYTES = 4  # per token

# Errors that mean that this backend lacks something that another one may have.
_MISSING_FEATURE = (ContextLengthExceeded, NotSupported)
_LOCAL_FAILURES = (BackendUnavailable, Overloaded, ModelLoading, ModelLoadFailed, WorkerCrashed, ModelNotFound)


def is_final(error: EdgeAgentError, *, is_local: bool) -> bool:
    """Whether an error ends the request without another attempt: a timeout, or an invalid request on this machine."""
    if isinstance(error, RequestTimeout):
        return True
    return is_local and isinstance(error, InvalidRequest) and not is_missing_feature(error)


def is_missing_feature(error: EdgeAgentError) -> bool:
    """Whether an error means that a backend lacks a feature or context length that another backend may have."""
    return isinstance(error, _MISSING_FEATURE)


def most_telling(errors: Sequence[EdgeAgentError]) -> EdgeAgentError:
    """Return the error that the client gets. `errors` are those of all tried backends, in the order of the attempts.

    Errors that say that a backend lacks a feature, or that a remote's context is too short, are passed over. The first
    of the other errors is returned. If there are no others, the first error is returned.
    """
    return next((error for error in errors if not _is_less_telling(error)), errors[0])


def _is_less_telling(error: EdgeAgentError) -> bool:
    is_short = isinstance(error, ContextLengthExceeded) and error.served_by.startswith(REMOTE_PREFIX)
    return is_short or isinstance(error, NotSupported)


def only_full(full: Overloaded, errors: Sequence[EdgeAgentError]) -> Overloaded | None:
    """Return `full` with the messages of `errors` added to it, if this is the right error for the client; else None.

    `full` says that all remaining backends are full. `errors` come from the backends that were tried. `full` is the
    right error if each of `errors` means a missing feature or model, a short context, a full backend, or an unusable
    remote.
    """
    if not all(
        isinstance(error, (*_MISSING_FEATURE, ModelNotFound, RemoteUnavailable, Overloaded)) for error in errors
    ):
        return None
    whys = "; ".join(dict.fromkeys(error.message for error in errors))
    return Overloaded(f"{full.message} ({whys})", retry_after_s=full.retry_after_s)


def kept_here(error: EdgeAgentError, request: GenerateRequest, why: str) -> EdgeAgentError:
    """Return the error for the client whose request failed on this machine and may not leave it.

    The error says how much would have been sent to a remote. `why` is the reason from the machine's policy; empty if
    another setting keeps the request here. An error that is not a failure of this machine is returned unchanged.
    """
    if not isinstance(error, _LOCAL_FAILURES):
        return error
    num_bytes, why = prompt_bytes(request), why or "local_only"
    return LocalUnavailable(
        f"{error.message.rstrip('.')} ({error.code}). The request may not leave this machine ({why}); otherwise "
        f"{num_bytes} bytes, about {num_bytes // _USUAL_BYTES} tokens, would have been sent to a remote",
        param=error.param,
        retry_after_s=error.retry_after_s,
        served_by="local",
    )
