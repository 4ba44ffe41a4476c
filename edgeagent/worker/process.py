"""The worker process: one model behind a pipe.

Four threads, which talk through queues: the reader takes frames off stdin, the preparer renders and tokenizes, the main
thread runs the engine, the writer puts frames on stdout. So a long template or prompt never holds up other streams,
pings are answered in the middle of a step, and delivery never blocks the engine. When the daemon goes away, stdin ends
and the process exits.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import BinaryIO

import psutil
from msgspec import structs

from edgeagent.engine.engine import Output
from edgeagent.engine.sampling import Logprob
from edgeagent.errors import EdgeAgentError, InternalError
from edgeagent.text.output import OutputStream
from edgeagent.types import (
    Delta,
    Finished,
    FinishReason,
    Started,
    TextDelta,
    Timings,
    TokenLogprob,
    Usage,
    WorkerStatus,
)
from edgeagent.worker.host import Host, Prepared
from edgeagent.worker.protocol import (
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
    StepItem,
    Steps,
    Stop,
    Submit,
    encode,
    read_to_worker,
)

_PROGRESS_EVERY = 0.01  # of the file
_IDLE_S = 1.0
# An error may quote a schema or what a template says; a frame that is too large would cost the worker its life.
_MAX_ERROR_CHARS = 4096
# Text that was held back for long (white space, say) brings the log probabilities of all its tokens at once.
_MAX_LOGPROBS = 128


@dataclass(slots=True)
class _Request:
    """A request between its Submit and its end. `prepared` is None until the preparer is done with it."""

    submit: Submit
    prepared: Prepared | None = None
    started: bool = False


@dataclass(frozen=True, slots=True)
class _Ready:
    """The preparer's success."""

    submit: Submit
    prepared: Prepared


@dataclass(frozen=True, slots=True)
class _Refused:
    """The preparer's failure."""

    submit: Submit
    error: EdgeAgentError


_Command = Submit | Cancel | Stop | _Ready | _Refused


class Worker:
    """The main thread's state: which requests there are and what the engine makes of them."""

    def __init__(self, host: Host, frames: SimpleQueue[FromWorker | None]) -> None:
        self._host = host
        self._engine = host.engine
        self._frames = frames
        self.commands: SimpleQueue[_Command] = SimpleQueue()
        self.to_prepare: SimpleQueue[Submit] = SimpleQueue()
        self._requests: dict[str, _Request] = {}
        self._num_output_tokens = 0
        self._num_prompt_tokens = 0
        self._num_cached_tokens = 0
        # Written by the main thread, read by the reader thread for pongs.
        self.status = WorkerStatus()
        self.step_started_at_s = 0.0

    def run(self) -> None:
        """Serve until Stop."""
        while self.turn():
            pass

    def turn(self) -> bool:
        """Carry out the commands that have come, waiting for one if there is no work, and a step; False on Stop."""
        # Cleared before the commands are read: a cancel that comes later sets it again and is not lost.
        self._host.clear_abort()
        if not self._take_commands():
            return False
        if self._engine.has_work:
            self._host.adjust_threads()
            self.step_started_at_s = time.monotonic()
            self._send(self._engine.admit())
            self._send(self._engine.step(self._is_wanted))
            self.step_started_at_s = 0.0
        self._publish()
        return True

    def interrupt(self, command: Cancel | Stop) -> None:
        """Hand in a command from the reader thread, and stop a step that would make it wait.

        Either the step is seen here, or the command is seen before the step begins (`_is_wanted`).
        """
        self.commands.put(command)
        if self._engine.is_in_long_step:
            self._host.request_abort()

    def _is_wanted(self) -> bool:
        return not self.commands.empty()

    def _take_commands(self) -> bool:
        """Carry out all waiting commands; wait for one if there is nothing else to do. False on Stop."""
        can_wait = not self._engine.has_work
        with contextlib.suppress(Empty):
            while True:
                command = self.commands.get(block=can_wait)
                can_wait = False
                match command:
                    case Submit():
                        # Of two with one id the first counts: one end is all that the daemon can tell apart.
                        self._requests.setdefault(command.request.id, _Request(command))
                    case _Ready():
                        self._begin(command)
                    case _Refused(submit, error):
                        if self._is_awaited(submit):
                            self._refuse(submit.request.id, error)
                    case Cancel():
                        self._cancel(command.id)
                    case Stop():
                        for request_id in list(self._requests):
                            self._cancel(request_id)
                        return False
        return True

    def _is_awaited(self, submit: Submit) -> bool:
        """Whether this is a live request's; it may have been cancelled while it was prepared, and its id used again."""
        request = self._requests.get(submit.request.id)
        return request is not None and request.submit is submit

    def _begin(self, ready: _Ready) -> None:
        if not self._is_awaited(ready.submit):
            return
        try:
            self._engine.add(ready.prepared.spec)
            self._requests[ready.submit.request.id].prepared = ready.prepared
        except EdgeAgentError as error:
            self._refuse(ready.submit.request.id, error)

    def _refuse(self, request_id: str, error: EdgeAgentError) -> None:
        """End a request with an error."""
        del self._requests[request_id]
        self._frames.put(Failed(request_id, error.code, error.message[:_MAX_ERROR_CHARS], error.param))

    def _cancel(self, request_id: str) -> None:
        request = self._requests.pop(request_id, None)
        if request is None:
            return
        sequence = self._engine.cancel(request_id)
        deltas: list[Delta] = []
        if request.prepared is not None:
            deltas += request.prepared.output.finish()
        output = Output(sequence) if sequence is not None else None
        deltas.append(self._finished(request, output, FinishReason.CANCELLED))
        self._put([StepItem(request_id, tuple(deltas))], time.monotonic())

    def _send(self, outputs: list[Output]) -> None:
        """Turn a step's outputs into one frame."""
        at_s = time.monotonic()
        items = []
        for output in outputs:
            request = self._requests[output.sequence.id]
            if output.error is not None:
                self._refuse(output.sequence.id, output.error)
                continue
            item = self._item(request, output)
            if item.deltas or item.tokens:
                items.append(item)
        self._put(items, at_s)

    def _put(self, items: list[StepItem], at_s: float) -> None:
        """Send one frame with all items, after those of items that are too large for it."""
        last = []
        for item in items:
            *parts, rest = _split(item)
            last.append(rest)
            for part in parts:
                self._frames.put(Steps(at_s, (part,)))
        if last:
            self._frames.put(Steps(at_s, tuple(last)))

    def _item(self, request: _Request, output: Output) -> StepItem:
        assert request.prepared is not None
        stream, sequence = request.prepared.output, output.sequence
        deltas: list[Delta] = []
        if not request.started:
            request.started = True
            self._num_prompt_tokens += sequence.num_prompt
            self._num_cached_tokens += sequence.num_cached
            deltas.append(Started(sequence.num_prompt, sequence.num_cached))
        self._num_output_tokens += len(output.tokens)
        num_before = stream.num_tokens
        if output.tokens:
            deltas += stream.feed(output.tokens, [self._with_piece(logprob) for logprob in output.logprobs])
        reason = output.finish_reason
        if reason is None and stream.stopped is not None:
            self._engine.cancel(sequence.id)
            reason = FinishReason.STOP
        if reason is not None:
            del self._requests[sequence.id]
            deltas += stream.finish()
            deltas.append(self._finished(request, output, _reason(reason, stream)))
        # Tokens behind a stop string, which a step with drafts may bring, are no part of the answer.
        return StepItem(sequence.id, tuple(deltas), tuple(output.tokens[: stream.num_tokens - num_before]))

    def _with_piece(self, logprob: Logprob) -> TokenLogprob:
        top = tuple(self._with_piece(rival) for rival in logprob.top)
        return TokenLogprob(logprob.token, self._host.model.piece(logprob.token), logprob.logprob, top)

    def _finished(self, request: _Request, output: Output | None, reason: FinishReason) -> Finished:
        """Return the terminal delta; `output` is None where the request never reached the engine."""
        prepared = request.prepared
        if output is None or prepared is None:
            waited_ms = (time.monotonic() - request.submit.accepted_at_s) * 1000 - request.submit.load_ms
            return Finished(reason, Usage(), Timings(queue_ms=max(0.0, waited_ms), load_ms=request.submit.load_ms))
        sequence, marks, submit = output.sequence, output.sequence.marks, request.submit
        load_s, render_s = submit.load_ms / 1000, prepared.render_ms / 1000
        claimed_s = marks.claimed_s or time.monotonic()
        prefilled_s = marks.first_token_s or time.monotonic()
        return Finished(
            reason=reason,
            usage=Usage(
                num_prompt_tokens=sequence.num_prompt,
                num_cached_tokens=sequence.num_cached,
                num_output_tokens=prepared.output.num_tokens,
                num_reasoning_tokens=prepared.output.num_reasoning_tokens,
            ),
            timings=Timings(
                queue_ms=max(0.0, claimed_s - submit.accepted_at_s - load_s - render_s - marks.cache_s) * 1000,
                load_ms=submit.load_ms,
                render_ms=prepared.render_ms,
                cache_ms=marks.cache_s * 1000,
                prefill_ms=(prefilled_s - marks.prefill_s) * 1000 if marks.prefill_s else 0.0,
                first_token_ms=(marks.first_token_s - submit.accepted_at_s) * 1000 if marks.first_token_s else 0.0,
                decode_ms=(marks.last_token_s - marks.first_token_s) * 1000,
                num_draft_tokens=sequence.num_drafted,
                num_accepted_tokens=sequence.num_accepted,
            ),
            stop_string=None if reason is FinishReason.CANCELLED else prepared.output.stopped,
        )

    def _publish(self) -> None:
        status = self._engine.status()
        self.status = WorkerStatus(
            num_steps=status.num_steps,
            num_running=status.num_running,
            num_waiting=status.num_waiting,
            num_cells_used=status.num_cells_used,
            num_cells=self._host.num_cells,
            num_prompt_tokens_total=self._num_prompt_tokens,
            num_cached_tokens_total=self._num_cached_tokens,
            num_output_tokens_total=self._num_output_tokens,
            num_threads=self._host.num_threads,
        )


def _reason(reason: FinishReason, stream: OutputStream) -> FinishReason:
    """Return why an answer ended, as its text tells: a stop string counts where the last token has both."""
    if stream.stopped is not None:
        reason = FinishReason.STOP
    return FinishReason.TOOL_CALLS if reason is FinishReason.STOP and stream.has_tool_calls else reason


def _split(item: StepItem) -> list[StepItem]:
    """Return an item as one or more, each of which fits a frame with many others."""
    parts: list[StepItem] = []
    deltas: list[Delta] = []
    for delta in item.deltas:
        rest = delta
        while isinstance(rest, TextDelta) and len(rest.logprobs) > _MAX_LOGPROBS:
            parts.append(StepItem(item.id, (*deltas, TextDelta(rest.text, rest.logprobs[:_MAX_LOGPROBS]))))
            deltas, rest = [], TextDelta("", rest.logprobs[_MAX_LOGPROBS:])
        deltas.append(rest)
    return [*parts, StepItem(item.id, tuple(deltas), item.tokens)]


class _Reader(threading.Thread):
    """Takes frames off stdin; answers pings itself. At the end of the stream nobody is left to serve."""

    def __init__(self, stream: BinaryIO, worker: Worker, frames: SimpleQueue[FromWorker | None]) -> None:
        super().__init__(name="reader", daemon=True)
        self._stream = stream
        self._worker = worker
        self._frames = frames
        self._process = psutil.Process()
        self._ponged_at_s = time.monotonic()
        self._num_tokens_then = 0

    def run(self) -> None:
        while True:
            try:
                message = read_to_worker(self._stream)
            except (ProtocolError, OSError) as error:
                _complain(str(error))
                message = None
            match message:
                case None:
                    # The main thread may be deep in a decode; nothing it holds needs more than the end of the process.
                    os._exit(0)
                case Submit():
                    self._worker.commands.put(message)
                    self._worker.to_prepare.put(message)
                case Cancel() | Stop():
                    self._worker.interrupt(message)
                case Ping(nonce):
                    self._frames.put(Pong(nonce, self._status()))
                case Load():
                    _complain("a second Load; ignored")

    def _status(self) -> WorkerStatus:
        status, now_s = self._worker.status, time.monotonic()
        rate = (status.num_output_tokens_total - self._num_tokens_then) / max(now_s - self._ponged_at_s, 1e-3)
        self._ponged_at_s, self._num_tokens_then = now_s, status.num_output_tokens_total
        return structs.replace(
            status,
            step_started_at_s=self._worker.step_started_at_s,
            tokens_per_second=rate,
            rss_bytes=self._process.memory_info().rss,
        )


class _Preparer(threading.Thread):
    """Renders and tokenizes, one request after the other."""

    def __init__(self, host: Host, worker: Worker) -> None:
        super().__init__(name="preparer", daemon=True)
        self._host = host
        self._worker = worker

    def run(self) -> None:
        try:
            self._prepare(self._worker.to_prepare.get(timeout=_IDLE_S))
        except Empty:
            # Nothing to do: spare the first schema a wait. A vocabulary that will not do says so when asked.
            with contextlib.suppress(BaseException):
                self._host.prepare_grammars()
        while True:
            self._prepare(self._worker.to_prepare.get())

    def _prepare(self, submit: Submit) -> None:
        try:
            self._worker.commands.put(_Ready(submit, self._host.prepare(submit.request)))
        except EdgeAgentError as error:
            self._worker.commands.put(_Refused(submit, error))
        except BaseException:  # the loop's edge: one bad request (a panic in Rust is no Exception) must not end it
            traceback.print_exc()
            unknown = InternalError("The request could not be prepared; the daemon's log has the details.")
            self._worker.commands.put(_Refused(submit, unknown))


class _Writer(threading.Thread):
    """Puts frames on the pipe; None ends it."""

    def __init__(self, stream: BinaryIO) -> None:
        super().__init__(name="writer", daemon=True)
        self.frames: SimpleQueue[FromWorker | None] = SimpleQueue()
        self._stream = stream

    def run(self) -> None:
        while (frame := self.frames.get()) is not None:
            try:
                self._stream.write(encode(frame))
                self._stream.flush()
            except OSError:
                os._exit(0)  # the daemon is gone


def _complain(message: str) -> None:
    sys.stderr.write(f"edgeagent worker: {message}\n")
    sys.stderr.flush()


def _detach_from_terminal() -> None:
    """Leave Ctrl-C to the daemon, which stops its workers in order."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _die_with_parent() -> None:
    """Ask for SIGKILL when the daemon dies, and allow no core file (it would hold prompts). Where the platform can."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    if os.name == "posix":
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _claim_stdout() -> BinaryIO:
    """Return the frame pipe, and send whatever else is printed to stderr: llama.cpp prints to stdout at times."""
    frames = os.fdopen(os.dup(sys.stdout.fileno()), "wb")  # buffered: a raw pipe may take a part of what is written
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return frames


def _load(message: Load, frames: SimpleQueue[FromWorker | None]) -> Host:
    last = -1.0

    def report(fraction: float) -> None:
        nonlocal last
        if fraction - last >= _PROGRESS_EVERY or fraction >= 1.0:
            last = fraction
            frames.put(LoadProgress(fraction))

    return Host(message, report)


def main() -> int:
    """Run a worker on stdin and stdout; return the exit code."""
    _die_with_parent()
    _detach_from_terminal()
    writer = _Writer(_claim_stdout())
    writer.start()
    try:
        message = read_to_worker(sys.stdin.buffer)
    except ProtocolError:
        message = None
    if not isinstance(message, Load):
        _complain("the first message must be Load; this program is started by the daemon")
        return 2
    try:
        host = _load(message, writer.frames)
    except EdgeAgentError as error:
        writer.frames.put(LoadFailed(error.code, error.message))
        writer.frames.put(None)
        writer.join()
        return 1
    worker = Worker(host, writer.frames)
    writer.frames.put(Ready(host.info))
    _Preparer(host, worker).start()
    _Reader(sys.stdin.buffer, worker, writer.frames).start()
    worker.run()
    writer.frames.put(None)
    writer.join()
    return 0


if __name__ == "__main__":
    # Native threads and the daemon threads above hold nothing that must be unwound; a clean-up could only hang.
    code = main()
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.flush()
    os._exit(code)
