"""Row F8: a cache file that differs from what was written is a miss and is deleted, and none of its bytes is used."""

from __future__ import annotations

import os
import pickle
import random
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from edgeagent import cache_folder
from edgeagent.engine.cache.block import Block, Importance, Keyring
from edgeagent.engine.cache.disk.file_format import HEADER_BYTES, VERSION, BadBlock, Seal
from tests.engine.cache.disk.stores import SECRET, Times, close_now, is_same, keyring, make_chain, make_store

CHAIN = make_chain(2, payload_bytes=20_000)
BLOCK = CHAIN[0]
POSIX = pytest.mark.skipif(sys.platform == "win32", reason="POSIX files")


def _content(block: Block = BLOCK, secret: bytes = SECRET) -> bytes:
    return b"".join(Seal(secret).encode(block))


def _refused(content: bytes, key: bytes = BLOCK.key) -> bool:
    try:
        Seal(SECRET).decode(content, key)
    except BadBlock:
        return True
    return False


def test_as_written_it_is_taken() -> None:
    assert is_same(Seal(SECRET).decode(_content(), BLOCK.key), BLOCK)


def test_every_bit_of_the_header() -> None:
    content = bytearray(_content())
    for bit in range(8 * HEADER_BYTES):
        content[bit // 8] ^= 1 << bit % 8
        assert _refused(bytes(content)), bit
        content[bit // 8] ^= 1 << bit % 8


def test_a_thousand_bits_of_the_rest() -> None:
    content, chance = bytearray(_content()), random.Random(1)
    for _ in range(1000):
        at, bit = chance.randrange(HEADER_BYTES, len(content)), chance.randrange(8)
        content[at] ^= 1 << bit
        assert _refused(bytes(content)), (at, bit)
        content[at] ^= 1 << bit


def test_cut_anywhere_and_longer() -> None:
    content = _content()
    for length in (*range(HEADER_BYTES + 40), *range(0, len(content), 4096), len(content) - 1):
        assert _refused(content[:length]), length
    assert _refused(content + b"\0")
    assert _refused(b"")


def test_another_version() -> None:
    content = bytearray(_content())
    content[8:10] = (VERSION + 1).to_bytes(2, "little")
    assert _refused(bytes(content))


def test_of_another_installation() -> None:
    assert _refused(_content(secret=b"x" * 32))


def test_another_block_under_this_name() -> None:
    assert _refused(_content(CHAIN[1]))


@pytest.mark.parametrize(
    "other",
    [
        keyring(fingerprint=b"another model, or the same with other settings, or another build"),
        keyring(secret=b"another installation's secret..."),
    ],
    ids=["fingerprint", "secret"],
)
def test_under_other_settings_the_same_prompt_has_other_keys(tmp_path: Path, other: Keyring) -> None:
    store = make_store(tmp_path / "cache")
    for block in CHAIN:
        store.offer(block, Importance.NORMAL)
    store.work()
    theirs = make_chain(2, keys=other)
    assert [block.tokens for block in theirs] == [block.tokens for block in CHAIN]
    assert all(store.num_bytes(block.key) is None and store.read(block.key) is None for block in theirs)


def test_another_partition_has_other_keys(tmp_path: Path) -> None:
    store = make_store(tmp_path / "cache")
    store.offer(BLOCK, Importance.NORMAL)
    store.work()
    (theirs,) = make_chain(1, partition="another client")
    assert theirs.tokens == BLOCK.tokens
    assert store.num_bytes(theirs.key) is None
    # Nor under the name that it would have.
    (mine,) = (tmp_path / "cache").glob("*.kv")
    name = cache_folder.parse_name(mine.name)
    assert name is not None
    planted = cache_folder.BlockName(
        theirs.root[:8], theirs.parent[:16], theirs.key, name.start, name.length, name.importance
    )
    shutil.copy(mine, mine.with_name(planted.file_name))
    second = make_store(tmp_path / "cache")
    second.open()
    assert second.stats().num_blocks == 2
    assert second.num_bytes(theirs.key) is None
    assert second.read(theirs.key) is None
    assert second.stats().num_misses == 1


class _Canary:
    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (self._path,))


def _plant(tmp_path: Path, content: bytes) -> tuple[Path, Path]:
    """Write a block, put other content under its name, and return the folder and the file."""
    folder = tmp_path / "cache"
    store = make_store(folder)
    store.offer(BLOCK, Importance.NORMAL)
    store.work()
    (file,) = folder.glob("*.kv")
    file.write_bytes(content)
    return folder, file


@pytest.mark.parametrize("content", ["pickle", "empty", "zeros", "text", "cut"])
def test_a_planted_file_is_a_miss_and_is_replaced(tmp_path: Path, content: str) -> None:
    canary = tmp_path / "ran"
    contents = {
        "pickle": pickle.dumps(_Canary(canary)),
        "empty": b"",
        "zeros": bytes(50_000),
        "text": b"#!/bin/sh\n" * 100,
        "cut": _content()[:-1],
    }
    folder, file = _plant(tmp_path, contents[content])
    store = make_store(folder)
    store.open()
    if content == "cut":  # found by its name and its header alone
        assert store.num_bytes(BLOCK.key) == len(contents[content])
    assert store.read(BLOCK.key) is None
    assert store.num_bytes(BLOCK.key) is None  # never found again
    store.work()
    assert file.exists() == (content != "cut"), "it may be another installation's, and does not count"
    assert not canary.exists()
    assert store.stats().num_misses == 1
    store.offer(BLOCK, Importance.NORMAL)  # and can be written again
    store.work()
    assert is_same(store.read(BLOCK.key), BLOCK)


@POSIX
@pytest.mark.parametrize("kind", ["link", "folder", "pipe"])
def test_what_is_no_regular_file_is_not_opened(tmp_path: Path, kind: str) -> None:
    folder, file = _plant(tmp_path, _content())
    outside = tmp_path / "outside"
    content = _content()
    outside.write_bytes(content)
    reader = make_store(folder)
    reader.open()  # the reader knows the file's name and size, and then the file changes
    file.unlink()
    match kind:
        case "link":
            file.symlink_to(outside)
        case "folder":
            file.mkdir()
        case "pipe":
            os.mkfifo(file)
    assert reader.read(BLOCK.key) is None
    late = make_store(folder)
    late.open()
    assert late.num_bytes(BLOCK.key) is None
    assert outside.read_bytes() == content


@POSIX
def test_the_folder_itself_may_not_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "cache").symlink_to(tmp_path / "elsewhere")
    store = make_store(tmp_path / "cache")
    store.offer(BLOCK, Importance.NORMAL)
    store.work()
    assert store.trouble is not None
    assert list((tmp_path / "elsewhere").iterdir()) == []


@POSIX
def test_links_in_the_place_of_the_stores_own_files_are_not_followed(tmp_path: Path) -> None:
    folder, outside = tmp_path / "cache", tmp_path / "outside"
    folder.mkdir(mode=0o700)
    outside.write_text("precious")
    for name in (cache_folder.STATE_FILE, cache_folder.LOCK_FILE, cache_folder.root_record_name(BLOCK.root)):
        (folder / name).symlink_to(outside)
    store = make_store(folder, bytes_per_hour=1 << 20)
    store.describe_partition(BLOCK.root, cache_folder.RootRecord("model", "client"))
    store.offer(BLOCK, Importance.NORMAL)
    store.work()
    close_now(store)
    assert outside.read_text() == "precious"
    assert "symbolic links" in (store.trouble or "")


@POSIX
def test_a_folder_open_to_others_is_closed(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir(mode=0o755)
    store = make_store(tmp_path / "cache")
    store.open()
    assert (tmp_path / "cache").stat().st_mode & 0o777 == 0o700


def test_names_that_are_none_are_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    for name in ("notes.txt", "x.kv", "..kv", "A" * 100 + ".kv"):
        (folder / name).write_text("mine")
    store = make_store(folder)
    store.offer(BLOCK, Importance.NORMAL)
    store.work()
    close_now(store)
    assert (folder / "notes.txt").read_text() == "mine"
    assert store.stats().num_blocks == 1


@pytest.mark.parametrize(
    "name", [cache_folder.STATE_FILE, cache_folder.LOCK_FILE, cache_folder.root_record_name(BLOCK.root)]
)
def test_a_folder_in_the_place_of_the_stores_own_files_is_told_and_borne(tmp_path: Path, name: str) -> None:
    folder, times = tmp_path / "cache", Times()
    (folder / name / "mine").mkdir(parents=True)
    store = make_store(folder, times, bytes_per_hour=1 << 20)
    store.describe_partition(BLOCK.root, cache_folder.RootRecord("model", "client"))
    others = make_chain(2, seed=1, payload_bytes=200_000)
    for block in others:
        store.offer(block, Importance.SYSTEM)
    store.work()
    assert str(folder / name) in (store.stats().trouble or "")
    assert all(is_same(store.read(block.key), block) for block in others)
    assert store._folder.state.allowance_left < 0.9, "what was written counts"
    (folder / name / "mine").rmdir()
    (folder / name).rmdir()
    for _ in range(2):
        times.pass_s(400)
        store.work()
    store.offer(make_chain(1, seed=2)[0], Importance.SYSTEM)
    store.work()
    assert store.stats().trouble is None
    close_now(store)
    assert not [path for path in folder.iterdir() if path.name.startswith("tmp-")]


def test_a_folder_in_the_place_of_a_block_costs_that_block(tmp_path: Path) -> None:
    folder, file = _plant(tmp_path, _content())
    file.unlink()
    file.mkdir()
    store, others = make_store(folder), make_chain(2, seed=1)
    for block in (BLOCK, *others):
        store.offer(block, Importance.NORMAL)
    store.work()
    assert str(file) in (store.stats().trouble or "")
    assert store.read(BLOCK.key) is None and not store.is_pending(BLOCK.key)
    assert all(is_same(store.read(block.key), block) for block in others)


def test_a_folder_in_the_place_of_a_blocks_next_name_leaves_it_its_name(tmp_path: Path) -> None:
    folder, file = _plant(tmp_path, _content())
    store = make_store(folder)
    store.work()
    held = store._folder.find(BLOCK.key)
    assert held is not None
    in_the_way = folder / replace(held.name, importance=int(Importance.PINNED)).file_name
    in_the_way.mkdir()
    store.offer(BLOCK, Importance.PINNED)
    store.work()
    assert store.trouble is None and str(in_the_way) in (store.stats().trouble or "")
    assert file.exists() and is_same(store.read(BLOCK.key), BLOCK)


def _damaged_head(folder: Path) -> Path:
    (file,) = folder.glob("*.kv")
    content = bytearray(file.read_bytes())
    content[HEADER_BYTES] ^= 1  # part of a token
    file.write_bytes(content)
    return file


@pytest.mark.parametrize("importance", [Importance.NORMAL, Importance.SYSTEM])
def test_a_block_whose_beginning_is_damaged_is_written_anew(tmp_path: Path, importance: Importance) -> None:
    folder, file = _plant(tmp_path, _content())
    assert _damaged_head(folder) == file
    store = make_store(folder)
    store.work()
    assert store.num_bytes(BLOCK.key) is None and not list(store.take_found(9))
    store.offer(BLOCK, importance)
    store.work()
    assert is_same(store.read(BLOCK.key), BLOCK)
    (file,) = folder.glob("*.kv")
    assert is_same(Seal(SECRET).decode(file.read_bytes(), BLOCK.key), BLOCK)
    assert store.stats().num_blocks == 1


def test_blocks_of_another_installation_stay(tmp_path: Path) -> None:
    folder, file = _plant(tmp_path, _content())
    store = make_store(folder, secret=b"another installation's secret...")
    store.work()
    store.purge(b"x" * 32)
    store.work()
    assert file.exists() and store.num_bytes(BLOCK.key) is None
