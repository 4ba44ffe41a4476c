"""The folder's time and its allowance of bytes per hour: refilled, and kept across restarts."""

from __future__ import annotations

import errno
import json
import os
import time
from pathlib import Path

import pytest

from edgeagent.cache_folder import STATE_FILE
from edgeagent.engine.cache.block import Importance
from edgeagent.engine.cache.disk.files import Files
from edgeagent.engine.cache.disk.folder import is_worth_writing
from edgeagent.engine.cache.disk.folder_state import LITTLE_LEFT, FolderState, steady_clock_s
from edgeagent.runtime_file import write_private
from tests.engine.cache.disk.stores import FaultyFiles, Times

HOUR_S = 3600.0
LIMIT = 32_000


@pytest.fixture
def files(tmp_path: Path) -> Files:
    files = Files(tmp_path / "cache")
    files.prepare()
    return files


def make_budget(files: Files, times: Times, bytes_per_hour: int = LIMIT, max_gap_s: float = 1000.0) -> FolderState:
    return FolderState(files, bytes_per_hour=bytes_per_hour, max_gap_s=max_gap_s, clock=times.clock, wall=times.wall)


def test_what_is_left_refills_within_an_hour_and_no_further(files: Files) -> None:
    times = Times()
    budget = make_budget(files, times)
    budget.open()
    while budget.take(1000):
        pass
    assert budget.allowance_left == 0.0
    times.pass_s(HOUR_S / 4)
    assert budget.allowance_left == pytest.approx(0.25)
    times.pass_s(10 * HOUR_S)
    assert budget.allowance_left == 1.0
    times.clock.at_s -= 10 * HOUR_S
    assert budget.allowance_left == pytest.approx(0.25), "a clock that steps back refills nothing"


def test_no_more_is_taken_than_an_hour_allows(files: Files) -> None:
    times = Times()
    budget = make_budget(files, times)
    budget.open()
    assert sum(budget.take(1000) for _ in range(100)) == LIMIT // 1000
    times.pass_s(HOUR_S / 2)
    assert sum(budget.take(1000) for _ in range(100)) == LIMIT // 2000
    assert budget.is_possible(LIMIT) and not budget.is_possible(LIMIT + 1)


def test_what_is_left_outlives_a_process_that_is_killed(files: Files) -> None:
    times, num_taken = Times(), 0
    for _ in range(40):
        budget = make_budget(files, times)  # the earlier process had no time to save its state
        budget.open()
        num_taken += sum(budget.take(500) for _ in range(10))
    assert num_taken <= LIMIT // 500 + 40 * 2, "each killed process forgets at most a thirty-second part"


def test_all_is_left_when_a_limit_is_set(files: Files) -> None:
    without = make_budget(files, Times(), bytes_per_hour=0)
    assert without.take(1 << 40)
    without.save()
    with_limit = make_budget(files, Times())
    with_limit.open()
    without.bytes_per_hour = LIMIT
    assert (without.allowance_left, with_limit.allowance_left) == (1.0, 1.0)


def test_a_smaller_limit_leaves_no_more_than_it_allows(files: Files) -> None:
    budget = make_budget(files, Times())
    assert budget.take(LIMIT // 4)
    budget.bytes_per_hour = LIMIT // 2
    assert budget.allowance_left == 1.0
    assert sum(budget.take(1000) for _ in range(100)) == LIMIT // 2000


@pytest.mark.parametrize("left", [0.0, LITTLE_LEFT - 0.01, LITTLE_LEFT, LITTLE_LEFT + 0.01, 1.0])
def test_thrift_is_told_exactly_while_idle_conversations_wait(files: Files, left: float) -> None:
    times = Times()
    budget = make_budget(files, times)
    budget.open()
    budget._allowance = left * LIMIT, budget.now_s
    assert (budget.allowance_trouble is None) == is_worth_writing(
        Importance.NORMAL, allowance_left=budget.allowance_left
    )


def test_without_a_limit_there_is_always_all_of_it(files: Files) -> None:
    budget = make_budget(files, Times(), bytes_per_hour=0)
    budget.open()
    assert all(budget.take(1 << 40) for _ in range(3))
    assert (budget.allowance_left, budget.allowance_trouble, budget.is_possible(1 << 60)) == (1.0, None, True)


@pytest.mark.parametrize(("wall_s", "passed_s"), [(500.0, 500.0), (5000.0, 1000.0), (-5000.0, 0.0)])
def test_a_restart_ages_by_the_wall_clock_within_a_bound(files: Files, wall_s: float, passed_s: float) -> None:
    times = Times()
    budget = make_budget(files, times)
    assert not budget.open(), "nothing is known in a new folder"
    assert budget.now_s == times.wall.at_s, "so its time begins with the wall clock"
    budget.read_bytes_per_s = 7.0
    budget.save()
    before_s = budget.now_s
    times.wall.at_s += wall_s
    times.clock.at_s = 3.0  # the machine was restarted
    after = make_budget(files, times)
    assert after.open()
    assert after.now_s == pytest.approx(before_s + passed_s)
    assert after.read_bytes_per_s == 7.0


@pytest.mark.parametrize("name", ["now_s", "wall_s", "allowance_bytes", "allowance_at_s", "read_bytes_per_s"])
@pytest.mark.parametrize("value", [-1.0, float("inf"), float("nan"), 2.0**34, "soon", None])
def test_a_state_that_cannot_be_is_none(files: Files, name: str, value: object) -> None:
    budget = make_budget(files, Times())
    budget.open()
    budget.save()
    state = json.loads((files.folder / STATE_FILE).read_bytes())
    assert make_budget(files, Times()).open()
    write_private(files.folder / STATE_FILE, json.dumps({**state, name: value}).encode())
    is_possible = value == 2.0**34 and name in ("allowance_bytes", "read_bytes_per_s")
    assert make_budget(files, Times()).open() == is_possible


def test_a_state_that_cannot_be_written_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    def fault(number: int, name: str) -> None:
        if name == "rename":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    files = FaultyFiles(tmp_path / "cache", fault)
    files.prepare()
    budget = make_budget(files, Times())
    before = set(files.folder.iterdir())
    with pytest.raises(OSError, match="No space"):
        budget.save()
    assert set(files.folder.iterdir()) - before <= {files.folder / "lock"}


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="only Linux has this clock")
def test_the_clock_goes_on_while_the_machine_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    before_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    monkeypatch.setattr(time, "monotonic", lambda: -1.0)
    assert before_s <= steady_clock_s() <= time.clock_gettime(time.CLOCK_BOOTTIME)
    monkeypatch.delattr(time, "CLOCK_BOOTTIME")
    assert steady_clock_s() == -1.0
