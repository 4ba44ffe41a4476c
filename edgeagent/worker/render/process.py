"""The renderer: a process that runs a model's chat template, apart from the worker that runs the model.

It also compiles each grammar of a client once before the worker does, since the work may double with each part of a
schema. Jinja's work in C (comparing, sorting, formatting) and llguidance's cannot be interrupted from Python. So the
daemon watches each job, and ends the process if the job takes too much CPU time or memory. On Linux the kernel limits
the memory too. Then only that job's request fails, and the next job starts another renderer.
"""

from __future__ import annotations

import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from msgspec import structs

from edgeagent.errors import EdgeAgentError, InternalError, InvalidRequest
from edgeagent.process_settings import keep_little_freed_memory
from edgeagent.text.grammar.fault import grammar_fault
from edgeagent.text.template.chat_template import ChatTemplate
from edgeagent.text.template.rendered import Pieces
from edgeagent.worker.child_process import claim_stdout, end_with_parent, ignore_interrupts
from edgeagent.worker.protocol import ENCLOSED, MAX_FRAME_TO_WORKER_BYTES, MAX_RENDERER_BYTES, framed, read_frame
from edgeagent.worker.render.protocol import (
    Answer,
    Check,
    Checked,
    Done,
    Job,
    NotOpen,
    Open,
    Opened,
    Refused,
    Render,
    decode_job,
    encode,
)
from edgeagent.worker.sandbox.sandbox import enclose_renderer, set_limits

MAX_ANSWER_BYTES = 16 << 20
"""The most bytes of an answer, so that it fits into a frame to the worker."""
# More CPU time than the daemon allows any job. It ends an endless job whose daemon was killed.
_MAX_CPU_S = 20


def main() -> None:
    """Carry out jobs from stdin until its end. First an empty frame goes to stdout, then the answers."""
    end_with_parent()
    set_limits()
    ignore_interrupts()
    frames = claim_stdout()
    if ENCLOSED in sys.argv:
        enclose_renderer()
    _limit_memory()
    keep_little_freed_memory()
    _send(frames, b"")  # the time of jobs begins here
    template = None
    while (body := read_frame(sys.stdin.buffer, MAX_FRAME_TO_WORKER_BYTES)) is not None:
        _limit_cpu()
        template, answer = carry_out(template, decode_job(body))
        _send(frames, answer)
        del body, answer  # they may be large, and the next job late


def _send(frames: BinaryIO, body: bytes) -> None:
    frames.write(framed(body))
    frames.flush()


def carry_out(template: ChatTemplate | None, job: Job) -> tuple[ChatTemplate | None, bytes]:
    """Return the template that is open after a job, and the encoded answer."""
    began_s = time.process_time()
    outcome: Opened | NotOpen | Done | Checked | Refused
    try:
        match job:
            case Open():
                template = ChatTemplate(**structs.asdict(job))
                outcome = Opened(template.supports_tools, template.supports_reasoning, template.tool_format)
            case Render() if template is None:
                outcome = NotOpen()
            case Render(prompt):
                assert template is not None
                rendered = template.render(prompt)
                outcome = Done(rendered.pieces, rendered.open_reasoning, rendered.media_marks)
            case Check(grammar):
                outcome = Checked(grammar_fault(grammar))
        return template, _encode(outcome, began_s)
    except EdgeAgentError as error:
        refused = error
    except MemoryError:
        refused = InvalidRequest("the model's chat template, or the schema, takes too much memory")
    except Exception:
        traceback.print_exc()
        refused = InternalError("The prompt could not be rendered; the daemon's log has the details.")
    text = refused.message.encode("utf-8", "replace").decode()
    return template, _encode(Refused(refused.code, text, refused.param), began_s)


def _encode(outcome: Opened | NotOpen | Done | Checked | Refused, began_s: float) -> bytes:
    cpu_s = time.process_time() - began_s
    try:
        body = encode(Answer(outcome, cpu_s))
    except UnicodeEncodeError:  # a template may write lone surrogates
        assert isinstance(outcome, Done)
        body = encode(Answer(structs.replace(outcome, pieces=_whole(outcome.pieces)), cpu_s))
    if len(body) > MAX_ANSWER_BYTES:
        raise InvalidRequest(f"the rendered prompt is longer than {MAX_ANSWER_BYTES >> 20} MiB", param="input")
    return body


def _whole(pieces: Pieces) -> Pieces:
    return tuple((text.encode("utf-8", "replace").decode(), is_trusted) for text, is_trusted in pieces)


def _limit_cpu() -> None:
    """Except on Windows, let the system end the process if the next job takes more than _MAX_CPU_S of CPU time."""
    if sys.platform != "win32":
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_CPU)
        with suppress(ValueError):  # the user has set a lower limit
            resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + 1 + _MAX_CPU_S, hard))


def _limit_memory() -> None:
    """On Linux, make allocations fail that would take more than MAX_RENDERER_BYTES."""
    if sys.platform != "linux":
        return
    import resource

    with suppress(OSError, ValueError):  # no /proc
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        most = pages * resource.getpagesize() + MAX_RENDERER_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


if __name__ == "__main__":
    main()
