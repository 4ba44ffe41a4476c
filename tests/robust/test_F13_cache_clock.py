"""Row F13: the ages of cached blocks while the wall clock is wrong, and after it is corrected."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from edgeagent import cache_folder
from edgeagent.engine.cache.block import Importance
from tests.engine.cache.disk.stores import DAY_S, Store, Times, close_now, make_chain, make_store

YEAR_S = 365 * DAY_S
CHAIN = make_chain(2)
STEPS = [-YEAR_S, -3600.0, 3600.0, YEAR_S]


def _filled(folder: Path, times: Times) -> Store:
    store = make_store(folder, times, ttl_s=7 * DAY_S)
    for block in CHAIN:
        store.offer(block, Importance.SYSTEM)
        store.work()
        times.pass_s(1)
    return store


def _reopened(folder: Path, times: Times) -> Store:
    store = make_store(folder, times, ttl_s=7 * DAY_S)
    store.open()
    store.work()
    return store


@pytest.mark.parametrize("step_s", STEPS)
def test_a_step_while_it_runs(tmp_path: Path, step_s: float) -> None:
    times = Times()
    store = _filled(tmp_path / "cache", times)
    times.wall.at_s += step_s
    times.pass_s(DAY_S)
    store.work()
    assert store.stats().num_blocks == 2
    times.pass_s(6.5 * DAY_S)
    store.work()
    assert store.stats().num_blocks == 0  # they expire in time


@pytest.mark.parametrize("step_s", STEPS)
def test_a_step_between_runs(tmp_path: Path, step_s: float) -> None:
    times, folder = Times(), tmp_path / "cache"
    close_now(_filled(folder, times))
    times.wall.at_s += step_s
    store = _reopened(folder, times)
    assert store.stats().num_blocks == 2
    for _ in range(8):
        times.pass_s(DAY_S)
        store.work()
    assert store.stats().num_blocks == 0


def test_a_clock_that_begins_anew_at_every_start(tmp_path: Path) -> None:
    """A board without a battery starts in 1970 until the network gives it the time."""
    times, folder = Times(), tmp_path / "cache"
    close_now(_filled(folder, times))
    for day in range(9):
        times.wall.at_s = 0.0
        store = _reopened(folder, times)
        assert store.stats().num_blocks == (2 if day < 7 else 0), day
        times.wall.at_s += 50 * YEAR_S
        times.pass_s(DAY_S + 1)
        store.work()
        close_now(store)


def test_unused_ones_go_after_a_long_pause_and_use(tmp_path: Path) -> None:
    times, folder = Times(), tmp_path / "cache"
    close_now(_filled(folder, times))
    times.wall.at_s += 30 * DAY_S  # switched off for a month: counts for half a lifetime, since the clock may be wrong
    store = _reopened(folder, times)
    assert store.stats().num_blocks == 2
    close_now(store)
    times.wall.at_s += 30 * DAY_S
    store = _reopened(folder, times)
    times.pass_s(1200)
    store.work()
    assert store.stats().num_blocks == 0


def _state(**fields: float) -> bytes:
    times = {"now_s": 1.7e9, "wall_s": 1.7e9, "allowance_bytes": 0.0, "allowance_at_s": 1.7e9, "read_bytes_per_s": 0.0}
    return json.dumps(times | fields).encode()


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", b"\xff", b'{"now_s": NaN}', b"[" * 50_000, _state(now_s=1e300), _state(now_s=1e18)],
)
def test_without_a_known_time_all_begin_anew_in_their_order(tmp_path: Path, content: bytes) -> None:
    times, folder = Times(), tmp_path / "cache"
    close_now(_filled(folder, times))
    before = [found.name for found in sorted(cache_folder.scan(folder), key=lambda found: found.used_s)]
    (folder / cache_folder.STATE_FILE).write_bytes(content)
    times.wall.at_s += YEAR_S
    store = _reopened(folder, times)
    assert store.stats().num_blocks == 2
    after = sorted(cache_folder.scan(folder), key=lambda found: found.used_s)
    assert [found.name for found in after] == before
    times.pass_s(8 * DAY_S)
    store.work()
    assert store.stats().num_blocks == 0


def test_a_time_of_use_that_lies_ahead_is_drawn_back(tmp_path: Path) -> None:
    times, folder = Times(), tmp_path / "cache"
    close_now(_filled(folder, times))
    for path in folder.glob("*.kv"):
        os.utime(path, (2**33, 2**33))
    store = _reopened(folder, times)
    times.pass_s(8 * DAY_S)
    store.work()
    assert store.stats().num_blocks == 0
