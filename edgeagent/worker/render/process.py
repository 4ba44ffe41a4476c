"""The renderers: processes that run a model's chat template, apart from the worker that runs the model.

They also compile each grammar of a client once before the worker does, since the work may double with each part of a
schema. If a renderer is ended, only its own request fails. Jinja's work in C (comparing, sorting, formatting) does not
check budgets, and blocks all other threads of its process; llguidance's does not check them either. So the kernel
limits a renderer: a CPU timer ends the process, and a limit of the address space makes allocations fail. When a
renderer ends early, the keeper process reports this to the worker and starts another renderer. The keeper runs no
template code.

The worker forks the keeper before it starts threads and enters its sandbox, since the sandbox forbids new processes.
"""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import signal
import struct
import sys
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from edgeagent.errors import EdgeAgentError, InternalError, InvalidRequest
from edgeagent.text.grammar.compiler import grammar_fault
from edgeagent.text.template.chat_template import ChatTemplate
from edgeagent.text.template.rendered import Rendered
from edgeagent.worker.render.protocol import (
    Check,
    Checked,
    Done,
    Ended,
    Frames,
    FromRenderer,
    NotOpen,
    Open,
    Opened,
    Render,
    RenderFailed,
    ToRenderer,
    decode_to_renderer,
    encode,
    send,
)
from edgeagent.worker.sandbox import sandbox

# CPU time for compiling a template and finding out what it supports. The template's own budgets, which raise an error,
# are smaller.
OPEN_CPU_S = 5.0
# The most bytes that a renderer may map, in addition to those that are mapped at its start.
MAX_MEMORY_BYTES = 256 << 20
_MAX_DESCRIPTORS = 4096
_PR_SET_PDEATHSIG = 1
_number = struct.Struct("<Q")

Pipes = tuple[int, int]
"""The file descriptors to read from and to write to."""


@dataclass(frozen=True, slots=True)
class _RendererParams:
    """The parameters of a renderer.

    `mark` begins each frame. `busy_number` is shared with the keeper and holds the number of the message that the
    renderer is working on, or 0. `num_ended` is how many earlier renderers at this pipe have ended.
    """

    pipe: Pipes
    mark: bytes
    busy_number: mmap.mmap
    num_ended: int


def keep(pipes: list[Pipes], mark: bytes, *, is_enclosed: bool) -> None:
    """Keep a renderer running at each pair of pipes until the worker is gone, then end this process.

    Call this in a new process. It does not return. `mark` begins each frame. With `is_enclosed`, each renderer enters
    the sandbox.
    """
    try:
        worker = os.getppid()
        _leave_the_worker(pipes)
        _end_with(worker)
        gc.freeze()  # objects that are never collected stay shared with the worker
        busy_numbers = [mmap.mmap(-1, _number.size) for _ in pipes]
        num_ended = [0 for _ in pipes]

        def start(index: int) -> int:
            return _start(_RendererParams(pipes[index], mark, busy_numbers[index], num_ended[index]), is_enclosed)

        pids = {start(index): index for index in range(len(pipes))}
        while pids:
            pid, status = os.wait()
            index = pids.pop(pid)
            code = os.waitstatus_to_exitcode(status)
            if code == 0:
                for descriptor in pipes[index]:
                    os.close(descriptor)
                continue
            (number,) = _number.unpack(busy_numbers[index][:])
            busy_numbers[index][:] = _number.pack(0)
            num_ended[index] += 1
            send(pipes[index][1], mark, encode(Ended(number, max(0, -code))))
            pids[start(index)] = index
    except BaseException:
        _write_traceback()
    os._exit(0)


def _write_traceback() -> None:
    """Try to write the traceback to stderr. This must not raise, or this fork of the worker would continue to run."""
    with suppress(BaseException):
        os.write(2, traceback.format_exc().encode(errors="backslashreplace"))


def _leave_the_worker(pipes: list[Pipes]) -> None:
    """Close this fork's copies of the worker's files, except stderr and `pipes`.

    Otherwise the pipes between worker and daemon would stay open after the worker's end.
    """
    kept = {2, *(descriptor for pipe in pipes for descriptor in pipe)}
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    low = 3
    for descriptor in sorted(kept - {2}):
        os.closerange(low, descriptor)
        low = descriptor + 1
    os.closerange(low, _MAX_DESCRIPTORS)


def _end_with(parent: int) -> None:
    """On Linux, end this process when `parent` ends. On other systems, the end of its pipe ends this process."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(0)


def _start(params: _RendererParams, is_enclosed: bool) -> int:
    keeper = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        _end_with(keeper)
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        if is_enclosed:
            sandbox.enclose_renderer()
        _limit_memory()
    except BaseException:
        _write_traceback()
        os._exit(0)  # the next renderer would fail too
    try:
        _serve(params)
    except BaseException:
        _write_traceback()
        os._exit(1)
    os._exit(0)


def _limit_memory() -> None:
    import resource

    with suppress(OSError, ValueError):  # no /proc
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        most = pages * resource.getpagesize() + MAX_MEMORY_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _serve(params: _RendererParams) -> None:
    template: ChatTemplate | None = None
    busy_number = params.busy_number
    frames = Frames(params.pipe[0], params.mark)
    while (body := frames.receive()) is not None:
        message = decode_to_renderer(body)
        if message.num_ended != params.num_ended:
            send(params.pipe[1], params.mark, encode(NotOpen(message.number)))
            continue
        busy_number[:] = _number.pack(message.number)
        began_s = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, OPEN_CPU_S if isinstance(message, Open) else message.cpu_s)
        try:
            if isinstance(message, Open):
                template = None
                template, frame = _open(message)
            elif isinstance(message, Check):
                fault = grammar_fault(message.grammar)
                frame = encode(Checked(message.number, fault, time.process_time() - began_s))
            else:
                frame = _render(template, message, began_s)
        except EdgeAgentError as error:
            frame = _refusal(message, error, began_s)
        except MemoryError:
            too_much = InvalidRequest("the model's chat template, or the schema, takes too much memory")
            frame = _refusal(message, too_much, began_s)
        except Exception:
            _write_traceback()
            unknown = InternalError("The prompt could not be rendered; the daemon's log has the details.")
            frame = _refusal(message, unknown, began_s)
        signal.setitimer(signal.ITIMER_PROF, 0)
        send(params.pipe[1], params.mark, frame)
        # Clear the number only after the answer was sent. If the process is killed before that, the keeper must report
        # the number, or the worker would wait forever.
        busy_number[:] = _number.pack(0)


def _open(message: Open) -> tuple[ChatTemplate, bytes]:
    template = ChatTemplate(
        message.source,
        bos_text=message.bos_text,
        eos_text=message.eos_text,
        architecture=message.architecture,
        control_texts=message.control_texts,
        marker_texts=message.marker_texts,
    )
    opened = Opened(message.number, template.supports_tools, template.supports_reasoning, template.tool_format)
    return template, encode(opened)


def _render(template: ChatTemplate | None, message: Render, began_s: float) -> bytes:
    if template is None:
        return encode(NotOpen(message.number))
    rendered = template.render(message.prompt)
    try:
        return encode(Done(message.number, rendered, time.process_time() - began_s))
    except UnicodeEncodeError:  # a template may write lone surrogates
        return encode(Done(message.number, _whole(rendered), time.process_time() - began_s))


def _whole(rendered: Rendered) -> Rendered:
    pieces = tuple((text.encode("utf-8", "replace").decode(), is_trusted) for text, is_trusted in rendered.pieces)
    return Rendered("".join(text for text, _ in pieces), pieces, rendered.open_reasoning)


def _refusal(message: ToRenderer, error: EdgeAgentError, began_s: float) -> bytes:
    text = error.message.encode("utf-8", "replace").decode()
    refused: FromRenderer = RenderFailed(message.number, error.code, text, error.param, time.process_time() - began_s)
    return encode(refused)
