"""The store behind its thread: damaged files, full disks, and clients that forbid storing."""

# ruff: noqa: ASYNC240 small files, in a test

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

from edgeagent import freed_memory
from edgeagent.api.context import ITEM_FORMAT
from edgeagent.conversation import store_thread
from edgeagent.conversation.database import ResponseDatabase
from edgeagent.conversation.history import MissingIds, StoredResponse, StoreResult
from edgeagent.conversation.items import MessageItem
from edgeagent.conversation.store import ResponseStore
from edgeagent.conversation.store_thread import MAX_UNWRITTEN
from edgeagent.errors import StoreError


def response(name: str, **fields: Any) -> StoredResponse:
    return StoredResponse(name, (MessageItem(f"msg_{name}", "user", f"words of {name}"),), (), **fields)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "responses.sqlite3"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[ResponseStore]:
    store = ResponseStore(ITEM_FORMAT, path)
    yield store
    await store.close()


async def get(store: ResponseStore, name: str, partition: str = "") -> StoredResponse | None:
    return (await store.find(MissingIds(name), partition)).previous


def fail(*_: object) -> NoReturn:
    raise sqlite3.OperationalError("database or disk is full")


class BrokenDisk:
    """Makes every write fail while `is_full`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_full = True
        add = ResponseDatabase.add

        def add_or_fail(database: ResponseDatabase, *arguments: Any) -> None:
            if self.is_full:
                raise sqlite3.OperationalError("database or disk is full")
            add(database, *arguments)

        monkeypatch.setattr(ResponseDatabase, "add", add_or_fail)


async def test_what_is_added_is_found_and_outlives_the_store(path: Path, store: ResponseStore) -> None:
    await store.add(response("a"), b"{}")
    assert await get(store, "a") == response("a")
    assert await store.body("a", "") == b"{}"
    assert await store.find(MissingIds(None, ("msg_a",)), "") == StoreResult(None, {"msg_a": response("a").context[0]})
    other = ResponseStore(ITEM_FORMAT, path)
    assert await get(other, "a") == response("a")
    assert await get(other, "a", "bob") is None
    await other.close()


async def test_the_memory_of_a_long_conversation_is_given_back(
    store: ResponseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, given_back, calls = asyncio.get_running_loop(), asyncio.Event(), list[int]()

    def give_back() -> None:
        calls.append(1)
        loop.call_soon_threadsafe(given_back.set)

    monkeypatch.setattr(freed_memory, "give_back_freed_memory", give_back)
    monkeypatch.setattr(freed_memory, "DELAY_S", 0.0)
    await store.add(response("a"), b"{}")
    long = MessageItem("msg_b", "user", "b" * freed_memory.MUCH_BYTES)
    await store.add(StoredResponse("b", (long,), ()), b"{}")
    assert await get(store, "a")
    await asyncio.sleep(0)
    assert not calls
    assert await get(store, "b")
    await given_back.wait()


async def test_nothing_is_opened_before_it_is_needed(path: Path, store: ResponseStore) -> None:
    assert await store.find(MissingIds(), "") == StoreResult()
    await store.add(response("a", is_storable=False), b"{}")
    assert not path.exists()


async def test_nothing_of_an_unstorable_response_is_written(path: Path, store: ResponseStore) -> None:
    await store.add(response("a"), b"{}")
    await store.add(response("secret", is_storable=False), b'"secret"')
    assert await get(store, "secret") is None
    await store.close()
    assert b"secret" not in b"".join(file.read_bytes() for file in path.parent.iterdir())


@pytest.mark.parametrize("content", [b"", b"x" * 10_000, b"SQLite format 3\0" + b"\xff" * 8192])
async def test_a_damaged_file_is_set_aside(
    path: Path, store: ResponseStore, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path.write_bytes(content)
    path.with_name(path.name + "-wal").write_bytes(b"rubbish")
    await store.add(response("a"), b"{}")
    assert await get(store, "a") == response("a")
    aside = path.with_name(path.name + ".damaged")
    if content:
        assert aside.read_bytes() == content
        assert "is damaged" in caplog.text
        assert aside.name in caplog.text


async def test_damage_that_shows_later_is_set_aside_too(
    path: Path, store: ResponseStore, caplog: pytest.LogCaptureFixture
) -> None:
    for name in "abcdefgh":
        await store.add(response(name), b"{}" * 1000)
    await store.close()
    content = bytearray(path.read_bytes())
    # Damage the pages that hold the tables, but not the file header, which would reveal it.
    content[4096:] = b"\x5a" * (len(content) - 4096)
    path.write_bytes(content)
    again = ResponseStore(ITEM_FORMAT, path)
    assert await get(again, "a") is None
    await again.add(response("new"), b"{}")
    assert await get(again, "new") == response("new")
    assert "is damaged" in caplog.text
    await again.close()


async def test_a_row_that_is_no_response_is_damage(path: Path, store: ResponseStore) -> None:
    await store.add(response("a"), b"{}")
    await store.close()
    with sqlite3.connect(path) as other:
        other.execute("UPDATE segments SET items = x'00'")
    other.close()
    again = ResponseStore(ITEM_FORMAT, path)
    assert await get(again, "a") is None
    assert path.with_name(path.name + ".damaged").exists()
    await again.close()


async def test_a_deletion_that_fails_is_told(store: ResponseStore, monkeypatch: pytest.MonkeyPatch) -> None:
    await store.add(response("a"), b"{}")
    assert not await store.remove("other", "")
    with monkeypatch.context() as patch:
        patch.setattr(ResponseDatabase, "remove", fail)
        with pytest.raises(StoreError, match="disk is full"):
            await store.remove("a", "")
    assert await store.remove("a", "")
    assert await get(store, "a") is None


async def test_a_full_disk_keeps_nobody_from_going_on(
    store: ResponseStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    disk = BrokenDisk(monkeypatch)
    caplog.set_level(logging.WARNING)
    for name in "abc":
        await store.add(response(name), b"{}")
    assert await get(store, "b") == response("b")
    assert await get(store, "b", "bob") is None
    assert await store.body("b", "") == b"{}"
    assert (await store.find(MissingIds(None, ("msg_c",)), "")).items.keys() == {"msg_c"}
    # Reported once, not for each response.
    assert caplog.text.count("disk is full") == 1
    assert store.trouble == "3 stored responses in memory only: database or disk is full"
    assert await store.remove("c", "")
    assert store.trouble == "2 stored responses in memory only: database or disk is full"
    disk.is_full = False
    await store.add(response("d"), b"{}")
    assert store.trouble is None
    assert [bool(await get(store, name)) for name in "abcd"] == [True, True, False, True]


async def test_what_waits_for_the_disk_is_bounded_and_written_when_it_can_be(
    path: Path, store: ResponseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = BrokenDisk(monkeypatch)
    for index in range(MAX_UNWRITTEN + 1):
        await store.add(response(str(index)), b"{}")
    assert await get(store, "0") is None
    disk.is_full = False
    await store.add(response("last"), b"{}")
    other = ResponseStore(ITEM_FORMAT, path)
    assert await get(other, "2")
    assert await get(other, "last")
    await other.close()


async def test_what_waits_for_the_disk_is_written_at_the_end(
    path: Path, store: ResponseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = BrokenDisk(monkeypatch)
    await store.add(response("a"), b"{}")
    disk.is_full = False
    await store.close()
    other = ResponseStore(ITEM_FORMAT, path)
    assert await get(other, "a") == response("a")
    await other.close()


async def test_a_folder_that_cannot_be_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = ResponseStore(ITEM_FORMAT, tmp_path / "missing" / "r")
    await store.add(response("a"), b"{}")
    assert await get(store, "a") == response("a")
    assert "stay in memory" in caplog.text
    await store.close()


async def test_removal_reaches_every_connection(store: ResponseStore) -> None:
    history, other = store.new_history(), store.new_history()
    for each in (history, other):
        each.add(response("a"), None)
    await store.add(response("a"), b"{}")
    assert not await store.remove("a", "bob")
    assert history.remembers("a")
    assert await store.remove("a", "")
    assert not history.remembers("a")
    assert not other.remembers("a")
    assert not await store.remove("a", "")


async def test_in_memory_there_are_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = ResponseStore(ITEM_FORMAT)
    await store.add(response("a"), b"{}")
    assert await get(store, "a")
    await store.close()
    assert list(tmp_path.iterdir()) == []


async def test_it_is_off_the_event_loop(store: ResponseStore, monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    threads: set[str] = set()

    def opening(*arguments: Any) -> ResponseDatabase:
        threads.add(threading.current_thread().name)
        return ResponseDatabase(*arguments)

    monkeypatch.setattr(store_thread, "ResponseDatabase", opening)
    await store.add(response("a"), b"{}")
    assert threads == {"responses_0"}
