"""Gives freed memory back to the system. glibc would keep what lies between blocks that are in use."""

from __future__ import annotations

import ctypes
import sys


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
