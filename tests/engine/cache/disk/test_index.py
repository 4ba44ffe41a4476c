"""The index of blocks: what is found, and what a scan changes."""

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


def test_of_two_files_of_a_block_the_more_important_stays() -> None:
    low, high = name_of(1), name_of(1, importance=Importance.SYSTEM)
    other = name_of(2)
    for names in ((low, high, other), (high, low, other)):
        index = Index()
        assert index.replace([BlockFile(name, 100, 50.0) for name in names]) == ([], [low])
        assert [entry.name for entry in index.all()] == [high, other]
        assert index.num_bytes == 200


def test_what_is_to_be_removed_stays_so_over_a_scan() -> None:
    name = name_of(1)
    index = filled(name)
    entry = index.find(name.key)
    assert entry is not None
    entry.is_doomed = True
    for each in (name, name_of(1, importance=Importance.SYSTEM)):
        index.replace([BlockFile(each, 100, 60.0)])
        assert found(index, name) == [False]
        assert (len(index), index.num_bytes) == (1, 100), "until its file is gone"


def test_a_scan_keeps_what_was_known_and_takes_out_what_is_gone() -> None:
    index = filled(name_of(1), name_of(2))
    index.add(replace(IndexEntry(name_of(3), 100, 80.0), is_announced=True, is_draft=True))
    gone, _ = index.replace([BlockFile(name_of(1), 100, 90.0), BlockFile(name_of(3), 100, 70.0)])
    assert [entry.name for entry in gone] == [name_of(2)]
    assert {entry.name.key[0]: (entry.used_s, entry.is_announced, entry.is_draft) for entry in index.all()} == {
        1: (90.0, False, False),
        3: (80.0, True, True),
    }
    assert index.num_bytes == 200


def test_what_cannot_be_read_is_not_found_until_its_file_is_newer() -> None:
    name, index = name_of(1), Index()
    index.add(replace(IndexEntry(name, 100, 50.0), is_unreadable=True))
    assert found(index, name) == [False]
    index.replace([BlockFile(name, 100, 50.0)])
    assert found(index, name) == [False]
    assert index.file_of(name.key) is not None
    index.replace([BlockFile(name, 100, 51.0)])
    assert found(index, name) == [True]


def test_a_block_that_is_removed_is_counted_once() -> None:
    index = filled(name_of(1), name_of(2))
    for _ in range(2):
        index.remove(name_of(1).key)
    assert (len(index), index.num_bytes) == (1, 100)
    index.add(IndexEntry(name_of(2), 70, 50.0))
    assert (len(index), index.num_bytes) == (1, 70)
