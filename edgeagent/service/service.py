"""The interface between the wire protocols and what generates: the router in the daemon, or a fake in tests."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

from edgeagent.router.remote_access import RemoteAccess
from edgeagent.types import GenerateRequest, ModelStatus, QueryAnswer, RemoteStatus, Step, TextQuery


class Service(Protocol):
    """What the wire protocols call to generate, to ask queries about text, and to manage models.

    The contract of `generate` and `cancel` is that of backends.base.Backend.
    """

    @property
    def remote_access(self) -> RemoteAccess | None:
        """The owner's remotes and the ledger; None if this service has no remotes."""

    def remotes(self) -> list[RemoteStatus]:
        """Return the status of the remotes that requests may go to."""

    def generate(self, request: GenerateRequest) -> AsyncGenerator[Step, None]:
        """Run a request and yield its steps; closing the generator cancels the request."""

    async def ask(self, model: str, query: TextQuery) -> QueryAnswer:
        """Answer a query, for example for tokens, embeddings or scores, with a model.

        Raise ModelNotFound, BackendUnavailable, NotSupported if only a remote has the model, or the model's error. To
        cancel the query, cancel the awaiting task.
        """

    def cancel(self, request_id: str) -> None:
        """Cancel a live request, which still ends in its terminal event. An unknown or finished id is ignored."""

    def models(self) -> list[ModelStatus]:
        """Return the models that are served, loaded or not."""

    def reload(self, model: str) -> None:
        """Reload a model and end its quarantine. Its live requests continue.

        Raise ModelNotFound, NotSupported for a remote's model, or BackendUnavailable while the daemon is starting.
        """

    def default_model(self) -> str:
        """Return the name of the model for requests that name no model; `router.NO_MODEL` if there is none."""

    def find_model(self, name: str) -> str:
        """Return a model's canonical name, given any of its names; raise ModelNotFound or BackendUnavailable."""

    async def locate(self, name: str) -> str:
        """Like `find_model`, but also find a model on this machine that no request has named yet. Load nothing."""

    async def unload(self, model: str) -> int:
        """End a model's worker and return 0. If the worker is busy, return the number of its live requests.

        A busy worker ends when these requests have ended. Raise ModelNotFound, NotSupported for a remote's model, or
        BackendUnavailable while the daemon is starting.
        """


class ServiceDecorator:
    """A Service that passes each call on to another Service.

    Derive a class from it to do more, for example to measure or to cache answers.
    """

    def __init__(self, service: Service) -> None:
        self._service = service

    @property
    def remote_access(self) -> RemoteAccess | None:
        return self._service.remote_access

    def remotes(self) -> list[RemoteStatus]:
        return self._service.remotes()

    def generate(self, request: GenerateRequest) -> AsyncGenerator[Step, None]:
        return self._service.generate(request)

    async def ask(self, model: str, query: TextQuery) -> QueryAnswer:
        return await self._service.ask(model, query)

    def cancel(self, request_id: str) -> None:
        self._service.cancel(request_id)

    def models(self) -> list[ModelStatus]:
        return self._service.models()

    def reload(self, model: str) -> None:
        self._service.reload(model)

    def default_model(self) -> str:
        return self._service.default_model()

    def find_model(self, name: str) -> str:
        return self._service.find_model(name)

    async def locate(self, name: str) -> str:
        return await self._service.locate(name)

    async def unload(self, model: str) -> int:
        return await self._service.unload(model)


def status_of(service: Service, name: str) -> ModelStatus | None:
    """Return the status of a model; None if it is not served. `name`: the result of `find_model` or `locate`."""
    return next((status for status in service.models() if name in status.names), None)
