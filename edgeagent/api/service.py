"""What the wire asks of the part that generates: the router in the daemon, a fake in tests."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

from edgeagent.router.outside import Outside
from edgeagent.types import GenerateRequest, ModelStatus, RemoteStatus, Step, TextAnswer, TextQuery


class Service(Protocol):
    """The contract of `generate` and `cancel` is that of backends.base.Backend."""

    @property
    def outside(self) -> Outside | None:
        """The owner's remotes and the ledger; None where there can be none."""
        ...

    def remotes(self) -> list[RemoteStatus]:
        """Return how the remotes stand that requests may go to."""
        ...

    def generate(self, request: GenerateRequest) -> AsyncGenerator[Step, None]:
        """Run a request; closing the generator cancels it."""
        ...

    async def ask(self, model: str, query: TextQuery) -> TextAnswer:
        """Answer a question about text by a model's own tokenizer and template; cancelling the task ends it."""
        ...

    def cancel(self, request_id: str) -> None:
        """Cancel a live request politely; an unknown or finished id is ignored."""
        ...

    def models(self) -> list[ModelStatus]:
        """Return the models that are served, loaded or not."""
        ...

    def reload(self, model: str) -> None:
        """Reload a model, which lifts a quarantine too; its live requests go on. Raise ModelNotFound."""
        ...

    def default_model(self) -> str:
        """Return the name of the model for requests that name none."""
        ...

    def find_model(self, name: str) -> str:
        """Return the one name of a model that clients call by several; raise ModelNotFound, or BackendUnavailable."""
        ...

    async def locate(self, name: str) -> str:
        """Do as `find_model`, also for a model that is here and was not asked for yet; nothing is loaded by this."""
        ...

    async def unload(self, model: str) -> int:
        """End a model's worker and return 0; where it serves, return how many requests must end before that.

        Raise ModelNotFound, or NotSupported for a model elsewhere.
        """
        ...


def status_of(service: Service, name: str) -> ModelStatus | None:
    """Return how the model stands that `find_model` or `locate` named so; None where it is not served."""
    return next((status for status in service.models() if name in status.names), None)
