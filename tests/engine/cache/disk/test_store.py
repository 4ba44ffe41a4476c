"""Blocks go to disk and come back, in this process and the next; blocks that must not be stored are not."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import sys
from functools import partial
from pathlib import Path
from queue import Empty, Queue

import pytest

from edgeagent import cache_folder
from edgeagent.cache_folder import RootRecord
from edgeagent.engine.cache.block import Block, Importance
from edgeagent.engine.cache.disk.file_format import HEADER_BYTES, file_bytes
from edgeagent.engine.cache.disk.store import BlockStore
from tests.engine.cache.disk.stores import (
    FaultyFiles,
    Store,
    Times,
    close_now,
    failing,
    is_same,
    keyring,
    make_chain,
    make_store,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.mark.parametrize("draft", [False, True])
def test_what_is_offered_is_read_back(folder: Path, draft: bool) -> None:
    store, chain = make_store(folder), make_chain(3, draft=draft)
    for block in chain:
        store.offer(block, Importance.NORMAL)
    assert store.num_bytes(chain[0].key) is None  # only after it is published
    store.work()
    for block in chain:
        assert store.num_bytes(block.key) == file_bytes(block)
        assert is_same(store.read(block.key), block)
    stats = store.stats()
    assert (stats.num_blocks, stats.num_hits, stats.num_offered, stats.num_dropped) == (3, 3, 3, 0)
    assert stats.num_bytes == sum(file_bytes(block) for block in chain)
    assert stats.read_bytes_per_s > 0


def test_the_next_process_finds_them_without_reading_any(folder: Path) -> None:
    chain = make_chain(4)
    first = make_store(folder)
    for block in chain:
        first.offer(block, Importance.SYSTEM)
    first.work()
    second = make_store(folder)
    second.open()
    assert [second.num_bytes(block.key) for block in chain] == [file_bytes(block) for block in chain]
    assert second.stats().num_bytes == first.stats().num_bytes
    assert all(is_same(second.read(block.key), block) for block in chain)


def test_files_are_private(folder: Path) -> None:
    store = make_store(folder)
    store.describe_partition(keyring().root(""), RootRecord("model", "client"))
    for block in make_chain(2):
        store.offer(block, Importance.NORMAL)
    store.work()
    close_now(store)
    names = [path.name for path in folder.iterdir()]
    assert len(names) == 5  # blocks, their root's label, state, lock
    if sys.platform != "win32":
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}


def test_a_block_whose_parent_is_not_kept_is_not(folder: Path) -> None:
    store, chain = make_store(folder), make_chain(2)
    store.offer(chain[1], Importance.SYSTEM)
    store.work()
    assert store.num_bytes(chain[1].key) is None and not store.is_pending(chain[1].key)
    assert store.stats().num_dropped == 1


def test_a_block_is_written_once(folder: Path) -> None:
    store, (block,) = make_store(folder), make_chain(1)
    for _ in range(3):
        store.offer(block, Importance.NORMAL)
    store.work()
    store.offer(block, Importance.NORMAL)
    store.work()
    assert store.num_written == 1


def test_importance_rises_and_outlives_the_process(folder: Path) -> None:
    store, (block,) = make_store(folder), make_chain(1)
    store.offer(block, Importance.NORMAL)
    store.offer(block, Importance.SYSTEM)  # while the first offer is still waiting
    store.work()
    assert [found.name.importance for found in cache_folder.scan(folder)] == [Importance.SYSTEM]
    store.offer(block, Importance.NORMAL)
    store.offer(block, Importance.PINNED)
    store.work()
    assert [found.name.importance for found in cache_folder.scan(folder)] == [Importance.PINNED]
    assert is_same(store.read(block.key), block)
    assert store.num_written == 1


def test_a_purge_forgets_at_once_and_files_follow(folder: Path) -> None:
    mine, others = make_chain(2, partition="me"), make_chain(2, partition="you")
    store = make_store(folder)
    for block in (*mine, *others):
        store.offer(block, Importance.NORMAL)
    store.work()
    assert store.purge(mine[0].root) == 2
    assert store.num_bytes(mine[0].key) is None
    store.work()
    assert store.read(mine[0].key) is None
    assert is_same(store.read(others[0].key), others[0])
    assert {found.name.root for found in cache_folder.scan(folder)} == {others[0].root[: cache_folder.ROOT_BYTES]}
    assert store.purge() == 2
    store.work()
    assert list(cache_folder.scan(folder)) == []


def test_what_was_offered_before_a_purge_is_not_written_after_it(folder: Path) -> None:
    store, (block,) = make_store(folder), make_chain(1)
    store.work()
    store.offer(block, Importance.NORMAL)
    store.purge(block.root)
    store.work()
    assert list(cache_folder.scan(folder)) == []
    store.offer(block, Importance.NORMAL)  # offered again after the purge
    store.work()
    assert is_same(store.read(block.key), block)


def test_a_purge_of_one_partition_leaves_what_waits_of_another(folder: Path) -> None:
    store, (mine,), (other,) = make_store(folder), make_chain(1, partition="me"), make_chain(1, partition="you")
    store.work()
    for block in (mine, other):
        store.offer(block, Importance.NORMAL)
    store.purge(mine.root)
    assert (store.is_pending(mine.key), store.is_pending(other.key)) == (False, True)
    store.work()
    assert {found.name.root for found in cache_folder.scan(folder)} == {other.root[: cache_folder.ROOT_BYTES]}


def test_how_fast_reads_are_is_measured_and_outlives_the_process(folder: Path) -> None:
    times, (block,) = Times(), make_chain(1)
    files = FaultyFiles(folder, lambda number, name: times.pass_s(0.01) if name == "read" else None)
    store = make_store(folder, times, files=files)
    store.offer(block, Importance.NORMAL)
    store.work()
    assert store.stats().read_bytes_per_s == 0
    assert is_same(store.read(block.key), block)
    rate = store.stats().read_bytes_per_s
    assert rate == pytest.approx(100 * file_bytes(block))
    close_now(store)
    later = make_store(folder, times)
    later.open()
    assert later.stats().read_bytes_per_s == rate


def test_the_quota_is_kept_and_the_longest_unused_goes(folder: Path) -> None:
    times = Times()
    chains = [make_chain(2, seed=seed) for seed in range(6)]
    size = 2 * file_bytes(chains[0][0])
    store = make_store(folder, times, max_bytes=4 * size)
    for chain in chains[:4]:
        for block in chain:
            store.offer(block, Importance.NORMAL)
        store.work()
        times.pass_s(60)
    store.touch([block.key for block in chains[0]])
    times.pass_s(60)
    for block in chains[4]:
        store.offer(block, Importance.NORMAL)
    store.work()
    assert store.stats().num_bytes <= 4 * size
    assert all(store.num_bytes(block.key) for block in (*chains[0], *chains[4]))
    assert store.num_bytes(chains[1][1].key) is None
    assert store.stats().num_evicted > 0


def test_the_disk_keeps_its_reserve(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times, chain = Times(), make_chain(4)
    size = file_bytes(chain[0])
    store = make_store(folder, times, min_free_bytes=10 * size)
    free = 12 * size
    monkeypatch.setattr("edgeagent.engine.cache.disk.files.Files.free_bytes", lambda self: free)
    for block in chain[:2]:
        store.offer(block, Importance.NORMAL)
    store.work()
    assert store.stats().num_blocks == 2
    free = 9 * size  # another program filled the disk
    times.pass_s(3600)
    store.work()
    assert store.stats().num_blocks < 2
    assert "must stay free" in (store.stats().trouble or ""), "whoever looks is told why"
    store.offer(chain[0], Importance.NORMAL)
    store.work()
    assert "must stay free" in (store.stats().trouble or "")
    free = 100 * size
    times.pass_s(61)
    store.work()
    assert store.stats().trouble is None
    for block in chain[:2]:
        store.offer(block, Importance.NORMAL)
    store.work()
    assert store.stats().num_blocks == 2


def test_what_is_pinned_everywhere_is_said(folder: Path) -> None:
    (pinned,), (other,) = make_chain(1), make_chain(1, seed=1)
    store = make_store(folder, max_bytes=file_bytes(pinned))
    store.offer(pinned, Importance.PINNED)
    store.offer(other, Importance.NORMAL)
    store.work()
    assert store.num_bytes(other.key) is None
    assert "pinned" in (store.stats().trouble or "")


def test_bytes_per_hour_are_bounded_over_restarts(folder: Path) -> None:
    times = Times()
    chains = [make_chain(1, seed=seed) for seed in range(64)]
    size = file_bytes(chains[0][0])
    troubles: list[str | None] = []

    def offer_all(importance: Importance) -> int:
        store = make_store(folder, times, bytes_per_hour=16 * size)
        for (block,) in chains:
            store.offer(block, importance)
            store.work()
        troubles.append(store.stats().trouble)
        close_now(store)
        return store.num_written

    assert offer_all(Importance.NORMAL) == 12  # leaves a quarter of the allowance to more important blocks
    assert "only important prefixes are written now" in (troubles[-1] or "")
    assert offer_all(Importance.SYSTEM) == 4
    assert "100% of" in (troubles[-1] or "")
    assert offer_all(Importance.SYSTEM) == 0
    times.pass_s(1800)
    assert offer_all(Importance.SYSTEM) in (7, 8)


def test_close_waits_for_the_writer_as_long_as_it_may_and_half_a_second_more(folder: Path) -> None:
    waits: list[float | None] = []

    class Never(Queue[None]):
        def get(self, block: bool = True, timeout: float | None = None) -> None:
            waits.append(timeout)
            raise Empty

    times = Times()
    store = make_store(folder, times, close_s=2.0)
    store._closed = Never()
    store.close()
    times.pass_s(5)
    store.close()
    assert waits == [2.5, 0.5]


def test_the_first_lookup_waits_for_what_is_there_to_be_known(folder: Path) -> None:
    waits: list[float | None] = []

    class Never(Queue[None]):
        def get(self, block: bool = True, timeout: float | None = None) -> None:
            waits.append(timeout)
            raise Empty

    store = make_store(folder)
    store._opened = Never()
    store.wait_until_open(3.0)
    assert waits == [3.0]


def test_a_read_of_what_is_not_there_is_one_miss(folder: Path) -> None:
    store, (block, other) = make_store(folder), make_chain(2)
    store.offer(block, Importance.NORMAL)
    store.work()
    assert store.read(other.key) is None
    assert (store.stats().num_hits, store.stats().num_misses) == (0, 1)
    (path,) = folder.glob("*.kv")
    path.write_bytes(bytes(path.stat().st_size))
    assert store.read(block.key) is None
    assert (store.stats().num_hits, store.stats().num_misses) == (0, 2)
    store.work()
    assert list(folder.glob("*.kv")) == [], "what is damaged goes"


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_a_read_that_fails_for_want_of_resources_keeps_the_block(folder: Path, code: int) -> None:
    files = FaultyFiles(folder)
    store, (block, _) = make_store(folder, files=files), make_chain(2)
    store.offer(block, Importance.NORMAL)
    store.work()
    files.fault = failing(code)
    assert store.read(block.key) is None
    assert store.stats().num_misses == 1
    files.fault = lambda number, name: None
    store.work()
    assert is_same(store.read(block.key), block)


def test_one_failed_read_keeps_the_block_and_those_after_it(folder: Path) -> None:
    files, chain = FaultyFiles(folder), make_chain(2)
    store = make_store(folder, files=files)
    for block in chain:
        store.offer(block, Importance.NORMAL)
    store.work()
    for _ in range(2):  # a read that succeeds ends the row of failures
        files.fault = failing(errno.EIO)
        assert store.read(chain[0].key) is None
        files.fault = lambda number, name: None
        store.work()
        assert all(is_same(store.read(block.key), block) for block in chain)
    assert store.stats().num_misses == 2


def test_a_block_that_fails_twice_in_a_row_is_written_again_and_not_deleted(folder: Path) -> None:
    files, (block,) = FaultyFiles(folder), make_chain(1)
    store = make_store(folder, files=files)
    store.offer(block, Importance.NORMAL)
    store.work()
    files.fault = failing(errno.EIO)
    assert (store.read(block.key), store.read(block.key)) == (None, None)
    files.fault = lambda number, name: None
    store.work()
    assert store.num_bytes(block.key) is None, "so the prompt is computed again, and its block offered"
    assert len(list(folder.glob("*.kv"))) == 1
    store.offer(block, Importance.REUSED)
    store.work()
    assert is_same(store.read(block.key), block)
    assert len(list(folder.glob("*.kv"))) == 1


def test_a_file_that_is_gone_is_no_longer_found(folder: Path) -> None:
    store, (block,) = make_store(folder), make_chain(1)
    store.offer(block, Importance.NORMAL)
    store.work()
    next(folder.glob("*.kv")).unlink()
    assert store.read(block.key) is None
    assert store.num_bytes(block.key) is None


def broken(folder: Path, monkeypatch: pytest.MonkeyPatch, *blocks: Block) -> Store:
    """Return a store whose thread has met a bug, with blocks on disk. `end_broken` lets it carry out its commands."""
    store = make_store(folder)
    for block in blocks:
        store.offer(block, Importance.NORMAL)
    store.work()
    monkeypatch.setattr(store, "_turn", lambda wait_s: 1 // 0)
    return store


def end_broken(store: Store) -> None:
    store._commands.put(None)
    store.run()
    store.look()


def test_a_store_that_broke_still_answers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    block, other = make_chain(2)
    store = broken(folder, monkeypatch, block)
    store.touch([block.key])
    store.remove(block.key)
    store.offer(other, Importance.NORMAL)
    BlockStore.read(store, block.key)
    store.describe_partition(block.root, RootRecord("m", ""))
    called: list[bool] = []
    store.call_back(partial(called.append, True))
    end_broken(store)
    assert called
    assert store._loaded == [None]
    assert not store.is_pending(other.key) and store.stats().num_dropped == 1
    assert "broke" in (store.trouble or "") and store.is_stalled
    assert not store._opened.empty() and not store._closed.empty(), "no thread waits for it"


def test_a_purge_deletes_the_files_although_the_store_broke(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (mine,), (other,) = make_chain(1), make_chain(1, partition="other")
    store = broken(folder, monkeypatch, mine, other)
    assert store.purge(mine.root) == 1
    end_broken(store)
    later = make_store(folder)
    later.open()
    assert (later.num_bytes(mine.key), later.num_bytes(other.key) is None) == (None, False)


def test_a_purge_after_the_store_broke_may_fail_too(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = broken(folder, monkeypatch, *make_chain(1))
    monkeypatch.setattr(store._folder, "purge", lambda root: 1 // 0)
    assert store.purge() == 1
    end_broken(store)
    assert "not deleted" in (store.trouble or "")


def test_close_writes_down_uses(folder: Path) -> None:
    times, (block,) = Times(), make_chain(1)
    store = make_store(folder, times)
    store.offer(block, Importance.NORMAL)
    store.work()
    before = next(cache_folder.scan(folder)).used_s
    times.pass_s(20)  # too soon for the next stamp
    store.touch([block.key])
    store.work()
    assert next(cache_folder.scan(folder)).used_s == before
    close_now(store)
    assert next(cache_folder.scan(folder)).used_s == pytest.approx(before + 20, abs=1)


def test_a_folder_that_is_deleted_is_made_anew_with_all_that_belongs_in_it(tmp_path: Path) -> None:
    times, folder = Times(), tmp_path / "cache"
    store = make_store(folder, times)
    chain = make_chain(2)
    store.describe_partition(chain[0].root, RootRecord("m", ""))
    for block in chain:
        store.offer(block, Importance.NORMAL)
    store.work()
    assert store.stats().num_blocks == 2
    shutil.rmtree(folder)
    store.work()
    assert store.stats().num_blocks == 0
    times.pass_s(1)
    store.work()
    assert store.trouble is None
    if os.name == "posix":
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for block in chain:
        store.offer(block, Importance.NORMAL)
    store.work()
    assert (store.trouble, store.stats().num_blocks) == (None, 2)
    assert is_same(store.read(chain[1].key), chain[1])
    names = {path.name for path in folder.iterdir()}
    assert {cache_folder.STATE_FILE, cache_folder.LOCK_FILE, cache_folder.root_record_name(chain[0].root)} <= names


def test_a_folder_that_cannot_be_made_anew_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times, folder = Times(), tmp_path / "cache"
    store = make_store(folder, times)
    (block,) = make_chain(1)
    store.offer(block, Importance.NORMAL)
    store.work()
    shutil.rmtree(folder)

    def refuse(folder: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(cache_folder, "ensure_private", refuse)
    for _ in range(3):
        times.pass_s(1)
        store.work()
        assert (store.trouble or "").endswith("permission denied") or "no such file" in (store.trouble or "").lower()
    assert store.stats().num_blocks == 0
    monkeypatch.undo()
    times.pass_s(30)
    store.work()
    assert store.trouble is None


def test_a_second_process_waits_until_the_first_has_ended(folder: Path) -> None:
    times, chain = Times(), make_chain(3)
    first = make_store(folder, times)
    for block in chain[:2]:
        first.offer(block, Importance.NORMAL)
    first.work()
    second = make_store(folder, times, is_beside=True)
    second.open()
    second.offer(chain[2], Importance.NORMAL)
    second.work()
    assert (second.stats().num_blocks, second.is_stalled) == (0, True)
    assert "another process uses" in (second.trouble or "")
    close_now(first)
    times.pass_s(1)
    second.work()
    second.work()
    assert second.trouble is None
    assert [head.key for head in second.take_found(9)] == [block.key for block in chain[:2]]
    assert all(is_same(second.read(block.key), block) for block in chain)


def test_a_process_that_never_got_the_folder_leaves_its_state(folder: Path) -> None:
    times = Times()
    first = make_store(folder, times)
    first.open()
    second = make_store(folder, times, is_beside=True)
    second.open()
    close_now(first)
    state = (folder / "state.json").read_bytes()
    times.wall.at_s += 1e6
    close_now(second)
    assert (folder / "state.json").read_bytes() == state


def test_a_share_that_becomes_smaller_is_kept_at_once(folder: Path) -> None:
    times, chain = Times(), make_chain(8)
    size = file_bytes(chain[0])
    store = make_store(folder, times, max_bytes=8 * size, bytes_per_hour=16 * size)
    for block in chain:
        store.offer(block, Importance.SYSTEM)
    store.work()
    store.set_share(4 * size, 8 * size)
    store.work()
    assert (store.stats().num_blocks, store.stats().max_bytes) == (3, 4 * size), "one more than has to"
    assert [store.num_bytes(block.key) is None for block in chain] == [False] * 3 + [True] * 5
    assert store._folder.state.allowance_left == 1.0, "8 of 16 blocks were left, and 8 are all now"


def test_files_that_another_program_removed_are_no_longer_found(folder: Path) -> None:
    store, chain = make_store(folder), make_chain(4)
    for block in chain:
        store.offer(block, Importance.NORMAL)
    store.work()
    for path in folder.glob("*.kv"):
        if chain[3].key.hex() not in path.name:
            path.unlink()
    assert store.read(chain[1].key) is None
    store.work()
    assert [store.num_bytes(block.key) is None for block in chain] == [True, True, True, False]
    assert store.stats().num_blocks == 1


def test_a_model_and_its_draft_are_each_told_of_their_own_blocks(folder: Path) -> None:
    chain, drafts = make_chain(2), make_chain(3, draft=True, keys=keyring(fingerprint=b"draft"))
    first = make_store(folder)
    for block in (*chain, *drafts):
        first.offer(block, Importance.NORMAL)
    first.work()
    second = make_store(folder)
    second.open()
    assert [head.key for head in second.take_found(9, is_draft=True)] == [block.key for block in drafts]
    assert [head.key for head in second.take_found(9)] == [block.key for block in chain]
    assert all(is_same(second.read(block.key), block) for block in (*chain, *drafts))
    assert second.stats().num_bytes == sum(path.stat().st_size for path in folder.glob("*.kv"))
    for store in (first, second):  # one wrote the blocks, the other read their headers
        assert {entry.name.key for entry in store._folder.all() if entry.is_draft} == {block.key for block in drafts}
    assert second.purge(drafts[0].root) == 3
    assert all(is_same(second.read(block.key), block) for block in chain)


def test_only_heads_are_read_at_the_start(folder: Path) -> None:
    chain = make_chain(50, payload_bytes=100_000)
    first = make_store(folder)
    for block in chain:
        first.offer(block, Importance.NORMAL)
    first.work()
    files = FaultyFiles(folder)
    operations: list[str] = []
    files.fault = lambda number, name: operations.append(name)
    second = make_store(folder, files=files)
    second.open()
    assert len(list(second.take_found(99))) == 50
    assert operations.count("read_head") == 50
    assert "read" not in operations


def test_a_head_that_was_changed_or_is_anothers_is_not_found(folder: Path) -> None:
    chain = make_chain(3)
    first = make_store(folder)
    for block in chain:
        first.offer(block, Importance.NORMAL)
    first.work()
    (victim,) = [path for path in folder.glob("*.kv") if chain[1].key.hex() in path.name]
    content = bytearray(victim.read_bytes())
    content[HEADER_BYTES + 5] ^= 1  # one of its tokens
    victim.write_bytes(content)
    second = make_store(folder)
    second.open()
    assert [head.key for head in second.take_found(9)] == [chain[0].key, chain[2].key]
    stranger = make_store(folder, secret=b"x" * 32)
    stranger.open()
    assert list(stranger.take_found(9)) == []
    stranger.work()
    assert len(list(folder.glob("*.kv"))) == 3, "they are another's to remove"
