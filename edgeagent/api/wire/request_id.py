"""The id of the request or WebSocket that is being served, its trace, and how many edgeagents forwarded it.

Every log line of the request has its id. Trace headers of the client are passed on.
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

_HOPS_NAME = HOPS_HEADER.lower().encode()
_TRACE_NAMES = {b"traceparent": "traceparent", b"tracestate": "tracestate"}


def begin_request(headers: Sequence[tuple[bytes, bytes]]) -> str:
    """Return a new request id. Set REQUEST_ID, TRACE_HEADERS and NUM_HOPS for the rest of the current task."""
    request_id = f"req_{secrets.token_hex(12)}"
    REQUEST_ID.set(request_id)
    TRACE_HEADERS.set({_TRACE_NAMES[name]: value.decode("latin-1") for name, value in headers if name in _TRACE_NAMES})
    NUM_HOPS.set(max((_num_hops(value) for name, value in headers if name == _HOPS_NAME), default=0))
    return request_id


def _num_hops(value: bytes) -> int:
    """Return the number of hops in a header's value, at most MAX_HOPS. Anything but a number counts as MAX_HOPS."""
    return min(int(value), MAX_HOPS) if value.isdigit() and len(value) < 10 else MAX_HOPS
