"""What a child process of the daemon does first."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import signal
import struct
import sys
from typing import BinaryIO

_NICE = 19
# Beside a thread of usual priority, such a thread gets a tenth of the core: Linux weighs them 110 and 1024
# (sched_prio_to_weight).
_NICER = 10
# Linux (6.12 and later) lets a thread that wakes up interrupt one with longer slices at once. It would wait for a tick
# otherwise, and the threads of a step wait for each other hundreds of times. 40 pieces of 1 ms with a wait behind each
# took 57 ms beside such a thread, and 97 ms beside one with usual slices (medians, HZ=250; alone 47 ms).
_SLICE_NS = 100_000_000
_SET_ATTRIBUTES = {"x86_64": 314, "aarch64": 274}  # sched_setattr
_BELOW_NORMAL = -1  # of SetThreadPriority
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}  # the system call's number; libc has no function for it
_IOPRIO_WHO_PROCESS, _IOPRIO_IDLE = 1, 3 << 13
_PRIO_DARWIN_THREAD, _PRIO_DARWIN_BG = 3, 0x1000
_THREAD_MODE_BACKGROUND_BEGIN = 0x10000


def give_way() -> None:
    """Give the calling thread, and those that it starts, a smaller share of a core that others want too."""
    with contextlib.suppress(OSError, AttributeError):
        if sys.platform == "linux":
            nice = min(_NICE, os.getpriority(os.PRIO_PROCESS, 0) + _NICER)
            os.setpriority(os.PRIO_PROCESS, 0, nice)
            if (number := _SET_ATTRIBUTES.get(platform.machine())) is not None:
                # struct sched_attr, with the policy that the thread has, and without flags
                attributes = struct.pack("IIQiIQQQ", 48, os.sched_getscheduler(0), 0, nice, 0, _SLICE_NS, 0, 0)
                ctypes.CDLL(None).syscall(number, 0, attributes, 0)
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
