"""The router: runs each request on a backend, and on another one if that fails.

It implements `service.service.Service`. The decisions are pure functions in `policy`; this module carries them out.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress

from edgeagent.backends.base import Backend
from edgeagent.errors import BackendUnavailable, EdgeAgentError, ModelNotFound, RemoteUnavailable
from edgeagent.router.policy import REMOTE_PREFIX, TARGETS, Targets
from edgeagent.router.remote_access import RemoteAccess
from edgeagent.router.remote_backends import RemoteBackends
from edgeagent.router.route_chooser import RouteChooser
from edgeagent.router.routed_request import RoutedRequest
from edgeagent.types import (
    Finished,
    FinishReason,
    GenerateRequest,
    ModelStatus,
    QueryAnswer,
    RemoteStatus,
    RouteMode,
    Step,
    TextQuery,
    Timings,
    Usage,
    replace,
)

Steps = AsyncGenerator[Step, None]


# After a search of this machine's disk for a remote's model, the disk is not searched for that model for this long.
_ABSENT_S = 5.0
_MAX_ABSENT = 1024

NO_MODEL = "none"
"""The value of the option `model` for a daemon that serves only remote models."""


class Router:
    """All backends behind one interface. `generate` and `cancel` keep the contract of backends.base.Backend.

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
        self._chooser = RouteChooser(self._backends, self.mode, self._remotes, self._why_local, targets)
        self._live: dict[str, RoutedRequest] = {}
        self._locating: set[str] = set()
        self._absent: dict[str, float] = {}

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
        """Return the status of each remote that the machine's policy allows."""
        return [] if self._remotes is None else self._remotes.statuses()

    def mode(self) -> RouteMode:
        """Return the machine's current mode."""
        if self._given_mode is not None:
            return self._given_mode()
        return RouteMode.LOCAL_ONLY if self.remote_access is None else self.remote_access.mode

    def _why_local(self) -> str:
        return "" if self.remote_access is None else self.remote_access.why_local

    def models(self) -> list[ModelStatus]:
        """Return the models that a request may name, without duplicates. The models on this machine come first."""
        models: dict[str, ModelStatus] = {}
        for backend in self._open_backends():
            for model in backend.models():
                models.setdefault(model.name, model)
        return list(models.values())

    def _open_backends(self) -> list[Backend]:
        """Return the backends that requests may go to in the machine's current mode."""
        is_bound = self.mode() is RouteMode.LOCAL_ONLY
        return [
            backend for name, backend in self._backends.items() if not (is_bound and name.startswith(REMOTE_PREFIX))
        ]

    def reload(self, model: str) -> None:
        """Reload a model and end its quarantine. Its live requests continue.

        Raise ModelNotFound, NotSupported for a remote's model, or BackendUnavailable while the daemon is starting.
        """
        unknown: EdgeAgentError | None = None
        for backend in self._backends.values():
            try:
                return backend.reload(model)
            except (ModelNotFound, RemoteUnavailable) as error:
                unknown = _clearer(unknown, error)
        raise unknown or ModelNotFound(f"model {model!r} not found")

    def default_model(self) -> str:
        """Return the name of the model that serves requests without a model name; NO_MODEL if there is none."""
        backends = self._open_backends()
        for backend in backends:
            try:
                return backend.find_model(backend.default_model())
            except ModelNotFound:
                continue
            except BackendUnavailable:
                if not backend.name.startswith(REMOTE_PREFIX):  # the local backend is still starting
                    return backend.default_model()
        try:
            return backends[0].default_model() if backends else NO_MODEL
        except (ModelNotFound, BackendUnavailable):  # a remote that has not listed its models yet, or cannot be asked
            return NO_MODEL

    def find_model(self, name: str) -> str:
        """Return the canonical name of a model, given any of its names; raise ModelNotFound or BackendUnavailable."""
        unknown: EdgeAgentError | None = None
        for backend in self._open_backends():
            try:
                return backend.find_model(name)
            except (ModelNotFound, BackendUnavailable) as error:
                unknown = unknown or error
        raise unknown or BackendUnavailable("there is no backend that could answer")

    async def locate(self, name: str) -> str:
        """Do what `find_model` does, but also search the disk for models that no request has named. Load nothing."""
        with suppress(EdgeAgentError):
            known = self.find_model(name)
            if self._is_local(name) or self._absent.get(name, 0.0) > self._clock():
                return known
        unknown: EdgeAgentError | None = None
        for backend in self._open_backends():
            try:
                found = await backend.locate(name)
            except (ModelNotFound, BackendUnavailable) as error:
                unknown = unknown or error
                continue
            if backend.name.startswith(REMOTE_PREFIX):
                self._note_absent(name)
            return found
        raise unknown or BackendUnavailable("there is no backend that could answer")

    def _is_local(self, name: str) -> bool:
        """Whether a model of this name is known on this machine. The disk is not read."""
        for backend in self._backends.values():
            if not backend.name.startswith(REMOTE_PREFIX):
                with suppress(EdgeAgentError):
                    return bool(backend.find_model(name))
        return False

    def _note_absent(self, name: str) -> None:
        """Remember that a remote's model is not on this machine, so that most requests for it do not read the disk."""
        if len(self._absent) >= _MAX_ABSENT:
            self._absent.clear()
        self._absent[name] = self._clock() + _ABSENT_S

    async def unload(self, model: str) -> int:
        """Stop a model's worker and return 0. If it is busy, return how many requests must end before it stops.

        Raise ModelNotFound, NotSupported for a remote's model, or BackendUnavailable while the daemon is starting.
        """
        unknown: EdgeAgentError | None = None
        for backend in self._backends.values():
            try:
                return await backend.unload(model)
            except (ModelNotFound, RemoteUnavailable) as error:
                unknown = _clearer(unknown, error)
        raise unknown or ModelNotFound(f"model {model!r} not found")

    async def ask(self, model: str, query: TextQuery) -> QueryAnswer:
        """Answer a query about text on the backend that has the model; raise ModelNotFound if no backend has it.

        Raise NotSupported if only a remote has it, BackendUnavailable if there is no backend, or the backend's error.
        """
        unknown: EdgeAgentError | None = None
        try:
            model = await self.locate(model)
        except ModelNotFound as error:  # its message suggests similar names
            unknown = error
        except EdgeAgentError:
            pass  # the backends raise a better error below
        for backend in self._open_backends():
            try:
                return await backend.ask(model, query)
            except (ModelNotFound, RemoteUnavailable) as error:
                unknown = _clearer(unknown, error)
        raise unknown or BackendUnavailable("there is no backend that could answer")

    def _name_of(self, model: str) -> str:
        """Return the canonical name of a model; the given name if no backend knows the model."""
        for backend in self._open_backends():
            with suppress(EdgeAgentError):
                return backend.find_model(model)
        return model

    async def _located(self, request: GenerateRequest) -> bool:
        """Search for a request's model if it is not known yet. Return False if the request was cancelled meanwhile.

        Raise ModelNotFound if the model is unknown and the owner has no remotes at all, not even forbidden ones. Any
        other error is raised later, when a route is chosen.
        """
        self._locating.add(request.id)
        try:
            await self.locate(request.model)
            return request.id in self._locating
        except EdgeAgentError as error:
            if self._remotes is not None:
                self._remotes.refresh()
            has_remotes = any(name.startswith(REMOTE_PREFIX) for name in self._backends)
            if isinstance(error, ModelNotFound) and not has_remotes and not self._why_local():
                raise
            return request.id in self._locating
        finally:
            self._locating.discard(request.id)

    def cancel(self, request_id: str) -> None:
        """Cancel a live request on every backend, so that it ends with a terminal event. Ignore unknown ids."""
        self._locating.discard(request_id)
        if request_id in self._live:
            self._live[request_id].is_cancelled = True
        for backend in self._backends.values():
            backend.cancel(request_id)

    async def generate(self, request: GenerateRequest) -> Steps:
        """Run a request on the backend that the policy chooses, and on another one if that fails.

        The terminal event says where the request ran, and why. Nothing is awaited between the choice and the backend's
        acceptance, so a burst of requests is counted exactly.
        """
        if not await self._located(request):
            ended = Finished(FinishReason.CANCELLED, Usage(), Timings(route="edgeagent", reason="cancelled"))
            yield Step((ended,), at_s=self._clock())
            return
        request = replace(request, model=self._name_of(request.model))
        routed = self._live[request.id] = RoutedRequest(request, self._chooser, self._clock)
        try:
            async with aclosing(routed.steps()) as steps:
                async for step in steps:
                    yield step
        finally:
            del self._live[request.id]


def _clearer(former: EdgeAgentError | None, error: EdgeAgentError) -> EdgeAgentError:
    """Return the clearer of two errors: the first ModelNotFound, or else `former`, or else `error`."""
    is_clearer = isinstance(error, ModelNotFound) and not isinstance(former, ModelNotFound)
    return error if former is None or is_clearer else former
