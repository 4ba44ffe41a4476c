"""The worker process: one model behind a pipe.

Five threads, and up to four more, communicate through queues:

- The reader reads frames from stdin, and answers pings even in the middle of a step.
- The preparer renders and tokenizes, so that a long template or prompt does not delay other streams. Only a model that
  generates has a preparer.
- The main thread runs the engine.
- The writer makes the texts of the engine's tokens and writes all frames to stdout, so that delivery never delays a
  step.
- The questions thread answers queries, such as Tokenize. For an Embed or a Rerank, it only tokenizes the texts.

A side context has its own thread, and so has the encoder of images and sounds, which begins another one for each chunk.
With a disk cache, one more thread reads and writes blocks. When the daemon ends, stdin ends and the process exits.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, BinaryIO

import psutil
from msgspec import structs

from edgeagent.engine.cache.disk.file_format import Seal
from edgeagent.engine.cache.disk.files import Files
from edgeagent.engine.cache.disk.folder import Limits
from edgeagent.engine.cache.disk.folder_state import FolderState
from edgeagent.engine.cache.disk.store import BlockStore
from edgeagent.engine.llama.encoder import needs_whole_texts
from edgeagent.engine.llama.model import split_parts
from edgeagent.errors import EdgeAgentError, InternalError, ModelOutOfMemory
from edgeagent.process_settings import keep_collections_short, keep_little_freed_memory, switch_threads_often
from edgeagent.types import Embed, PurgeCache, QueryAnswer, Rerank, TextQuery, WorkerStatus
from edgeagent.worker.child.encoder.host import EncoderHost, EncoderLoop
from edgeagent.worker.child.frame_writer import Frames, FrameWriter, Outlet
from edgeagent.worker.child.generator.host import Host
from edgeagent.worker.child.generator.loop import GeneratorLoop
from edgeagent.worker.child.generator.media import NOTHING_READ, Reading
from edgeagent.worker.child.opening import can_take_less, open_model
from edgeagent.worker.child_process import claim_stdout, end_with_parent, ignore_interrupts, lower_thread_priority
from edgeagent.worker.exit_cause import describe_excess, describe_unwritten
from edgeagent.worker.protocol import (
    AnswerPart,
    Ask,
    Cancel,
    DiskCache,
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
    failed_message,
    read_to_worker,
)
from edgeagent.worker.render.renderer import RemoteTemplate, RenderLink
from edgeagent.worker.sandbox.sandbox import enclose, set_limits

# Limits of one frame of an answer.
_MAX_TOKENS = 4096
_MAX_PIECE_BYTES = 256 << 10
_MAX_CHARS = 64 << 10


class Questions(threading.Thread):
    """Answers queries one after the other, with the function `answer`.

    For an Embed or a Rerank, this thread calls `compute`, which tokenizes and passes the tokens to the main thread. The
    main thread sends the answer.
    """

    def __init__(
        self,
        answer: Callable[[TextQuery], QueryAnswer],
        frames: Frames,
        compute: Callable[[str, Embed | Rerank], None],
    ) -> None:
        super().__init__(name="questions", daemon=True)
        self._answer_query = answer
        self._compute = compute
        self._frames = frames
        self._asks: SimpleQueue[Ask] = SimpleQueue()
        self._live: set[str] = set()  # several threads use it; each operation on it is atomic

    def ask(self, ask: Ask) -> None:
        """Queue a query for this thread; any thread may call this method."""
        self._live.add(ask.id)
        self._asks.put(ask)

    def drop(self, ask_id: str) -> None:
        """Drop a query; any thread may call this method.

        A running computation is finished, but no further part of its answer is sent. An error is still sent.
        """
        self._live.discard(ask_id)

    def run(self) -> None:
        """Answer until the process ends."""
        while True:
            self._answer(self._asks.get())

    def _answer(self, ask: Ask) -> None:
        if ask.id not in self._live:
            return
        try:
            if isinstance(ask.query, Embed | Rerank):
                self._compute(ask.id, ask.query)
                return
            *parts, last = _split(self._answer_query(ask.query))
            for part in parts:
                if ask.id in self._live:
                    self._frames.put(AnswerPart(ask.id, part, is_last=False))
            if ask.id in self._live:
                self._frames.put(AnswerPart(ask.id, last, is_last=True))
        except EdgeAgentError as error:
            self._frames.put(failed_message(ask.id, error))
        except BaseException:  # one bad question must not end the thread
            traceback.print_exc()
            unknown = InternalError("The question could not be answered; the daemon's log has the details.")
            self._frames.put(failed_message(ask.id, unknown))
        finally:
            self._live.discard(ask.id)


def _split(answer: QueryAnswer) -> Iterator[QueryAnswer]:
    """Yield parts of an answer, each small enough for a frame; the last may be empty."""
    for start in range(0, len(answer.text), _MAX_CHARS):
        yield QueryAnswer(answer.text[start : start + _MAX_CHARS])
    start = num_bytes = 0
    for index in range(len(answer.tokens)):
        num_bytes += len(answer.pieces[index]) if answer.pieces else 0
        if index - start >= _MAX_TOKENS or num_bytes > _MAX_PIECE_BYTES:
            yield QueryAnswer(tokens=answer.tokens[start:index], pieces=answer.pieces[start:index])
            start, num_bytes = index, len(answer.pieces[index]) if answer.pieces else 0
    yield QueryAnswer(tokens=answer.tokens[start:], pieces=answer.pieces[start:])


# Room for requests, compiled grammars, buffers, and memory that was freed but not returned to the system.
MAX_UNPLANNED_BYTES = 1 << 30


class MemoryLimit:
    """Compares a ready worker's memory with what it plans to take: cached blocks and further contexts.

    Memory that a plan has released still counts as planned, since the process may keep it.
    """

    def __init__(self, loaded_bytes: int) -> None:
        """`loaded_bytes`: the process's memory without mapped files after the load; 0 if the system does not tell."""
        self._loaded_bytes = loaded_bytes
        self._planned_bytes = 0

    def excess(self, own_bytes: int, planned_bytes: int) -> int:
        """Return how many unplanned bytes the process has taken if that is too many; otherwise 0.

        `own_bytes` is like `loaded_bytes`, but now. `planned_bytes`: how much of it the worker may have taken since its
        load, by its own count.
        """
        self._planned_bytes = max(self._planned_bytes, planned_bytes)
        unplanned_bytes = own_bytes - self._loaded_bytes - self._planned_bytes
        return unplanned_bytes if unplanned_bytes > MAX_UNPLANNED_BYTES else 0


def start_block_store(disk: DiskCache) -> BlockStore:
    """Make a block store and start its thread, which reads the folder while the model loads. Later it writes blocks."""
    files = Files(Path(disk.folder))
    # If the clock is wrong at a restart, blocks age by at most half of their time to live.
    state = FolderState(files, bytes_per_hour=disk.max_bytes_per_hour, max_gap_s=disk.max_unused_s / 2)
    limits = Limits(max_bytes=disk.max_bytes, min_free_bytes=disk.min_free_bytes, ttl_s=disk.max_unused_s)
    store = BlockStore(files, Seal(disk.secret), state, limits, close_s=disk.close_s)
    threading.Thread(target=_run, args=(store,), name="disk", daemon=True).start()
    return store


def _run(store: BlockStore) -> None:
    lower_thread_priority()
    store.run()


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
        reading = served.host.reading if isinstance(served.host, Host) else NOTHING_READ
        preparing_id, preparing_since_s = _older(loop.preparing, reading)
        rate = (status.num_output_tokens_total - self._num_tokens_then) / max(now_s - self._ponged_at_s, 1e-3)
        self._ponged_at_s, self._num_tokens_then = now_s, status.num_output_tokens_total
        return structs.replace(
            status,
            step_started_at_s=loop.step_started_at_s,
            preparing_since_s=preparing_since_s,
            preparing_id=preparing_id,
            tokens_per_second=rate,
            rss_bytes=memory.rss,
            disk_cache=served.host.disk_cache(),
            held_back=served.host.power.why,
        )


def _older(preparing: tuple[str, float], reading: tuple[str, float]) -> tuple[str, float]:
    """Return the one that was begun first, or ("", 0.0) if nothing is prepared and nothing is read.

    The daemon's watchdog needs the same one in each pong until it ends: other prompts are prepared while a decoder
    hangs.
    """
    return min(preparing, reading, key=lambda each: each[1] or math.inf)


def _pass_on(message: ToWorker, served: _Served) -> None:
    match message:
        case Submit():
            served.loop.submit(message)
        case Cancel() | Stop() | Ask(query=PurgeCache()):
            if isinstance(message, Cancel):
                served.questions.drop(message.id)
            served.loop.interrupt(message)
        case Ask(query=query):
            if isinstance(query, Embed | Rerank):
                served.loop.ask(message)
            served.questions.ask(message)


class _PromptPreparer(threading.Thread):
    """Renders and tokenizes prompts, one request after the other.

    A prompt with a new image or sound is set aside until that is decoded, and other requests are prepared meanwhile.
    """

    def __init__(self, host: Host, loop: GeneratorLoop) -> None:
        super().__init__(name="preparer", daemon=True)
        self._host = host
        self._loop = loop

    def run(self) -> None:
        while True:
            self._prepare(*self._loop.to_prepare.get())

    def _prepare(self, submit: Submit, reading: Reading | None = None) -> None:
        self._loop.preparing = submit.request.id, time.monotonic()
        queue = self._loop.to_prepare
        try:
            if (begin := self._host.next_to_read(submit.request, reading)) is not None:
                queue.set_aside(submit, reading, begin)
                return
            self._loop.hand_in(submit, self._host.prepare(submit.request, submit.delivered))
        except EdgeAgentError as error:
            self._loop.refuse(submit, error)
        except BaseException:  # one bad request must not end the loop; a Rust panic is not an Exception
            traceback.print_exc()
            unknown = InternalError("The request could not be prepared; the daemon's log has the details.")
            self._loop.refuse(submit, unknown)
        finally:
            self._loop.preparing = "", 0.0


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
    models = [Path(path) for path in (load.path, load.draft_path, load.projector_path) if path is not None]
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
    return Host(message, opened, partial(RemoteTemplate, link), sandbox, store, report_part, started_s)


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
    keep_little_freed_memory()  # before the first thread
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
