"""The backend on this machine: runs a bounded number of requests, each with its own mailbox and deadline.

It does not handle processes and frames (worker.parent.pool does), or decide where a request runs (the router does).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable

from edgeagent.backends.base import Estimate
from edgeagent.backends.forecast import Forecast, Rates
from edgeagent.backends.mailbox import Mailbox
from edgeagent.backends.prompt_size import prompt_bytes
from edgeagent.errors import EdgeAgentError, Overloaded, RequestTimeout
from edgeagent.types import (
    UNUSABLE,
    AnswerSoFar,
    ChatPrompt,
    Finished,
    GenerateRequest,
    ModelStatus,
    Permit,
    Placement,
    Started,
    Step,
    WorkerState,
    replace,
)
from edgeagent.worker.parent.pool.pool import Pool
from edgeagent.worker.parent.pool.pool_model import PoolModel

_FIRST_GUESS_S = 2.0
_SMOOTHING = 0.2
_MAX_RETRY_AFTER_S = 60.0
_MOST_BYTES_PER_TOKEN = 16  # on average: a prompt with more bytes than this times the context length cannot fit


class _Traffic:
    """Measured and predicted times of one model's requests."""

    def __init__(self, now_s: float) -> None:
        self.forecast = Forecast()
        self.usual_duration_s = _FIRST_GUESS_S
        self.active_s = now_s  # when the last request ended; before the first request, the time of creation

    def note_duration(self, duration_s: float) -> None:
        """Update the average duration with that of one request, from its acceptance to its end."""
        self.usual_duration_s += _SMOOTHING * (duration_s - self.usual_duration_s)

    @property
    def retry_after_s(self) -> float:
        """The estimated seconds until a retry may succeed: the average duration of a request, from 1 to 60."""
        return min(_MAX_RETRY_AFTER_S, max(1.0, self.usual_duration_s))


class LocalBackend:
    """Generates answers in the workers of the pool, which has this machine's models."""

    name = "local"

    def __init__(self, pool: Pool, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.models = pool
        self._clock = clock
        self._traffic: dict[str, _Traffic] = {}

    async def start(self) -> None:
        """Find the configured model and start loading it; raise StoreError or NotFound if it is missing."""
        await self.models.start()

    async def stop(self) -> None:
        """End every request and every worker."""
        await self.models.stop()

    def estimate(self, request: GenerateRequest) -> Estimate:
        """Return how full the model's queue is, and how fast the request would get tokens.

        Raise ModelNotFound, or BackendUnavailable while the daemon is starting.
        """
        model = self.models.model(request.model)
        status, num_live, num_parallel = model.status(), model.supervisor.num_live, _num_parallel(model)
        worker = status.worker
        rates = Rates(0.0, 0.0) if worker is None else Rates(worker.prefill_tokens_per_s, worker.token_s)
        traffic = self._traffic_of(status.name)
        known_rates = traffic.forecast.known(
            rates,
            is_proven=worker is not None and worker.num_output_tokens_total > 0,
            is_busy=num_live > 0,
            idle_s=0.0 if num_live else self._clock() - traffic.active_s,
        )
        first_token_s = traffic.forecast.first_token_s(request, known_rates)
        if first_token_s is not None:
            if status.ready_in_s is None:
                first_token_s = None
            else:
                num_ahead = max(0, num_live - num_parallel + 1)
                first_token_s += status.ready_in_s + num_ahead * traffic.usual_duration_s / num_parallel
        return Estimate(
            self.name,
            True,
            num_live,
            num_parallel + model.preparation.engine.max_waiting,
            traffic.retry_after_s if status.retry_after_s is None else max(1.0, status.retry_after_s),
            obstacle=_obstacle(request, status, lacks_room=model.lacks_room),
            first_token_s=first_token_s,
            token_s=known_rates.token_s or None,
            strain=self._strain(status, traffic.forecast.num_tokens(request), request),
        )

    def _strain(self, status: ModelStatus, num_prompt_tokens: float, request: GenerateRequest) -> str:
        if status.state is not WorkerState.READY:
            return "loading"
        if _is_whole(request) and status.info is not None and num_prompt_tokens > status.info.context_length:
            return "context_too_long"  # probably: the prompt's tokens are estimated
        return self.models.pressure

    def _traffic_of(self, model: str) -> _Traffic:
        return self._traffic.setdefault(model, _Traffic(self._clock()))

    def cancel(self, request_id: str) -> None:
        """Cancel a request; its generator still yields Finished(cancelled)."""
        self.models.cancel(request_id)

    async def generate(
        self, request: GenerateRequest, permit: Permit | None = None, so_far: AnswerSoFar | None = None
    ) -> AsyncGenerator[Step, None]:
        """Run a request; see the contract in backends.base.Backend. `permit` is ignored.

        The first `__anext__` accepts the request. It raises Overloaded if the queue is full, or an error of
        Pool.locate or Pool.submit.
        """
        del permit  # nothing leaves this machine
        # The router located the model before, but an unused model may have been unloaded since.
        await self.models.locate(request.model)
        model = self.models.model(request.model)
        traffic = self._traffic_of(model.name)
        self._refuse_if_full(model, traffic)
        mailbox = Mailbox(num_tokens=0 if so_far is None else so_far.num_tokens)
        began_s = self._clock()
        forecast = traffic.forecast
        forecast.accept(request)
        try:
            self.models.submit(request, mailbox, so_far)
        except EdgeAgentError:
            forecast.end(request.id)
            raise
        has_token = False
        deadline = self._set_deadline(request, mailbox)
        try:
            while True:
                step = await mailbox.next()
                if not has_token:
                    step = self._placed(request, step, model.preparation.sha256)
                    has_token = self._note_first(request, forecast, step)
                ends = bool(step.deltas) and isinstance(step.deltas[-1], Finished)
                if ends:
                    traffic.note_duration(self._clock() - began_s)
                yield step
                if ends:
                    return
        finally:
            if deadline is not None:
                deadline.cancel()
            forecast.end(request.id)
            traffic.active_s = self._clock()
            self.models.abandon(request.id)

    def _placed(self, request: GenerateRequest, step: Step, sha256: str) -> Step:
        """Return the step with the placement in its Started delta, or the same step if it does not begin with one."""
        if not step.deltas or not isinstance(step.deltas[0], Started):
            return step
        started = replace(step.deltas[0], placement=Placement(self.name, request.model, "", sha256=sha256))
        return replace(step, deltas=(started, *step.deltas[1:]))

    def _note_first(self, request: GenerateRequest, forecast: Forecast, step: Step) -> bool:
        """Note the progress of a request before its first token. Return whether this step has a token."""
        if step.deltas and isinstance(step.deltas[0], Started):
            forecast.start(request, step.deltas[0])
        if step.tokens:
            forecast.end(request.id)
        return bool(step.tokens)

    def _refuse_if_full(self, model: PoolModel, traffic: _Traffic) -> None:
        num_live = model.supervisor.num_live
        if num_live >= _num_parallel(model) + model.preparation.engine.max_waiting:
            reason = f"{num_live} requests are running or waiting"
            raise Overloaded.full_queue(reason, retry_after_s=traffic.retry_after_s, served_by=self.name)

    def _set_deadline(self, request: GenerateRequest, mailbox: Mailbox) -> asyncio.TimerHandle | None:
        if request.timeout_s is None:
            return None
        return asyncio.get_running_loop().call_later(request.timeout_s, self._time_out, request, mailbox)

    def _time_out(self, request: GenerateRequest, mailbox: Mailbox) -> None:
        message = f"the request did not end within its {request.timeout_s:g} s"
        mailbox.fail(RequestTimeout(message, served_by=self.name, num_delivered_tokens=mailbox.num_tokens))
        self.models.abandon(request.id)


def _num_parallel(model: PoolModel) -> int:
    """Return how many requests a model runs at a time; fewer than configured if memory was short at loading."""
    info = model.status().info
    return (0 if info is None else info.num_parallel) or model.preparation.engine.num_parallel


def _obstacle(request: GenerateRequest, status: ModelStatus, *, lacks_room: bool) -> str:
    """Return one word for why a request certainly cannot be served; empty if it may be served."""
    if status.state in UNUSABLE and status.retry_after_s:
        return "memory" if lacks_room else status.state.value
    if status.info is not None and _is_whole(request):
        fewest = prompt_bytes(request) / _MOST_BYTES_PER_TOKEN
        if fewest > status.info.context_length:
            return "context_too_long"
    return ""


def _is_whole(request: GenerateRequest) -> bool:
    """Whether a prompt that is too long is refused, and not shortened."""
    return not (isinstance(request.prompt, ChatPrompt) and request.prompt.truncate)
