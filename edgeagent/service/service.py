"""The interface between the wire protocols and what generates: the router in the daemon, or a fake in tests."""

from __future__ import annotations

from contextlib import suppress
from typing import Protocol

from edgeagent.backends.base import Models
from edgeagent.errors import DeadlineUnreachable, ModelNotFound, NotSupported, RequestTimeout, WorkerCrashed
from edgeagent.router.remote_access import RemoteAccess
from edgeagent.types import GenerateRequest, ModelInfo, ModelStatus, PurgeCache, RemoteStatus, Sink, replace


class Service(Protocol):
    """What generates the answers, and the models and remotes that it has."""

    @property
    def models(self) -> Models:
        """The models that a request may name."""

    @property
    def remote_access(self) -> RemoteAccess | None:
        """The owner's remotes and the ledger; None if this service has no remotes."""

    def remotes(self) -> list[RemoteStatus]:
        """Return the status of the remotes that requests may go to."""

    async def generate(self, request: GenerateRequest, sink: Sink) -> None:
        """Run a request to its end, and put its steps into the sink, by the contract of backends.base.Backend."""

    def cancel(self, request_id: str) -> None:
        """Cancel a live request, which still ends in its terminal event. An unknown or finished id is ignored."""


def status_of(models: Models, name: str) -> ModelStatus | None:
    """Return the status of a model; None if it is not served. `name`: the result of `find` or `locate`."""
    return next((status for status in models.statuses() if name in status.names), None)


def info_of(models: Models, name: str) -> ModelInfo | None:
    """Return what is known of a model since it was loaded; None if it is not known. `name`: as in `status_of`."""
    status = status_of(models, name)
    return None if status is None else status.info


def remaining(request: GenerateRequest) -> GenerateRequest:
    """Return a request whose limits of time are what its wait has left.

    Raise DeadlineUnreachable or RequestTimeout if nothing is left.
    """
    need, limit_s, waited_s = request.need, request.timeout_s, request.waited_s
    if not waited_s:
        return request
    if need.first_token_s is not None:
        if need.first_token_s <= waited_s:
            raise DeadlineUnreachable.passed(need.first_token_s)
        need = replace(need, first_token_s=need.first_token_s - waited_s)
    if limit_s is not None:
        if limit_s <= waited_s:
            raise RequestTimeout.passed(limit_s)
        limit_s -= waited_s
    return replace(request, need=need, timeout_s=limit_s, waited_s=0.0)


async def purge_memory(service: Service, client: str | None) -> None:
    """Delete the cached prompts of one client, or of all clients if `client` is None, in the models' processes.

    Running requests continue, and leave no prompt. Errors of Models.ask are raised, except for models that are a
    remote's, or gone by then.
    """
    for status in service.models.statuses():
        if not status.is_remote:
            # The memory of a worker that has ended is gone.
            with suppress(NotSupported, ModelNotFound, WorkerCrashed):
                await service.models.ask(status.name, PurgeCache(client))
