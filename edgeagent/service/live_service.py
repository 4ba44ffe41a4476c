"""The service that the wire protocols call: it registers and measures each generation, and logs it without its content.

While the daemon drains, it refuses new requests.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial

from edgeagent.backends.prompts import held_bytes
from edgeagent.credentials.grants import unless_revoked, until_revoked
from edgeagent.errors import (
    BackendUnavailable,
    DeadlineUnreachable,
    EdgeAgentError,
    InternalError,
    Overloaded,
    RequestTimeout,
)
from edgeagent.metrics.meter import ABANDONED, NO_TARGET, UNKNOWN, Meter
from edgeagent.router.policy import TARGETS, Targets, target_of
from edgeagent.service.client_sink import Ending
from edgeagent.service.live_requests import LiveRequests
from edgeagent.service.service import Service, remaining
from edgeagent.types import (
    CacheMiss,
    CachePolicy,
    Embed,
    Embedding,
    Finished,
    FinishReason,
    GenerateRequest,
    QueryAnswer,
    Rerank,
    Score,
    Sink,
    Step,
    Target,
    TextPrompt,
    WorkerState,
    is_remote,
    replace,
)

logger = logging.getLogger(__name__)

MAX_AT_ONCE, MAX_BYTES_AT_ONCE = 8, 32 << 20
_NUM_CHANGES = 2  # the first may be an edit of the instructions

WithCaller = Callable[[GenerateRequest], GenerateRequest]
"""Returns a copy of a request with its caller's name, the number of hops, and the limits of the caller and its tier."""

Hold = Callable[[str, int], AbstractContextManager[None]]
"""Counts the bytes of a client's requests while its `with` block runs; raises Overloaded if they are too many."""

Trace = Callable[[GenerateRequest, Meter, str], None]
"""Called at the end of each generation, with its request, its measurements and how it ended."""


@dataclass(slots=True)
class ChangingInstructions:
    """What a client's requests to a model lose because their instructions change, at about token `position`.

    `num_requests` were computed for the most part, among them `num_tokens` that an earlier prompt has too. The text
    itself is not kept.
    """

    client: str
    model: str
    position: int
    num_requests: int = 0
    num_tokens: int = 0

    @property
    def advice(self) -> str:
        """What to do, as a sentence for the owner."""
        whose = self.client or "the owner's programs"
        return (
            f"{self.model}: the instructions of {whose} change at about token {self.position}, so {self.num_requests} "
            f"requests computed {self.num_tokens:,} tokens again. Move such text (a clock, the weather, a room) behind "
            "all that stays the same"
        )


class LiveService:
    """A Service that registers each generation in `live`, the registry of requests in flight.

    After `begin_drain`, it refuses new requests.
    """

    def __init__(
        self,
        service: Service,
        with_caller: WithCaller,
        trace: Trace | None = None,
        targets: Targets = TARGETS,
        hold: Hold = lambda _client, _num_bytes: nullcontext(),
    ) -> None:
        self._service = service
        self.targets = targets
        self.models = service.models
        self.remote_access = service.remote_access
        self.remotes, self.cancel = service.remotes, service.cancel
        self.live = LiveRequests()
        self._with_caller = with_caller
        self._trace = trace
        self._hold = hold
        self.is_draining = False
        """Whether the daemon is stopping, so that new requests are refused."""
        self.num_total = 0
        """How many generations, embeddings and reranks have been started since the daemon began."""
        self._held: set[str] = set()  # the ids of requests whose bytes are counted
        self._ahead: set[str] = set()  # the ids of answers that no client has asked for yet
        self._changing: dict[tuple[str, str], ChangingInstructions] = {}  # by client and model

    @property
    def changing_instructions(self) -> list[ChangingInstructions]:
        """The clients whose instructions have changed more than once, in a way that made the cache useless."""
        return [each for each in self._changing.values() if each.num_requests >= _NUM_CHANGES]

    async def generate(self, request: GenerateRequest, sink: Sink) -> None:
        """Run a request to its end, and put its steps into the sink. If its client's token is revoked, cancel it.

        Raise BackendUnavailable while draining, Unauthorized if the token is already revoked, Overloaded if its
        client's requests hold too many bytes, DeadlineUnreachable or RequestTimeout if the request has waited too long
        before, or the service's errors.
        """
        with nullcontext() if request.id in self._held else self.holding(request):
            request = self._with_caller(request)
            await self._run(request, sink, self._target(request))

    async def generate_all(self, requests: Sequence[GenerateRequest], sinks: Sequence[Sink]) -> None:
        """Run requests of one client, which are answered together, to their ends, each with its sink.

        At most MAX_AT_ONCE requests run at a time, and fewer if their prompts, which have images, take more than
        MAX_BYTES_AT_ONCE. If one request fails, its error is raised, and the others are cancelled. The bytes of all are
        held until the last has ended, so none is refused for them once the first has begun.
        """
        with self.holding(*requests):
            if len(requests) == 1:
                return await self.generate(requests[0], sinks[0])
            prompts = {id(each.prompt): each.prompt for each in requests}.values()  # choices share theirs
            num_at_once = MAX_BYTES_AT_ONCE // max(1, *map(held_bytes, prompts))
            places = asyncio.Semaphore(min(MAX_AT_ONCE, max(1, num_at_once)))

            async def run(request: GenerateRequest, sink: Sink) -> None:
                async with places:
                    await self.generate(request, sink)

            try:
                async with asyncio.TaskGroup() as group:
                    for request, sink in zip(requests, sinks, strict=True):
                        group.create_task(run(request, sink))
            except ExceptionGroup as errors:
                raise errors.exceptions[0] from None

    @contextmanager
    def holding(self, *requests: GenerateRequest) -> Iterator[None]:
        """Count the bytes of requests of one client during the `with` block, in which `generate` runs each of them.

        What they share counts once. Raise BackendUnavailable while draining, and Overloaded, as the end of each
        request, if its client's requests hold too many bytes.
        """
        self._refuse_if_draining()
        with ExitStack() as held:
            try:
                held.enter_context(self._hold(requests[0].cache.partition, held_bytes(*requests)))
            except Overloaded as error:
                for request in map(self._with_caller, requests):
                    meter = Meter(partial(self._label, request.model), Ending(), request, self._target(request))
                    self._settle(request, meter, error.code)
                raise
            ids = {request.id for request in requests}
            self._held |= ids
            try:
                yield
            finally:
                self._held -= ids

    def give(self, request: GenerateRequest, end: Finished) -> Finished:
        """Measure an answer that was generated ahead and that its client gets now as a whole: `request.so_far`.

        `end`: its last delta. Return that with the verdict. The client waited for none of its stages.
        """
        ahead = "queue_ms", "load_ms", "render_ms", "cache_ms", "prefill_ms", "first_token_ms", "decode_ms"
        end = replace(end, timings=replace(end.timings, expected_ms=None, **dict.fromkeys(ahead, 0.0)))
        request, ending = self._with_caller(request), Ending()
        meter = Meter(partial(self._label, request.model), ending, request, target_of(request, self.targets))
        meter.put(Step((end,)))
        self._settle(request, meter, ABANDONED)
        return ending.finished or end

    async def run_own(self, request: GenerateRequest) -> Ending:
        """Run a request of the daemon itself, which has no latency target, and return its end.

        Raise the errors of `generate`.
        """
        ending = Ending()
        await self._run(self._with_caller(request), ending, NO_TARGET)
        return ending

    async def _run(self, request: GenerateRequest, sink: Sink, target: Target) -> None:
        self._refuse_if_draining()
        self.live.begin(request.id)
        if request.is_unasked:
            self._ahead.add(request.id)
        self.num_total += 1
        meter, code = Meter(partial(self._label, request.model), sink, request, target), ABANDONED
        try:
            with until_revoked(partial(self.cancel, request.id)):
                await self._service.generate(remaining(request), meter)
        except EdgeAgentError as error:
            code = error.code
            is_predicted = isinstance(error, DeadlineUnreachable) and error.expected_s is not None
            meter.is_refused_at_once = is_predicted and not request.waited_s
            if isinstance(error, RequestTimeout | DeadlineUnreachable) and not meter.is_refused_at_once:
                where = "remote" if is_remote(error.served_by) else UNKNOWN if meter.has_begun else "queue"
                error.late_stage = meter.failed_stage = error.late_stage or where
            raise
        except Exception:
            code = InternalError.code
            raise
        finally:
            self.live.end(request.id)
            self._ahead.discard(request.id)
            self._settle(request, meter, code)

    async def embed(self, model: str, query: Embed, client: str = "") -> Sequence[Embedding]:
        """Return the vectors of texts, one for each input, in the same order. `client`: the partition of the sender.

        Raise the errors of Models.ask, BackendUnavailable while draining, Unauthorized when the client's token is
        revoked, Overloaded if its client's requests hold too many bytes, or InternalError if the number or the length
        of the vectors is wrong.
        """
        embeddings = (await self._compute(model, query, client)).embeddings
        lengths = {len(embedding.vector) for embedding in embeddings}
        if len(embeddings) != len(query.inputs) or len(lengths) != 1 or max(lengths) % 4:
            raise InternalError(f"{len(embeddings)} embeddings of {lengths} bytes came for {len(query.inputs)} texts")
        return embeddings

    async def rank(self, model: str, query: Rerank, client: str = "") -> Sequence[Score]:
        """Return the scores, one for each document, in the same order. See `embed` for `client` and the errors."""
        scores = (await self._compute(model, query, client)).scores
        if len(scores) != len(query.documents):
            raise InternalError(f"{len(scores)} scores came for {len(query.documents)} documents")
        return scores

    async def _compute(self, model: str, query: Embed | Rerank, client: str) -> QueryAnswer:
        """Answer a query that takes long. It counts as a request; other queries do not, and go to `models.ask`."""
        self._refuse_if_draining()
        self.num_total += 1
        request_id = f"embed-{self.num_total}"
        self.live.begin(request_id)
        try:
            with self._hold(client, held_bytes(query)):
                return await unless_revoked(self.models.ask(model, query))
        finally:
            self.live.end(request_id)

    async def load(self, model: str, request_id: str, keep_alive_s: float | None = None) -> str:
        """Load a model, wait until it is loaded, and return its canonical name.

        Raise the error that prevents loading; BackendUnavailable if the daemon is stopping. `request_id`: an unused id
        for the request that loads the model. `keep_alive_s`: from now on, the model is unloaded this many seconds after
        its last use; None changes nothing.
        """
        name = await self.models.locate(model)
        # MODEL+ADAPTER never counts as loaded, even if MODEL is, because the file of the adapter may be unusable.
        is_loaded = any(name == each.name and each.state is WorkerState.READY for each in self.models.statuses())
        if is_loaded and keep_alive_s is None:
            return name
        request = GenerateRequest(
            request_id,
            name,
            TextPrompt("Hello"),
            prefill_only=True,
            cache=CachePolicy(read=False, write=False),
            keep_alive_s=keep_alive_s,
        )
        loading = await self.run_own(request)
        if loading.finished is not None and loading.finished.reason is FinishReason.CANCELLED:
            raise BackendUnavailable("the model was not loaded: the daemon is stopping", retry_after_s=5)
        return name

    def begin_drain(self) -> None:
        """Refuse new requests from now on. Cancel the answers that no client has asked for yet."""
        self.is_draining = True
        for request_id in tuple(self._ahead):
            self.cancel(request_id)

    def cancel_all(self) -> None:
        """Cancel all generations. Each still ends in its terminal event. Embeddings and reranks are not cancelled."""
        for request in self.live.running():
            self.cancel(request.id)

    def _refuse_if_draining(self) -> None:
        if self.is_draining:
            raise BackendUnavailable("the daemon is stopping; send the request again when it is back", retry_after_s=5)

    def _target(self, request: GenerateRequest) -> Target:
        # What is computed ahead waits for idle time, and its client for none of it.
        return NO_TARGET if request.is_ahead else target_of(request, self.targets)

    def _label(self, model: str) -> str:
        """Return a model's canonical name, for the measurements; the default model's if `model` is unknown.

        So the measurements never contain text from a client.
        """
        try:
            return self.models.find(model)
        except EdgeAgentError:
            return self.models.default()

    def _note_miss(self, request: GenerateRequest, model: str, miss: CacheMiss) -> None:
        """Count a prompt whose instructions have changed, and advise the owner once for each client and model."""
        if not miss.in_instructions:
            return
        made = ChangingInstructions(request.client, model, miss.num_shared)
        changing = self._changing.setdefault((request.client, model), made)
        changing.position = miss.num_shared
        changing.num_requests += 1
        changing.num_tokens += miss.num_lost
        if changing.num_requests == _NUM_CHANGES:
            logger.warning("%s", changing.advice)

    def _settle(self, request: GenerateRequest, meter: Meter, code: str) -> None:
        end = meter.end(code)
        logger.info("generation ended", extra={"fields": _measures(request, meter, end)})
        if meter.finished is not None and (miss := meter.finished.timings.miss) is not None:
            self._note_miss(request, meter.model, miss)
        if self._trace is not None:
            self._trace(request, meter, end)


def _place(meter: Meter) -> tuple[str, str]:
    """Return where a generation ran, and why it ran there; ("", "") if unknown.

    If the generation has no Finished delta, the place is taken from its Started delta.
    """
    if meter.finished is not None:
        return meter.finished.timings.route, meter.finished.timings.reason
    placement = None if meter.started is None else meter.started.placement
    return ("", "") if placement is None else (placement.served_by, placement.reason)


def _measures(request: GenerateRequest, meter: Meter, end: str) -> dict[str, object]:
    usage = meter.usage
    served_by, reason = _place(meter)
    first_ms = None if meter.first_s is None else round(1000.0 * (meter.first_s - meter.began_s), 1)
    return {
        "generation": request.id,
        "model": meter.model,
        "served_by": served_by,
        "reason": reason,
        "end": end,
        "prompt_tokens": usage.num_prompt_tokens,
        "cached_tokens": usage.num_cached_tokens,
        "output_tokens": usage.num_output_tokens,
        "first_token_ms": first_ms,
        "total_ms": round(1000.0 * (meter.ended_s - meter.began_s), 1),
    }
