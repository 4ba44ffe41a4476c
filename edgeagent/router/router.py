"""The router: runs each request on a backend, and on another one if that fails.

It implements `service.service.Service`. The decisions are pure functions in `policy`; this module carries them out.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from edgeagent.backends.base import Backend
from edgeagent.errors import EdgeAgentError, ModelNotFound
from edgeagent.router.models import AllModels
from edgeagent.router.policy import TARGETS, Targets
from edgeagent.router.remote_access import RemoteAccess
from edgeagent.router.remote_backends import RemoteBackends
from edgeagent.router.route_chooser import RouteChooser
from edgeagent.router.routed_request import RoutedRequest
from edgeagent.types import (
    GenerateRequest,
    RemoteStatus,
    RouteMode,
    Sink,
    is_remote,
    replace,
)


class Router:
    """All backends behind one interface, which keeps the contract of `generate` and `cancel` of backends.base.Backend.

    The constructor's `machine_mode` is called before each attempt. So a remote is no longer used once the owner has
    forbidden it.
    """

    def __init__(
        self,
        backends: Sequence[Backend],
        remote_access: RemoteAccess | None = None,
        *,
        machine_mode: Callable[[], RouteMode] | None = None,
        clock: Callable[[], float] = time.monotonic,
        targets: Targets = TARGETS,
    ) -> None:
        """Without `remote_access` there are no remotes. Without `machine_mode`, `remote_access` gives the mode."""
        self._backends = {backend.name: backend for backend in backends}
        self.remote_access = remote_access
        self._given_mode = machine_mode
        self._clock = clock
        self._remotes = None if remote_access is None else RemoteBackends(remote_access, self._backends)
        self.models = AllModels(self._backends, self.mode, clock)
        self._chooser = RouteChooser(self._backends, self.mode, self._remotes, self._why_local, targets)
        self._live: dict[str, RoutedRequest] = {}

    async def start(self) -> None:
        """Start every backend; raise the error of the first one that cannot start."""
        if self._remotes is not None:
            self._remotes.start()
        for backend in list(self._backends.values()):
            await backend.start()

    async def stop(self) -> None:
        """End every request, then release everything."""
        self._chooser.is_stopping = True
        if self._remotes is not None:
            await self._remotes.stop()
        await asyncio.gather(*(backend.stop() for backend in self._backends.values()))
        if self.remote_access is not None:
            self.remote_access.close()

    def remotes(self) -> list[RemoteStatus]:
        return [] if self._remotes is None else self._remotes.statuses()

    def mode(self) -> RouteMode:
        """Return the machine's current mode."""
        if self._given_mode is not None:
            return self._given_mode()
        return RouteMode.LOCAL_ONLY if self.remote_access is None else self.remote_access.mode

    def _why_local(self) -> str:
        return "" if self.remote_access is None else self.remote_access.why_local

    async def _located(self, request: GenerateRequest) -> GenerateRequest:
        """Return a request with its model's canonical name. Search for the model if it is not known yet.

        Raise ModelNotFound if the model is unknown and the owner has no remotes at all, not even forbidden ones. Any
        other error is raised later, when a route is chosen.
        """
        try:
            await self.models.locate(request.model)
        except EdgeAgentError as error:
            if self._remotes is not None:
                self._remotes.refresh()
            has_remotes = any(map(is_remote, self._backends))
            if isinstance(error, ModelNotFound) and not has_remotes and not self._why_local():
                raise
        with suppress(EdgeAgentError):  # the chosen backend raises the error
            return replace(request, model=self.models.find(request.model))
        return request

    def cancel(self, request_id: str) -> None:
        if request_id in self._live:
            self._live[request_id].is_cancelled = True
        for backend in self._backends.values():
            backend.cancel(request_id)

    async def generate(self, request: GenerateRequest, sink: Sink) -> None:
        """Run a request on the backend that the policy chooses, and on another one if that fails.

        The terminal event says where the request ran, and why. Nothing is awaited between the choice and the backend's
        acceptance, so a burst of requests is counted exactly.
        """
        await RoutedRequest(request, sink, self._located, self._chooser, self._live, self._clock).run()
