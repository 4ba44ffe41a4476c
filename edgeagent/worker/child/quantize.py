"""Quantizes one model file in a process of its own, in the sandbox: it reads the model and writes one file.

A line of JSON on stdin says what to do. Lines on stdout say how far it is, and at the end that it is done, or why not.
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
from edgeagent.worker.child.low_priority import give_way
from edgeagent.worker.sandbox.sandbox import enclose, set_limits

_PR_SET_PDEATHSIG = 1


def main() -> int:
    """Do what stdin says; return the exit code."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    set_limits()
    give_way()
    order = json.loads(sys.stdin.readline())
    replies = _claim_stdout()
    sources, target = [Path(path) for path in order["sources"]], Path(order["target"])
    if order["is_enclosed"]:
        enclose(sources, [target])
    # It loads native code.
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
    """Return what was stdout, and send what llama.cpp prints there to stderr."""
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return replies


def _write(replies: TextIO, **fields: Any) -> None:
    replies.write(json.dumps(fields) + "\n")
    replies.flush()


if __name__ == "__main__":
    code = main()
    # llama.cpp's threads have ended; its static objects have nothing to clean up.
    os._exit(code)
