"""The kinds of failure of one attempt at a remote, and what each kind means for the next attempt."""

from __future__ import annotations

from enum import StrEnum


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
MAY_GO_ELSEWHERE = frozenset(
    {
        Kind.UNREACHABLE,
        Kind.UNTRUSTED,
        Kind.TIMEOUT,
        Kind.CUT,
        Kind.GARBLED,
        Kind.SERVER_ERROR,
        Kind.OVERLOADED,
        Kind.REDIRECT,
        Kind.WRONG_MODEL,
        Kind.REPEATED,
    }
)
COUNT_AGAINST_HEALTH = MAY_GO_ELSEWHERE - {Kind.OVERLOADED, Kind.WRONG_MODEL, Kind.REPEATED}


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
