"""Opens and locks files of the state folder, and sees when one changes that commands write while the daemon reads it.

The kernel releases a lock when its process ends, so that no lock becomes stale.
"""

from __future__ import annotations

import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache, wraps
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

from edgeagent.errors import ConfigError

HISTORY_FILE = "history"
"""The name of the file in the state folder that keeps the lines that were typed in chats."""

ANSWERS_FILE = "answers.sqlite3"
"""The name of the file in the state folder that has the kept answers."""

SIMILAR_FILE = "similar.sqlite3"
"""The name of the file in the state folder that has what is known of similar questions."""

NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
"""Open a file's bytes, and not through a link."""

NO_WAIT = getattr(os, "O_NONBLOCK", 0)
"""If another program put a pipe there, opening it does not wait for the pipe's other end."""

RETRY_S = 1.0
_LOCK_TIMEOUT_S = 10.0

T = TypeVar("T")


if sys.platform == "win32":
    import msvcrt

    def try_lock(descriptor: int) -> bool:
        """Take the lock until the file is closed; return False if it is already held."""
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

else:
    import fcntl

    def try_lock(descriptor: int) -> bool:
        """Take the lock until the file is closed; return False if it is already held."""
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def open_own(path: Path, flags: int = 0) -> int:
    """Open a file to read and write, or make it for this user only. Raise OSError if it cannot be opened, or is a link.

    `flags`: further flags of `os.open`.
    """
    return os.open(path, os.O_CREAT | os.O_RDWR | NO_FOLLOW | flags, 0o600)


def holder(path: Path) -> int | None:
    """Return the id of the process that holds a file's lock; None if the lock is free or its holder is not known.

    The holder is known only on Linux, and only if it is in the same PID namespace as this process.

    This function does not try to take the lock. Otherwise a daemon that starts at the same moment would find the lock
    taken.
    """
    try:
        inode = path.stat().st_ino
        lines = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    for line in lines:
        match line.split():
            case [_, "FLOCK", _, "WRITE", pid, place, *_] if place.endswith(f":{inode}") and pid.isdecimal():
                return int(pid) or None  # 0: the process is in another namespace
    return None


def file_stamp(path: Path) -> object:
    """Return a value that differs after every change of a file, its owner or its mode; None if there is no file."""
    try:
        status = path.lstat()
    except OSError:
        return None
    # ctime changes with the owner and the mode, and with content that was written in place.
    return status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_size, status.st_mode, status.st_uid


def until_changed(read: Callable[[Path], T]) -> Callable[[Path], T]:
    """Make a function of a file return what it has returned before, until the file or the target of a link changes.

    What it returned for the 256 files that were asked for last is kept. An error is not.
    """

    @lru_cache(maxsize=256)
    def read_at(path: Path, _stamp: object) -> T:
        return read(path)

    @wraps(read)
    def current(path: Path) -> T:
        # Path.resolve raises RuntimeError for a loop of links, which is for `read` to report.
        return read_at(path, file_stamp(Path(os.path.realpath(path))))

    return current


def _folder_stamp(folder: Path) -> object:
    """Return a value that differs after a change of a folder's owner or mode; None if there is no folder."""
    # The folder's times are left out, because they change with every file in it.
    try:
        status = folder.stat()
    except OSError:
        return None
    return status.st_mode, status.st_uid


class FollowedFiles(ABC, Generic[T]):
    """Files of a folder that commands change while the daemon uses them. They are read again after a change.

    The code of one iteration of the event loop may ask two dozen times, so the files are looked at once in each
    iteration (see also `looks_at_every_use`); without a loop, at every use. While they cannot be read, the value is
    `empty` and `trouble` says why. They are then read again even if unchanged, since the cause may lie elsewhere:
    after RETRY_S seconds, or at the next use if `looks_at_every_use`.
    """

    counts_writes: ClassVar[bool] = False
    """Whether the revision grows also if a file was written with the same content."""

    looks_at_every_use: ClassVar[bool] = False
    """Whether the files are looked at at every use also in an event loop, because no older value may ever be used."""

    def __init__(self, folder: Path, files: Sequence[Path], empty: T, clock: Callable[[], float]) -> None:
        self._folder, self._files, self._empty, self._clock = folder, tuple(files), empty, clock
        self._value, self._trouble, self._revision = empty, "", 0
        self._stamps: object = None
        self._retry_at_s = 0.0
        self._has_looked = False

    @property
    def trouble(self) -> str:
        """Why the files cannot be trusted or understood, and what to do; empty if they can."""
        self._look()
        return self._trouble

    @property
    def revision(self) -> int:
        """A number that grows with every change of the value or the trouble, see also `counts_writes`."""
        self._look()
        return self._revision

    @property
    def _current(self) -> T:
        self._look()
        return self._value

    @abstractmethod
    def _read(self) -> T:
        """Read the files. Raise ConfigError if they cannot be trusted or understood."""

    @abstractmethod
    def _note_change(self, value: T, trouble: str) -> None:
        """Log that the value or the trouble has changed, from these."""

    def _look(self) -> None:
        if self._has_looked:
            return
        if not self.looks_at_every_use:
            import asyncio  # a worker, which locks files too, must not import it

            with suppress(RuntimeError):  # no loop runs
                asyncio.get_running_loop().call_soon(self._look_again)
                self._has_looked = True
        stamps = [_folder_stamp(self._folder), *map(file_stamp, self._files)]
        is_written = self.counts_writes and self._stamps is not None and stamps != self._stamps
        may_retry = self.looks_at_every_use or self._clock() >= self._retry_at_s
        if stamps == self._stamps and not (self._trouble and may_retry):
            return
        value, trouble = self._value, self._trouble
        try:
            self._value, self._trouble = self._read(), ""
        except ConfigError as error:
            self._value, self._trouble = self._empty, error.message
        self._stamps, self._retry_at_s = stamps, self._clock() + RETRY_S
        has_changed = (value, trouble) != (self._value, self._trouble)
        self._revision += is_written or has_changed
        if has_changed:
            self._note_change(value, trouble)

    def _look_again(self) -> None:
        self._has_looked = False


def check_folder(folder: Path) -> None:
    """Raise ConfigError if other users can replace the files in a folder. A missing folder is not an error.

    Such a user could restore an older file of the owner, for example one with a token that was removed since.
    """
    if sys.platform == "win32":
        return
    try:
        status = folder.stat()
    except OSError:
        return  # the files in it cannot be read either
    if status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise ConfigError(f"other users can replace files in {folder}; close it to them (chmod 700, and chown)")


@contextmanager
def changing(lock: Path, command: str) -> Iterator[None]:
    """Hold a lock during the `with` block, so that only one process at a time changes a file.

    Without the lock, a process that reads the file and writes it back could undo another process's change. `lock` is
    the path of the lock file. If its folder does not exist, no lock is taken. Raise ConfigError if the lock file cannot
    be opened, or if another process holds the lock for 10 s. The error names `command` as the holder.
    """
    try:
        descriptor = open_own(lock)
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
            time.sleep(0.01)
        yield
    finally:
        os.close(descriptor)
