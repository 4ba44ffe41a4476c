"""The worker process: one model behind a pipe.

Up to five threads communicate through queues:

- The reader reads frames from stdin, and answers pings even in the middle of a step.
- The preparer renders and tokenizes, so that a long template or prompt does not delay other streams. Only a model that
  generates has a preparer.
- The main thread runs the engine.
- The writer makes the texts of the engine's tokens and writes all frames to stdout, so that delivery never delays a
  step.
- The questions thread answers queries, such as Tokenize. For an Embed or a Rerank, it only tokenizes the texts.

A side context has its own thread. With a disk cache, one more thread reads and writes blocks. When the daemon ends,
stdin ends and the process exits.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import psutil
from msgspec import structs

from edgeagent.engine.cache.disk.store import BlockStore
from edgeagent.engine.llama.encoder import needs_whole_texts
from edgeagent.engine.llama.model import split_parts
from edgeagent.errors import EdgeAgentError, InternalError, ModelOutOfMemory
from edgeagent.process_settings import keep_collections_short, switch_threads_often
from edgeagent.types import Embed, PurgeCache, Rerank, WorkerStatus
from edgeagent.worker.child.block_writer import start_block_store
from edgeagent.worker.child.encoder.host import EncoderHost
from edgeagent.worker.child.encoder.loop import EncoderLoop
from edgeagent.worker.child.frame_writer import FrameWriter, Outlet
from edgeagent.worker.child.generator.host import Host
from edgeagent.worker.child.generator.loop import GeneratorLoop, PromptReady, PromptRefused
from edgeagent.worker.child.memory_limit import MemoryLimit
from edgeagent.worker.child.opening import can_take_less, open_model
from edgeagent.worker.child.questions import Questions
from edgeagent.worker.child_process import claim_stdout, end_with_parent, ignore_interrupts
from edgeagent.worker.exit_cause import describe_excess, describe_unwritten
from edgeagent.worker.protocol import (
    Ask,
    Cancel,
    Drop,
    Load,
    LoadFailed,
    LoadProgress,
    Ping,
    Pong,
    ProtocolError,
    Ready,
    RenderAnswer,
    Stop,
    Submit,
    ToWorker,
    read_to_worker,
)
from edgeagent.worker.render.renderer import RenderLink
from edgeagent.worker.sandbox.sandbox import enclose, set_limits

_PROGRESS_EVERY = 0.01  # as a fraction of the file


@dataclass(frozen=True, slots=True)
class _Served:
    """What gets the messages to a ready worker."""

    host: Host | EncoderHost
    loop: GeneratorLoop | EncoderLoop
    questions: Questions
    store: BlockStore | None


class _Reader(threading.Thread):
    """Reads frames from stdin, answers pings and passes on the other messages.

    While the model is loaded, it passes on only the renderer's answers. If the stream ends, the daemon is gone, and
    this thread ends the process. It also does so after an invalid frame, and if the process takes too much memory.
    """

    def __init__(self, stream: BinaryIO, writer: FrameWriter, link: RenderLink) -> None:
        super().__init__(name="reader", daemon=True)
        self._stream = stream
        self._writer = writer  # keeps the pipe to the daemon open until the process ends
        self._link = link
        self._served: _Served | None = None
        self._process = psutil.Process()
        self._memory_limit = MemoryLimit(0)
        self._ponged_at_s = time.monotonic()
        self._num_tokens_then = 0

    def serve(self, served: _Served) -> None:
        """Pass on requests and queries from now on. Call this before the daemon is told that the model is ready."""
        self._memory_limit = MemoryLimit(_own_bytes(self._process.memory_info()))
        self._served = served

    def run(self) -> None:
        while True:
            try:
                message = read_to_worker(self._stream)
            except (ProtocolError, OSError) as error:
                _complain(str(error))
                message = None
            match message:
                case None:
                    # Do not wait for the main thread, which may be in a decode. Nothing needs a clean-up.
                    os._exit(0)
                case RenderAnswer():
                    self._link.on_answer(message)
                case Ping(nonce, share, power):
                    served = self._served
                    if share is not None and served is not None and served.store is not None:
                        served.store.set_share(share.max_bytes, share.max_bytes_per_hour)
                    if served is not None:
                        served.host.power = power
                    self._writer.frames.put(Pong(nonce, WorkerStatus() if served is None else self._status(served)))
                case Load():
                    _complain("a second Load; ignored")
                case _ if self._served is not None:
                    _pass_on(message, self._served)

    def _status(self, served: _Served) -> WorkerStatus:
        loop, memory = served.loop, self._process.memory_info()
        if excess := self._memory_limit.excess(_own_bytes(memory), loop.planned_bytes):
            _complain(describe_excess(excess))
            os._exit(1)
        status, now_s = loop.status, time.monotonic()
        rate = (status.num_output_tokens_total - self._num_tokens_then) / max(now_s - self._ponged_at_s, 1e-3)
        self._ponged_at_s, self._num_tokens_then = now_s, status.num_output_tokens_total
        return structs.replace(
            status,
            step_started_at_s=loop.step_started_at_s,
            preparing_since_s=loop.preparing_since_s,
            preparing_id=loop.preparing_id,
            tokens_per_second=rate,
            rss_bytes=memory.rss,
            disk_cache=served.host.disk_cache(),
            held_back=served.host.power.why,
        )


def _pass_on(message: ToWorker, served: _Served) -> None:
    match message:
        case Submit():
            served.loop.submit(message)
        case Cancel() | Stop() | Ask(query=PurgeCache()):
            served.loop.interrupt(message)
        case Ask(query=query):
            if isinstance(query, Embed | Rerank):
                served.loop.ask(message)
            served.questions.ask(message)
        case Drop(ask_id):
            served.questions.drop(ask_id)
            served.loop.drop(message)


class _PromptPreparer(threading.Thread):
    """Renders and tokenizes prompts, one request after the other."""

    def __init__(self, host: Host, loop: GeneratorLoop) -> None:
        super().__init__(name="preparer", daemon=True)
        self._host = host
        self._loop = loop

    def run(self) -> None:
        while True:
            self._prepare(self._loop.to_prepare.get())

    def _prepare(self, submit: Submit) -> None:
        self._loop.preparing_id = submit.request.id
        self._loop.preparing_since_s = time.monotonic()
        try:
            prepared = self._host.prepare(submit.request, submit.delivered)
            self._loop.hand_in(PromptReady(submit, prepared))
        except EdgeAgentError as error:
            self._loop.commands.put(PromptRefused(submit, error))
        except BaseException:  # one bad request must not end the loop; a Rust panic is not an Exception
            traceback.print_exc()
            unknown = InternalError("The request could not be prepared; the daemon's log has the details.")
            self._loop.commands.put(PromptRefused(submit, unknown))
        finally:
            self._loop.preparing_since_s = 0.0


def _own_bytes(memory: Any) -> int:
    """Return the process's anonymous memory in bytes, from psutil's counts; 0 if it is not reported (macOS)."""
    if hasattr(memory, "shared"):  # Linux
        return int(memory.rss - memory.shared)
    return int(getattr(memory, "private", 0))  # Windows


def _complain(message: str) -> None:
    sys.stderr.write(f"edgeagent worker: {message}\n")
    sys.stderr.flush()


def _let_others_go_first(nice: int) -> None:
    """Give this process at least this niceness, so that other programs get the CPUs first."""
    if sys.platform != "win32":
        os.nice(max(0, nice - os.nice(0)))
    elif nice:
        psutil.Process().nice(psutil.BELOW_NORMAL_PRIORITY_CLASS)


def _enclose(load: Load) -> tuple[str, ...]:
    """Enter the sandbox and return the restrictions that took effect; ("off",) if the sandbox is switched off."""
    if not load.engine_config.sandbox:
        return ("off",)
    models = [Path(path) for path in (load.path, load.draft_path) if path is not None]
    files = [part for model in models for part in split_parts(model)]
    return enclose([*files, *map(Path, load.adapters.values())], map(Path, load.writable))


def _load(
    message: Load, sandbox: tuple[str, ...], store: BlockStore | None, writer: FrameWriter, link: RenderLink
) -> Host | EncoderHost:
    last = -1.0

    def report(fraction: float) -> None:
        nonlocal last
        if fraction - last >= _PROGRESS_EVERY or fraction >= 1.0:
            last = fraction
            writer.write_now(LoadProgress(fraction))

    def report_part(part: str) -> None:
        writer.write_now(LoadProgress(last, part))  # the part may end the process

    started_s = time.monotonic()
    opened = open_model(message, report)
    if needs_whole_texts(opened.model):
        return EncoderHost(message, opened, sandbox, report_part, started_s)
    link.start()  # the renderer starts while the context is made
    return Host(message, opened, sandbox, store, report_part, link.open, started_s)


def _start(host: Host | EncoderHost, frames: Outlet) -> GeneratorLoop | EncoderLoop:
    """Make the loop for the main thread. For a model that generates, also start the preparer."""
    if isinstance(host, EncoderHost):
        return EncoderLoop(host, frames)
    loop = GeneratorLoop(host, frames)
    _PromptPreparer(host, loop).start()
    return loop


def main() -> int:
    """Run a worker on stdin and stdout. Return its exit code: 0 after Stop, 1 if the load failed, 2 without a Load."""
    end_with_parent()
    set_limits()
    switch_threads_often()
    ignore_interrupts()
    writer = FrameWriter(claim_stdout())
    try:
        message = read_to_worker(sys.stdin.buffer)
    except ProtocolError:
        message = None
    if not isinstance(message, Load):
        _complain("the first message must be Load; this program is started by the daemon")
        return 2
    _let_others_go_first(message.engine_config.nice)  # before threads start, which take over the value
    sandbox = _enclose(message)
    writer.start()
    link = RenderLink(writer.frames.put)
    reader = _Reader(sys.stdin.buffer, writer, link)
    reader.start()
    store = None if message.disk is None else start_block_store(message.disk)
    try:
        host = _load(message, sandbox, store, writer, link)
    except EdgeAgentError as error:
        can_retry = isinstance(error, ModelOutOfMemory) and can_take_less(message)
        writer.frames.put(LoadFailed(error.code, error.message, can_take_less=can_retry))
        writer.frames.put(None)
        writer.join()
        return 1
    loop = _start(host, writer.frames)
    keep_collections_short()
    if store is not None:
        store.is_busy = lambda: loop.status.num_running > 0
    questions = Questions(host.answer, writer.frames, loop.read_texts)
    questions.start()
    reader.serve(_Served(host, loop, questions, store))
    writer.frames.put(Ready(host.info, host.notes, host.warnings))
    loop.run()
    writer.frames.put(None)
    writer.join()
    host.close()
    if store is not None and store.left_out_bytes:
        _complain(describe_unwritten(store.left_out_bytes))
    return 0


if __name__ == "__main__":
    # Skip the interpreter's clean-up, which could hang. Nothing needs it.
    code = main()
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.flush()
    os._exit(code)
