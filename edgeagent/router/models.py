"""The models of all backends behind one face: those on this machine first, then those of the remotes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress

from edgeagent.backends.base import Backend, Models
from edgeagent.errors import BackendUnavailable, EdgeAgentError, ModelNotFound, RemoteUnavailable
from edgeagent.types import ModelStatus, QueryAnswer, RouteMode, TextQuery, is_remote

# After a search of this machine's disk for a remote's model, the disk is not searched for that model for this long.
_ABSENT_S = 5.0
_MAX_ABSENT = 1024

NO_MODEL = "none"
"""The value of the option `model` for a daemon that serves only remote models."""


class AllModels(Models):
    """The models of all backends, without duplicates. If two backends have a model, the first one counts.

    In the mode local_only, the remotes' models are hidden, except from `reload` and `unload`, which refuse them.
    """

    def __init__(
        self,
        backends: Mapping[str, Backend],
        mode: Callable[[], RouteMode],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._backends = backends
        self._mode = mode
        self._clock = clock
        self._absent: dict[str, float] = {}

    def _open(self) -> Iterator[Backend]:
        """Yield the backends that requests may go to in the machine's current mode.

        While a caller waits, remotes may come and go.
        """
        is_bound = self._mode() is RouteMode.LOCAL_ONLY
        return (each for each in list(self._backends.values()) if not (is_bound and is_remote(each.name)))

    def statuses(self) -> list[ModelStatus]:
        models: dict[str, ModelStatus] = {}
        for backend in self._open():
            for status in backend.models.statuses():
                models.setdefault(status.name, status)
        return list(models.values())

    def default(self) -> str:
        """Return the name of the model for requests that name no model; NO_MODEL if there is none."""
        backends = list(self._open())
        for backend in backends:
            try:
                return backend.models.find(backend.models.default())
            except ModelNotFound:
                continue
            except BackendUnavailable:
                if not is_remote(backend.name):  # the local backend is still starting
                    return backend.models.default()
        try:
            return backends[0].models.default() if backends else NO_MODEL
        except (ModelNotFound, BackendUnavailable):  # a remote that has not listed its models yet, or cannot be asked
            return NO_MODEL

    def find(self, name: str) -> str:
        unknown: EdgeAgentError | None = None
        for backend in self._open():
            try:
                return backend.models.find(name)
            except (ModelNotFound, BackendUnavailable) as error:
                unknown = unknown or error
        raise unknown or _no_backend()

    async def locate(self, name: str) -> str:
        with suppress(EdgeAgentError):
            known = self.find(name)
            if self._is_local(name) or self._absent.get(name, 0.0) > self._clock():
                return known
        unknown: EdgeAgentError | None = None
        for backend in self._open():
            try:
                found = await backend.models.locate(name)
            except (ModelNotFound, BackendUnavailable) as error:
                unknown = unknown or error
                continue
            if is_remote(backend.name):
                self._note_absent(name)
            return found
        raise unknown or _no_backend()

    def _is_local(self, name: str) -> bool:
        """Whether a model of this name is known on this machine. The disk is not read."""
        for backend in self._backends.values():
            if not is_remote(backend.name):
                with suppress(EdgeAgentError):
                    return bool(backend.models.find(name))
        return False

    def _note_absent(self, name: str) -> None:
        """Remember that a remote's model is not on this machine, so that most requests for it do not read the disk."""
        if len(self._absent) >= _MAX_ABSENT:
            self._absent.clear()
        self._absent[name] = self._clock() + _ABSENT_S

    def reload(self, name: str) -> None:
        self._serving(name, self._backends.values()).reload(name)

    async def unload(self, name: str) -> int:
        return await self._serving(name, self._backends.values()).unload(name)

    async def ask(self, name: str, query: TextQuery) -> QueryAnswer:
        unknown: EdgeAgentError | None = None
        try:
            name = await self.locate(name)
        except EdgeAgentError as error:  # that of an unknown model suggests similar names
            unknown = error
        return await self._serving(name, self._open(), unknown).ask(name, query)

    def _serving(self, name: str, backends: Iterable[Backend], unknown: EdgeAgentError | None = None) -> Models:
        """Return the models of the first backend that has this one.

        If no backend has it, raise the first ModelNotFound, or else the first error. `unknown`: an error that came
        before those of the backends.
        """
        for backend in list(backends):
            try:
                backend.models.find(name)
            except (ModelNotFound, RemoteUnavailable) as error:
                is_clearer = isinstance(error, ModelNotFound) and not isinstance(unknown, ModelNotFound)
                unknown = error if unknown is None or is_clearer else unknown
            else:
                return backend.models
        raise unknown or ModelNotFound(f"model {name!r} not found")


def _no_backend() -> BackendUnavailable:
    return BackendUnavailable("there is no backend that could answer")
