"""The backend on this machine: runs a bounded number of requests, each with its own deadline.

It predicts when a request gets its first token, and stores no content for that: prefixes are remembered by their
hashes. It does not handle processes and frames (worker.parent.pool does), or decide where a request runs (the router
does).
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from edgeagent.backends.base import Estimate
from edgeagent.backends.prompts import message_bytes, prompt_bytes, tools_bytes
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
    Sink,
    Started,
    Step,
    Tier,
    WorkerState,
    replace,
)
from edgeagent.worker.parent.pool.pool import Pool
from edgeagent.worker.parent.pool.pool_model import PoolModel

_FIRST_BYTES_PER_TOKEN = 4.0
_BYTES_SMOOTHING = 0.1
_MAX_BEGINNINGS = 8192
_RANK = {tier: rank for rank, tier in enumerate(Tier)}
# Rendering, tokenizing and the transfer through pipes.
_OVERHEAD_S = 0.005
# An idle worker measures nothing. Its assumed speed doubles every _DOUBT_S seconds of idling, at most _MOST_DOUBLINGS
# times.
_DOUBT_S = 30.0
_MOST_DOUBLINGS = 5.0


@dataclass(frozen=True, slots=True)
class Rates:
    """A worker's measured speeds: prompt tokens per second, and seconds per token of one stream. 0 if unknown."""

    prefill_tokens_per_s: float
    token_s: float

    def better(self, other: Rates) -> Rates:
        """Return the faster of the two values for each rate. A value of 0 is unknown and does not count."""
        times = [time_s for time_s in (self.token_s, other.token_s) if time_s > 0]
        return Rates(max(self.prefill_tokens_per_s, other.prefill_tokens_per_s), min(times, default=0.0))


@dataclass(slots=True)
class _Pending:
    """A live request before its first token. `num_tokens`: its uncached prompt tokens, at first estimated."""

    tier: Tier
    num_tokens: float


class Forecast:
    """Predicts how long a request waits for its first token.

    It knows the requests that wait for theirs, the worker's best rates, the average number of bytes per prompt token,
    and which prefixes are probably cached.
    """

    def __init__(self) -> None:
        self._bytes_per_token, self._num_seen = _FIRST_BYTES_PER_TOKEN, 0
        self._pending: dict[str, _Pending] = {}
        self._best = Rates(0.0, 0.0)
        self._beginnings: OrderedDict[int, None] = OrderedDict()

    def num_tokens(self, request: GenerateRequest) -> float:
        """Return the estimated number of tokens in a request's prompt."""
        return prompt_bytes(request) / self._bytes_per_token

    def accept(self, request: GenerateRequest) -> None:
        """Note that a request was submitted to the worker."""
        self._pending[request.id] = _Pending(request.tier, self._num_uncached(request))

    def start(self, request: GenerateRequest, started: Started) -> None:
        """Note a started request's numbers of prompt tokens and cached tokens.

        If the request may write to the cache, remember its prefixes as cached.
        """
        if request.id in self._pending:
            self._pending[request.id].num_tokens = started.num_prompt_tokens - started.num_cached_tokens
        num_bytes = prompt_bytes(request)
        if started.num_prompt_tokens >= 32 and not started.num_dropped_items:
            seen = num_bytes / started.num_prompt_tokens
            self._num_seen += 1
            weight = max(_BYTES_SMOOTHING, 1 / self._num_seen)
            self._bytes_per_token += weight * (max(0.5, min(16.0, seen)) - self._bytes_per_token)
        if request.cache.write:
            for beginning, _ in _beginnings(request):
                self._beginnings[beginning] = None
                self._beginnings.move_to_end(beginning)
            while len(self._beginnings) > _MAX_BEGINNINGS:
                self._beginnings.popitem(last=False)

    def end(self, request_id: str) -> None:
        """Note that a request has its first token, or has ended."""
        self._pending.pop(request_id, None)

    def known(self, rates: Rates, *, is_proven: bool, is_busy: bool, idle_s: float) -> Rates:
        """Return the rates for a prediction: a busy worker's current rates, or else the best rates measured so far.

        `rates` are the worker's last measurements. They are used only after a request has run (`is_proven`). Before
        that they come from the trial run at loading, which other programs may have slowed down. An idle worker measures
        nothing, so the best rates are assumed to improve further, the longer it has been idle (`idle_s`).
        """
        if is_proven and rates.prefill_tokens_per_s > 0:
            self._best = self._best.better(rates)
            if is_busy:
                return rates
        hope = 2.0 ** min(idle_s / _DOUBT_S, _MOST_DOUBLINGS)
        return Rates(self._best.prefill_tokens_per_s * hope, self._best.token_s / hope)

    def first_token_s(self, request: GenerateRequest, rates: Rates) -> float | None:
        """Return the predicted seconds to the first token if the worker gets a request now; None if unknown.

        They include the prefill of waiting requests of the same or a higher tier.
        """
        if rates.prefill_tokens_per_s <= 0:
            return None
        rank = _RANK[request.tier]
        ahead = sum(pending.num_tokens for pending in self._pending.values() if _RANK[pending.tier] <= rank)
        prefill_s = (ahead + self._num_uncached(request)) / rates.prefill_tokens_per_s
        return _OVERHEAD_S + prefill_s + rates.token_s

    def _num_uncached(self, request: GenerateRequest) -> float:
        num_known = 0
        if request.cache.read:
            for beginning, num_bytes in _beginnings(request):
                if beginning not in self._beginnings:
                    break
                num_known = num_bytes
        return max(1.0, (prompt_bytes(request) - num_known) / self._bytes_per_token)


def _beginnings(request: GenerateRequest) -> Iterator[tuple[int, int]]:
    """Yield the hash and the length in bytes of each prefix of a conversation, the shortest first.

    If the prompt is no conversation, yield only those of the whole prompt.
    """
    prompt = request.prompt
    if not isinstance(prompt, ChatPrompt):
        yield hash((request.cache.partition, prompt)), prompt_bytes(request)
        return
    key: object = (request.cache.partition, prompt.tools)
    num_bytes = tools_bytes(prompt)
    for message in prompt.messages:
        key = hash((key, message.role, message.content, message.reasoning))
        num_bytes += message_bytes(message)
        yield hash(key), num_bytes


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


class _Answer:
    """The receiver of one answer from the pool. `ended` is done at its end, or has the error that ends it."""

    def __init__(self, request: GenerateRequest, sink: Sink, forecast: Forecast, placement: Placement) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._request = request
        self._sink = sink
        self._forecast = forecast
        self._placement = placement
        self._has_token = False

    def put(self, step: Step) -> None:
        if self.ended.done():
            return  # its time is over, or its client has left
        if not self._has_token:
            step = self._begun(step)
        self._sink.put(step)
        if step.deltas and type(step.deltas[-1]) is Finished and not self.ended.done():
            self.ended.set_result(None)

    def fail(self, error: Exception) -> None:
        if not self.ended.done():
            self.ended.set_exception(error)

    def _begun(self, step: Step) -> Step:
        """Record the progress before the first token. Return the step, with the placement if it has a Started."""
        if step.tokens:
            self._has_token = True
            self._forecast.end(self._request.id)
        if not step.deltas or not isinstance(step.deltas[0], Started):
            return step
        self._forecast.start(self._request, step.deltas[0])
        return replace(step, deltas=(replace(step.deltas[0], placement=self._placement), *step.deltas[1:]))


class LocalBackend:
    """Generates answers in the workers of the pool, which has this machine's models."""

    name = "local"

    def __init__(self, pool: Pool, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.models = pool
        self._clock = clock
        self._traffic: dict[str, _Traffic] = {}

    async def start(self) -> None:
        await self.models.start()

    async def stop(self) -> None:
        await self.models.stop()

    def estimate(self, request: GenerateRequest) -> Estimate:
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
        self.models.cancel(request_id)

    async def generate(
        self, request: GenerateRequest, sink: Sink, permit: Permit | None = None, so_far: AnswerSoFar | None = None
    ) -> None:
        """Run a request; see the contract in backends.base.Backend. `permit` is ignored.

        Raise Overloaded if the queue is full, or an error of Pool.locate or Pool.submit.
        """
        del permit  # nothing leaves this machine
        # The router located the model before, but an unused model may have been unloaded since.
        await self.models.locate(request.model)
        model = self.models.model(request.model)
        traffic = self._traffic_of(model.name)
        self._refuse_if_full(model, traffic)
        placement = Placement(self.name, request.model, "", sha256=model.preparation.sha256)
        answer = _Answer(request, sink, traffic.forecast, placement)
        began_s = self._clock()
        traffic.forecast.accept(request)
        try:
            self.models.submit(request, answer, so_far)
        except EdgeAgentError:
            traffic.forecast.end(request.id)
            raise
        try:
            async with asyncio.timeout(request.timeout_s):
                await answer.ended
            traffic.note_duration(self._clock() - began_s)
        except TimeoutError:
            if not answer.ended.cancelled():  # it ended just in time
                return answer.ended.result()
            message = f"the request did not end within its {request.timeout_s:g} s"
            raise RequestTimeout(message, served_by=self.name) from None
        finally:
            traffic.forecast.end(request.id)
            traffic.active_s = self._clock()
            self.models.abandon(request.id)

    def _refuse_if_full(self, model: PoolModel, traffic: _Traffic) -> None:
        num_live = model.supervisor.num_live
        if num_live >= _num_parallel(model) + model.preparation.engine.max_waiting:
            reason = f"{num_live} requests are running or waiting"
            raise Overloaded.full_queue(reason, retry_after_s=traffic.retry_after_s, served_by=self.name)


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
