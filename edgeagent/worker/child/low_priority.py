"""Gives a thread the lowest CPU and disk priority."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import sys

_NICE = 19
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}  # the system call's number; libc has no function for it
_IOPRIO_WHO_PROCESS, _IOPRIO_IDLE = 1, 3 << 13
_PRIO_DARWIN_THREAD, _PRIO_DARWIN_BG = 3, 0x1000
_THREAD_MODE_BACKGROUND_BEGIN = 0x10000


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
