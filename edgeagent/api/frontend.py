"""The state that a wire protocol keeps beyond one request, as the daemon sees it: something to start and to close."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar, Self, TypeVar

from edgeagent.config import Config


class Frontend:
    """A wire protocol with state of its own: sockets, tasks, files. Override what the protocol needs.

    A class is registered in `api.routers`; each daemon has one object of it, which routes get by its class.
    """

    serves_pages: ClassVar[bool] = False
    """Whether it serves web pages with scripts: then the daemon's own origin may ask it. No protocol does so far."""

    @classmethod
    def of(cls, config: Config, folder: Path | None) -> Self:
        """Return the frontend for a configuration. Its files are in `folder`; if that is None, it has no files."""
        del config, folder
        return cls()

    @property
    def trouble(self) -> str | None:
        """What is wrong with its state, for the status; None if nothing is."""
        return None

    async def start(self) -> None:
        """Prepare the state. Called before the daemon accepts connections."""

    def stop_accepting(self) -> None:
        """Begin nothing new: the daemon drains. Its live requests still end in their terminal events.

        New generations are refused for every protocol, so most have nothing to do here.
        """

    async def close(self) -> None:
        """Release everything. Called after the last connection has closed."""


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
        """Whether one of them serves web pages."""
        return any(each.serves_pages for each in self._frontends.values())

    @property
    def trouble(self) -> str | None:
        """What is wrong with their state; None if nothing is."""
        return "; ".join(each.trouble for each in self._frontends.values() if each.trouble is not None) or None

    async def start(self) -> None:
        """Start all."""
        for each in self._frontends.values():
            await each.start()

    def stop_accepting(self) -> None:
        """Let all begin nothing new."""
        for each in self._frontends.values():
            each.stop_accepting()

    async def close(self) -> None:
        """Close all, even if one fails; raise the first failure."""
        closing = await asyncio.gather(*(each.close() for each in self._frontends.values()), return_exceptions=True)
        for failure in closing:
            if isinstance(failure, BaseException):
                raise failure
