"""Starts one model's worker, watches it, replaces it when it dies, and stops it.

It owns the worker's state and its requests. It knows neither model files (a coroutine returns the Load message) nor
clients (answers go to Receivers).
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial

from msgspec import structs

from edgeagent.errors import EdgeAgentError, InternalError, from_code
from edgeagent.types import AnswerSoFar, GenerateRequest, ModelInfo, ModelStatus, QueryAnswer, TextQuery, WorkerState
from edgeagent.worker.parent.supervision import refusals
from edgeagent.worker.parent.supervision.channel import Channel, FloodLimit
from edgeagent.worker.parent.supervision.load_time import LoadTime
from edgeagent.worker.parent.supervision.model_requests import (
    AcceptedRequest,
    EndKind,
    ModelRequests,
    Queries,
    Receiver,
)
from edgeagent.worker.parent.supervision.renderer import RendererProcess
from edgeagent.worker.parent.supervision.watchdog import SupervisionLimits
from edgeagent.worker.parent.supervision.worker_run import (
    PendingWork,
    RestartPolicy,
    TroubleLog,
    WorkerEnd,
    WorkerRun,
    log_notes,
)
from edgeagent.worker.protocol import (
    FULL_POWER,
    MAX_FRAME_FROM_WORKER_BYTES,
    AnswerPart,
    Ask,
    Cancel,
    Delivered,
    DiskShare,
    Failed,
    FromWorker,
    Load,
    LoadFailed,
    LoadProgress,
    Pong,
    Power,
    ProtocolError,
    Ready,
    RenderJob,
    StepResult,
    Submit,
    decode_from_worker,
    encode,
)

WORKER_COMMAND = (sys.executable, "-P", "-m", "edgeagent.worker.child.process")

# How long a cancelled request waits for the worker to end it. The worker's end has all times, but a step that cannot be
# interrupted (a sliding window, a hybrid, the step after an interrupted one) may take seconds.
_CANCEL_S = 0.03

# How many loads that run out of memory are tried again. Each try plans to use less memory; see fit.plan.
MAX_SHORT_LOADS = 3

logger = logging.getLogger(__name__)


class Supervisor:
    """Keeps one worker running for one model. All methods must be called on the event loop's thread."""

    def __init__(
        self,
        name: str,
        prepare: Callable[[], Awaitable[Load]],
        *,
        command: Sequence[str] = WORKER_COMMAND,
        limits: SupervisionLimits | None = None,
        flood: FloodLimit | None = None,
        clock: Callable[[], float] = time.monotonic,
        load_time: LoadTime | None = None,
        omit_part: Callable[[str, str], bool] = lambda _part, _cause: False,
        disk_share: Callable[[], DiskShare | None] = lambda: None,
        power: Callable[[], Power] = lambda: FULL_POWER,
    ) -> None:
        """`prepare` returns the Load. `load_time` predicts how long loads take.

        `omit_part(part, cause)` is called if the trial of a part ended the process or hung. It returns True if the next
        load leaves this part out. `disk_share` returns the model's present share of the disk
        cache; None if it has none. `power` returns how much of the machine the worker may use now.
        """
        self.name = name
        self._disk_share, self._power = disk_share, power
        self._omit_part = omit_part
        self._prepare = prepare
        self._command = command
        self._limits = limits or SupervisionLimits()
        self._flood = flood or FloodLimit()
        self._clock = clock
        self._requests = ModelRequests()
        self._queries = Queries()
        self._restarts = RestartPolicy(self._limits)
        self._disk_trouble = TroubleLog(name)
        self._state = WorkerState.STOPPED
        self._is_stopped_for_good = False
        self._refusal: refusals.Refusal | None = None
        self._cause: str | None = None
        self._num_restarts = 0
        self._num_short_loads = 0  # loads that ran out of memory
        self._load_time = load_time or LoadTime(clock)
        self._identity: str | None = None
        self._task: asyncio.Task[None] | None = None
        self._channel: Channel | None = None
        self._begin_run()

    def _begin_run(self) -> None:
        """Reset the state for a new worker process."""
        self._worker = WorkerRun(self._limits)
        self._load_time.begin()

    @property
    def num_live(self) -> int:
        return len(self._requests)

    @property
    def is_busy(self) -> bool:
        return len(self._requests) > 0 or len(self._queries) > 0

    def status(self) -> ModelStatus:
        return ModelStatus(
            name=self.name,
            state=self._state,
            progress=1.0 if self._state is WorkerState.READY else self._worker.progress,
            info=self._worker.info,
            worker=self._worker.status,
            pid=self._channel.pid if self._channel else None,
            num_restarts=self._num_restarts,
            cause=self._cause,
            error_code=None if self._refusal is None else self._refusal.error.code,
            retry_after_s=None if self._refusal is None else self._refusal.left_s(self._clock()),
            ready_in_s=self._load_time.ready_in_s(self._state, self._worker.progress),
        )

    def start(self) -> None:
        """Start loading the model, even after a failed load. Do nothing if it is loaded or loading."""
        if self._task is None or self._task.done():
            self._state, self._refusal = WorkerState.STARTING, None
            self._task = asyncio.get_running_loop().create_task(self._run(), name=f"worker {self.name}")
        elif self._refusal is not None:  # it has given up, and its worker's process still ends
            self._state, self._refusal = WorkerState.STARTING, None
            self._task.add_done_callback(lambda _: None if self._is_stopped_for_good else self.start())

    def reload(self) -> None:
        """Replace a ready worker by one that continues its requests, or load the model. Forget earlier failures."""
        if self._is_stopped_for_good:
            return
        self._restarts, self._num_short_loads = RestartPolicy(self._limits), 0
        if self._state is WorkerState.READY:
            self._request_end(WorkerEnd("the model is being reloaded", EndKind.REPLACED))
        self.start()

    def submit(self, request: GenerateRequest, receiver: Receiver, so_far: AnswerSoFar | None = None) -> None:
        """Accept a request. Its steps and later errors go to the receiver. `so_far`: earlier output of another machine.

        Raise BackendUnavailable or the load's error if no worker can be started, InvalidRequest if the id is live, and
        InvalidRequest or PayloadTooLarge if the request cannot be sent to a worker.
        """
        self._check_available()
        now_s = self._clock()
        frame = refusals.sendable_frame(Submit(request, now_s, delivered=Delivered(so_far=so_far)))
        live = self._requests.add(request, receiver, now_s, so_far)
        live.frame = frame if so_far is None else b""
        self.start()
        self._send_waiting()
        live.frame = b""  # It may be large, and the request may wait long.

    async def ask(self, question: TextQuery) -> QueryAnswer:
        """Return the answer to a query; raise the errors of `submit`, Overloaded, or the worker's error.

        Raise WorkerCrashed if the worker ends. If the calling task is cancelled, the worker drops the query.
        """
        self._check_available()
        refusals.sendable_frame(Ask("", question))
        query = self._queries.add(question)
        self.start()
        self._send_waiting()
        try:
            return await query.future
        finally:
            if self._queries.discard(query) and self._channel is not None:
                self._channel.send(Cancel(query.ask.id))
            self._send_waiting()

    def cancel(self, request_id: str) -> None:
        """Cancel a request; its receiver still gets a Finished(cancelled). An unknown id is ignored."""
        if self._requests.cancel(request_id, self._clock()):
            if self._channel is not None:
                self._channel.send(Cancel(request_id))
            asyncio.get_running_loop().call_later(_CANCEL_S, self._requests.end_cancelled, request_id)

    def cancel_unasked(self) -> bool:
        """Cancel the answers that no client has asked for yet. Return whether the worker still has one."""
        unasked = self._requests.unasked()
        for request_id in unasked:
            self.cancel(request_id)
        return bool(unasked)

    def _check_available(self) -> None:
        if self._is_stopped_for_good:
            raise refusals.stopping()
        if self._refusal is not None:
            self._refusal.check(self._clock())

    async def stop(self) -> None:
        """End the worker and all requests, for good. Return when the process has ended, or cannot be killed."""
        self._is_stopped_for_good = True
        if self._channel is not None:
            self._state = WorkerState.STOPPING
            if not self._worker.requested_end.done():
                self._worker.requested_end.set_result(WorkerEnd("stopped"))
        elif self._task is not None:
            self._task.cancel()
        if self._task is not None:
            await asyncio.wait({self._task})
        self._requests.cancel_all()
        self._queries.fail_all(refusals.stopping)
        self._state = WorkerState.STOPPED

    async def _run(self) -> None:
        """Run one worker after the other, until the supervisor is stopped or `_give_up` is called."""
        try:
            while not self._is_stopped_for_good:
                self._begin_run()
                self._state = WorkerState.STARTING
                end = await self._run_once()
                if self._is_stopped_for_good:
                    return
                if end.kind is EndKind.REPLACED:
                    continue
                if end.is_short_of_memory and self._num_short_loads < MAX_SHORT_LOADS:
                    self._num_short_loads += 1
                    logger.warning("%s is loaded again with less memory: %s", self.name, end.cause)
                    continue
                if end.omitted_part:
                    logger.warning("%s is loaded again without %s: %s", self.name, end.omitted_part, end.cause)
                    continue
                if end.error is not None:
                    retry_s = end.error.retry_after_s or self._limits.load_retry_s
                    self._give_up(end.error, WorkerState.FAILED, retry_s)
                    return
                logger.warning("worker of %s died: %s", self.name, end.cause)
                delay_s = self._restarts.on_end(end, has_worked=self._worker.has_worked)
                if delay_s is None:
                    quarantine_s = self._limits.quarantine_s
                    error = refusals.quarantined(self.name, end.cause, quarantine_s)
                    self._give_up(error, WorkerState.QUARANTINED, quarantine_s)
                    return
                self._num_restarts += 1
                # Reset now. Otherwise the dead worker's progress would be shown until the next one starts.
                self._begin_run()
                self._state = WorkerState.STARTING
                await asyncio.sleep(delay_s)
        except Exception as error:  # a bug here must not leave requests without an end
            logger.exception("supervisor of %s failed", self.name)
            failure = InternalError(f"the supervisor failed: {type(error).__name__}")
            self._give_up(failure, WorkerState.FAILED, self._limits.load_retry_s)
            if (channel := self._channel) is not None:  # nothing else would end its process
                channel.mute()
                await channel.end(self._limits.stop_grace_s)
                self._channel = None

    async def _run_once(self) -> WorkerEnd:
        """Run one worker from its start to its end; return how and why it ended."""
        try:
            load = structs.replace(await self._prepare(), num_tries=self._num_short_loads)
            self._take_identity(load.identity)
            breach = lambda what: self._request_end(WorkerEnd(f"broke the protocol: {what}"))  # noqa: E731
            channel = await Channel.spawn(
                self._command, self._on_message, breach, self._flood, decode_from_worker, MAX_FRAME_FROM_WORKER_BYTES
            )
        except EdgeAgentError as error:
            return WorkerEnd(error.message, error=error)
        except OSError as error:
            return self._settle_end(WorkerEnd(f"its process could not be started: {error}"))
        self._channel = channel
        is_enclosed = load.engine_config.sandbox
        renderer = self._worker.renderer = RendererProcess(self.name, channel.send, is_enclosed=is_enclosed)
        channel.send(load)
        try:
            await self._worker.watch(channel, partial(self._tick, channel), self._clock)
            return await self._end(channel)
        finally:
            await renderer.stop()

    def _tick(self, channel: Channel, elapsed_s: float) -> bool:
        """Check that the worker gets on, and ping it. Return whether it owes work."""
        pending = None
        if self._state is not WorkerState.STARTING:
            is_busy = self._requests.num_sent() > 0 or self._queries.is_embedding
            pending = PendingWork(is_busy, self._requests.oldest_cancel_s(), self._queries.sent_at_s)
        hang = self._worker.tick(elapsed_s, channel.signs(), pending)
        if hang is not None:
            has_culprit = self._requests.blame(hang.culprit, hang.why)
            end = self._worker.hung_end(hang, self._omit_part)
            self._request_end(replace(end, has_culprit=has_culprit))
        elif (ping := self._worker.ping(self._disk_share(), self._power())) is not None:
            channel.send(ping)
        return pending is None or self.is_busy

    async def _end(self, channel: Channel) -> WorkerEnd:
        """End the process if it still runs; return how and why it ended."""
        self._state = WorkerState.STOPPING
        is_gone = True
        if self._worker.requested_end.done():
            end = self._worker.requested_end.result()
            # A loading worker reads no messages. A worker that hung or broke the protocol gets a signal at once.
            is_meant = self._is_stopped_for_good or end.kind is EndKind.REPLACED
            is_asked = is_meant and self._worker.ready_at_s is not None
            grace_s = self._limits.stop_grace_s
            is_gone = await (channel.stop(grace_s, self._limits.save_s) if is_asked else channel.end(grace_s))
            self._disk_trouble.note_end(channel.stderr_tail())
        else:
            end = self._worker.unrequested_end(channel, self._omit_part)
        if not is_gone:
            end = replace(end, cause=f"{end.cause}; process {channel.pid} cannot be killed")
        self._channel = None
        return self._settle_end(end)

    def _settle_end(self, end: WorkerEnd) -> WorkerEnd:
        """Settle a dead worker's requests; return `end` with the time for which the worker had been ready."""
        if self._worker.ready_at_s is not None:
            end = replace(end, ready_for_s=self._clock() - self._worker.ready_at_s)
        if not self._is_stopped_for_good:
            self._worker.status = None
            self._cause = None if end.kind is EndKind.REPLACED else end.cause
            self._settle_requests(end.cause, end.kind)
        return end

    def _request_end(self, end: WorkerEnd) -> None:
        """Request the end of the worker for this reason. Settle its requests now, without waiting for the end."""
        if self._worker.requested_end.done():
            return
        self._worker.requested_end.set_result(end)
        self._state = WorkerState.STOPPING
        if self._channel is not None:
            self._channel.mute()
        self._cause = end.cause
        self._settle_requests(end.cause, end.kind)

    def _give_up(self, error: EdgeAgentError, state: WorkerState, retry_after_s: float) -> None:
        """Fail all requests and queries. Start no worker for `retry_after_s` seconds, and then only on request."""
        self._state, self._cause, self._num_short_loads = state, error.message, 0
        self._refusal = refusals.Refusal(error, self._clock() + retry_after_s)
        self._requests.fail_all(lambda: refusals.renewed(error, retry_after_s))
        self._queries.fail_all(lambda: refusals.renewed(error, retry_after_s))

    def _settle_requests(self, cause: str, kind: EndKind) -> None:
        """Fail the queries sent to a dead worker. Settle its requests: the next worker continues most of them."""
        self._requests.on_worker_end(cause, kind)
        self._queries.fail_sent(refusals.ended(cause))

    def _take_identity(self, identity: str) -> None:
        """Record which files are loaded. If they changed, fail requests with delivered tokens, and forget crashes."""
        if self._identity not in (None, identity):
            self._requests.fail_begun(lambda: refusals.changed(self.name))
            self._restarts = RestartPolicy(self._limits)
        self._identity = identity

    def _on_message(self, message: FromWorker) -> None:
        match message:
            case StepResult():
                self._worker.on_steps(message)
                self._requests.on_steps(message)
                if self._requests.has_unsent:
                    self._send_waiting()
            case AnswerPart():
                self._queries.on_answer(message)
            case Failed(id=failed_id) if self._queries.has_id(failed_id):
                self._queries.on_failed(message)
            case Failed():
                self._worker.on_progress()
                self._requests.on_failed(message)
                self._send_waiting()
            case Pong():
                self._worker.on_pong(message)
                self._disk_trouble.note(message.status, self._clock())
            case RenderJob():
                assert self._worker.renderer is not None
                self._worker.renderer.submit(message)
            case LoadProgress():
                self._worker.on_load_progress(message)
            case Ready(info):
                self._on_ready(info)
                log_notes(self.name, message)
            case LoadFailed(code, text, can_take_less):
                self._on_load_failed(from_code(code, text), can_take_less=can_take_less)

    def _on_ready(self, info: ModelInfo) -> None:
        if self._state is not WorkerState.STARTING or self._channel is None:
            raise ProtocolError("ready twice, or before it was told what to load")
        self._state, self._worker.info = WorkerState.READY, info
        if not self._num_restarts:  # the cause was an earlier failed load
            self._cause = None
        self._worker.ready_at_s = self._clock()
        self._load_time.end()
        self._send_waiting()

    def _on_load_failed(self, error: EdgeAgentError, *, can_take_less: bool) -> None:
        if self._state is not WorkerState.STARTING:
            raise ProtocolError("LoadFailed after Ready")
        self._request_end(WorkerEnd(error.message, error=error, is_short_of_memory=can_take_less))

    def _send_waiting(self) -> None:
        """Send the worker the waiting requests and queries that it may get now."""
        if self._state is not WorkerState.READY:
            return
        if self._requests.has_unsent:
            for live in self._requests.sendable():
                self._send(live)
        if self._channel is not None:
            for query in self._queries.sendable():
                query.sent_at_s = self._clock()
                self._worker.has_seen_prompts = True
                self._channel.send(query.ask)

    def _send(self, live: AcceptedRequest) -> None:
        assert self._channel is not None and self._worker.ready_at_s is not None
        load_ms = max(0.0, self._worker.ready_at_s - live.accepted_at_s) * 1000
        if self._requests.num_sent() == 0:
            self._worker.on_progress()
        self._worker.has_seen_prompts = True
        live.is_sent = True
        submit = Submit(live.request, live.accepted_at_s, load_ms, live.delivered)
        self._channel.send_frame(live.frame or encode(submit))
