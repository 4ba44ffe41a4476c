"""The protocol of backends, which generate for the router. It does not know where the tokens come from."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

from msgspec import Struct

from edgeagent.types import AnswerSoFar, GenerateRequest, ModelStatus, Permit, Step, TextAnswer, TextQuery

CONTEXT = "context"
"""The obstacle of a remote whose context the prompt does not fit, by its estimated size."""
UNREACHABLE = "unreachable"
"""The obstacle of a remote none of whose endpoints answers, as far as is known."""


class Estimate(Struct, frozen=True):
    """A backend's estimate for a request: how full it is, and after how long a refused one may try again.

    `obstacle`: why it cannot serve the request at all, as one word of the reasons in docs; empty if it can.
    `trouble`: the same as a sentence for the client, with what to change; empty if the word is enough.
    `strain`: why it would be slow now, as one word (loading, memory, thermal); empty if it would not.
    `first_token_s` and `token_s`: the predicted time to the first token, and from one token to the next; None where
    nothing is known yet. `may_be_tried`: its obstacle may have gone; a request that nothing else can serve finds out.
    """

    backend: str
    is_local: bool
    num_live: int
    max_live: int
    retry_after_s: float = 1.0
    obstacle: str = ""
    trouble: str = ""
    first_token_s: float | None = None
    token_s: float | None = None
    strain: str = ""
    may_be_tried: bool = False


class Backend(Protocol):
    """A place that generates.

    The contract of `generate`: yields Steps in order; the last one ends with a Finished delta, or an EdgeAgentError is
    raised, never both and never neither. Closing the generator (aclose, or cancelling the task that iterates it)
    cancels the request; it then yields nothing more. `cancel` ends it politely: the iterator goes on to a
    Finished(cancelled) that carries what was used.

    A backend on another machine needs a Permit, and sends nothing without. With `so_far` the answer
    continues the text that its client has; that text is not yielded again. A place that cannot continue exactly raises
    NotSupported.
    """

    name: str

    def estimate(self, request: GenerateRequest) -> Estimate:
        """Say what to expect of a request, without side effects; raise ModelNotFound for a model it does not serve."""
        ...

    def generate(
        self, request: GenerateRequest, permit: Permit | None = None, so_far: AnswerSoFar | None = None
    ) -> AsyncGenerator[Step, None]:
        """Run a request; see the contract above."""
        ...

    async def ask(self, model: str, query: TextQuery) -> TextAnswer:
        """Answer a question about text by a model's own tokenizer and template; raise ModelNotFound.

        One on another machine raises NotSupported: such text does not leave this one.
        """
        ...

    def cancel(self, request_id: str) -> None:
        """Cancel a live request; an unknown or finished id is ignored."""
        ...

    def models(self) -> list[ModelStatus]:
        """Return the models this backend serves, loaded or not."""
        ...

    def reload(self, model: str) -> None:
        """Reload a model; this ends a quarantine too. Its live requests continue. Raise ModelNotFound."""
        ...

    def default_model(self) -> str:
        """Return the name of the model that serves a request which names none."""
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

    async def start(self) -> None:
        """Begin to load the configured model; return without waiting for it."""
        ...

    async def stop(self) -> None:
        """End all requests and release everything."""
        ...
