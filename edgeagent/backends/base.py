"""The two protocols that every backend implements for the router: the models that it has, and how it answers."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from edgeagent.types import AnswerSoFar, GenerateRequest, ModelStatus, Permit, QueryAnswer, Sink, TextQuery, is_remote

CONTEXT = "context"
"""The value of `Estimate.obstacle` if the prompt, by its estimated size, does not fit the remote's context."""
MEDIA = "media"
"""The value of `Estimate.obstacle` if the backend does not read the images or sounds of the request."""
UNREACHABLE = "unreachable"
"""The value of `Estimate.obstacle` if no endpoint of the remote can be reached, as far as is known."""


class Estimate(Struct, frozen=True):
    """A backend's estimate for a request: how full the backend is, and how fast it would answer.

    `num_live`: how many requests run or wait at the backend.
    `is_full`: it would refuse this request, since too many others run or wait. The router then looks for another
    backend.
    `retry_after_s`: how long to wait before retrying, if the backend refuses the request.
    `obstacle`: one word for why the backend cannot serve the request, such as "memory" or "budget"; empty if there is
    no such reason.
    `trouble`: a sentence that explains the obstacle to the client and says what to change; empty if none is needed.
    `first_token_s` and `token_s`: the predicted time to the first token, and between tokens; None if unknown.
    `strain`: one word for why the backend is slow now (loading, memory, thermal, battery), or will probably
    refuse the request (context_too_long); empty if it is not.
    `doubt`: how many times faster than estimated the backend may be, since it has measured nothing for a while.
    `is_last_resort`: the obstacle may be gone, so this backend is tried if no other one can serve the request.
    """

    backend: str
    num_live: int
    is_full: bool = False
    retry_after_s: float = 1.0
    obstacle: str = ""
    trouble: str = ""
    first_token_s: float | None = None
    token_s: float | None = None
    strain: str = ""
    doubt: float = 1.0
    is_last_resort: bool = False

    @property
    def is_local(self) -> bool:
        return not is_remote(self.backend)


class Models(Protocol):
    """The models that a backend serves, loaded or not. `name` may be any of a model's names; "" is the default model.

    Every method but `statuses` raises ModelNotFound for an unknown model, BackendUnavailable while the daemon is
    starting, or RemoteUnavailable if a remote cannot be used.
    """

    def statuses(self) -> list[ModelStatus]:
        """Return the status of each model."""
        ...

    def default(self) -> str:
        """Return the name of the model for requests that name no model."""
        ...

    def find(self, name: str) -> str:
        """Return the canonical name of a model that is known already."""
        ...

    async def locate(self, name: str) -> str:
        """Do what `find` does, but also search the disk for models that no request has named. Load nothing."""
        ...

    def reload(self, name: str) -> None:
        """Reload a model and end its quarantine. Its live requests continue.

        Raise NotSupported for a remote's model.
        """
        ...

    async def unload(self, name: str) -> int:
        """End a model's worker and return 0. If it is busy, it ends after its live requests; return their number.

        Raise NotSupported for a remote's model.
        """
        ...

    async def ask(self, name: str, query: TextQuery) -> QueryAnswer:
        """Answer a query with a model. It does not queue with generations. To cancel it, cancel the awaiting task.

        Raise NotSupported for a remote's model, since the text of a query does not leave this machine, or the model's
        error.
        """
        ...


class Backend(Protocol):
    """A source of answers, on this machine or on another.

    The contract of `generate`:

    - It puts Steps into the sink, in order, and ends in exactly one of two ways: it returns after a Step that ends with
      a Finished delta, or it raises an EdgeAgentError.
    - Cancelling the task that awaits it cancels the request. The sink then gets nothing more.
    - `cancel` ends the request in an orderly way: the sink still gets a Finished(cancelled) with the usage.
    - A backend on another machine needs a Permit, and sends nothing without one.
    - With `so_far`, the answer continues the text that the client already has. That text is not delivered again.
      A backend that cannot continue exactly raises NotSupported, but a remote with the setting `continues` = "inexact"
      tries it.
    """

    name: str

    @property
    def models(self) -> Models:
        """The models that this backend serves."""
        ...

    def estimate(self, request: GenerateRequest) -> Estimate:
        """Return an estimate for a request without accepting it. Raise ModelNotFound or BackendUnavailable."""
        ...

    async def generate(
        self, request: GenerateRequest, sink: Sink, permit: Permit | None = None, so_far: AnswerSoFar | None = None
    ) -> None:
        """Run a request to its end, and put its Steps into the sink; see the contract in the docstring of Backend.

        `permit` allows a backend on another machine to send the request. `so_far` is the part of the answer that the
        client already has.
        """
        ...

    def cancel(self, request_id: str) -> None:
        """Cancel a live request; an unknown or finished id is ignored."""
        ...

    async def start(self) -> None:
        """Start the backend. On this machine, start to load the configured model, and do not wait until it is loaded.

        Raise StoreError or NotFound if this model is missing.
        """
        ...

    async def stop(self) -> None:
        """End all requests and release everything."""
        ...
