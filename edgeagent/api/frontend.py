"""Frontends: the state of a wire protocol that outlives one request. The daemon starts and closes them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar, Self, TypeVar

from edgeagent.config import Config


class Frontend:
    """The state of a wire protocol that outlives one request, such as sockets, tasks and files.

    Derive a class for such a protocol, override what it needs, and add the class to FRONTENDS in `api.routers`. Each
    daemon makes one object of the class. A route gets that object with `context.frontends.get(TheClass)`.
    """

    serves_pages: ClassVar[bool] = False
    """Whether this protocol serves web pages with scripts. If so, these pages may send requests to the daemon.

    No protocol serves such pages so far.
    """

    @classmethod
    def of(cls, config: Config, folder: Path | None) -> Self:
        """Return the frontend for a configuration. Its files are in `folder`; if that is None, it has no files."""
        del config, folder
        return cls()

    @property
    def trouble(self) -> str | None:
        """What is wrong with the frontend's state, for the status; None if nothing is wrong."""
        return None

    async def start(self) -> None:
        """Prepare the state. Called before the daemon accepts connections."""

    def stop_accepting(self) -> None:
        """Start no new work from now on, because the daemon is stopping. Live requests continue until they end.

        The service already refuses new generations, so most protocols need not override this.
        """

    async def close(self) -> None:
        """Release everything. Called after the last connection has closed, and cancelled if it takes too long."""


FrontendT = TypeVar("FrontendT", bound=Frontend)


class Frontends:
    """The frontends of one daemon, one of each class."""

    def __init__(self, frontends: Iterable[Frontend]) -> None:
        self._frontends = {type(each): each for each in frontends}

    def get(self, kind: type[FrontendT]) -> FrontendT:
        """Return the frontend of a class, which must be registered."""
        found = self._frontends[kind]
        assert isinstance(found, kind)
        return found

    @property
    def serves_pages(self) -> bool:
        """Whether any frontend serves web pages."""
        return any(each.serves_pages for each in self._frontends.values())

    @property
    def trouble(self) -> str | None:
        """What is wrong with the frontends' state; None if nothing is wrong."""
        return "; ".join(each.trouble for each in self._frontends.values() if each.trouble is not None) or None

    async def start(self) -> None:
        """Start each frontend."""
        for each in self._frontends.values():
            await each.start()

    def stop_accepting(self) -> None:
        """Call `stop_accepting` of each frontend."""
        for each in self._frontends.values():
            each.stop_accepting()

    async def close(self) -> None:
        """Close each frontend, even if another one fails; raise the first failure."""
        closing = await asyncio.gather(*(each.close() for each in self._frontends.values()), return_exceptions=True)
        for failure in closing:
            if isinstance(failure, BaseException):
                raise failure
