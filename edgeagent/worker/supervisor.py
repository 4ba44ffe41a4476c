"""One model's worker through its lives: started, watched, replaced when it dies, stopped.

It owns the worker's state and the ledger of its requests. It does not know what a model file is (it is given a
coroutine that answers with the Load message) nor who listens to a request (a Sink).
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from edgeagent.errors import (
    BackendUnavailable,
    EdgeAgentError,
    InternalError,
    InvalidRequest,
    PayloadTooLarge,
    from_code,
)
from edgeagent.types import GenerateRequest, ModelInfo, ModelStatus, WorkerState, WorkerStatus
from edgeagent.worker.cause import describe_exit
from edgeagent.worker.channel import Channel, FloodLimit
from edgeagent.worker.ledger import Ledger, LiveRequest, Sink
from edgeagent.worker.protocol import (
    LENGTH_BYTES,
    MAX_FRAME_TO_WORKER_BYTES,
    Cancel,
    Failed,
    FromWorker,
    Load,
    LoadFailed,
    LoadProgress,
    Ping,
    Pong,
    ProtocolError,
    Ready,
    Steps,
    Submit,
    encode,
)
from edgeagent.worker.watchdog import LoadWatch, Patience, Quarantine, RestartPolicy, StepWatch

WORKER_COMMAND = (sys.executable, "-P", "-m", "edgeagent.worker.process")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Death:
    """A worker's end. `error` is set where it said itself that it cannot load the model."""

    cause: str
    ready_for_s: float | None
    error: EdgeAgentError | None = None


class Supervisor:
    """Keeps one worker for one model. All methods belong to the event loop's thread."""

    def __init__(
        self,
        name: str,
        prepare: Callable[[], Awaitable[Load]],
        *,
        command: Sequence[str] = WORKER_COMMAND,
        patience: Patience | None = None,
        flood: FloodLimit | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self._prepare = prepare
        self._command = command
        self._patience = patience or Patience()
        self._flood = flood or FloodLimit()
        self._clock = clock
        self._ledger = Ledger()
        self._restarts = RestartPolicy(self._patience)
        self._state = WorkerState.STOPPED
        self._is_stopped_for_good = False
        self._failure: EdgeAgentError | None = None
        self._retry_at_s = 0.0
        self._cause: str | None = None
        self._num_restarts = 0
        self._task: asyncio.Task[None] | None = None
        self._channel: Channel | None = None
        self._begin_life()

    def _begin_life(self) -> None:
        """Reset what is known of one worker process."""
        self._verdict: asyncio.Future[str] = asyncio.Future()
        self._load_watch = LoadWatch(self._patience)
        self._step_watch = StepWatch(self._patience)
        self._info: ModelInfo | None = None
        self._status: WorkerStatus | None = None
        self._load_error: EdgeAgentError | None = None
        self._ready_at_s: float | None = None
        self._nonce = 0
        self._is_pong_due = False
        self._has_seen_prompts = False

    @property
    def num_live(self) -> int:
        """How many requests have been accepted and not ended."""
        return len(self._ledger)

    def status(self) -> ModelStatus:
        """Return what is known of the model and its worker."""
        return ModelStatus(
            name=self.name,
            state=self._state,
            progress=1.0 if self._state is WorkerState.READY else self._load_watch.progress,
            info=self._info,
            worker=self._status,
            pid=self._channel.pid if self._channel else None,
            num_restarts=self._num_restarts,
            cause=self._cause,
        )

    def start(self) -> None:
        """Begin to load the model unless it is loaded or loading; a failed one is tried again."""
        if self._task is None or self._task.done():
            self._state, self._failure = WorkerState.STARTING, None
            self._task = asyncio.get_running_loop().create_task(self._run(), name=f"worker {self.name}")

    def submit(self, request: GenerateRequest, sink: Sink) -> None:
        """Accept a request; its answer, error or end goes to the sink.

        Raise BackendUnavailable or the load's error where no worker is to be had, InvalidRequest where the request
        cannot be passed on.
        """
        if self._is_stopped_for_good:
            raise BackendUnavailable("the daemon is stopping; send the request again later", served_by="local")
        now_s = self._clock()
        if self._failure is not None and now_s < self._retry_at_s:
            raise _renewed(self._failure, self._retry_at_s - now_s)
        _check_sendable(request, now_s)
        live = self._ledger.add(request, sink, now_s)
        self.start()
        if self._state is WorkerState.READY:
            self._send(live)

    def cancel(self, request_id: str) -> None:
        """End a request politely: its sink gets a Finished(cancelled); an unknown id is ignored."""
        if self._ledger.cancel(request_id, self._clock()):
            self._tell_cancelled(request_id)

    def abandon(self, request_id: str) -> None:
        """End a request whose sink wants nothing more; an unknown id is ignored."""
        if self._ledger.abandon(request_id, self._clock()):
            self._tell_cancelled(request_id)

    async def stop(self) -> None:
        """End the worker and every request, for good; return when the process is gone."""
        self._is_stopped_for_good = True
        if self._channel is not None:
            self._state = WorkerState.STOPPING
            if not self._verdict.done():
                self._verdict.set_result("stopped")
        elif self._task is not None:
            self._task.cancel()
        if self._task is not None:
            await asyncio.wait({self._task})
        self._ledger.cancel_all()
        self._state = WorkerState.STOPPED

    async def _run(self) -> None:
        """Live after life, until stopped or given up."""
        try:
            while not self._is_stopped_for_good:
                self._begin_life()
                self._state = WorkerState.STARTING
                death = await self._live()
                if self._is_stopped_for_good:
                    return
                if death.error is not None:
                    self._give_up(death.error, self._patience.load_retry_s)
                    return
                logger.warning("worker of %s died: %s", self.name, death.cause)
                decision = self._restarts.on_crash(self._clock(), death.ready_for_s)
                if isinstance(decision, Quarantine):
                    self._give_up(_quarantined(self.name, death.cause), decision.duration_s)
                    return
                self._num_restarts += 1
                self._state = WorkerState.STARTING
                await asyncio.sleep(decision.delay_s)
        except Exception as error:  # a bug here must not leave requests without an end
            logger.exception("supervisor of %s failed", self.name)
            self._give_up(InternalError(f"the supervisor failed: {type(error).__name__}"), self._patience.load_retry_s)

    async def _live(self) -> _Death:
        """One worker from its start to its end."""
        try:
            load = await self._prepare()
            channel = await Channel.spawn(self._command, self._on_message, self._on_violation, self._flood)
        except EdgeAgentError as error:
            return _Death(error.message, None, error)
        except OSError as error:
            return self._bury(f"its process could not be started: {error}")
        self._channel = channel
        channel.send(load)
        await self._watch(channel)
        return await self._end(channel)

    async def _watch(self, channel: Channel) -> None:
        """Ping and look after the worker until it ends or is condemned."""
        events: set[asyncio.Future[Any]] = {channel.ended, self._verdict}
        last_s = self._clock()
        while True:
            done, _ = await asyncio.wait(
                events, timeout=self._patience.ping_interval_s, return_when=asyncio.FIRST_COMPLETED
            )
            if done:
                return
            now_s = self._clock()
            self._tick(channel, now_s, now_s - last_s)
            last_s = now_s

    def _tick(self, channel: Channel, now_s: float, elapsed_s: float) -> None:
        if self._state is WorkerState.STARTING:
            hang = self._load_watch.tick(elapsed_s)
        else:
            hang = self._step_watch.tick(elapsed_s, is_busy=self._ledger.num_sent() > 0)
        cancelled_at_s = self._ledger.oldest_cancel_s()
        if hang is None and cancelled_at_s is not None and now_s - cancelled_at_s >= self._step_watch.step_limit_s():
            hang = f"hung: a cancelled request did not end within {self._step_watch.step_limit_s():g} s"
        if hang is not None:
            self._condemn(hang)
        elif not self._is_pong_due:
            self._nonce += 1
            self._is_pong_due = True
            channel.send(Ping(self._nonce))

    async def _end(self, channel: Channel) -> _Death:
        """See the process out; return what it died of."""
        self._state = WorkerState.STOPPING
        if self._is_stopped_for_good:
            # One that is still loading cannot hear, and has nothing to say.
            end = channel.end if self._ready_at_s is None else channel.stop
            is_gone = await end(self._patience.stop_grace_s)
            cause = "stopped"
        elif self._verdict.done():
            is_gone = await channel.end(self._patience.stop_grace_s)
            cause = self._verdict.result()
        else:
            is_gone = True
            assert channel.returncode is not None
            cause = describe_exit(channel.returncode, channel.stderr_tail(), has_seen_prompts=self._has_seen_prompts)
        if not is_gone:
            cause += f"; process {channel.pid} cannot be killed"
        self._channel = None
        if self._load_error is not None:
            return _Death(cause, None, self._load_error)
        return self._bury(cause)

    def _bury(self, cause: str) -> _Death:
        """Settle a dead worker's requests."""
        ready_for_s = None if self._ready_at_s is None else self._clock() - self._ready_at_s
        if not self._is_stopped_for_good:
            self._cause, self._status = cause, None
            self._ledger.on_death(cause)
        return _Death(cause, ready_for_s)

    def _condemn(self, cause: str) -> None:
        """Let the worker be ended; its requests need not wait for that."""
        if self._verdict.done():
            return
        self._verdict.set_result(cause)
        self._state = WorkerState.STOPPING
        if self._channel is not None:
            self._channel.mute()
        self._cause = cause
        self._ledger.on_death(cause)

    def _give_up(self, error: EdgeAgentError, retry_after_s: float) -> None:
        """Serve this model no more until somebody asks after that time."""
        self._state, self._failure, self._cause = WorkerState.FAILED, error, error.message
        self._retry_at_s = self._clock() + retry_after_s
        logger.error("model %s cannot be served: %s", self.name, error.message)
        self._ledger.fail_all(lambda: _renewed(error, retry_after_s))

    def _on_violation(self, what: str) -> None:
        self._condemn(f"broke the protocol: {what}")

    def _on_message(self, message: FromWorker) -> None:
        match message:
            case Steps():
                self._step_watch.on_progress()
                self._ledger.on_steps(message)
            case Failed():
                self._step_watch.on_progress()
                self._ledger.on_failed(message)
            case Pong(nonce, status):
                self._on_pong(nonce, status)
            case LoadProgress(fraction):
                self._load_watch.advance(fraction)
            case Ready(info):
                self._on_ready(info)
            case LoadFailed(code, text):
                self._on_load_failed(from_code(code, text))

    def _on_pong(self, nonce: int, status: WorkerStatus) -> None:
        if not self._is_pong_due or nonce != self._nonce:
            raise ProtocolError(f"a pong {nonce} that was not asked for")
        self._is_pong_due = False
        self._status = status
        self._step_watch.on_pong(status)

    def _on_ready(self, info: ModelInfo) -> None:
        if self._state is not WorkerState.STARTING or self._channel is None:
            raise ProtocolError("ready twice, or before it was told what to load")
        self._state, self._info = WorkerState.READY, info
        self._ready_at_s = self._clock()
        for live in self._ledger.unsent():
            self._send(live)

    def _on_load_failed(self, error: EdgeAgentError) -> None:
        if self._state is not WorkerState.STARTING:
            raise ProtocolError("a load failed that had succeeded")
        self._load_error = error
        self._condemn(error.message)

    def _send(self, live: LiveRequest) -> None:
        assert self._channel is not None
        load_ms = 0.0
        if self._ready_at_s is not None:
            load_ms = max(0.0, self._ready_at_s - live.accepted_at_s) * 1000
        if self._ledger.num_sent() == 0:
            self._step_watch.on_progress()
        self._has_seen_prompts = True
        self._ledger.mark_sent(live)
        self._channel.send(Submit(live.request, live.accepted_at_s, load_ms))

    def _tell_cancelled(self, request_id: str) -> None:
        if self._channel is not None:
            self._channel.send(Cancel(request_id))


def _check_sendable(request: GenerateRequest, now_s: float) -> None:
    try:
        num_bytes = len(encode(Submit(request, now_s))) - LENGTH_BYTES
    except (UnicodeEncodeError, OverflowError, msgspec.MsgspecError, TypeError) as error:
        raise InvalidRequest(f"the request cannot be passed on: {error}") from error
    if num_bytes > MAX_FRAME_TO_WORKER_BYTES:
        raise PayloadTooLarge(f"the request has {num_bytes} bytes; at most {MAX_FRAME_TO_WORKER_BYTES} are taken")


def _quarantined(name: str, cause: str) -> EdgeAgentError:
    return BackendUnavailable(
        f"the process of model {name!r} crashed too often ({cause}); it is left alone for a while", served_by="local"
    )


def _renewed(error: EdgeAgentError, retry_after_s: float) -> EdgeAgentError:
    """Return an error of the same kind to raise once more (one exception object collects tracebacks)."""
    return type(error)(error.message, param=error.param, retry_after_s=max(1.0, retry_after_s), served_by="local")
