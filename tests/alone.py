"""Parallel test runs (`pytest -n`): a lock for tests that must run alone, and fewer reports to the controller.

A test with the mark `alone`, which measures time, runs by itself. Every test holds the lock while it runs, shared or
exclusively. A test that waits for the exclusive lock blocks new ones, so that they do not overtake it forever.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol


class FewReports:
    """Reports one phase of a test that passes, not three and its start and end.

    The controller of a parallel run takes a tenth of its CPU time to receive reports.
    """

    @pytest.hookimpl
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        for report in runtestprotocol(item, log=False, nextitem=nextitem):
            if report.when == "call" or not report.passed:
                item.ihook.pytest_runtest_logreport(report=report)
        return True


class Room:
    """A lock that the processes of one test run share, through locks on files in one folder."""

    def __init__(self, folder: Path) -> None:
        self._is_held = False
        with ExitStack() as files:
            self._turn = files.enter_context((folder / "turn.lock").open("wb"))
            self._room = files.enter_context((folder / "room.lock").open("wb"))
            self.close = files.pop_all().close

    @contextmanager
    def held(self, *, alone: bool, next_alone: bool = False) -> Iterator[None]:
        """Hold the lock, exclusively or together with other tests that share it.

        If this process's next test must be alone too, it keeps the lock, and does not wait for the others again.
        """
        # The standard library has shared file locks on POSIX only.
        if sys.platform == "win32":
            yield
            return
        import fcntl

        if not self._is_held:
            fcntl.flock(self._turn, fcntl.LOCK_EX)
            try:
                fcntl.flock(self._room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
            finally:
                fcntl.flock(self._turn, fcntl.LOCK_UN)
        try:
            yield
        finally:
            self._is_held = alone and next_alone
            if not self._is_held:
                fcntl.flock(self._room, fcntl.LOCK_UN)
