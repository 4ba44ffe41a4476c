"""The index of blocks: what is found, what is forgotten, and what a scan changes."""

from __future__ import annotations

from dataclasses import replace

from edgeagent.cache_folder import PARENT_BYTES, ROOT_BYTES, BlockFile, BlockName
from edgeagent.engine.cache.block import KEY_BYTES, Importance
from edgeagent.engine.cache.disk.index import Index
from edgeagent.engine.cache.disk.retention import IndexEntry


def name_of(number: int, root: int = 1, importance: Importance = Importance.NORMAL) -> BlockName:
    return BlockName(
        bytes([root]) * ROOT_BYTES, bytes(PARENT_BYTES), bytes([number]) * KEY_BYTES, 0, 32, int(importance)
    )


def filled(*names: BlockName) -> Index:
    index = Index()
    for name in names:
        index.add(IndexEntry(name, 100, 50.0))
    return index


def found(index: Index, *names: BlockName) -> list[bool]:
    return [index.find(name.key) is not None for name in names]


def test_a_partition_is_forgotten_and_others_are_not() -> None:
    mine, also_mine, other = name_of(1), name_of(2), name_of(3, root=2)
    index = filled(mine, also_mine, other)
    assert index.forget(mine.root) == 2
    assert index.forget(mine.root) == 0, "once is enough"
    assert found(index, mine, also_mine, other) == [False, False, True]
    assert [entry.name for entry in index.forgotten()] == [mine, also_mine]
    assert index.num_bytes == 300, "until their files are gone"
    index.add(IndexEntry(mine, 100, 60.0, index.epoch(mine.root)))
    assert found(index, mine, also_mine, other) == [True, False, True]


def test_all_are_forgotten_and_stay_so_over_a_scan_that_began_before() -> None:
    names = [name_of(1), name_of(2, root=2)]
    index = filled(*names)
    before = index.epochs()
    assert index.forget(names[0].root) == 1
    assert index.forget(None) == 1
    assert found(index, *names) == [False, False]
    later = name_of(3)
    index.replace([BlockFile(name, 100, 50.0) for name in (*names, later)], before)
    assert found(index, *names, later) == [False, False, False]
    index.replace([BlockFile(name_of(4), 100, 50.0)], index.epochs())
    assert found(index, name_of(4)) == [True]


def test_an_epoch_rises_by_one_for_all_and_for_a_partition() -> None:
    index, root = Index(), name_of(1).root
    assert index.epoch(root) == 0
    index.forget(None)
    index.forget(root)
    assert (index.epoch(root), index.epoch(name_of(2, root=2).root)) == (2, 1)


def test_of_two_files_of_a_block_the_more_important_stays() -> None:
    low, high = name_of(1), name_of(1, importance=Importance.SYSTEM)
    other = name_of(2)
    for names in ((low, high, other), (high, low, other)):
        index = Index()
        assert index.replace([BlockFile(name, 100, 50.0) for name in names], index.epochs()) == [low]
        assert [entry.name for entry in index.all()] == [high, other]
        assert index.num_bytes == 200


def test_a_block_whose_old_file_was_missed_is_found_under_its_new_name() -> None:
    renamed, damaged, purged = name_of(1), name_of(2), name_of(3, root=2)
    index = filled(renamed, damaged, purged)
    for name in (renamed, damaged):
        entry = index.find(name.key)
        assert entry is not None
        entry.epoch = -1
    index.forget(purged.root)
    names = (name_of(1, importance=Importance.SYSTEM), damaged, name_of(3, root=2, importance=Importance.SYSTEM))
    index.replace([BlockFile(name, 100, 50.0) for name in names], index.epochs())
    assert found(index, *names) == [True, False, False]


def test_a_scan_keeps_what_was_known_and_takes_out_what_is_gone() -> None:
    index = filled(name_of(1), name_of(2))
    index.add(replace(IndexEntry(name_of(3), 100, 80.0), is_announced=True, is_draft=True))
    index.replace([BlockFile(name_of(1), 100, 90.0), BlockFile(name_of(3), 100, 70.0)], index.epochs())
    assert {entry.name.key[0]: (entry.used_s, entry.is_announced, entry.is_draft) for entry in index.all()} == {
        1: (90.0, False, False),
        3: (80.0, True, True),
    }
    assert index.num_bytes == 200


def test_what_cannot_be_read_is_not_found_until_its_file_is_newer() -> None:
    name, index = name_of(1), Index()
    index.add(replace(IndexEntry(name, 100, 50.0), is_unreadable=True))
    assert found(index, name) == [False]
    index.replace([BlockFile(name, 100, 50.0)], index.epochs())
    assert found(index, name) == [False]
    assert index.find_unreadable(name.key) is not None
    index.replace([BlockFile(name, 100, 51.0)], index.epochs())
    assert found(index, name) == [True]


def test_a_block_that_is_removed_is_counted_once() -> None:
    index = filled(name_of(1), name_of(2))
    for _ in range(2):
        index.remove(name_of(1).key)
    assert (len(index), index.num_bytes) == (1, 100)
    index.add(IndexEntry(name_of(2), 70, 50.0))
    assert (len(index), index.num_bytes) == (1, 70)
