"""The backend on this machine: a bounded number of requests, each with its mailbox, its deadline and its end.

It does not know processes or frames (worker.pool does) nor why a request came here (the router does).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable

from edgeagent.backends.base import Estimate
from edgeagent.backends.mailbox import Mailbox
from edgeagent.config import EngineConfig
from edgeagent.errors import Overloaded, RequestTimeout
from edgeagent.types import AnswerSoFar, Finished, GenerateRequest, ModelStatus, Permit, Step, TextAnswer, TextQuery
from edgeagent.worker.pool import Pool

_FIRST_GUESS_S = 2.0
_SMOOTHING = 0.2
_MAX_RETRY_AFTER_S = 60.0


class LocalBackend:
    """Generates through the pool's workers."""

    name = "local"

    def __init__(self, engine: EngineConfig, pool: Pool, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._pool = pool
        self._max_live = engine.parallel + engine.max_waiting
        self._clock = clock
        self._usual_duration_s = _FIRST_GUESS_S

    def reload(self, model: str) -> None:
        """Load a model anew, which lifts a quarantine too; its live requests go on. Raise ModelNotFound."""
        self._pool.reload(model)

    def default_model(self) -> str:
        """Return the name of the model that serves a request which names none."""
        return self._pool.default_model()

    def find_model(self, name: str) -> str:
        """Return the one name of a model that clients call by several; raise ModelNotFound, or BackendUnavailable."""
        return self._pool.find_model(name)

    async def start(self) -> None:
        """Find the configured model and begin to load it; raise StoreError or NotFound where there is none."""
        await self._pool.start()

    async def stop(self) -> None:
        """End every request, and the workers."""
        await self._pool.stop()

    def models(self) -> list[ModelStatus]:
        """Return the models of this machine."""
        return self._pool.models()

    def estimate(self, request: GenerateRequest) -> Estimate:
        """Return how full the model's queue is; raise ModelNotFound."""
        num_live = self._pool.num_live(request.model)
        return Estimate(self.name, True, num_live, self._max_live, self._retry_after_s())

    def cancel(self, request_id: str) -> None:
        """End a request politely; its generator goes on to Finished(cancelled)."""
        self._pool.cancel(request_id)

    async def ask(self, model: str, query: TextQuery) -> TextAnswer:
        """Answer a question about text; it counts as no request and waits for none."""
        return await self._pool.ask(model, query)

    async def generate(
        self, request: GenerateRequest, permit: Permit | None = None, so_far: AnswerSoFar | None = None
    ) -> AsyncGenerator[Step, None]:
        """Run a request; see the contract in backends.base. It counts as accepted from the first `__anext__` on."""
        del permit  # nothing leaves this machine
        self._refuse_if_full(request.model)
        mailbox = Mailbox(num_tokens=0 if so_far is None else so_far.num_tokens)
        began_s = self._clock()
        self._pool.submit(request, mailbox, so_far)
        deadline = self._set_deadline(request, mailbox)
        try:
            while True:
                step = await mailbox.next()
                ends = bool(step.deltas) and isinstance(step.deltas[-1], Finished)
                if ends:
                    self._note_duration(self._clock() - began_s)
                yield step
                if ends:
                    return
        finally:
            if deadline is not None:
                deadline.cancel()
            self._pool.abandon(request.id)

    def _refuse_if_full(self, model: str) -> None:
        num_live = self._pool.num_live(model)
        if num_live >= self._max_live:
            raise Overloaded(
                f"{num_live} requests are running or waiting and no more are taken; try again later",
                retry_after_s=self._retry_after_s(),
                served_by=self.name,
            )

    def _set_deadline(self, request: GenerateRequest, mailbox: Mailbox) -> asyncio.TimerHandle | None:
        if request.timeout_s is None:
            return None
        return asyncio.get_running_loop().call_later(request.timeout_s, self._time_out, request, mailbox)

    def _time_out(self, request: GenerateRequest, mailbox: Mailbox) -> None:
        message = f"the request did not end within its {request.timeout_s:g} s"
        mailbox.fail(RequestTimeout(message, served_by=self.name, num_delivered_tokens=mailbox.num_tokens))
        self._pool.abandon(request.id)

    def _note_duration(self, duration_s: float) -> None:
        self._usual_duration_s += _SMOOTHING * (duration_s - self._usual_duration_s)

    def _retry_after_s(self) -> float:
        """Guess when the queue will have drained: the usual time from acceptance to end, waiting included."""
        return min(_MAX_RETRY_AFTER_S, max(1.0, self._usual_duration_s))
