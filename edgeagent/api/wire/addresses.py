"""The addresses of images in a client's message: which must be fetched, and what they gave.

A body is read twice if the owner lets its images be fetched. The first time, each address that is met is noted. Then
the images are fetched, and the body is read again with them. An address is met only where an image may be, so nothing
else in a body is taken for one.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar

from edgeagent.api.wire.shape import Json

MAX_ADDRESSES = 16
"""The most images of a request that are fetched."""
_LOCAL_ONLY = "is an address, and the request must not leave this machine (local_only)"


class Addresses:
    """The addresses in one body, and their files."""

    def __init__(self, why_not: Callable[[str], str]) -> None:
        """`why_not` returns why an address may not be fetched, as the end of a sentence about it; "" if it may be."""
        self._why_not = why_not
        self._is_local = False
        self.files: dict[str, bytes | str] = {}
        """The files by address, or why there is none, as the end of a sentence about the address."""
        self.wanted: list[str] = []
        """The addresses that were met and have no file."""

    def keep_here(self) -> None:
        """Let nothing be fetched: the request is for this machine only."""
        self._is_local = True

    def find(self, url: str) -> bytes | str | None:
        """Return the file of an address, or why there is none; None if it must be fetched first."""
        if (found := self.files.get(url)) is not None:
            return found
        if self._is_local:
            return _LOCAL_ONLY
        if why := self._why_not(url):
            return why
        if url not in self.wanted:
            if len(self.wanted) >= MAX_ADDRESSES:
                return f"is one address too many: at most {MAX_ADDRESSES} are fetched for a request"
            self.wanted.append(url)
        return None


ADDRESSES: ContextVar[Addresses | None] = ContextVar("addresses", default=None)
"""Those of the body that is read now; None if nothing is fetched."""


def is_address(url: str) -> bool:
    return url[:8].lower().startswith(("http://", "https://"))


def is_readable(url: str) -> bool:
    """Whether an image can be read from an address, or may be after it was fetched."""
    addresses = ADDRESSES.get()
    return addresses is not None and is_address(url) and not isinstance(addresses.find(url), str)


def keep_if_local(fields: Json) -> None:
    """Let nothing be fetched for a body that says local_only."""
    match fields:
        case {"edgeagent": {"route": "local_only"}} if (addresses := ADDRESSES.get()) is not None:
            addresses.keep_here()
