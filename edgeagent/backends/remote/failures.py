"""The kinds of failure of one attempt at a remote, what each means for the next attempt, and how it is recognised."""

from __future__ import annotations

import email.utils
from datetime import UTC
from enum import StrEnum
from typing import Any

import msgspec

from edgeagent.errors import DeadlineUnreachable

_MAX_DETAIL_CHARS = 500


class Kind(StrEnum):
    """Kinds of failure. The egress ledger has the kind as the outcome of the failed attempt."""

    UNREACHABLE = "unreachable"
    """There is no connection, because of the name, the route, the port, the proxy or a time limit. Nothing was sent."""
    UNTRUSTED = "untrusted"
    """TLS failed, because of the certificate, the name, the pin, the protocol or a time limit. Nothing was sent."""
    TIMEOUT = "timeout"
    """A time limit passed: for the first content, between two events, for the whole request, or for a probe."""
    CUT = "cut"
    """The connection or the stream ended too early."""
    GARBLED = "garbled"
    """The answer violates the protocol: for example, it has a wrong type, invalid JSON, or too many bytes."""
    SERVER_ERROR = "server_error"
    """HTTP 5xx except 503, an unexpected status, an error event without a code, or an unknown finish reason."""
    OVERLOADED = "overloaded"
    """HTTP 429, 503, 408 or 402: the remote accepts nothing at the moment."""
    LATE = "late"
    """Another edgeagent refused the request, since its first token would come too late. Others may still be in time."""
    REFUSED_KEY = "refused_key"
    """HTTP 401 or 403: the remote refused the key, or a request without a key."""
    REJECTED = "rejected"
    """HTTP 4xx without a kind of its own: this remote does not accept the request itself."""
    NO_MODEL = "no_model"
    """HTTP 404: the remote does not have the model, or the address is wrong."""
    WRONG_MODEL = "wrong_model"
    """The remote answered with one of its other models instead of the requested one."""
    REPEATED = "repeated"
    """The remote may have restarted an answer instead of continuing it."""
    REDIRECT = "redirect"
    """HTTP 3xx. Redirects are never followed."""


WAS_NOT_SENT = frozenset({Kind.UNREACHABLE, Kind.UNTRUSTED})
MAY_GO_ELSEWHERE = frozenset(Kind) - {Kind.REFUSED_KEY, Kind.REJECTED, Kind.NO_MODEL}
COUNT_AGAINST_HEALTH = MAY_GO_ELSEWHERE - {Kind.OVERLOADED, Kind.LATE, Kind.WRONG_MODEL, Kind.REPEATED}


class Failure(Exception):
    """The failure of one attempt. `message` is for the client and for logs: it never holds content or a key.

    `status` is the HTTP status; 0 if there is none. `retry_after_s` is the delay that the remote asks for; None if it
    names none. `detail` is text from the remote, for the client only.
    `was_reused`: the attempt used an old connection, and the remote may have closed this connection meanwhile.
    """

    def __init__(
        self,
        kind: Kind,
        message: str,
        *,
        status: int = 0,
        retry_after_s: float | None = None,
        detail: str = "",
        was_reused: bool = False,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.status = status
        self.retry_after_s = retry_after_s
        self.detail = detail
        self.was_reused = was_reused


def failure_from(error: Any, status: int = 0, retry_after_s: float | None = None) -> Failure:
    """Return the Failure for an error object of any shape that a remote sent in a body or a stream.

    `status` is the HTTP status. If it is 0, the error object's code or type gives the status, or else it is 500.
    """
    said = error if isinstance(error, dict) else {"message": error}
    code = said.get("code")
    if not status and isinstance(code, int) and 400 <= code <= 599:
        status = code
    status = status or _status_of(said.get("type")) or _status_of(code) or 500
    if code == DeadlineUnreachable.code:
        late = "its first token would come too late for this request"
        return Failure(Kind.LATE, late, status=status, retry_after_s=retry_after_s)
    message = said.get("message")
    return failure_of_status(status, retry_after_s, message if isinstance(message, str) else "")


def _status_of(word: Any) -> int:
    return _STATUS_OF_TYPE.get(word.lower().replace(" ", "_"), 0) if isinstance(word, str) else 0


_STATUS_OF_TYPE = {
    "service_unavailable": 503,
    "overloaded_error": 503,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "queue_full": 429,
    "server_is_overloaded": 503,
    "invalid_request_error": 400,
    "badrequesterror": 400,
    "authentication_error": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "model_not_found": 404,
}


def failure_of_status(status: int, retry_after_s: float | None = None, detail: str = "") -> Failure:
    """Return the Failure for an HTTP status. `detail` is the remote's own text, which may quote the request and key."""
    detail = detail[:_MAX_DETAIL_CHARS]
    match status:
        case 401 | 403:
            return Failure(Kind.REFUSED_KEY, f"it refused the key (HTTP {status})", status=status)
        case 402:
            kind, message = Kind.OVERLOADED, "its operator wants a payment first (HTTP 402)"
        case 408 | 429 | 503:
            kind, message = Kind.OVERLOADED, f"it accepts no more requests now (HTTP {status})"
        case 404:
            kind, message = Kind.NO_MODEL, "it does not have the model, or the address is wrong (HTTP 404)"
        case _ if 300 <= status < 400:
            kind, message = Kind.REDIRECT, f"it redirects elsewhere (HTTP {status}), and redirects are not followed"
        case _ if 400 <= status < 500:
            kind, message = Kind.REJECTED, f"it rejected the request (HTTP {status})"
        case _:
            kind, message = Kind.SERVER_ERROR, f"it failed (HTTP {status})"
    return Failure(kind, message, status=status, retry_after_s=retry_after_s, detail=detail)


def failure_of_body(status: int, body: bytes, retry_after_s: float | None) -> Failure:
    """Return the Failure for a response without an answer. `body` may be OpenAI's error, plain text, HTML, or empty."""
    try:
        said = msgspec.json.decode(body)
    except (ValueError, RecursionError):
        said = None
    if isinstance(said, dict):
        return failure_from(said.get("error") or said, status, retry_after_s)
    text = body.decode("utf-8", errors="replace").strip()
    return failure_of_status(status, retry_after_s, "" if text.startswith("<") else text)


def retry_after_s(headers: dict[str, str], now_s: float) -> float | None:
    """Return how many seconds the response headers ask to wait before a retry; None if they do not say.

    Retry-After holds seconds or a date (RFC 9110, 10.2.3). OpenAI's retry-after-ms holds milliseconds.
    """
    for name, factor in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        text = headers.get(name, "").strip()
        if text.replace(".", "", 1).isascii() and text.replace(".", "", 1).isdigit():
            return float(text) * factor
    try:
        date = email.utils.parsedate_to_datetime(headers.get("retry-after", ""))
    except (ValueError, OverflowError):
        return None
    if date.tzinfo is None:
        date = date.replace(tzinfo=UTC)
    return max(0.0, date.timestamp() - now_s)
