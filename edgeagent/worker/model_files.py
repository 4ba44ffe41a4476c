"""Which files a model's worker was given, and whether others have taken their place. It knows no worker."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


class ModelFiles:
    """The files of a model. Each method reads the disk: call it in a thread."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = tuple(paths)
        self._given: tuple[str, ...] = ()

    def give(self) -> None:
        """Note what is there: it is about to be loaded."""
        self._given = self._found()

    def are_replaced(self) -> bool:
        """Return whether other files are there than those that were loaded last."""
        return self._found() != self._given

    def _found(self) -> tuple[str, ...]:
        return tuple(map(identity, self.paths))


def identity(path: Path) -> str:
    """Return what tells a file from one that takes its place; "" where there is none (the load will say so)."""
    try:
        status = path.stat()
    except OSError:
        return ""
    return f"{status.st_dev}:{status.st_ino}:{status.st_size}:{status.st_mtime_ns}"
