"""Detects whether the files or the cache folder of a model's worker were replaced."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from edgeagent.cache_folder import ensure_private


class ModelFiles:
    """The files of a model. Each method reads the disk: call it in a thread."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = tuple(paths)
        self._recorded: tuple[str, ...] = ()

    def record(self) -> None:
        """Record the identities of the files, which are about to be loaded."""
        self._recorded = self._found()

    def are_replaced(self) -> bool:
        """Return whether a file was replaced or removed since the last call of `record`."""
        return self._found() != self._recorded

    def _found(self) -> tuple[str, ...]:
        return tuple(map(identity, self.paths))


def identity(path: Path) -> str:
    """Return a value that changes when the file is replaced or written; "" if the file cannot be reached."""
    try:
        status = path.stat()
    except OSError:
        return ""
    return f"{status.st_dev}:{status.st_ino}:{status.st_size}:{status.st_mtime_ns}"


class WorkerCacheFolder:
    """The cache folder that a worker got. Each method reads the disk: call it in a thread."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._recorded = ""

    def record(self, path: Path | None) -> None:
        """Record the folder that a worker is about to get; None if it gets none."""
        self._path, self._recorded = path, "" if path is None else _folder_identity(path)

    def is_replaced(self) -> bool:
        """Create the folder again if it is missing. Return whether it differs from the worker's folder.

        A worker cannot use a new folder, because its sandbox is bound to the old one.
        """
        if self._path is None:
            return False
        with contextlib.suppress(OSError):  # tried again at the next call
            ensure_private(self._path)
        return _folder_identity(self._path) not in ("", self._recorded)


def _folder_identity(path: Path) -> str:
    try:
        status = path.stat()
    except OSError:
        return ""
    return f"{status.st_dev}:{status.st_ino}"
