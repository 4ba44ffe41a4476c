"""Values of routing: where a request may run, where it runs, and how much of its answer was delivered."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from msgspec import Struct


class RouteMode(StrEnum):
    """Where requests may run, from the strictest mode on. If several apply to a request, the strictest one holds."""

    LOCAL_ONLY = "local_only"
    PREFER_LOCAL = "prefer_local"
    PREFER_REMOTE = "prefer_remote"
    REMOTE_ONLY = "remote_only"


_REMOTE = "remote:"


def remote_backend(remote: str) -> str:
    """Return the name of a remote's backend. It is shown in answers, errors, status and metrics."""
    return f"{_REMOTE}{remote}"


def is_remote(backend: str) -> bool:
    """Whether the backend of this name is on another machine."""
    return backend.startswith(_REMOTE)


def remote_of(backend: str) -> str:
    """Return the name of the remote whose backend has this name."""
    return backend.removeprefix(_REMOTE)


class Placement(Struct, frozen=True):
    """Where a request runs, and why. It is sent before the first token.

    `served_by` is "local" or "remote:NAME". `host` and `region` are those of the remote, empty for this machine.
    `model` is the model's name there. `sha256` is the hash of its file, if this machine knows it. `overruled` says
    which stricter mode applies instead of the request's; empty if the request's mode applies.
    """

    served_by: str
    model: str
    reason: str
    host: str = ""
    region: str = ""
    sha256: str = ""
    overruled: str = ""


class Permit(Struct, frozen=True):
    """Permission to send one request to one remote. Without it, no request is sent.

    Only `router.policy` (for clients' requests) and `router.checkup` (for the owner's test of a remote) issue it.
    `mode`: the mode that allows the request. `reason`: why this remote was chosen.
    """

    request_id: str
    remote: str
    mode: RouteMode
    reason: str
    client: str = ""


class EndpointStatus(Struct, frozen=True):
    """The state of one base URL of a remote. A value that is not known is None.

    `breaker` is the state of the circuit breaker. While it is "open", no request is sent there; `cause` says why.
    `num_live` counts this machine's requests there. `num_waiting` and `kv_usage` (0 to 1) are reported by the endpoint.
    `first_token_s` and `token_s` are averages over this machine's requests.
    """

    url: str
    region: str = ""
    breaker: Literal["closed", "half_open", "open"] = "closed"
    cause: str = ""
    num_live: int = 0
    first_token_s: float | None = None
    token_s: float | None = None
    num_waiting: int | None = None
    kv_usage: float | None = None


class RemoteStatus(Struct, frozen=True):
    """The state of a remote. `trouble`: why nothing can be sent to it; empty if requests can be sent."""

    name: str
    trouble: str = ""
    num_live: int = 0
    endpoints: tuple[EndpointStatus, ...] = ()


class ProbePermit(Struct, frozen=True):
    """Permission to probe one remote and to open connections to it, but not to send any part of a request.

    Only the router issues it, and only while the machine's mode allows requests to leave. `mode` is that mode.
    """

    remote: str
    mode: RouteMode


class AnswerSoFar(Struct, frozen=True):
    """The delivered part of an answer, for the backend that continues it.

    `num_tokens` counts the tokens of this part. With `is_estimated` there may be more of them, because a remote did not
    state its count. Tool calls are not part of it, because an answer that has begun a tool call cannot move to another
    backend.

    `tokens`: the part's tokens, if this machine generated them ahead of the request (see GenerateRequest.is_ahead) with
    the model whose file has the hash `sha256`. `step_lengths` has how many of them each step gave. With the same model,
    this machine continues exactly, also within a tool call.
    """

    text: str = ""
    reasoning: str = ""
    num_tokens: int = 0
    tokens: tuple[int, ...] = ()
    step_lengths: tuple[int, ...] = ()
    sha256: str = ""
    is_estimated: bool = False


class Checkup(Struct):
    """The result of the owner's test for one endpoint of a remote.

    Times are in seconds, None for stages that were not reached or not needed. `models` are those that the remote lists;
    `model` is the one that answered the greeting. `token_s` is the time of its whole answer. `problem` says what is
    wrong; empty if nothing is.
    """

    url: str
    region: str
    name_s: float | None = None
    connect_s: float | None = None
    tls_s: float | None = None
    models_s: float | None = None
    models: tuple[str, ...] = ()
    model: str = ""
    token_s: float | None = None
    problem: str = ""
