"""Runs the process that quantizes a model file, and reads its progress."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from edgeagent.errors import ModelLoadFailed
from edgeagent.worker.exit_cause import describe_exit, num_oom_kills
from edgeagent.worker.parent.environment import worker_environment

QUANTIZE_COMMAND = (sys.executable, "-P", "-m", "edgeagent.worker.child.quantize")
_MAX_STDERR_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class Order:
    """The parameters of a quantization.

    `sources` are the model's file, or all files of a split model in order. `target` must exist and be empty.
    `file_type` is llama.cpp's number for the type of quantization. If `num_threads` is 0, all usable cores are used.
    `is_enclosed`: the process runs in the sandbox.
    """

    sources: tuple[Path, ...]
    target: Path
    file_type: int
    num_threads: int = 0
    allow_requantize: bool = False
    is_enclosed: bool = True


def quantize(
    order: Order,
    check_size: Callable[[int | None], None],
    on_tensor: Callable[[int, int], None],
    *,
    command: Sequence[str] = QUANTIZE_COMMAND,
) -> None:
    """Quantize the sources into the target. `on_tensor` gets the number of finished tensors and the total.

    Before anything is written, `check_size` gets the size of the quantized tensors in bytes; None if unknown. An
    exception from `check_size` or `on_tensor` ends the process and is passed on. Raise ModelLoadFailed if llama.cpp
    refuses the model, or if the process ends early.
    """
    oom_kills = num_oom_kills()
    with tempfile.TemporaryFile() as stderr, _started(command, stderr) as process:
        assert process.stdin is not None and process.stdout is not None
        _send(process.stdin, json.dumps(_fields(order)))
        is_done = False
        for line in process.stdout:
            reply = _reply(line)
            if "size_bytes" in reply:
                check_size(reply["size_bytes"])
                _send(process.stdin, "go")
            elif "total" in reply:
                on_tensor(reply["done"], reply["total"])
            elif "error" in reply:
                raise ModelLoadFailed(f"{order.sources[0]} cannot be quantized: {reply['error']}", param="model")
            is_done = is_done or bool(reply.get("is_done"))
        code = process.wait()
        if not is_done:
            stderr.seek(max(0, stderr.seek(0, os.SEEK_END) - _MAX_STDERR_BYTES))
            said = stderr.read().decode(errors="replace")
            cause = describe_exit(code, said, has_seen_prompts=False, num_oom_kills=num_oom_kills() - oom_kills)
            raise ModelLoadFailed(f"{order.sources[0]} cannot be quantized: its process ended: {cause}", param="model")


@contextmanager
def _started(command: Sequence[str], stderr: IO[bytes]) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(  # noqa: S603 our own module
        command,
        env=worker_environment(os.environ),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        encoding="utf-8",
        errors="replace",
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            with suppress(OSError):
                if pipe is not None:
                    pipe.close()


def _fields(order: Order) -> dict[str, Any]:
    return {
        "sources": [str(path) for path in order.sources],
        "target": str(order.target),
        "file_type": order.file_type,
        "num_threads": order.num_threads,
        "allow_requantize": order.allow_requantize,
        "is_enclosed": order.is_enclosed,
    }


def _send(stdin: IO[str], line: str) -> None:
    with suppress(OSError):  # the process has ended, which its exit code explains
        stdin.write(f"{line}\n")
        stdin.flush()


def _reply(line: str) -> dict[str, Any]:
    try:
        reply = json.loads(line)
    except ValueError:
        return {}
    return reply if isinstance(reply, dict) else {}
