"""The kinds of failure of one attempt at a remote, and what each kind means for the next attempt."""

from __future__ import annotations

from enum import StrEnum


class Kind(StrEnum):
    """Kinds of failure. Each is also the outcome of the attempt in the egress ledger."""

    UNREACHABLE = "unreachable"
    """There is no connection, because of the name, the route, the port, the proxy or a time limit. Nothing was sent."""
    UNTRUSTED = "untrusted"
    """TLS failed, because of the certificate, the name, the pin, the protocol or a time limit. Nothing was sent."""
    TIMEOUT = "timeout"
    """A time limit passed: for the first content, between two events, for the whole request, or for a probe."""
    CUT = "cut"
    """The connection or the stream ended too early."""
    GARBLED = "garbled"
    """The answer violates the protocol: wrong type, incomplete JSON value, or too large."""
    SERVER_ERROR = "server_error"
    """5xx except 503, an error event without a better code, or an unknown finish reason."""
    OVERLOADED = "overloaded"
    """429, 503 or 408: alive, but overloaded at the moment."""
    REFUSED_KEY = "refused_key"
    """401 or 403."""
    REJECTED = "rejected"
    """A 4xx without a kind of its own: this remote does not accept the request itself."""
    NO_MODEL = "no_model"
    """404: the remote does not have the model, or the address is wrong."""
    WRONG_MODEL = "wrong_model"
    """The remote answered with another of its models than the requested one."""
    REPEATED = "repeated"
    """The remote may have restarted an answer instead of continuing it."""
    REDIRECT = "redirect"
    """3xx. Never followed."""


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
    """One attempt failed. `message` is for the client and for logs: it never holds content or a key.

    `status` is the HTTP status; 0 if there is none. `detail` is text from the remote, for the client only.
    `was_reused`: the attempt used a connection of an earlier request, which the remote may have closed meanwhile.
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
