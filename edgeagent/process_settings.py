"""Settings of this process that keep its delays short, and its memory small.

**Garbage collections.** A full collection visits every object. It takes 14 to 40 ms once a daemon or a worker has
imported its modules. By default a collection of the middle generation visits about 7,000 objects and takes 0.5 ms. The
effect was measured while a context of 100,000 tokens was copied out of the KV cells, 512 tokens in each step. The 99th
percentile of a step's time was 1.0 to 1.1 ms with Python's thresholds, and 0.7 ms with those of this module.

**Time slices.** llama.cpp's threads spin on every core while they compute. Linux lets a running thread finish its time
slice (about 3 ms) before a thread that woke up may run, unless the woken thread has asked for shorter slices. Linux
before 6.12 ignores that request. The thread gets the CPU sooner, not for longer. Measured with both of two cores
computing: an event is delivered after 0.7 ms instead of 1.1 ms. Other systems get no such request.

**Freed memory.** glibc would keep what lies between blocks that are in use. It gives threads arenas of their own, and
each keeps what was freed in it, at its end even when all freed memory is given back. With one arena for all threads, a
daemon takes 2 MB less, and a worker that has embedded a text of 1 MB takes 8 MB more than before instead of 34 MB.
Once a large block was freed, glibc also keeps later ones of up to that size. After 62 requests of 14 MiB, that was 44
to 74 MB of a worker's memory. Its process has a fixed limit: each larger block goes back when it is freed.
"""

from __future__ import annotations

import ctypes
import gc
import importlib.util
import os
import platform
import struct
import sys
from functools import partial
from types import ModuleType
from typing import Any

_SLICE_NS = 100_000  # the shortest that Linux grants
_RESET_ON_FORK = 1  # SCHED_FLAG_RESET_ON_FORK: a worker's computing threads keep the usual slice
# Larger than the prefix cache's blocks. The system clears the pages of each larger one that is allocated, so what is as
# large in every step is kept (`taken_rows`).
_LARGE_BYTES = 5 << 20
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274, "riscv64": 274}
_ATTRIBUTES = struct.Struct("=IIQiIQQQ")  # struct sched_attr, its first version


def keep_collections_short() -> None:
    """Exclude all existing objects from garbage collection, and keep each later collection small.

    Call this function after start-up. It also enables garbage collection, which may be disabled until then.
    """
    gc.freeze()
    # Python's own 700 new objects, and early collections of the middle generation. A full one may be rare: cycles are
    # rare here, and reference counting frees all else.
    gc.set_threshold(700, 3, 100)
    gc.enable()


def request_short_time_slices() -> bool:
    """Request short time slices for this thread, not for its children. Return whether it worked; never raise."""
    if sys.platform != "linux" or os.getpriority(os.PRIO_PROCESS, 0) < 0:
        return False  # _RESET_ON_FORK would take a negative niceness from the thread's children
    return request_time_slices(_SLICE_NS, _RESET_ON_FORK)


def request_time_slices(slice_ns: int, flags: int = 0) -> bool:
    """Request time slices of this length for this thread, on Linux. Return whether it worked; never raise.

    `flags`: those of sched_setattr. Without _RESET_ON_FORK, threads that it starts later get such slices too.
    """
    number = _SCHED_SETATTR.get(platform.machine())
    if sys.platform != "linux" or number is None or struct.calcsize("P") != 8:
        return False
    try:
        if os.sched_getscheduler(0) != os.SCHED_OTHER:
            return False  # the user chose another scheduling policy for this process
        nice = os.getpriority(os.PRIO_PROCESS, 0)
        attributes = _ATTRIBUTES.pack(_ATTRIBUTES.size, os.SCHED_OTHER, flags, nice, 0, slice_ns, 0, 0)
        return bool(ctypes.CDLL(None).syscall(number, 0, attributes, 0) == 0)
    except OSError:
        return False


def switch_threads_often() -> None:
    """Let a thread of this process wait at most 0.5 ms for the interpreter while another one computes, instead of 5 ms.

    Measured with another thread that computes all the time: a step of 12.6 ms takes 24 ms instead of 40 ms.
    """
    sys.setswitchinterval(0.0005)


def import_when_used(*names: str) -> None:
    """Let the code of these modules run only when an attribute is asked of them, and so may never run.

    The modules of a package can be imported without the package's own code. That code imports what a daemon never uses,
    such as command lines and other servers. importlib's LazyLoader runs a package as soon as one of its modules is
    imported. Call this function before the first import of the modules.
    """
    for spec in filter(None, map(importlib.util.find_spec, names)):
        if spec.name not in sys.modules:
            module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
            module.__getattr__ = partial(_run, module)  # type: ignore[method-assign]
            if spec.parent != spec.name:
                setattr(sys.modules[str(spec.parent)], spec.name.rpartition(".")[2], module)


def _run(module: ModuleType, name: str) -> Any:
    assert module.__spec__ is not None and module.__spec__.loader is not None
    if "__path__" in vars(module) and importlib.util.find_spec(f"{module.__name__}.{name}") is not None:
        raise AttributeError(name)  # then it is imported as a module
    del module.__getattr__
    module.__spec__.loader.exec_module(module)
    return getattr(module, name)


def share_one_arena() -> None:
    """Let all threads of this process allocate from one arena. Call it before the first thread starts; it needs glibc.

    A thread that allocated before would have an arena of its own, and later threads would share that one too. Threads
    that wait for the interpreter's lock seldom allocate at the same time.
    """
    if _LIBC is not None:
        _LIBC.mallopt(_M_ARENA_MAX, 1)


def keep_little_freed_memory() -> None:
    """Share one arena, and let large blocks go back to the system as soon as they are freed.

    Not for the daemon's process: each of its large frames would wait for the system to clear new pages.
    """
    share_one_arena()
    if _LIBC is not None:
        _LIBC.mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
        _LIBC.mallopt(_M_TRIM_THRESHOLD, 2 * _LARGE_BYTES)  # as glibc would choose it


def give_back_freed_memory() -> None:
    """Give freed memory back to the system. This takes milliseconds; it has no effect without glibc."""
    if _LIBC is not None:
        _LIBC.malloc_trim(0)


def _libc() -> ctypes.CDLL | None:
    """Return the C library if it is glibc, which keeps freed memory; None otherwise."""
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)
    return libc if hasattr(libc, "malloc_trim") else None


_LIBC = _libc()
