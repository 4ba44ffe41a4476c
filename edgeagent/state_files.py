"""Files of the state folder that commands change while the daemon reads them: changed one at a time, and noticed."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from edgeagent.errors import ConfigError
from edgeagent.file_lock import try_lock

_LOCK_TIMEOUT_S = 10.0
_LOCK_POLL_S = 0.01


def file_stamp(path: Path) -> object:
    """Return a value that differs after every change of a file, its owner or its mode; None where there is none."""
    try:
        status = path.lstat()
    except OSError:
        return None
    # A change of owner or mode is a change: ctime moves with them, and with content that was written in place.
    return status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_size, status.st_mode, status.st_uid


def folder_stamp(folder: Path) -> object:
    """Return a value that differs after a change of a folder's owner or mode; None where there is none."""
    # Not its times: they change with every file in it.
    try:
        status = folder.stat()
    except OSError:
        return None
    return status.st_mode, status.st_uid


class OncePerTurn:
    """Says once in each turn of the event loop that files must be looked at; without a loop each time.

    One turn may ask for the same file two dozen times. It takes a millisecond at most, and nothing runs in between.
    """

    def __init__(self) -> None:
        self._has_looked = False

    def is_due(self) -> bool:
        """Whether the files must be looked at now."""
        if self._has_looked:
            return False
        with suppress(RuntimeError):  # no loop runs
            asyncio.get_running_loop().call_soon(self._forget)
            self._has_looked = True
        return True

    def _forget(self) -> None:
        self._has_looked = False


def check_folder(folder: Path) -> None:
    """Raise ConfigError where others could put an older file of the owner's back, e.g. one with a removed token."""
    if sys.platform == "win32":
        return
    try:
        status = folder.stat()
    except OSError:
        return  # then no file can be read either
    if status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise ConfigError(f"other users can replace files in {folder}; close it to them (chmod 700, and chown)")


@contextmanager
def changing(lock: Path, command: str) -> Iterator[None]:
    """Let one process at a time change a file: one that wrote back what it read would undo another's change.

    `command` is what holds the lock otherwise, for the error's text.
    """
    try:
        descriptor = os.open(lock, os.O_CREAT | os.O_RDWR | getattr(os, "O_NOFOLLOW", 0), 0o600)
    except FileNotFoundError:
        yield  # without the folder there is nothing to change
        return
    except OSError as error:
        raise ConfigError(f"cannot use {lock}: {error.strerror}") from error
    try:
        give_up_at_s = time.monotonic() + _LOCK_TIMEOUT_S
        while not try_lock(descriptor):
            if time.monotonic() > give_up_at_s:
                raise ConfigError(f"another `{command}` has held {lock} for {_LOCK_TIMEOUT_S:g} s; try again")
            time.sleep(_LOCK_POLL_S)
        yield
    finally:
        os.close(descriptor)
