"""What a child process of the daemon does first."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import BinaryIO

_PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """On Linux, request SIGKILL when the parent dies. On other systems, the end of the pipe ends the process."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def ignore_interrupts() -> None:
    """Ignore Ctrl-C. The daemon handles it and stops its children in order."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def claim_stdout() -> BinaryIO:
    """Redirect prints to stderr, because libraries may print to stdout. Return the original stdout for frames."""
    frames = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return frames
