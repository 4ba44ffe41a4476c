"""The main thread of a generating model's worker: runs requests on the engine, and sends their steps."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from queue import Empty, SimpleQueue
from typing import Protocol

from msgspec import structs

from edgeagent.engine.llama.embedder import Rows, truncated
from edgeagent.engine.shift_check import CHECK_ID
from edgeagent.engine.verification import Output
from edgeagent.errors import EdgeAgentError, NotSupported
from edgeagent.process_settings import give_back_freed_memory
from edgeagent.types import TIER_RANKS, Embed, Embedding, PurgeCache, QueryAnswer, Rerank, WorkerStatus
from edgeagent.worker.child.frame_writer import Frames, Outlet, wait_until_written
from edgeagent.worker.child.generator.host import Host
from edgeagent.worker.child.generator.media import BeginRead, Reading
from edgeagent.worker.child.generator.prepared_request import PreparedRequest
from edgeagent.worker.child.generator.step_frames import News, RunningRequest, StepFrames
from edgeagent.worker.child.job_loop import JobLoop, TextJob, TextJobs
from edgeagent.worker.protocol import AnswerPart, Ask, Cancel, Stop, Submit, failed_message

_SHARE = 0.2  # the share of time that embedding gets while something is generated, by estimate
# How long a step may be delayed, on a CPU, for the delivery of a first token: if the daemon does not read, no longer.
_FIRST_TOKEN_S = 0.002
# Of the inter-token-latency budget: the limit for one chunk while something is generated, by estimate.
_BUDGET_SHARE = 0.3


class Embedder(Protocol):
    """Computes embedding vectors; see engine.llama.embedder."""

    num_chunks: int

    @property
    def is_open(self) -> bool: ...
    def begin(self, tokens: Sequence[int]) -> None: ...
    def advance(self, budget_s: float, num_threads: int) -> Rows | None: ...
    def close(self) -> None: ...


class EmbedJobs(TextJobs):
    """Computes the open Embed queries. They take turns, one text each."""

    def __init__(
        self, embedder: Embedder, frames: Frames, itl_budget_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(embedder, clock)
        self._embedder = embedder
        self._frames = frames
        self._itl_budget_s = itl_budget_s
        self._not_before_s = 0.0

    @property
    def num_chunks(self) -> int:
        """How many chunks have been computed. The daemon's watchdog takes an increase as progress."""
        return self._embedder.num_chunks

    def step(self, *, is_busy: bool, num_threads: int) -> None:
        """Compute a chunk if one is due. If the engine is busy with requests, fewer chunks are due."""
        ask_id = self._next()
        started_s = self._clock()
        if ask_id is None or (is_busy and started_s < self._not_before_s):
            return
        job = self._jobs[ask_id]
        try:
            self._advance(ask_id, job, self._itl_budget_s * (_BUDGET_SHARE if is_busy else 1.0), num_threads)
        except EdgeAgentError as error:
            self.drop(ask_id)
            self._frames.put(failed_message(ask_id, error))
        self._used_at_s = self._clock()
        self._not_before_s = self._used_at_s + (self._used_at_s - started_s) * (1 / _SHARE - 1)

    def _advance(self, ask_id: str, job: TextJob, budget_s: float, num_threads: int) -> None:
        assert job.texts and isinstance(job.query, Embed)
        if not job.is_begun:
            self._embedder.begin(job.texts[0])
            job.is_begun = True
        vector = self._embedder.advance(budget_s, num_threads)
        if vector is None:
            return
        num_tokens = len(job.texts.popleft())
        job.is_begun = False
        embedding = Embedding(truncated(vector, job.query.dimensions).astype("<f4").tobytes(), num_tokens)
        is_last = not self._end_turn(ask_id, job)
        self._frames.put(AnswerPart(ask_id, QueryAnswer(embeddings=(embedding,)), is_last=is_last))


class PrepareQueue:
    """The requests that wait for the preparer thread. Other threads add requests; only the preparer removes them.

    One medium is read at a time, so that the most urgent request gets the next turn for its media too.
    """

    def __init__(self) -> None:
        # A request, one whose medium was read, or the id of one that is cancelled.
        self._arrived: SimpleQueue[Submit | tuple[Submit, Reading] | str] = SimpleQueue()
        # In order of arrival. Only the thread that calls `get` writes this and the next fields.
        self._waiting: list[Submit] = []
        self._is_reading = False
        self._aside: Submit | None = None  # whose medium is read now; None too if it was cancelled
        self._unread: set[str] = set()  # the ids of waiting requests that cannot go on while a medium is read
        self._readings: dict[str, Reading] = {}  # of those that wait again, by id
        self._served_at: dict[str, int] = {}  # by partition, while requests wait
        self._num_served = self._served_before = 0  # before: the latest request's partition, before its turn

    def put(self, submit: Submit) -> None:
        """Add a request; any thread may call it."""
        self._arrived.put(submit)

    def drop(self, request_id: str) -> None:
        """Remove a request, if it still waits: it is cancelled. Any thread may call it."""
        self._arrived.put(request_id)

    def set_aside(self, submit: Submit, reading: Reading | None, begin: BeginRead) -> None:
        """Have a medium of the latest request read, with `begin`, and add the request again behind other ones.

        If another medium is being read, the request waits for its turn, with the `reading` that it had.
        """
        if not self._is_reading:
            self._is_reading, self._aside = True, submit
            begin(partial(self._put_back, submit), lambda: self._aside is submit)
            return
        request_id = submit.request.id
        self._served_at[submit.request.cache.partition] = self._served_before  # this was no turn
        self._waiting.append(submit)
        self._unread.add(request_id)
        if reading is not None:
            self._readings[request_id] = reading

    def _put_back(self, submit: Submit, reading: Reading) -> None:
        self._arrived.put((submit, reading))

    def get(self) -> tuple[Submit, Reading | None]:
        """Wait for the next request and remove it. Return it with the last reading of its media."""
        self._take_arrived()
        while not (ready := self._ready()):
            self._take_arrived()
        submit = self._waiting.pop(min(ready, key=self._position))
        request_id, partition = submit.request.id, submit.request.cache.partition
        self._unread.discard(request_id)
        self._num_served += 1
        self._served_before = self._served_at.get(partition, 0)
        self._served_at[partition] = self._num_served
        return submit, self._readings.pop(request_id, None)

    def _ready(self) -> list[int]:
        """Return where those stand among the waiting requests that can be prepared, or whose media can be read, now."""
        return [
            index
            for index, submit in enumerate(self._waiting)
            if not self._is_reading or submit.request.id not in self._unread
        ]

    def _take_arrived(self) -> None:
        if not self._waiting:
            self._served_at.clear()
        if not self._ready():
            self._take(self._arrived.get())
        with contextlib.suppress(Empty):
            while True:
                self._take(self._arrived.get_nowait())

    def _take(self, arrived: Submit | tuple[Submit, Reading] | str) -> None:
        match arrived:
            case Submit():
                self._waiting.append(arrived)
            case str(request_id):
                self._waiting = [submit for submit in self._waiting if submit.request.id != request_id]
                self._readings.pop(request_id, None)
                self._unread.discard(request_id)
                if self._aside is not None and self._aside.request.id == request_id:
                    self._aside = None
            case (submit, reading):
                if self._aside is submit:
                    self._waiting.append(submit)
                    self._readings[submit.request.id] = reading
                self._is_reading, self._aside = False, None

    def _position(self, index: int) -> tuple[int, int, int]:
        request = self._waiting[index].request
        return TIER_RANKS[request.tier], self._served_at.get(request.cache.partition, 0), index


class GeneratorLoop(JobLoop):
    """The loop of a model that generates: it runs requests on the engine, and chunks of embeddings between steps."""

    _frames: Outlet
    _jobs: EmbedJobs

    def __init__(self, host: Host, frames: Outlet) -> None:
        super().__init__(EmbedJobs(host.embedder, frames, host.itl_budget_s), host.runner, frames)
        self._host = host
        self._engine = host.engine
        self.to_prepare = PrepareQueue()
        self._requests: dict[str, RunningRequest] = {}
        # Whether the running step's only request is cancelled. The reader's thread sets it, `_cancel` clears it.
        self._is_abandoned = False
        self._step_frames = StepFrames(host.model, lambda *ended: self.commands.put(partial(self._end_text, *ended)))

    def submit(self, message: Submit) -> None:
        """Queue a request for the main thread and for the preparer; any thread may call it."""
        self.commands.put(message)
        self.to_prepare.put(message)

    def interrupt(self, command: Cancel | Ask | Stop) -> None:
        """Queue a command from the reader thread, and interrupt a long step that would delay it.

        If no long step is running yet, the engine sees the command (`_has_command`) before it starts one, and postpones
        that step. But it never postpones two steps in a row. The cancel of a prefill ahead of a request interrupts
        nothing: what the step computes is for the request that has replaced it. The cancel of the only request
        interrupts nothing either, so that its prefix is cached: the next request does that, if it begins sooner then.
        Nor does that of a query, of which no step computes anything.
        """
        live = self._requests.get(command.id) if isinstance(command, Cancel) else None
        request = None if live is None else live.submit.request
        is_kept = isinstance(command, Cancel) and (request is None or (request.is_ahead and request.prefill_only))
        spec = None if live is None or live.prepared is None else live.prepared.spec
        if spec is not None and spec.write_cache and spec.choices is None:
            self._is_abandoned = len(self._requests) == 1 and self.commands.empty() and not len(self._jobs)
            is_kept |= self._is_abandoned
        self.commands.put(command)
        if self._is_abandoned and self.commands.qsize() > 1:
            is_kept = False  # a request that was handed in meanwhile may not have seen the flag
        if isinstance(command, Cancel):
            self.to_prepare.drop(command.id)
        if self._engine.current_step.is_long and not is_kept:
            self._runner.request_abort()

    def ask(self, message: Ask) -> None:
        super().ask(message)
        if self._is_abandoned and self._engine.current_step.is_long:
            self._runner.request_abort()

    def hand_in(self, submit: Submit, prepared: PreparedRequest) -> None:
        """Queue a prepared request. The preparer calls it.

        Interrupt a long step of less urgent requests, and one of a cancelled request that does not help it.
        """
        self.commands.put(partial(self._begin, submit, prepared))
        step = self._engine.current_step
        is_useless = self._is_abandoned and step.is_long and not self._engine.step_helps(prepared.spec)
        if is_useless or step.gives_way_to(prepared.spec.rank):
            self._runner.request_abort()

    def refuse(self, submit: Submit, error: EdgeAgentError) -> None:
        """Queue the error of a request that cannot be prepared. The preparer calls it."""
        self.commands.put(partial(self._refuse, submit, error))

    def _has_command(self) -> bool:
        return not self.commands.empty()

    @property
    def _has_work(self) -> bool:
        return self._engine.has_work or self._jobs.has_work

    def _wake_after_s(self) -> float | None:
        limits_s = (self._jobs.wake_after_s(), self._engine.wake_after_s)
        return min((limit_s for limit_s in limits_s if limit_s is not None), default=None)

    def _finish_step(self) -> None:
        self._deliver(self._engine.finish_step())
        self.step_started_at_s = 0.0

    def _step(self) -> None:
        if self._has_work:
            self._host.adjust_threads()
        else:
            self._host.rest_threads()
        if self._engine.has_work:
            self.step_started_at_s = time.monotonic()
            self._deliver(self._engine.admit())
            if not self._engine.begin_step(self._has_command):
                self._finish_step()
        self._engine.save_step()
        if self._jobs.has_work:
            self._engine.wait()
        is_busy = self._engine.num_live > 0
        self._jobs.step(is_busy=is_busy, num_threads=self._host.num_threads)

    def _read(self, query: Embed | Rerank) -> list[list[int]]:
        if isinstance(query, Rerank):
            raise NotSupported("This model ranks no documents: it generates text. Serve a reranker.", param="model")
        return self._host.read_texts(query)

    def _carry_out(self, command: Submit | Cancel | Ask | Stop) -> None:
        match command:
            case Submit():
                # A second request with the same id is ignored: the daemon could not tell their ends apart.
                self._requests.setdefault(command.request.id, RunningRequest(command))
            case Cancel():
                self._cancel(command.id)
            case Ask(ask_id, PurgeCache(partition)):
                self._engine.purge(partition, partial(self._answer_purge, ask_id))
                give_back_freed_memory()
            case Stop():
                for request_id in list(self._requests):
                    self._cancel(request_id)

    def _answer_purge(self, ask_id: str, num_gone: int) -> None:
        self._frames.put(AnswerPart(ask_id, QueryAnswer(str(num_gone)), is_last=True))

    def _is_awaited(self, submit: Submit) -> bool:
        """Whether this request is still live. If it was cancelled, another request may already have the same id."""
        request = self._requests.get(submit.request.id)
        return request is not None and request.submit is submit

    def _begin(self, submit: Submit, prepared: PreparedRequest) -> None:
        if not self._is_awaited(submit):
            return
        try:
            spec, target = prepared.spec, submit.request.target
            if target is not None:
                spec = replace(spec, due_s=submit.accepted_at_s + target.first_token_s)
            self._engine.add(spec)
            self._requests[submit.request.id].prepared = prepared
        except EdgeAgentError as error:
            self._refuse(submit, error)

    def _refuse(self, submit: Submit, error: EdgeAgentError) -> None:
        """End a request with an error, and send the error to the daemon."""
        if self._is_awaited(submit):
            del self._requests[submit.request.id]
            self._frames.put(failed_message(submit.request.id, error))

    def _end_text(self, request: RunningRequest, num_tokens: int) -> None:
        request_id = request.submit.request.id
        if self._requests.get(request_id) is request:
            del self._requests[request_id]
            self._engine.cancel(request_id, num_tokens)

    def _cancel(self, request_id: str) -> None:
        self._is_abandoned = False
        request = self._requests.pop(request_id, None)
        if request is not None:
            sequence = self._engine.cancel(request_id)
            self._frames.put(partial(self._step_frames.of_cancelled, request, sequence, time.monotonic()))

    def _deliver(self, outputs: list[Output]) -> None:
        """Hand a step's outputs to the writer's thread. Until its first token, a request's events are awaited.

        A CPU takes the interpreter's lock until the next step is planned, and then the cores. So the writer is given
        the time to write such an event first.
        """
        news, is_awaited = [], False
        for output in outputs:
            sequence = output.sequence
            if sequence.id == CHECK_ID:
                continue
            request = self._requests[sequence.id]
            assert request.prepared is not None
            if output.is_last:
                del self._requests[sequence.id]
            elif output.tokens:
                request.prepared.settle(sequence, self._engine.context_length)
            progress, is_first = None, sequence.num_output == len(output.tokens)
            is_awaited |= is_first
            if sequence.spec.reports_progress and is_first:
                progress = min(sequence.num_computed, sequence.num_prompt)
            news.append(News(request, output, progress))
        if news:
            self._frames.put(partial(self._step_frames.of_step, news, time.monotonic()))
            if is_awaited and self._host.runner.is_blocking:
                wait_until_written(self._frames, _FIRST_TOKEN_S)

    @property
    def planned_bytes(self) -> int:
        return self._engine.planned_bytes + self._host.embedder_bytes

    @property
    def status(self) -> WorkerStatus:
        status = self._engine.status()
        return structs.replace(
            status,
            num_steps=status.num_steps + self._jobs.num_chunks + self._host.num_encoder_steps,
            num_prompt_tokens_total=self._step_frames.num_prompt_tokens,
            num_cached_tokens_total=self._step_frames.num_cached_tokens,
            num_tokens_from_memory_total=self._step_frames.num_restored["host"],
            num_tokens_from_disk_total=self._step_frames.num_restored["disk"],
            num_output_tokens_total=self._step_frames.num_output_tokens,
            num_threads=self._host.num_threads,
            max_threads=self._host.max_threads,
            num_decodes=self._host.runner.num_decodes,
            num_graphs_reused=self._host.runner.num_graphs_reused,
        )
