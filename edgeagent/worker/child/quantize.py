"""Quantizes one model file in a separate process. In the sandbox, it may only read the model and write one file.

A line of JSON on stdin says what to do. The replies are lines of JSON on stdout: first the size of the quantized
tensors (null if unknown), then the progress, and at the end success or an error. After the size, the process waits for
the line "go" on stdin. At any other line, or at the end of stdin, it exits with status 1.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any, TextIO

from edgeagent.errors import EdgeAgentError
from edgeagent.worker.child.low_priority import lower_thread_priority
from edgeagent.worker.sandbox.sandbox import enclose, set_limits

_PR_SET_PDEATHSIG = 1


def main() -> int:
    """Quantize the model that stdin names; return the exit code."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    set_limits()
    lower_thread_priority()
    order = json.loads(sys.stdin.readline())
    replies = _claim_stdout()
    sources, target = [Path(path) for path in order["sources"]], Path(order["target"])
    if order["is_enclosed"]:
        enclose(sources, [target])
    # Import late, in the sandbox: this loads native code.
    from edgeagent.engine.llama.quantizer import Quantizer

    try:
        quantizer = Quantizer(
            sources[0],
            order["file_type"],
            num_threads=order["num_threads"],
            allow_requantize=order["allow_requantize"],
            on_tensor=lambda done, total: _write(replies, done=done, total=total),
        )
        _write(replies, size_bytes=quantizer.size_bytes())
        if sys.stdin.readline() != "go\n":
            return 1
        quantizer.write(target)
    except EdgeAgentError as error:
        _write(replies, error=error.message)
        return 1
    _write(replies, is_done=True)
    return 0


def _claim_stdout() -> TextIO:
    """Return the original stdout for replies, and redirect llama.cpp's prints from stdout to stderr."""
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return replies


def _write(replies: TextIO, **fields: Any) -> None:
    replies.write(json.dumps(fields) + "\n")
    replies.flush()


if __name__ == "__main__":
    code = main()
    # Skip the clean-up: llama.cpp's threads have ended, and its static objects need none.
    os._exit(code)
