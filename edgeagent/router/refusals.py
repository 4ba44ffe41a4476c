"""Decides after which failures another place is tried, and which error a client gets if none can serve."""

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

_USUAL_BYTES = 4  # of a token

# One place may lack what another has.
_LACKS = (ContextLengthExceeded, NotSupported)
_LOCAL_FAILURES = (BackendUnavailable, Overloaded, ModelLoading, ModelLoadFailed, WorkerCrashed, ModelNotFound)


def is_final(error: EdgeAgentError, *, is_local: bool) -> bool:
    """Whether no other place may be tried: the request is wrong, as found on this machine, or its deadline passed."""
    if isinstance(error, RequestTimeout):
        return True
    return is_local and isinstance(error, InvalidRequest) and not lacks(error)


def lacks(error: EdgeAgentError) -> bool:
    """Whether a place lacks what another may have."""
    return isinstance(error, _LACKS)


def most_telling(errors: Sequence[EdgeAgentError]) -> EdgeAgentError:
    """Return the error that a client is told, of those of all places that were tried: the preferred place's.

    That a place cannot do something, or that a remote's context is too short, is told only where no place could have.
    """
    return next((error for error in errors if not _is_lack_elsewhere(error)), errors[0])


def _is_lack_elsewhere(error: EdgeAgentError) -> bool:
    is_short = isinstance(error, ContextLengthExceeded) and error.served_by.startswith(REMOTE_PREFIX)
    return is_short or isinstance(error, NotSupported)


def only_full(full: Overloaded, errors: Sequence[EdgeAgentError]) -> Overloaded | None:
    """Return what is told where the places left are full: that, unless a place failed that might have served.

    Remotes that lack something, are full themselves or cannot be reached are named as the reason why none of them did.
    """
    if not all(isinstance(error, (*_LACKS, RemoteUnavailable, Overloaded)) for error in errors):
        return None
    whys = "; ".join(dict.fromkeys(error.message for error in errors))
    return Overloaded(f"{full.message} ({whys})", retry_after_s=full.retry_after_s)


def kept_here(error: EdgeAgentError, request: GenerateRequest, why: str) -> EdgeAgentError:
    """Return the error of a request that failed here and was not allowed to leave, with what would have left.

    `why` is the machine's policy's reason, if it is the policy that keeps it here.
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
