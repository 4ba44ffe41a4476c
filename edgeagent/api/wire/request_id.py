"""The id of the request or WebSocket that is being served, and what its headers say for all routes.

Every log line of the request has its id. Trace headers of the client are passed on. `wire.latency` reads the headers
that ask for a latency.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from contextvars import ContextVar

from edgeagent.types import HOPS_HEADER

MAX_HOPS = 2
"""How many edgeagents may forward a request. A gateway before a cluster can be one of them."""

REQUEST_ID: ContextVar[str] = ContextVar("request_id", default="")
TRACE_HEADERS: ContextVar[Mapping[str, str]] = ContextVar("trace_headers", default={})  # noqa: B039 never changed
NUM_HOPS: ContextVar[int] = ContextVar("num_hops", default=0)
OWN_HEADERS: ContextVar[Mapping[str, str]] = ContextVar("own_headers", default={})  # noqa: B039 never changed
"""The headers whose names begin with x-edgeagent-, by their names in lower case."""

_HOPS_NAME = HOPS_HEADER.lower().encode()
_TRACE_NAMES = {b"traceparent": "traceparent", b"tracestate": "tracestate"}
_OWN_PREFIX = b"x-edgeagent-"


def begin_request(headers: Sequence[tuple[bytes, bytes]]) -> str:
    """Return a new request id. Set the variables of this module for the rest of the current task."""
    request_id = f"req_{secrets.token_hex(12)}"
    REQUEST_ID.set(request_id)
    TRACE_HEADERS.set({_TRACE_NAMES[name]: value.decode("latin-1") for name, value in headers if name in _TRACE_NAMES})
    own = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers if name.startswith(_OWN_PREFIX)}
    OWN_HEADERS.set(own)
    NUM_HOPS.set(max((_num_hops(value) for name, value in headers if name == _HOPS_NAME), default=0))
    return request_id


def _num_hops(value: bytes) -> int:
    """Return the number of hops in a header's value, at most MAX_HOPS. Anything but a number counts as MAX_HOPS."""
    return min(int(value), MAX_HOPS) if value.isdigit() and len(value) < 10 else MAX_HOPS
