"""Images and sounds that a client's message only names: by an address, or by the hash of a binary frame.

A body is read twice if the owner lets its images be fetched. The first time, each address that is met is noted. Then
the images are fetched, and the body is read again with them. An address is met only where an image may be, so nothing
else in a body is taken for one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from types import MappingProxyType

MAX_ADDRESSES = 16
"""The most images of a request that are fetched."""
NOT_FETCHED = "is an address, and the owner allows no host to fetch images from (server.image_hosts)"
HASH = "sha256:"
"""The beginning of the name of a file that was sent in a binary frame. The hash follows in hexadecimal digits."""
NO_FILE = "names a file that is not here (any more): only the WebSocket on which a binary frame sent it knows it"
LOCAL_ONLY = "is an address, and the request must not leave this machine (local_only)"


class Addresses:
    """The addresses and names in one body, and their files."""

    def __init__(self, why_not: Callable[[str], str], files: Mapping[str, bytes] = MappingProxyType({})) -> None:
        """`why_not` returns why an address may not be fetched, as the end of a sentence about it; "" if it may be.

        `files`: those of binary frames, by name.
        """
        self._why_not = why_not
        self._why_kept = ""
        self.files: dict[str, bytes | str] = dict(files)
        """The files by address or name, or why there is none, as the end of a sentence about the address."""
        self.wanted: list[str] = []
        """The addresses that were met and have no file."""

    def keep_here(self, why: str = LOCAL_ONLY) -> None:
        """Let nothing be fetched. `why`: the end of a sentence about an address."""
        self._why_kept = why

    def find(self, url: str) -> bytes | str | None:
        """Return the file of an address, or why there is none; None if it must be fetched first."""
        if (found := self.files.get(url)) is not None:
            return found
        if url.startswith(HASH):
            return NO_FILE
        if why := self._why_kept or self._why_not(url):
            return why
        if url not in self.wanted:
            if len(self.wanted) >= MAX_ADDRESSES:
                return f"is one address too many: at most {MAX_ADDRESSES} are fetched for a request"
            self.wanted.append(url)
        return None


ADDRESSES: ContextVar[Addresses | None] = ContextVar("addresses", default=None)
"""Those of the body that is read now; None if nothing is fetched, and it comes in no frame."""


def is_address(url: str) -> bool:
    """Whether a text is no file itself, but the address or the name of one."""
    return url[:8].lower().startswith(("http://", "https://", HASH))


def is_readable(url: str) -> bool:
    """Whether an image can be read from an address or a name, or may be after it was fetched."""
    addresses = ADDRESSES.get()
    return addresses is not None and is_address(url) and not isinstance(addresses.find(url), str)


def keep_if_local(fields: object) -> None:
    """Let nothing be fetched for a body that says local_only."""
    match fields:
        case {"edgeagent": {"route": "local_only"}} if (addresses := ADDRESSES.get()) is not None:
            addresses.keep_here()
