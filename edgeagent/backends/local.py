"""The backend on this machine: accepts a bounded number of requests, each with its own deadline.

Before any work, a request that would miss what it asks for is refused, and one that waits is told for how long. The
backend does not handle processes and frames (worker.parent.pool does), or decide where a request runs (the router
does).
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
import time
from collections.abc import Callable
from functools import partial
from typing import get_args

from edgeagent.backends.base import MEDIA, Estimate
from edgeagent.backends.forecast import MOST_BYTES_PER_TOKEN, Forecast, Prediction, Rates
from edgeagent.backends.limits import limit
from edgeagent.backends.media import kinds, new_kinds, not_read, readable
from edgeagent.errors import DeadlineUnreachable, EdgeAgentError, Overloaded
from edgeagent.types import (
    UNUSABLE,
    AnswerSoFar,
    ChatPrompt,
    Finished,
    GenerateRequest,
    MediaKind,
    ModelStatus,
    Permit,
    Placement,
    Queued,
    Sink,
    Started,
    Step,
    WorkerState,
    replace,
)
from edgeagent.worker.parent.pool.known_prefixes import KnownPrefixes
from edgeagent.worker.parent.pool.pool import Pool
from edgeagent.worker.parent.pool.pool_model import PoolModel

# An idle worker measures nothing. The speed that it may have reached since doubles every _DOUBT_S seconds of idling, at
# most _MOST_DOUBLINGS times. Otherwise a machine that was slow once would get no request that could show its speed.
_DOUBT_S = 30.0
_MOST_DOUBLINGS = 5.0
# By estimate: how long a request takes before one was measured, the weight of the latest one in the average, and the
# longest retry-after.
_FIRST_GUESS_S = 2.0
_SMOOTHING = 0.2
_MAX_RETRY_AFTER_S = 60.0
_ALL_MEDIA = frozenset[MediaKind](get_args(MediaKind))


class _Traffic:
    """Measured and predicted times of one model's requests."""

    def __init__(self, now_s: float, prefixes: KnownPrefixes) -> None:
        self.forecast = Forecast(prefixes)
        self.usual_duration_s = _FIRST_GUESS_S
        self.active_s = now_s  # when the last request ended; before the first request, the time of creation

    def note_duration(self, duration_s: float) -> None:
        """Update the average duration with that of one request, from its acceptance to its end."""
        self.usual_duration_s += _SMOOTHING * (duration_s - self.usual_duration_s)

    @property
    def retry_after_s(self) -> float:
        """The estimated seconds until a retry may succeed: the average duration of a request, from 1 to 60."""
        return min(_MAX_RETRY_AFTER_S, max(1.0, self.usual_duration_s))


class _Answer:
    """The receiver of one answer from the pool. `ended` is done at its end, or has the error that ends it."""

    def __init__(
        self,
        request: GenerateRequest,
        sink: Sink,
        forecast: Forecast,
        model: PoolModel,
        placement: Placement,
        clock: Callable[[], float],
        warning: str,
    ) -> None:
        """`warning`: how the backend changed the request; "" if it did not."""
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.has_started = False
        self._has_tokens = False
        self._request = request
        self._sink = sink
        self._forecast = forecast
        self._model = model
        self._placement = placement
        self._clock = clock
        self._warnings = (warning,) if warning else ()

    def put(self, step: Step) -> None:
        if self.ended.done():
            return  # its time is over, or its client has left
        if not self._has_tokens:  # the worker before this one may have died since the latest prediction
            self._forecast.note_worker(self._model.supervisor.status().pid)
        if step.tokens:
            self._has_tokens = True
            self._forecast.add_tokens(self._request.id, len(step.tokens), step.at_s)
        if not self.has_started:
            step = self._begun(step)
        self._sink.put(step)
        if step.deltas and type(finished := step.deltas[-1]) is Finished and not self.ended.done():
            self._forecast.end(self._request.id, self._clock(), finished)
            self.ended.set_result(None)

    def fail(self, error: Exception) -> None:
        if not self.ended.done():
            self.ended.set_exception(error)

    def late_stage(self, state: WorkerState) -> str:
        """Return the stage that it is in. `state`: that of its worker."""
        if not self.has_started:
            return "queue" if state is WorkerState.READY else "load"
        return "decode" if self._has_tokens else "prefill"

    def _begun(self, step: Step) -> Step:
        """Record the start. Return the step, with the placement if it has a Started."""
        if not step.deltas or not isinstance(step.deltas[0], Started):
            return step
        self.has_started = True
        self._forecast.start(self._request, step.deltas[0], self._clock())
        warnings = (*self._warnings, *step.deltas[0].warnings)
        started = replace(step.deltas[0], placement=self._placement, warnings=warnings)
        return replace(step, deltas=(started, *step.deltas[1:]))


class LocalBackend:
    """Generates answers in the workers of the pool, which has this machine's models."""

    name = "local"

    def __init__(self, pool: Pool, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.models = pool
        self._clock = clock
        self._traffic: dict[KnownPrefixes, _Traffic] = {}  # each file has its own; a name may get another file

    async def start(self) -> None:
        await self.models.start()

    async def stop(self) -> None:
        await self.models.stop()

    def estimate(self, request: GenerateRequest) -> Estimate:
        model = self.models.model(request.model)
        status, num_live, num_parallel = model.status(), model.supervisor.num_live, _num_parallel(model)
        traffic = self._traffic_of(model)
        lacks_new, lacks_any = new_kinds(request) - _takes(model), kinds(request) - _takes(model)
        request, _ = readable(request, _takes(model))
        prediction = self._predict(request, status, traffic, num_parallel)
        token_s = 0.0 if status.worker is None else status.worker.token_s
        return Estimate(
            self.name,
            num_live,
            traffic.forecast.is_full(request, num_parallel + model.preparation.engine.max_waiting),
            traffic.retry_after_s if status.retry_after_s is None else max(1.0, status.retry_after_s),
            obstacle=MEDIA
            if lacks_new
            else _obstacle(request, status, traffic.forecast.num_bytes(request), lacks_room=model.lacks_room),
            first_token_s=prediction.first_token_s,
            token_s=token_s or None,
            strain=MEDIA if lacks_any else self._strain(status, traffic.forecast.num_tokens(request), request),
            doubt=self._doubt(num_live, traffic),
        )

    def _predict(
        self, request: GenerateRequest, status: ModelStatus, traffic: _Traffic, num_parallel: int
    ) -> Prediction:
        """Return the prediction for a request, with the time in which its model is loaded."""
        worker, forecast = status.worker, traffic.forecast
        forecast.note_worker(status.pid)
        # Before a request has run, the rates are those of the trial run at loading, which other programs may have
        # slowed down.
        if worker is not None and worker.num_output_tokens_total > 0:
            rates = worker.prefill_tokens_per_s, worker.prefill_tokens_per_s_beside, worker.token_s
            forecast.note_rates(Rates(*rates))
        found = forecast.predict(request, num_parallel, self._clock())
        if found.first_token_s is None or status.ready_in_s == 0.0:
            return found
        if status.ready_in_s is None or found.latest_s is None:
            return dataclasses.replace(found, first_token_s=None, latest_s=None)
        first_token_s, latest_s = found.first_token_s + status.ready_in_s, found.latest_s + status.ready_in_s
        return dataclasses.replace(found, first_token_s=first_token_s, latest_s=latest_s)

    def _doubt(self, num_live: int, traffic: _Traffic) -> float:
        idle_s = 0.0 if num_live else self._clock() - traffic.active_s
        return math.exp2(min(idle_s / _DOUBT_S, _MOST_DOUBLINGS))

    def _strain(self, status: ModelStatus, num_prompt_tokens: float, request: GenerateRequest) -> str:
        if status.state is not WorkerState.READY:
            return "loading"
        if _is_whole(request) and status.info is not None and num_prompt_tokens > status.info.context_length:
            return "context_too_long"  # probably: the prompt's tokens are estimated
        return self.models.pressure

    def _traffic_of(self, model: PoolModel) -> _Traffic:
        return self._traffic.setdefault(model.prefixes, _Traffic(self._clock(), model.prefixes))

    def cancel(self, request_id: str) -> None:
        self.models.cancel(request_id)

    async def generate(
        self, request: GenerateRequest, sink: Sink, permit: Permit | None = None, so_far: AnswerSoFar | None = None
    ) -> None:
        """Run a request for a located model; see the contract in backends.base.Backend. `permit` is ignored.

        Raise Overloaded if the queue is full, or an error of Pool.submit.
        """
        del permit  # nothing leaves this machine
        model = self.models.model(request.model)
        traffic = self._traffic_of(model)
        takes = _takes(model)
        if kinds(request) and model.status().info is None and not await asyncio.to_thread(model.preparation.sees):
            takes = frozenset()
        if missing := new_kinds(request) - takes:
            raise not_read(model.name, missing, takes, model.preparation.why_no_projector)
        request, warning = readable(request, takes)
        prediction = self._accept(request, model, traffic)
        placement = Placement(self.name, request.model, "", sha256=model.preparation.sha256)
        if so_far is not None and so_far.tokens and so_far.sha256 != placement.sha256:
            so_far = replace(so_far, tokens=(), step_lengths=())  # another model made them: continue from the text
        answer = _Answer(request, sink, traffic.forecast, model, placement, self._clock, warning)
        began_s = self._clock()
        must_tell = prediction.waits or _is_late(prediction, request)
        if prediction.is_late and so_far is None and request.target is not None:
            limit_s = request.latest_first_token_s
            due_s = math.inf if limit_s is None else limit_s
            request = replace(request, target=replace(request.target, first_token_s=due_s))
        traffic.forecast.accept(request, began_s, prediction)
        try:
            self.models.submit(request, answer, so_far)
        except Exception:
            traffic.forecast.end(request.id, began_s)
            raise
        timers = limit(request, partial(self._end_late, answer, model), lambda: answer.has_started)
        try:
            if must_tell:
                sink.put(Step((Queued(prediction.place, prediction.first_token_s),)))
            await answer.ended
            traffic.note_duration(self._clock() - began_s)
        finally:
            for timer in timers:
                timer.cancel()
            traffic.forecast.end(request.id, self._clock())
            traffic.active_s = self._clock()
            answer.ended.cancel()  # its client may have left, and gets nothing more
            self.models.cancel(request.id)
            self.models.unload_expired()

    def _accept(self, request: GenerateRequest, model: PoolModel, traffic: _Traffic) -> Prediction:
        """Return the prediction for a request. Raise Overloaded if it is not to be accepted."""
        num_parallel, num_live, info = _num_parallel(model), model.supervisor.num_live, model.status().info
        if info is not None:
            traffic.forecast.context_length = info.context_length
        if traffic.forecast.is_full(request, num_parallel + model.preparation.engine.max_waiting):
            reason = f"{num_live} requests are running or waiting"
            raise Overloaded.full_queue(reason, retry_after_s=traffic.retry_after_s, served_by=self.name)
        prediction = self._predict(request, model.status(), traffic, num_parallel)
        limit_s, latest_s = request.latest_first_token_s, prediction.latest_s
        if limit_s is not None and latest_s is not None and latest_s / self._doubt(num_live, traffic) > limit_s:
            raise DeadlineUnreachable.predicted(latest_s, limit_s, served_by=self.name)
        return prediction

    def _end_late(self, answer: _Answer, model: PoolModel, error: EdgeAgentError) -> None:
        error.served_by, error.late_stage = self.name, answer.late_stage(model.status().state)
        answer.fail(error)


def _is_late(prediction: Prediction, request: GenerateRequest) -> bool:
    target, expected_s = request.target, prediction.first_token_s
    return target is not None and expected_s is not None and expected_s > target.first_token_s


def _num_parallel(model: PoolModel) -> int:
    """Return how many requests a model runs at a time; fewer than configured if memory was short at loading."""
    info = model.status().info
    return (0 if info is None else info.num_parallel) or model.preparation.engine.num_parallel


def _takes(model: PoolModel) -> frozenset[MediaKind]:
    """Return what a model reads besides text. All is possible until it is loaded."""
    info = model.status().info
    return _ALL_MEDIA if info is None else frozenset(info.media)


def _obstacle(request: GenerateRequest, status: ModelStatus, num_bytes: int, *, lacks_room: bool) -> str:
    """Return one word for why a request certainly cannot be served; empty if it may be served."""
    if status.state in UNUSABLE and status.retry_after_s:
        return "memory" if lacks_room else status.state.value
    info = status.info
    if info is not None and _is_whole(request) and num_bytes / MOST_BYTES_PER_TOKEN > info.context_length:
        return "context_too_long"
    return ""


def _is_whole(request: GenerateRequest) -> bool:
    """Whether a prompt that is too long is refused, and not shortened."""
    return not (isinstance(request.prompt, ChatPrompt) and request.prompt.truncate)
