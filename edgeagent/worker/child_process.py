"""What a child process of the daemon does first."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import signal
import sys
from typing import BinaryIO

from edgeagent.process_settings import request_time_slices

_NICE = 19
# Beside a thread of usual priority, such a thread gets a thirtieth of the core: Linux weighs them 36 and 1024
# (sched_prio_to_weight). With a tenth (10), 95 % of the gaps of four streams beside an encoder took at most 111 ms, and
# the encoder was no sooner ready. With a seventieth (_NICE), 99 ms; but the steps of prompts leave it no other time.
_NICER = 15
# Linux (6.12 and later) lets a thread that wakes up interrupt one with longer slices at once. It would wait for a tick
# otherwise, and the threads of a step wait for each other hundreds of times. 40 pieces of 1 ms with a wait behind each
# took 57 ms beside such a thread, and 97 ms beside one with usual slices (medians, HZ=250; alone 47 ms).
_SLICE_NS = 100_000_000
_BELOW_NORMAL = -1  # of SetThreadPriority
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}  # the system call's number; libc has no function for it
_IOPRIO_WHO_PROCESS, _IOPRIO_IDLE = 1, 3 << 13
_PRIO_DARWIN_THREAD, _PRIO_DARWIN_BG = 3, 0x1000
_THREAD_MODE_BACKGROUND_BEGIN = 0x10000


def give_way() -> None:
    """Give the calling thread a smaller share of a core that others want too.

    On Linux, threads that it starts later have the same share.
    """
    with contextlib.suppress(OSError, AttributeError):
        if sys.platform == "linux":
            os.setpriority(os.PRIO_PROCESS, 0, min(_NICE, os.getpriority(os.PRIO_PROCESS, 0) + _NICER))
            request_time_slices(_SLICE_NS)
        elif sys.platform == "win32":
            kernel = ctypes.windll.kernel32
            kernel.SetThreadPriority(kernel.GetCurrentThread(), _BELOW_NORMAL)


def lower_thread_priority() -> None:
    """Lower the calling thread's priority permanently, as far as the system allows it."""
    # AttributeError: the C library lacks the function.
    with contextlib.suppress(OSError, AttributeError):
        if sys.platform == "linux":
            os.setpriority(os.PRIO_PROCESS, 0, _NICE)  # on Linux, this affects only the thread
            number = _IOPRIO_SET.get(platform.machine())
            if number is not None:
                ctypes.CDLL(None).syscall(number, _IOPRIO_WHO_PROCESS, 0, _IOPRIO_IDLE)
        elif sys.platform == "darwin":
            os.setpriority(_PRIO_DARWIN_THREAD, 0, _PRIO_DARWIN_BG)
        elif sys.platform == "win32":
            kernel = ctypes.windll.kernel32
            kernel.SetThreadPriority(kernel.GetCurrentThread(), _THREAD_MODE_BACKGROUND_BEGIN)


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
