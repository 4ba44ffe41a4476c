"""The name of the HTTP request or WebSocket that is being served: every log line written meanwhile carries it."""

from __future__ import annotations

import secrets
from contextvars import ContextVar

REQUEST_ID: ContextVar[str] = ContextVar("request_id", default="")


def new_request_id() -> str:
    """Return a fresh id and make it that of everything the current task does from here on."""
    request_id = f"req_{secrets.token_hex(12)}"
    REQUEST_ID.set(request_id)
    return request_id
