"""How the limits of the disk cache are divided among the models."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from edgeagent import cache_folder
from edgeagent.config import CacheConfig, Config, StoreConfig
from edgeagent.engine.cache.block import Importance
from edgeagent.worker.parent.pool.cache_shares import CacheShares
from edgeagent.worker.protocol import DiskShare
from tests.engine.cache.disk.stores import Clock, close_now, make_chain, make_store

A, B, C = (Path(f"/{name}") for name in "abc")
LIMIT, PER_HOUR = 12_000, 600


def make_shares(state_dir: Path, clock: Clock | None = None, **cache: Any) -> CacheShares:
    settings: dict[str, Any] = {"disk_bytes": LIMIT, "max_bytes_per_hour": PER_HOUR, **cache}
    config = Config(state_dir=state_dir, cache=CacheConfig(**settings), store=StoreConfig(min_free_bytes=0))
    return CacheShares(config, clock or Clock())


def test_a_model_takes_what_the_others_leave_and_at_least_an_equal_part(tmp_path: Path) -> None:
    shares = make_shares(tmp_path)
    assert shares.share_of(A) == DiskShare(LIMIT, PER_HOUR)
    shares.note_loaded({A: LIMIT, B: 0})
    assert [shares.share_of(each).max_bytes for each in (A, B)] == [LIMIT, LIMIT // 2]
    shares.note_loaded({A: LIMIT, B: 1000})
    assert [shares.share_of(each).max_bytes for each in (A, B)] == [LIMIT - 1000, LIMIT // 2]
    shares.note_loaded({A: 8000, B: 1000, C: 3000})
    assert [shares.share_of(each).max_bytes for each in (A, B, C)] == [8000, 4000, 4000]


def test_no_bytes_make_no_folder(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").touch()
    state_dir = tmp_path / "state"
    state_dir.mkdir()
    assert make_shares(state_dir, disk_bytes=0).prepare(tmp_path / "m.gguf") is None
    assert list(state_dir.iterdir()) == []


@pytest.mark.parametrize("sizes", [(LIMIT, 0, 0), (LIMIT, LIMIT, LIMIT), (8000, 5000, 100), (4000, 4000, 4000)])
def test_the_limit_holds_once_each_model_keeps_to_its_share(tmp_path: Path, sizes: tuple[int, int, int]) -> None:
    shares, loaded = make_shares(tmp_path), dict(zip((A, B, C), sizes, strict=True))
    for each in loaded:
        shares.note_loaded(loaded)
        loaded = {**loaded, each: min(loaded[each], shares.share_of(each).max_bytes)}
    assert sum(loaded.values()) <= LIMIT


def test_the_bytes_of_an_hour_are_divided_among_its_models(tmp_path: Path) -> None:
    clock = Clock()
    shares = make_shares(tmp_path, clock)
    shares.note_loaded({A: 0, B: 0})
    assert [shares.share_of(each).max_bytes_per_hour for each in (A, B, C)] == [300, 300, 200]
    clock.at_s += 3000.0
    shares.note_loaded({C: 0})
    assert shares.share_of(C).max_bytes_per_hour == 200, "the others may have written their parts"
    clock.at_s += 700.0
    assert shares.share_of(C).max_bytes_per_hour == PER_HOUR
    assert make_shares(tmp_path, max_bytes_per_hour=0).share_of(A).max_bytes_per_hour == 0


def test_each_model_and_installation_has_a_folder_of_its_own(tmp_path: Path) -> None:
    shared: dict[str, Any] = {"dir": tmp_path / "cache"}
    folders = set[str]()
    for state_dir in (tmp_path / "one", tmp_path / "two"):
        state_dir.mkdir(mode=0o700)
        for model in ("/models/a b.gguf", "/models/c.gguf", "/others/c.gguf"):
            disk = make_shares(state_dir, **shared).prepare(Path(model))
            assert disk is not None and disk.folder not in folders
            again = make_shares(state_dir, **shared).prepare(Path(model))
            assert again is not None and again.folder == disk.folder
            folders.add(disk.folder)
    assert {Path(folder) for folder in folders} == {*cache_folder.model_folders(tmp_path / "cache")}


def test_the_blocks_of_an_older_version_are_removed_and_other_files_stay(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache, shares = tmp_path / "cache", make_shares(tmp_path)
    old = make_store(cache)
    for block in make_chain(2):
        old.offer(block, Importance.PINNED)
    close_now(old)
    (cache / "notes.txt").write_text("mine")
    assert shares.prepare(A) is not None
    caplog.set_level("INFO")
    shares.evict_if_due()
    assert "2 cached blocks of an older version were removed" in caplog.text
    assert {path.name for path in cache.iterdir() if path.is_file()} == {"notes.txt"}


def test_blocks_of_models_that_are_not_loaded_give_way(tmp_path: Path) -> None:
    clock, shares = Clock(), make_shares(tmp_path)
    shares._clock = clock
    disk = shares.prepare(A)
    assert disk is not None
    store = make_store(Path(disk.folder))
    for block in make_chain(2):
        store.offer(block, Importance.NORMAL)
    close_now(store)
    shares.evict_if_due()
    shares.note_loaded({B: LIMIT - 5000})
    shares.evict_if_due()
    assert len(list(cache_folder.scan(Path(disk.folder)))) == 2
    shares.note_loaded({B: LIMIT - 3000})
    shares.evict_if_due()
    assert len(list(cache_folder.scan(Path(disk.folder)))) == 1, "at once, not after an hour"


def test_pinned_blocks_that_leave_no_room_are_looked_at_once_an_hour(tmp_path: Path) -> None:
    clock, shares = Clock(), make_shares(tmp_path)
    shares._clock = clock
    disk = shares.prepare(A)
    assert disk is not None
    store, state = make_store(Path(disk.folder)), Path(disk.folder) / "state.json"
    for block in make_chain(2):
        store.offer(block, Importance.PINNED)
    close_now(store)
    shares.evict_if_due()
    shares.note_loaded({B: LIMIT})
    shares.evict_if_due()
    seen = state.stat().st_mtime_ns
    for _ in range(3):
        shares.evict_if_due()
    assert state.stat().st_mtime_ns == seen
    clock.at_s += 3601.0
    shares.evict_if_due()
    assert state.stat().st_mtime_ns > seen
    assert len(list(cache_folder.scan(Path(disk.folder)))) == 2


def test_an_empty_folder_is_new_for_the_worker_that_gets_it(tmp_path: Path) -> None:
    shares = make_shares(tmp_path)
    disk = shares.prepare(A)
    assert disk is not None
    os.utime(disk.folder, (0.0, 0.0))
    assert shares.prepare(A) == disk
    shares.evict_if_due()
    assert Path(disk.folder).is_dir()


def test_a_folder_that_is_gone_is_created_and_reported_until_a_worker_gets_it(tmp_path: Path) -> None:
    shares = make_shares(tmp_path)
    disk = shares.prepare(A)
    assert disk is not None
    folder = Path(disk.folder)
    assert not shares.is_replaced(folder)
    folder.parent.rename(tmp_path / "kept")  # its inode stays in use, so the new folder gets another
    for _ in range(2):
        assert shares.is_replaced(folder)
    assert folder.is_dir()
    assert shares.prepare(A) == disk
    assert not shares.is_replaced(folder)


def test_a_folder_that_cannot_be_made_is_not_there(tmp_path: Path) -> None:
    shares = make_shares(tmp_path)
    disk = shares.prepare(A)
    assert disk is not None
    shutil.rmtree(tmp_path / "cache")
    (tmp_path / "cache").touch()
    assert not shares.is_replaced(Path(disk.folder))
