"""Row F7, the disk cache: a full, broken or read-only disk stops writing and is reported; requests continue."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

import pytest

from edgeagent.engine.cache.block import Importance
from edgeagent.engine.cache.disk.files import in_words
from tests.engine.cache.disk.stores import FaultyFiles, Store, Times, failing, is_same, make_chain, make_store

CODES = [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EACCES]
CHAIN = make_chain(3)


def _offer_all(store: Store) -> None:
    for block in CHAIN:
        store.offer(block, Importance.NORMAL)
    store.work()


@pytest.mark.parametrize("code", CODES, ids=lambda code: errno.errorcode[code])
def test_a_lasting_fault_is_told_and_borne_and_ends(tmp_path: Path, code: int) -> None:
    """At any operation: no error is raised, the reason is reported, and blocks are stored a minute after the fault."""
    counter = FaultyFiles(tmp_path / "whole")
    store = make_store(tmp_path / "whole", files=counter)
    _offer_all(store)
    for step in range(1, counter.num_operations + 1):
        times, folder = Times(), tmp_path / f"{step}"
        files = FaultyFiles(folder, failing(code, first=step))
        store = make_store(folder, times, files=files)
        _offer_all(store)
        if store.trouble is not None:
            assert (
                os.strerror(code).lower() in store.trouble.lower() or "disk" in store.trouble or "file" in store.trouble
            )
        for _ in range(3):
            times.pass_s(31)
            _offer_all(store)
        assert (store.trouble or "").endswith(in_words(OSError(code, "")))
        assert store.stats().num_blocks <= len(CHAIN)
        store.purge()
        store.touch([CHAIN[0].key])
        files.fault = lambda number, name: None
        times.pass_s(60)
        store.work()
        assert store.trouble is None
        _offer_all(store)
        assert all(is_same(store.read(block.key), block) for block in CHAIN)


@pytest.mark.parametrize("code", CODES, ids=lambda code: errno.errorcode[code])
def test_a_passing_fault_costs_no_more_than_what_it_hit(tmp_path: Path, code: int) -> None:
    for step in range(1, 40):
        times, folder = Times(), tmp_path / f"{step}"
        store = make_store(folder, times, files=FaultyFiles(folder, failing(code, first=step, last=step)))
        _offer_all(store)
        times.pass_s(60)
        store.work()
        _offer_all(store)
        assert store.trouble is None
        assert all(is_same(store.read(block.key), block) for block in CHAIN)
        assert not [path for path in folder.iterdir() if path.name.startswith("tmp-")]


def test_what_is_there_is_still_read_while_nothing_can_be_written(tmp_path: Path) -> None:
    times, folder = Times(), tmp_path / "cache"
    files = FaultyFiles(folder)
    store = make_store(folder, times, files=files)
    _offer_all(store)
    files.fault = lambda number, name: failing(errno.EROFS)(number, name) if name != "read" else None
    store.offer(make_chain(1, seed=9)[0], Importance.NORMAL)
    store.work()
    assert "read-only" in (store.trouble or "")
    assert is_same(store.read(CHAIN[2].key), CHAIN[2])


def test_an_error_at_reading_is_a_miss(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    files = FaultyFiles(folder)
    store = make_store(folder, files=files)
    _offer_all(store)
    files.fault = lambda number, name: failing(errno.EIO)(number, name) if name == "read" else None
    assert store.read(CHAIN[0].key) is None
    assert store.num_bytes(CHAIN[0].key) is not None
    assert store.read(CHAIN[0].key) is None
    assert store.num_bytes(CHAIN[0].key) is None, "twice in a row"


@pytest.mark.skipif(sys.platform == "win32" or os.getuid() == 0, reason="needs a user whom modes bind")
def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    store = make_store(tmp_path / "cache")
    _offer_all(store)
    assert "permission denied" in (store.trouble or "")


def test_a_file_in_the_folders_place(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("mine")
    store = make_store(tmp_path / "cache")
    _offer_all(store)
    assert store.trouble is not None
    assert (tmp_path / "cache").read_text() == "mine"


@pytest.mark.skipif(sys.platform != "linux", reason="needs /dev/full")
def test_a_disk_that_is_really_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = FaultyFiles(tmp_path / "cache")
    monkeypatch.setattr(files, "create", lambda name: Path("/dev/full").open("wb", buffering=0))  # noqa: SIM115
    store = make_store(tmp_path / "cache", files=files)
    _offer_all(store)
    assert "the disk is full" in (store.trouble or "")
