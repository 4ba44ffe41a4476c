"""Calls Linux's Landlock, with which a process permanently gives up access to files, TCP and signals.

Source: the kernel's Documentation/userspace-api/landlock.rst and include/uapi/linux/landlock.h. This
module calls the kernel itself, because the only package on PyPI is an alpha without TCP rules and scopes. The caller
chooses which rights remain.
"""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Iterable
from pathlib import Path

# These numbers are the same on every architecture.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_GET_VERSION = 1
_PATH_BENEATH = 1

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_MAKE_AND_REMOVE = sum(1 << bit for bit in range(4, 13))
_REFER, _TRUNCATE, _IOCTL_DEVICE = 1 << 13, 1 << 14, 1 << 15
_BIND_TCP, _CONNECT_TCP = 1 << 0, 1 << 1
_ABSTRACT_SOCKETS, _SIGNALS = 1 << 0, 1 << 1

_READ = _READ_FILE | _READ_DIR
_WRITE = _READ | _WRITE_FILE | _MAKE_AND_REMOVE | _REFER | _TRUNCATE
_DEVICE = _READ | _WRITE_FILE | _IOCTL_DEVICE
_FILE_RIGHTS = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEVICE
# The version of the interface that introduced each right.
_SINCE = {_REFER: 2, _TRUNCATE: 3, _IOCTL_DEVICE: 5}
_SINCE_NETWORK, _SINCE_SCOPES = 4, 6


class _RulesetAttributes(ctypes.Structure):
    _fields_ = [("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scopes", ctypes.c_uint64)]


class _PathAttributes(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = [("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32)]


def version() -> int:
    """Return the version of the kernel's Landlock interface; 0 if there is none or it is disabled."""
    try:
        return _call(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_GET_VERSION))
    except OSError:
        return 0


def restrict(*, read: Iterable[Path], write: Iterable[Path], devices: Iterable[Path]) -> None:
    """Restrict this thread, and threads that it starts, to these files and folders; raise OSError if that fails.

    What is in `read`, `write` or `devices` may be read. What is in `write` may also be written, and files in it may
    be created and removed. The device files in `devices` may also be written and controlled by ioctl. Paths that
    cannot be opened are ignored. After this, no program can be executed. TCP and signals to other processes are refused
    too, if the kernel's Landlock can do it. The caller must have set no_new_privs.
    """
    known = version()
    if not known:
        raise OSError("the kernel has no Landlock")
    all_rights = _EXECUTE | _WRITE | _DEVICE
    handled = all_rights & ~sum(right for right, since in _SINCE.items() if known < since)
    attributes = _RulesetAttributes(
        handled,
        _BIND_TCP | _CONNECT_TCP if known >= _SINCE_NETWORK else 0,
        _ABSTRACT_SOCKETS | _SIGNALS if known >= _SINCE_SCOPES else 0,
    )
    ruleset = _call(_CREATE_RULESET, ctypes.byref(attributes), ctypes.sizeof(attributes), 0)
    try:
        for paths, rights in ((read, _READ), (write, _WRITE), (devices, _DEVICE)):
            for path in paths:
                _allow(ruleset, path, rights & handled)
        _call(_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: Path, rights: int) -> None:
    try:
        parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(parent).st_mode):
            rights &= _FILE_RIGHTS
        _call(_ADD_RULE, ruleset, _PATH_BENEATH, ctypes.byref(_PathAttributes(rights, parent)), 0)
    finally:
        os.close(parent)


def _call(number: int, *arguments: object) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    result = int(libc.syscall(ctypes.c_long(number), *arguments))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result
