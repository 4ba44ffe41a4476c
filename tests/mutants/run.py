"""Runs tests against changed copies of the repository, several in parallel, and reports changes that none noticed."""

from __future__ import annotations

import compileall
import difflib
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import psutil

from tests.mutants.mutate import Mutant

_NOT_COPIED = (".git", ".venv", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis", "build", "dist")
_PYTEST = ("-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--tb=no")
# A run that takes this much longer than the unchanged tests hangs; a busy machine alone is not that slow.
SLACK_FACTOR = 4
SLACK_S = 20.0
_NOTHING_FAILED, _SOMETHING_FAILED, _NOT_COLLECTED = 0, 1, 2


class Fate(StrEnum):
    """The outcome of a change: a test failed, the tests did not end, or no test noticed it."""

    KILLED = "killed"
    TIMED_OUT = "timed out"
    ALIVE = "alive"


@dataclass(frozen=True, slots=True)
class Trial:
    """A change of one module, and the test sets to run until one notices it. `path` is relative to the root."""

    path: Path
    before: bytes
    mutant: Mutant
    test_sets: tuple[tuple[str, ...], ...]

    @property
    def line(self) -> str:
        """The line in which the change begins."""
        return self.before.splitlines()[self.mutant.line - 1].decode().strip()

    def diff(self) -> str:
        """Return the change as a readable diff."""
        after = self.mutant.apply(self.before)
        lines = difflib.unified_diff(
            self.before.decode().splitlines(),
            after.decode().splitlines(),
            str(self.path),
            str(self.path),
            "",
            "",
            1,
            "",
        )
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a trial."""

    trial: Trial
    fate: Fate
    seconds: float


class BaselineFailed(Exception):
    """Tests fail without any change, so the results would mean nothing."""


class Workbench:
    """A copy of a repository in which one module at a time is changed."""

    def __init__(self, folder: Path) -> None:
        """Use a folder that holds the copy; see `of`."""
        self._root = folder / "copy"
        # Otherwise parallel runs would delete each other's folders. The path is short, since a socket's path must be.
        self._temporary = folder / "t"
        self._temporary.mkdir()

    @classmethod
    def of(cls, root: Path, folder: Path) -> Workbench:
        """Return a workbench with a copy of a repository."""
        copy = folder / "copy"
        shutil.copytree(root, copy, ignore=shutil.ignore_patterns(*_NOT_COPIED, "__pycache__", "*.log"))
        compileall.compile_dir(copy, quiet=2)
        return cls(folder)

    def twin(self, folder: Path) -> Workbench:
        """Return another workbench with the same copy, including the bytecode that tests left here."""
        shutil.copytree(self._root, folder / "copy")
        return Workbench(folder)

    def time_baseline(self, tests: Sequence[str]) -> float:
        """Return how many seconds the unchanged tests take; raise BaselineFailed if one fails."""
        began_s = time.monotonic()
        status, output = self._run(tests, limit_s=1800.0, writes_bytecode=True)
        if status != _NOTHING_FAILED:
            raise BaselineFailed(f"{' '.join(tests)}: exit status {status}\n{output[-2000:]}")
        return time.monotonic() - began_s

    def judge(self, trial: Trial, limits_s: dict[tuple[str, ...], float]) -> Outcome:
        """Run the tests on a change and return the outcome."""
        began_s = time.monotonic()
        fate = Fate.ALIVE
        with self._changed(trial):
            for tests in trial.test_sets:
                status, output = self._run(tests, limits_s[tests])
                if status is None:
                    fate = Fate.TIMED_OUT
                elif status in (_SOMETHING_FAILED, _NOT_COLLECTED):
                    fate = Fate.KILLED
                elif status != _NOTHING_FAILED:
                    raise BaselineFailed(f"{' '.join(tests)}: exit status {status}\n{output[-2000:]}")
                if fate is not Fate.ALIVE:
                    break
        return Outcome(trial, fate, time.monotonic() - began_s)

    @contextmanager
    def _changed(self, trial: Trial) -> Iterator[None]:
        path = self._root / trial.path
        # Python identifies bytecode by the source's size and second, which a change may not alter.
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
            compiled.unlink()
        path.write_bytes(trial.mutant.apply(trial.before))
        try:
            yield
        finally:
            path.write_bytes(trial.before)

    def _run(self, tests: Sequence[str], limit_s: float, *, writes_bytecode: bool = False) -> tuple[int | None, str]:
        environment = {**os.environ, "PYTHONPATH": str(self._root)}
        environment |= dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(self._temporary))
        if not writes_bytecode:
            environment["PYTHONDONTWRITEBYTECODE"] = "1"
        with tempfile.TemporaryFile() as output:
            process = psutil.Popen(
                [sys.executable, *_PYTEST, *tests],
                cwd=self._root,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            try:
                status = process.wait(limit_s)
            except psutil.TimeoutExpired:
                status = None
            finally:
                _end(process)
            output.seek(0)
            return status, output.read().decode(errors="replace")


def _end(process: psutil.Popen) -> None:
    """End a run of tests and all processes that it started."""
    if not process.is_running():
        return
    family = [*process.children(recursive=True), process]
    for member in family:
        with suppress(psutil.NoSuchProcess):
            member.kill()
    psutil.wait_procs(family, timeout=10)


def judge_all(root: Path, trials: Sequence[Trial], jobs: int) -> Iterator[Outcome]:
    """Yield outcomes as they arrive, with `jobs` trials in parallel. Raise BaselineFailed if unchanged tests fail."""
    with tempfile.TemporaryDirectory(prefix="m-") as folder:
        Path(folder).chmod(0o755)  # tests of another user's rights need access
        first = Workbench.of(root, Path(folder) / "0")
        limits_s = _limits(first, trials)
        benches = [first, *(first.twin(Path(folder) / str(index)) for index in range(1, jobs))]
        yield from _side_by_side(benches, trials, limits_s)


def _limits(bench: Workbench, trials: Iterable[Trial]) -> dict[tuple[str, ...], float]:
    return {
        tests: SLACK_FACTOR * bench.time_baseline(tests) + SLACK_S
        for tests in sorted({tests for trial in trials for tests in trial.test_sets})
    }


def _side_by_side(
    benches: Sequence[Workbench], trials: Sequence[Trial], limits_s: dict[tuple[str, ...], float]
) -> Iterator[Outcome]:
    waiting: queue.SimpleQueue[Trial] = queue.SimpleQueue()
    for trial in trials:
        waiting.put(trial)
    done: queue.SimpleQueue[Outcome | BaseException] = queue.SimpleQueue()

    def work(bench: Workbench) -> None:
        while True:
            try:
                done.put(bench.judge(waiting.get_nowait(), limits_s))
            except queue.Empty:
                return
            except BaseException as error:
                done.put(error)
                return

    threads = [threading.Thread(target=work, args=[bench], daemon=True) for bench in benches]
    for thread in threads:
        thread.start()
    for _ in trials:
        outcome = done.get()
        if isinstance(outcome, BaseException):
            raise outcome
        yield outcome
