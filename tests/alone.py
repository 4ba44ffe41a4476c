"""Where tests run side by side (`pytest -n`), one that measures time runs alone: its mark `alone` keeps the others out.

Each test holds the room while it runs, together with others or alone. A test that needs it alone keeps new ones out
while it waits, so that they do not overtake it for ever.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path


class Room:
    """The room that the processes of one run share, through locks on files of a folder of theirs."""

    def __init__(self, folder: Path) -> None:
        with ExitStack() as files:
            self._turn = files.enter_context((folder / "turn.lock").open("wb"))
            self._room = files.enter_context((folder / "room.lock").open("wb"))
            self.close = files.pop_all().close

    @contextmanager
    def held(self, *, alone: bool) -> Iterator[None]:
        """Hold the room, alone or with others who do not need it alone."""
        # The standard library has locks that can be shared on POSIX only.
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
