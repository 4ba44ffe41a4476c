"""The backends of the owner's remotes. They follow changes in the file of remotes and in the machine's policy.

If a remote is removed, its streams end at once. Another backend continues their answers if the mode allows it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import MutableMapping
from contextlib import suppress
from typing import TYPE_CHECKING

from edgeagent.backends.base import Backend
from edgeagent.remotes import Remote
from edgeagent.router.policy import probe_permit
from edgeagent.router.remote_access import RemoteAccess
from edgeagent.types import ProbePermit, RemoteStatus, RouteMode, remote_backend

if TYPE_CHECKING:
    from edgeagent.backends.remote.backend import RemoteBackend

# A change must take effect within a second, for running streams too.
_TICK_S = 0.5
# Without a remote there is no stream to end, and each request applies changes first. Every 0.5 s costs 0.07 % of a CPU.
_IDLE_TICK_S = 5.0

logger = logging.getLogger(__name__)


class RemoteBackends:
    """Adds remotes to the router's mapping `backends`, and removes them, when the remotes or the policy change."""

    def __init__(self, remote_access: RemoteAccess, backends: MutableMapping[str, Backend]) -> None:
        self._remote_access = remote_access
        self._backends = backends
        self._own: dict[str, RemoteBackend] = {}
        self._revision: tuple[int, int] | None = None
        self._mode = RouteMode.LOCAL_ONLY
        self._ticker: asyncio.Task[None] | None = None
        self._added = asyncio.Event()  # a remote was added since the last tick
        self._ending: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Make the backends of the remotes, and start following the files. Must be called in a running event loop."""
        self.refresh()
        self._warm_if_alone()
        self._ticker = asyncio.get_running_loop().create_task(self._tick(), name="remotes")

    async def stop(self) -> None:
        """Stop following the files, and wait for removed backends to end their streams. The router stops the others."""
        if self._ticker is not None:
            self._ticker.cancel()
            with suppress(asyncio.CancelledError):
                await self._ticker
        await asyncio.gather(*self._ending, return_exceptions=True)

    def statuses(self) -> list[RemoteStatus]:
        return [backend.status() for backend in self._own.values()]

    def stand_by(self, name: str) -> None:
        """Probe the remote whose backend has this name, because it may be needed. Ignore other names."""
        if (backend := self._own.get(name)) is not None:
            backend.stand_by()

    def warm(self, name: str) -> None:
        """Open connections to the remote whose backend has this name, for requests to come. Ignore other names."""
        if (backend := self._own.get(name)) is not None:
            backend.warm()

    def _warm_if_alone(self) -> None:
        """If there is no local backend, ask the remotes which models they serve, and keep knowing their state."""
        if all(name in self._own for name in self._backends):
            for backend in self._own.values():
                if backend.models.statuses():
                    backend.stand_by()
                else:
                    backend.warm()

    def refresh(self) -> None:
        """Apply changes of the remotes and the policy. End all streams if the machine's mode has become local_only.

        This takes a few microseconds if nothing has changed.
        """
        if self._revision != (revision := self._remote_access.revision):
            self._revision = revision
            self._follow({remote_backend(remote.name): remote for remote in self._remote_access.remotes})
        mode = self._remote_access.mode
        if mode is RouteMode.LOCAL_ONLY and self._mode is not mode:
            self._end(list(self._own.values()), "the machine's mode is local_only")
        self._mode = mode

    def _follow(self, wanted: dict[str, Remote]) -> None:
        """Make the backends match `wanted`, which maps their names to remotes.

        The streams of changed and removed remotes end. Unchanged remotes may try refused keys again.
        """
        gone = [backend for name, backend in self._own.items() if wanted.get(name) != backend.remote]
        for backend in gone:
            logger.info("%s was changed or removed", backend.name)
            del self._own[backend.name], self._backends[backend.name]
        self._end(gone, "the owner changed or removed this remote, or the machine's policy forbids it")
        for name, remote in wanted.items():
            if (kept := self._own.get(name)) is not None:
                kept.forgive_key()
            else:
                self._own[name] = self._backends[name] = self._make(remote)
                self._added.set()

    def _make(self, remote: Remote) -> RemoteBackend:
        # Imported here, since a daemon without remotes needs no HTTP client: 3 MB, and 0.03 s before its worker starts.
        from edgeagent.backends.remote.backend import RemoteBackend

        def probes() -> ProbePermit | None:
            return probe_permit(remote.name, self._remote_access.mode)

        return RemoteBackend(remote, keys=self._remote_access.keys, ledger=self._remote_access.ledger, probes=probes)

    def _end(self, backends: list[RemoteBackend], reason: str) -> None:
        for backend in backends:
            task = asyncio.get_running_loop().create_task(backend.close_streams(reason))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    async def _tick(self) -> None:
        while True:
            if not self._own:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_IDLE_TICK_S):  # wait_for may lose a cancel
                        await self._added.wait()
            if self._own:
                await asyncio.sleep(_TICK_S)
            self._added.clear()
            self.refresh()
            self._warm_if_alone()
            for backend in self._own.values():
                backend.tick()
