"""A lock for parallel test runs (`pytest -n`): a test with the mark `alone`, which measures time, runs by itself.

Every test holds the lock while it runs, shared or exclusively. A test that waits for the exclusive lock blocks new
ones, so that they do not overtake it forever.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path


class Room:
    """A lock that the processes of one test run share, through locks on files in one folder."""

    def __init__(self, folder: Path) -> None:
        with ExitStack() as files:
            self._turn = files.enter_context((folder / "turn.lock").open("wb"))
            self._room = files.enter_context((folder / "room.lock").open("wb"))
            self.close = files.pop_all().close

    @contextmanager
    def held(self, *, alone: bool) -> Iterator[None]:
        """Hold the lock, exclusively or together with other tests that share it."""
        # The standard library has shared file locks on POSIX only.
        if sys.platform == "win32":
            yield
            return
        import fcntl

        fcntl.flock(self._turn, fcntl.LOCK_EX)
        try:
            fcntl.flock(self._room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        finally:
            fcntl.flock(self._turn, fcntl.LOCK_UN)
        try:
            yield
        finally:
            fcntl.flock(self._room, fcntl.LOCK_UN)
