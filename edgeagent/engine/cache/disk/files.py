"""The file operations of the block store. They raise OSError if the disk fails.

Tests replace `Files` with a class that simulates errors, partial writes and crashes.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from edgeagent import cache_folder
from edgeagent.cache_folder import BlockFile
from edgeagent.state_files import NO_FOLLOW, NO_WAIT, open_own

_NEW = os.O_CREAT | os.O_EXCL | os.O_WRONLY | NO_FOLLOW
_OLD = os.O_RDONLY | NO_FOLLOW | NO_WAIT
_advise = getattr(os, "posix_fadvise", None)
_sync_data = getattr(os, "fdatasync", os.fsync)

Buffer = bytes | bytearray | memoryview

_WORDS = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EROFS: "the file system is read-only",
    errno.EIO: "the disk reports an error",
    errno.EACCES: "permission denied",
    errno.EPERM: "not permitted",
}


# ERROR_SHARING_VIOLATION: Windows neither renames nor removes a file that is open.
_IN_USE = 32


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """Raise BlockingIOError instead of Windows' error for a file that is in use."""
    try:
        yield
    except PermissionError as error:
        if getattr(error, "winerror", None) == _IN_USE:
            raise BlockingIOError(errno.EAGAIN, "the file is in use", error.filename) from error
        raise


class Files:
    """The file operations in one folder. `folder` need not exist before `prepare`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def prepare(self) -> None:
        """Create the folder if it is missing, and make it private to this user."""
        cache_folder.ensure_private(self.folder)

    def is_there(self) -> bool:
        return self.folder.is_dir()

    def list_names(self) -> list[str]:
        return cache_folder.list_names(self.folder)

    def scan(self) -> list[BlockFile]:
        return list(cache_folder.scan(self.folder))

    def create(self, name: str) -> BinaryIO:
        """Create and open a file, unbuffered and private to this user. Raise FileExistsError if the file exists."""
        return os.fdopen(os.open(self.folder / name, _NEW, 0o600), "wb", buffering=0)

    def write(self, file: BinaryIO, parts: Iterable[Buffer]) -> None:
        """Write all parts completely, one after another."""
        for part in parts:
            view = memoryview(part).cast("B")
            while view:
                view = view[file.write(view) :]

    def sync(self, file: BinaryIO) -> None:
        """Wait until a file's content is on the disk."""
        _sync_data(file.fileno())

    def sync_folder(self) -> None:
        """Wait until new file names are on the disk, on systems that can open a folder."""
        if os.name == "posix":
            descriptor = os.open(self.folder, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def rename(self, name: str, new_name: str) -> None:
        """Rename a file atomically, and replace any file of the new name.

        Raise IsADirectoryError if a folder has the new name, and BlockingIOError if the file is being read (Windows).
        """
        try:
            with _translated():
                (self.folder / name).replace(self.folder / new_name)
        except BlockingIOError:
            raise
        except OSError as error:
            if (self.folder / new_name).is_dir():  # Windows reports a missing permission
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), new_name) from error
            raise

    def remove(self, name: str) -> None:
        """Remove a file, if it is there. Raise BlockingIOError if it is being read (Windows)."""
        with _translated():
            (self.folder / name).unlink(missing_ok=True)

    def stamp(self, name: str, used_s: float) -> None:
        """Set a file's times to `used_s`: the store's time in seconds at which the file's block was last used."""
        if os.utime not in os.supports_fd:
            os.utime(self.folder / name, (used_s, used_s))
            return
        # The times are set through an open file, since a worker's sandbox forbids setting them by path.
        descriptor = os.open(self.folder / name, _OLD)
        try:
            os.utime(descriptor, (used_s, used_s))
        finally:
            os.close(descriptor)

    def read(self, name: str, num_bytes: int) -> bytes:
        """Return the content of a regular file of exactly this size. Raise OSError or ValueError for any other file.

        The content is a copy, not a memory map. So it cannot change after it was checked. If the file is truncated
        during the read, the result is an error instead of a SIGBUS.
        """
        descriptor = os.open(self.folder / name, _OLD)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_size != num_bytes:
                raise ValueError(f"{name} is no regular file of {num_bytes} bytes")
            return self._whole(descriptor, num_bytes)
        finally:
            os.close(descriptor)

    def read_head(self, name: str, num_bytes: int) -> bytes:
        """Return the first `num_bytes` of a regular file, or fewer if the file is shorter.

        Raise OSError if the file cannot be read, or ValueError if it is no regular file.
        """
        descriptor = os.open(self.folder / name, _OLD)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise ValueError(f"{name} is no regular file")
            if _advise is not None:
                with contextlib.suppress(OSError):  # no read-ahead: at the start the heads of all files are read
                    _advise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
            return os.read(descriptor, num_bytes)
        finally:
            os.close(descriptor)

    def _whole(self, descriptor: int, num_bytes: int) -> bytes:
        parts = []
        while num_bytes:  # Linux returns at most 2 GiB at a time
            part = os.read(descriptor, num_bytes)
            if not part:
                raise ValueError("the file ends early")
            parts.append(part)
            num_bytes -= len(part)
        return b"".join(parts)

    def open_lock(self) -> BinaryIO:
        """Open the folder's lock file, for the caller to lock and close."""
        return os.fdopen(open_own(self.folder / cache_folder.LOCK_FILE), "r+b", buffering=0)

    def in_the_way(self, name: str) -> str:
        """Return an error message for users: `name` is a folder and should be a file, so they must remove it."""
        return f"{self.folder / name} is a folder, and should be a file: remove it"

    def free_bytes(self) -> int:
        """Return how many bytes are free on the disk for this user."""
        return shutil.disk_usage(self.folder).free


def in_words(error: OSError) -> str:
    """Return a short description of an error for users, without a path."""
    return _WORDS.get(error.errno or 0) or error.strerror or type(error).__name__
