"""One-time links, with which the owner gives a browser a token of its own.

A link has a random secret. It is kept in memory only, as a digest, until it is used, or until its life ends.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from edgeagent.credentials.keys import digest

LIFE_S = 300.0
"""How long a link can be used."""
MAX_LINKS = 16

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Link(Generic[T]):
    secret_digest: bytes
    given: T
    ends_at_s: float


class Links(Generic[T]):
    """The links that can still be used, and what each gives. If there are more than MAX_LINKS, the oldest ends."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._links: list[_Link[T]] = []

    def add(self, given: T) -> str:
        """Return the secret of a new link, whose use gives `given`."""
        secret = secrets.token_urlsafe(32)
        link = _Link(digest(secret.encode()), given, self._clock() + LIFE_S)
        self._links = [*self._links, link][-MAX_LINKS:]
        return secret

    def use(self, secret: str) -> T | None:
        """End a link, and return what it gives; None if no link has this secret any more."""
        wanted, now_s = digest(secret.encode()), self._clock()
        found = None
        for link in self._links:
            if hmac.compare_digest(wanted, link.secret_digest) and now_s < link.ends_at_s:
                found = link
        self._links = [link for link in self._links if link is not found and now_s < link.ends_at_s]
        return None if found is None else found.given
