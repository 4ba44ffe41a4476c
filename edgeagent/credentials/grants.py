"""Ends open requests and sockets when the token that allowed them is no longer valid.

While a token allows work, `Grants` checks twice a second whether the token is still valid. The work registers a
function with the token's grant. The grant calls this function to end the work. The context variable GRANT
holds the grant in the request's task, and in the tasks that this task starts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from edgeagent.credentials.keys import CheckedKeys, Client, Keys
from edgeagent.errors import Unauthorized

_CHECK_S = 0.5  # what a token allows must end within a second

End = Callable[[], None]
T = TypeVar("T")


class Grant:
    """The permission that a token gave to one request or socket. `token_digest` is the digest of this token.

    The grant ends when its token is removed or replaced, when what the token allows changes, or when the token can no
    longer be checked.
    """

    def __init__(self, grants: Grants, client: Client, token_digest: bytes) -> None:
        self.client = client
        self.token_digest = token_digest
        self.is_revoked = False
        self._grants = grants
        self._ends: list[End] = []

    @contextmanager
    def holding(self, end: End) -> Iterator[None]:
        """Call `end` if the grant is revoked during the `with` block; raise Unauthorized if it is revoked already."""
        if self.is_revoked:
            raise revoked()
        self._ends.append(end)
        self._grants.add(self)
        try:
            yield
        finally:
            self._ends.remove(end)
            if not self._ends:
                self._grants.discard(self)

    def check(self) -> None:
        """Raise Unauthorized if the token is no longer valid.

        Call it before work that begins long after the request.
        """
        if not self._grants.is_held(self):
            raise revoked()

    def revoke(self) -> None:
        """Mark the grant as revoked. The `end` functions of its work are called in the event loop's next iteration."""
        self.is_revoked = True
        for end in self._ends:
            asyncio.get_running_loop().call_soon(end)


class Grants:
    """The grants of open requests and sockets. Those whose token is no longer valid are ended."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._live: set[Grant] = set()
        self._checked: object = None
        self._timer: asyncio.TimerHandle | None = None

    def open(self, keys: CheckedKeys) -> Grant | None:
        """Return a new grant for the result of `Keys.judge`; None if the request has no known token."""
        return None if keys.client is None else Grant(self, keys.client, keys.digest)

    def add(self, grant: Grant) -> None:
        """Watch the token of a grant. The next `check` examines the token, even if no file has changed."""
        self._live.add(grant)
        self._checked = None
        if self._timer is None:
            self._set_timer()

    def discard(self, grant: Grant) -> None:
        """Stop watching a grant's token."""
        self._live.discard(grant)

    def is_held(self, grant: Grant) -> bool:
        """Whether the token of a grant still belongs to the same client, with the same rights."""
        return self._keys.holder(grant.token_digest) == grant.client

    def _set_timer(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_CHECK_S, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if self._live:
            self.check()
            self._set_timer()

    def check(self) -> None:
        """End the grants whose token is no longer valid, has another holder or other rights, or cannot be checked."""
        revision = self._keys.revision  # reads the files if they changed, and logs trouble with them
        if revision == self._checked:
            return
        self._checked = revision
        holders = {
            token_digest: self._keys.holder(token_digest)
            for token_digest in {grant.token_digest for grant in self._live}
        }
        for grant in list(self._live):
            if holders[grant.token_digest] != grant.client:
                self._live.discard(grant)
                grant.revoke()


GRANT: ContextVar[Grant | None] = ContextVar("grant", default=None)


@contextmanager
def until_revoked(end: End) -> Iterator[None]:
    """Call `end` if the current request's grant is revoked during the `with` block.

    Raise Unauthorized if it is revoked already.

    If the request has no token, nothing is watched.
    """
    grant = GRANT.get()
    if grant is None:
        yield
        return
    with grant.holding(end):
        yield


async def unless_revoked(work: Coroutine[Any, Any, T]) -> T:
    """Await `work` and return its result.

    If the current request's grant is revoked, cancel `work` and raise Unauthorized.

    If the request has no token, nothing is watched.
    """
    grant = GRANT.get()
    if grant is None:
        return await work
    if grant.is_revoked:
        work.close()
        raise revoked()
    task = asyncio.ensure_future(work)
    is_revoked = False

    def end() -> None:
        nonlocal is_revoked
        is_revoked = task.cancel()

    with grant.holding(end):
        try:
            return await task
        except asyncio.CancelledError:
            if is_revoked:
                raise revoked() from None
            raise


def revoked() -> Unauthorized:
    """Return the error of a request whose token is no longer valid."""
    return Unauthorized("the token that opened this was removed or replaced, or can no longer be checked")
