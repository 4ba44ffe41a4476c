"""What can go wrong with one try at a remote, and what each kind of failure means for the next one."""

from __future__ import annotations

from enum import StrEnum


class Kind(StrEnum):
    """Kinds of failure. Each is also the outcome of the try in the egress ledger."""

    UNREACHABLE = "unreachable"
    """No connection: name, route, port or proxy. Nothing was sent."""
    UNTRUSTED = "untrusted"
    """TLS failed: certificate, name, pin or protocol. Nothing was sent."""
    TIMEOUT = "timeout"
    """A limit passed: connect, first content, or between two events."""
    CUT = "cut"
    """The connection or the stream ended too early."""
    GARBLED = "garbled"
    """The answer is not what the protocol says: another type, half a JSON value, too large."""
    SERVER_ERROR = "server_error"
    """5xx but 503, or an error event without a better code."""
    OVERLOADED = "overloaded"
    """429, 503 or 408: alive, and full for the moment."""
    REFUSED_KEY = "refused_key"
    """401 or 403."""
    REJECTED = "rejected"
    """Any other 4xx: the request itself is at fault, there."""
    NO_MODEL = "no_model"
    """404: not the model, or not the address."""
    WRONG_MODEL = "wrong_model"
    """It answered with another of its models than the one that was asked for."""
    REPEATED = "repeated"
    """It may have started an answer over instead of continuing it."""
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
    """One try failed. `message` is for the client and for logs: it never holds content, nor a key.

    `detail` is text from the remote, for the client alone. `was_reused`: on a connection that an earlier request
    opened, which the remote may have closed meanwhile.
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
