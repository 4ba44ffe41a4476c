"""Gives up most of Linux's capabilities permanently, and sets no_new_privs.

Source: capabilities(7), capset(2), include/uapi/linux/{capability,prctl}.h.
"""

from __future__ import annotations

import ctypes
import os

_NO_NEW_PRIVILEGES = 38  # prctl's PR_SET_NO_NEW_PRIVS
_CAPABILITY_VERSION_3 = 0x20080522
# A daemon that runs as root, for example in a container, must still read other users' models and lock memory.
_DAC_OVERRIDE, _DAC_READ_SEARCH, _IPC_LOCK = 1, 2, 14
_KEPT = 1 << _DAC_OVERRIDE | 1 << _DAC_READ_SEARCH | 1 << _IPC_LOCK


class _Header(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


class _Sets(ctypes.Structure):
    _fields_ = [("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32)]


def give_up() -> None:
    """Drop this thread's capabilities, except those for accessing files and locking memory.

    Also set no_new_privs, so that programs executed after this gain no capabilities. Raise OSError if a call fails.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    _check(libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0))
    header, sets = _Header(_CAPABILITY_VERSION_3, 0), (_Sets * 2)()
    _check(libc.capget(ctypes.byref(header), sets))
    for index, kept in enumerate((_KEPT, 0)):
        sets[index].effective &= kept
        sets[index].permitted &= kept
        sets[index].inheritable = 0
    _check(libc.capset(ctypes.byref(header), sets))


def _check(result: int) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
