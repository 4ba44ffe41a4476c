"""The name of the HTTP request or WebSocket that is being served, and of the trace it belongs to.

Every log line written meanwhile carries the name; a client's trace goes on where its headers say.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from contextvars import ContextVar

REQUEST_ID: ContextVar[str] = ContextVar("request_id", default="")
TRACE_HEADERS: ContextVar[Mapping[str, str]] = ContextVar("trace_headers", default={})  # noqa: B039 never changed

_TRACE_NAMES = {b"traceparent": "traceparent", b"tracestate": "tracestate"}


def begin_request(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Return a fresh id, and set it, and the trace in the headers, for the rest of the current task."""
    request_id = f"req_{secrets.token_hex(12)}"
    REQUEST_ID.set(request_id)
    TRACE_HEADERS.set({_TRACE_NAMES[name]: value.decode("latin-1") for name, value in headers if name in _TRACE_NAMES})
    return request_id
