"""Parallel test runs: `pytest --processes=N` runs the files of tests side by side in N processes.

The processes are forked after the collection, so that it happens once, and share its memory. Each takes the next file
when it has finished one. A test with the mark `alone`, which measures time, runs by itself: every test holds a lock
while it runs, shared or exclusively. A test that waits for the exclusive lock blocks new ones, so that they do not
overtake it forever.

Elsewhere than on Linux, system libraries do not bear a fork: one process runs everything.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import groupby
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import pytest
from _pytest.runner import runtestprotocol


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--processes", type=int, default=1, help="run files of tests side by side in so many processes")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run the collected tests in several processes, if that was asked for."""
    option = session.config.option
    if option.processes < 2 or option.collectonly or session.testsfailed or sys.platform != "linux":
        return None
    _Run(session).run(option.processes)
    if session.shouldfail:
        raise session.Failed(session.shouldfail)
    if session.shouldstop:
        raise session.Interrupted(session.shouldstop)
    return True


class _Run:
    """The processes of one run, which take files from it and send what came of each test."""

    def __init__(self, session: pytest.Session) -> None:
        self._session = session
        self._files = [list(items) for _, items in groupby(enumerate(session.items), lambda each: each[1].path)]
        self._next_file: Any = multiprocessing.get_context("fork").Value("i", 0)
        self._is_stopped: Any = multiprocessing.get_context("fork").Value("b", 0)
        self._folder: Path = session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]

    def run(self, num_processes: int) -> None:
        """Fork the processes, and report what they send until each has ended."""
        pids: dict[Connection, int] = {}
        current: dict[Connection, int] = {}
        self._session.config.get_terminal_writer().flush()
        try:
            for name in range(num_processes):
                receiving, sending = multiprocessing.Pipe(duplex=False)
                pid = os.fork()
                if pid == 0:
                    self._end_process(sending, f"p{name}")
                sending.close()
                pids[receiving] = pid
            reading = list(pids)
            while reading:
                for each in wait(reading):
                    assert isinstance(each, Connection)
                    try:
                        message = each.recv()
                    except EOFError:
                        reading.remove(each)
                        self._report_death(pids.pop(each), current.pop(each, None))
                        continue
                    current.pop(each, None)
                    if isinstance(message, int):
                        current[each] = message
                    else:
                        self._report(*message)
        finally:
            self._is_stopped.value = True
            for pid in pids.values():
                os.waitpid(pid, 0)

    def _report(self, number: int, reports: list[dict[str, Any]]) -> None:
        item = self._session.items[number]
        hook, config = item.ihook, item.config
        hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for each in reports:
            report = config.hook.pytest_report_from_serializable(config=config, data=each)
            hook.pytest_runtest_logreport(report=report)
        hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        self._is_stopped.value |= bool(self._session.shouldfail or self._session.shouldstop)

    def _report_death(self, pid: int, number: int | None) -> None:
        """Wait for a process that has ended; a test that it was running has failed."""
        _, status = os.waitpid(pid, 0)
        if number is None and status == 0:
            return
        item = self._session.items[number or 0]
        text = f"the process ended with status {os.waitstatus_to_exitcode(status)}; the rest of the file did not run"
        report = pytest.TestReport(item.nodeid, item.location, {}, "failed", text, "call")
        item.ihook.pytest_runtest_logreport(report=report)

    def _end_process(self, sending: Connection, name: str) -> None:
        """Run files in this process, which has just been forked, and end it."""
        status = 1
        try:
            self._run_files(sending, name)
            status = 0
        except KeyboardInterrupt:
            pass
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(status)

    def _run_files(self, sending: Connection, name: str) -> None:
        config = self._session.config
        capture: Any = config.pluginmanager.getplugin("capturemanager")
        capture.stop_global_capturing()  # its files are those of all processes
        capture.start_global_capturing()
        capture.suspend_global_capture()
        own = self._folder / name
        own.mkdir()
        config._tmp_path_factory._basetemp = own  # type: ignore[attr-defined]
        config.pluginmanager.register(_Sender(sending))
        room, items = Room(self._folder), self._take()
        each, is_held = next(items, None), False
        with ExitStack() as turn:
            turn.callback(self._session._setupstate.teardown_exact, None)
            held = turn.enter_context(ExitStack())
            while each is not None and not self._is_stopped.value:
                number, item = each
                each = next(items, None)
                sending.send(number)
                item.stash[_NUMBER] = number
                if not is_held:
                    held.enter_context(room.held(alone=_is_alone(item)))
                config.hook.pytest_runtest_protocol(item=item, nextitem=each and each[1])
                # Tests that must be alone and follow each other wait for the others once.
                is_held = _is_alone(item) and each is not None and _is_alone(each[1])
                if not is_held:
                    held.close()

    def _take(self) -> Iterator[tuple[int, pytest.Item]]:
        while True:
            with self._next_file.get_lock():
                number = self._next_file.value
                self._next_file.value += 1
            if number >= len(self._files):
                return
            yield from self._files[number]


_NUMBER = pytest.StashKey[int]()


def _is_alone(item: pytest.Item) -> bool:
    return item.get_closest_marker("alone") is not None


@dataclass
class _Sender:
    """Sends the reports of each test: one phase of a test that passes, unless all phases were asked for."""

    sending: Connection

    @pytest.hookimpl
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        config = item.config
        is_whole = config.option.durations is not None or config.option.xmlpath is not None
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        told = [each for each in reports if is_whole or each.when == "call" or not each.passed]
        serialize: Callable[..., Any] = config.hook.pytest_report_to_serializable
        self.sending.send((item.stash[_NUMBER], [serialize(config=config, report=each) for each in told]))
        return True


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
