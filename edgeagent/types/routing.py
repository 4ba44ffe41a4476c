"""Where a request may run, where it does, and what an answer that changes its place takes along."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from msgspec import Struct


class RouteMode(StrEnum):
    """Where requests may run, the strictest first. Of several that apply to a request the strictest holds."""

    LOCAL_ONLY = "local_only"
    PREFER_LOCAL = "prefer_local"
    PREFER_REMOTE = "prefer_remote"
    REMOTE_ONLY = "remote_only"


class Placement(Struct, frozen=True):
    """Where a request runs, and why; told before its first token.

    `served_by` is "local" or "remote:NAME"; `host` and `region` are a remote's, and empty for this machine. `model` is
    the model's name at that place, `sha256` that of its file, where it is known here.
    """

    served_by: str
    model: str
    reason: str
    host: str = ""
    region: str = ""
    sha256: str = ""


class Permit(Struct, frozen=True):
    """Leave to send one request to one remote. Only the router's policy issues it; without it nothing is sent.

    `client` is the holder of the request's token, `mode` the one that allowed it, `reason` why it goes there.
    """

    request_id: str
    remote: str
    mode: RouteMode
    reason: str
    client: str = ""


class EndpointStatus(Struct, frozen=True):
    """One base URL of a remote, as it is known here; None: not known.

    `breaker` "open": nothing is sent there for a while; `cause` says why. `num_waiting` and `kv_usage` are its own
    measurements, where it tells them; the times are averages of what was seen.
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
    """A remote, as it is known here. `trouble` says why nothing can be sent to it; empty where that can be."""

    name: str
    trouble: str = ""
    num_live: int = 0
    endpoints: tuple[EndpointStatus, ...] = ()


class ProbePermit(Struct, frozen=True):
    """Leave to ask one remote whether it is well, and to open connections to it; nothing of a request goes there.

    Only the router's policy issues it, and only while the machine's mode, which it holds, lets requests leave at all.
    """

    remote: str
    mode: RouteMode


class AnswerSoFar(Struct, frozen=True):
    """The part of an answer that its client has, for the place that continues it.

    `num_tokens` is how many tokens that was. Open or whole tool calls are not in it: an answer that has begun a call
    does not change its place.
    """

    text: str = ""
    reasoning: str = ""
    num_tokens: int = 0
