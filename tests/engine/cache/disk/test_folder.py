"""How the folder is maintained: what is synced and stamped, what is evicted, and how often a failed disk is tried."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

import pytest

from edgeagent import cache_folder
from edgeagent.cache_folder import RootRecord
from edgeagent.engine.cache.block import Importance
from edgeagent.engine.cache.disk import folder as module
from edgeagent.engine.cache.disk.file_format import file_bytes
from edgeagent.engine.cache.disk.files import Buffer, Files
from tests.engine.cache.disk.stores import FaultyFiles, Times, close_now, is_same, make_chain, make_store


def test_names_are_synced_once_when_nothing_waits_any_more(tmp_path: Path) -> None:
    files, operations = FaultyFiles(tmp_path / "cache"), list[str]()
    files.fault = lambda number, name: operations.append(name)
    store, chain = make_store(tmp_path / "cache", files=files), make_chain(3)
    store.work()
    store.work()
    assert operations.count("sync_folder") == 0, "nothing was written"
    for block in chain:
        store.offer(block, Importance.NORMAL)
    store.work()
    store.work()
    assert (operations.count("rename"), operations.count("sync_folder")) == (4, 1)
    last_block = len(operations) - operations[::-1].index("stamp")
    assert operations.index("sync_folder") > last_block
    store.offer(make_chain(1, seed=1)[0], Importance.NORMAL)
    close_now(store)
    assert operations.count("sync_folder") == 2
    assert operations[-1] == "sync_folder"


def temporaries(folder: Path) -> list[str]:
    """Return the names of temporary files, of this process or an earlier one."""
    return [path.name for path in folder.iterdir() if cache_folder.temporary_owner(path.name) is not None]


def test_what_a_dead_process_was_writing_goes_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_TIDY_EVERY_S", 1e9)
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    make_store(tmp_path / "cache").open()
    for pid in (gone.pid, os.getpid(), os.getppid()):
        name = cache_folder.temporary_name().replace(str(os.getpid()), str(pid))
        (tmp_path / "cache" / name).touch()
    make_store(tmp_path / "cache").open()
    assert [cache_folder.temporary_owner(name) for name in temporaries(tmp_path / "cache")] == [os.getppid()]


@pytest.mark.parametrize("operation", ["write", "sync", "stamp", "rename"])
def test_a_block_that_cannot_be_written_leaves_nothing(tmp_path: Path, operation: str) -> None:
    def fault(number: int, name: str) -> None:
        if is_bad and name == operation:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    is_bad = False
    store = make_store(tmp_path / "cache", files=FaultyFiles(tmp_path / "cache", fault))
    store.open()
    is_bad = True
    store.offer(make_chain(1)[0], Importance.NORMAL)
    store.work()
    assert store.stats().trouble is not None
    assert temporaries(tmp_path / "cache") == []


def test_uses_are_stamped_twice_a_minute_at_most(tmp_path: Path) -> None:
    times, stamped = Times(), list[str]()
    files = FaultyFiles(tmp_path / "cache", lambda number, name: stamped.append(name) if name == "stamp" else None)
    store, (block,) = make_store(tmp_path / "cache", times, files=files), make_chain(1)
    store.offer(block, Importance.NORMAL)
    store.work()
    before = len(stamped)
    for _ in range(10):
        times.pass_s(10.0)
        store.touch([block.key])
        store.work()
    assert len(stamped) - before == 3


class FullDisk(FaultyFiles):
    """A disk with room for small files only."""

    is_full = True

    def write(self, file: BinaryIO, parts: Iterable[Buffer]) -> None:
        whole = b"".join(parts)
        if self.is_full and len(whole) >= 4096:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().write(file, [whole])


class LateDisk(FaultyFiles):
    """A disk that reports a lack of room only at the sync."""

    is_full = True

    def sync(self, file: BinaryIO) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("kind", [FullDisk, LateDisk])
def test_a_disk_that_still_takes_nothing_stays_in_trouble(tmp_path: Path, kind: type[FullDisk | LateDisk]) -> None:
    files, times = kind(tmp_path / "cache"), Times()
    store, (block,) = make_store(tmp_path / "cache", times, files=files), make_chain(1, payload_bytes=8000)
    store.open()
    store.offer(block, Importance.NORMAL)
    store.work()
    store.withdraw(block.key)  # only the probe remains to detect it
    for _ in range(3):
        assert store.stats().trouble is not None
        times.pass_s(31.0)
        store.work()
    files.is_full = False
    assert store.stats().trouble is not None
    times.pass_s(31.0)
    store.work()
    assert store.stats().trouble is None
    assert temporaries(tmp_path / "cache") == []


def test_of_two_files_of_a_block_one_stays(tmp_path: Path) -> None:
    store, (block,) = make_store(tmp_path / "cache"), make_chain(1)
    store.offer(block, Importance.NORMAL)
    store.work()
    (path,) = (tmp_path / "cache").glob("*.kv")
    twin = path.with_name(path.name.replace(f"-{Importance.NORMAL}.kv", f"-{Importance.SYSTEM}.kv"))
    shutil.copyfile(path, twin)
    make_store(tmp_path / "cache").open()
    assert list((tmp_path / "cache").glob("*.kv")) == [twin]


@pytest.mark.parametrize("is_time_known", [True, False])
def test_times_of_use_are_kept_where_the_time_is_known(tmp_path: Path, is_time_known: bool) -> None:
    times = Times()
    store, chain = make_store(tmp_path / "cache", times), make_chain(20)
    for block in chain:
        store.offer(block, Importance.NORMAL)
        store.work()
        times.pass_s(100.0)
    close_now(store)
    if not is_time_known:
        (tmp_path / "cache" / cache_folder.STATE_FILE).unlink()
    later = make_store(tmp_path / "cache", times)
    later.open()
    ages_s = [later._folder.state.now_s - entry.used_s for entry in later._folder.all()]
    if is_time_known:
        assert max(ages_s) == pytest.approx(2000.0, abs=5.0)
        assert min(ages_s) == pytest.approx(100.0, abs=5.0)
    else:
        assert 0 <= min(ages_s) <= max(ages_s) <= 1.0
    in_folder = {found.name: found.used_s for found in cache_folder.scan(tmp_path / "cache")}
    assert in_folder == pytest.approx({entry.name: entry.used_s for entry in later._folder.all()}, abs=0.001)


def test_an_importance_that_is_no_higher_renames_nothing(tmp_path: Path) -> None:
    files, operations = FaultyFiles(tmp_path / "cache"), list[str]()
    store, (block, other) = make_store(tmp_path / "cache", files=files), make_chain(2)
    store.offer(block, Importance.REUSED)
    store.work()
    files.fault = lambda number, name: operations.append(name)
    folder = store._folder
    for importance in (Importance.NORMAL, Importance.REUSED):
        folder.set_importance(block.key, importance)
    folder.set_importance(other.key, Importance.PINNED)
    assert "rename" not in operations
    folder.set_importance(block.key, Importance.SYSTEM)
    assert operations.count("rename") == 1
    assert folder.trouble is None


def test_room_is_made_for_a_few_blocks_at_once(tmp_path: Path) -> None:
    blocks = [make_chain(1, seed=seed)[0] for seed in range(65)]
    store = make_store(tmp_path / "cache", max_bytes=64 * file_bytes(blocks[0]))
    for block in blocks:
        store.offer(block, Importance.NORMAL)
        store.work()
    assert store.stats().num_blocks == 62, "a thirty-second part more than the one that came needs"


def test_a_block_that_is_larger_than_all_may_be_is_named_so(tmp_path: Path) -> None:
    store, (block,) = make_store(tmp_path / "cache", max_bytes=1000), make_chain(1, payload_bytes=5000)
    store.offer(block, Importance.NORMAL)
    store.work()
    assert "more than all may take" in (store.stats().trouble or "")


def test_a_full_disk_with_nothing_to_leave_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = make_chain(1)
    monkeypatch.setattr(Files, "free_bytes", lambda self: file_bytes(block) - 1)
    store = make_store(tmp_path / "cache", Times(), min_free_bytes=0)
    store.offer(block, Importance.NORMAL)
    store.work()
    assert (store.stats().trouble or "").endswith("MiB free, less than a block; free some")


def test_it_stays_told_that_a_block_found_no_room_until_it_would_find_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times, (block,) = Times(), make_chain(1)
    size = file_bytes(block)
    free = 10 * size
    monkeypatch.setattr(Files, "free_bytes", lambda self: free)
    store = make_store(tmp_path / "cache", times, min_free_bytes=10 * size)
    store.offer(block, Importance.NORMAL)
    store.work()
    assert "must stay free" in (store.stats().trouble or "")
    free = 10 * size + size // 2
    times.pass_s(61.0)
    store.work()
    assert "must stay free" in (store.stats().trouble or ""), "half a block has room"
    free = 11 * size
    times.pass_s(61.0)
    store.work()
    assert store.stats().trouble is None


def test_what_is_expired_goes_though_nothing_is_written(tmp_path: Path) -> None:
    times, (block,) = Times(), make_chain(1)
    store = make_store(tmp_path / "cache", times, ttl_s=1000.0)
    store.offer(block, Importance.NORMAL)
    store.work()
    times.pass_s(900.0)
    store.work()
    assert store.stats().num_blocks == 1
    times.pass_s(700.0)
    store.work()
    assert store.stats().num_blocks == 0
    assert list((tmp_path / "cache").glob("*.kv")) == []


def test_what_expired_while_no_process_ran_goes_at_the_start(tmp_path: Path) -> None:
    times, (block,) = Times(), make_chain(1)
    store = make_store(tmp_path / "cache", times, ttl_s=1000.0)
    store.offer(block, Importance.NORMAL)
    store.work()
    times.pass_s(900.0)
    close_now(store)
    times.pass_s(200.0)
    later = make_store(tmp_path / "cache", times, ttl_s=1000.0)
    later.open()
    assert later.stats().num_blocks == 0


def test_a_store_that_is_exactly_full_lacks_nothing(tmp_path: Path) -> None:
    times, (block,) = Times(), make_chain(1)
    store = make_store(tmp_path / "cache", times, max_bytes=file_bytes(block))
    store.offer(block, Importance.NORMAL)
    for _ in range(3):
        store.work()
        times.pass_s(61.0)
    assert (store.stats().num_blocks, store.stats().trouble) == (1, None)


def test_a_block_that_lacks_one_byte_takes_the_place_of_another(tmp_path: Path) -> None:
    (first,), (second,) = make_chain(1), make_chain(1, seed=1)
    store = make_store(tmp_path / "cache", max_bytes=2 * file_bytes(first) - 1)
    for block in (first, second):
        store.offer(block, Importance.NORMAL)
        store.work()
    assert (store.num_bytes(first.key), store.num_bytes(second.key)) == (None, file_bytes(second))


def test_a_block_that_is_as_large_as_all_may_be_takes_the_place_of_another(tmp_path: Path) -> None:
    (first,), (second,) = make_chain(1), make_chain(1, seed=1)
    store = make_store(tmp_path / "cache", max_bytes=file_bytes(first))
    for block in (first, second):
        store.offer(block, Importance.NORMAL)
        store.work()
    assert (store.num_bytes(first.key), store.num_bytes(second.key)) == (None, file_bytes(second))
    assert store.stats().trouble is None


def test_a_label_is_written_with_the_first_block_of_its_root_alone(tmp_path: Path) -> None:
    store, chain = make_store(tmp_path / "cache"), make_chain(3)
    store.describe_partition(chain[0].root, RootRecord("model", "client"))
    files = []
    for block in chain:
        store.offer(block, Importance.NORMAL)
        store.work()
        (label,) = (tmp_path / "cache").glob("*.about")
        files.append((label.stat().st_ino, label.stat().st_mtime_ns))
    assert len(set(files)) == 1


def test_a_label_goes_with_the_last_block_of_its_root(tmp_path: Path) -> None:
    def labels() -> int:
        return len(list((tmp_path / "cache").glob("*.about")))

    times = Times()
    first, (block,) = make_store(tmp_path / "cache", times, ttl_s=10.0), make_chain(1)
    first.describe_partition(block.root, RootRecord("model", "client"))
    first.offer(block, Importance.NORMAL)
    close_now(first)
    assert labels() == 1
    # A later process that never describes this partition.
    later = make_store(tmp_path / "cache", times, ttl_s=10.0)
    later.open()
    later.work()
    assert labels() == 1
    times.pass_s(module._TIDY_EVERY_S + 100.0)
    later.work()
    assert (later.stats().num_blocks, labels()) == (0, 0)


def test_a_folder_in_the_place_of_a_label_is_told_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    store, (block,) = make_store(tmp_path / "cache"), make_chain(1)
    store.open()
    label = tmp_path / "cache" / cache_folder.root_record_name(block.root)
    label.mkdir()
    store.describe_partition(block.root, RootRecord("model", "client"))
    store.offer(block, Importance.NORMAL)
    store.work()
    assert store.num_bytes(block.key) is not None
    assert str(label) in (store.stats().trouble or "")
    assert temporaries(tmp_path / "cache") == []


@pytest.mark.parametrize("importance", [Importance.NORMAL, Importance.SYSTEM])
def test_a_block_takes_the_place_of_its_damaged_file(tmp_path: Path, importance: Importance) -> None:
    store, (block,) = make_store(tmp_path / "cache"), make_chain(1)
    store.offer(block, Importance.NORMAL)
    store.work()
    (path,) = (tmp_path / "cache").glob("*.kv")
    path.write_bytes(bytes(path.stat().st_size))
    later = make_store(tmp_path / "cache")
    later.open()
    assert later.num_bytes(block.key) is None
    later.offer(block, importance)
    later.work()
    assert is_same(later.read(block.key), block)
    assert len(list((tmp_path / "cache").glob("*.kv"))) == later.stats().num_blocks == 1


def test_a_purge_while_a_block_is_written_leaves_nothing_of_it(tmp_path: Path) -> None:
    (block,) = make_chain(1)

    def fault(number: int, name: str) -> None:
        if name == "sync":
            assert temporaries(tmp_path / "cache") != []
            store.purge(block.root)

    store = make_store(tmp_path / "cache", files=FaultyFiles(tmp_path / "cache", fault))
    store.offer(block, Importance.NORMAL)
    store.work()
    assert store.num_bytes(block.key) is None
    assert temporaries(tmp_path / "cache") == []
    assert list((tmp_path / "cache").glob("*.kv")) == []


def test_a_file_that_another_process_deletes_while_ages_are_set(tmp_path: Path) -> None:
    files, times = FaultyFiles(tmp_path / "cache"), Times()
    store, chain = make_store(tmp_path / "cache", times), make_chain(3)
    for block in chain:
        store.offer(block, Importance.NORMAL)
        store.work()
    close_now(store)
    (tmp_path / "cache" / cache_folder.STATE_FILE).unlink()
    stamps = itertools.count()

    def fault(_number: int, name: str) -> None:
        if name == "stamp" and next(stamps) == 0:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))

    files.fault = fault
    later = make_store(tmp_path / "cache", times, files=files)
    later.open()
    assert next(stamps) == 3
    assert later.trouble is None


def test_a_block_that_is_being_read_on_windows_is_no_trouble(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows neither renames nor removes an open file."""
    store, (block,), (other,) = make_store(tmp_path / "cache"), make_chain(1), make_chain(1, seed=1)
    store.offer(block, Importance.NORMAL)
    store.work()

    def in_use(path: Path, *_: object, **__: object) -> None:
        error = PermissionError(errno.EACCES, "The process cannot access the file")
        vars(error)["winerror"] = 32
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", in_use)
        store._folder.set_importance(block.key, Importance.PINNED)
        assert store._folder.trouble is None
        patch.setattr(Path, "unlink", in_use)
        store._folder.discard(block.key)
        assert store._folder.trouble is None
    store.offer(other, Importance.NORMAL)
    store.work()
    assert store.stats().trouble is None and other.key in {entry.name.key for entry in store._folder.all()}
    close_now(store)
