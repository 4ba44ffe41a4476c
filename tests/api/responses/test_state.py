"""What Responses keeps, at the end of the daemon: background work is waited for, but not forever."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from edgeagent.api import context as state
from edgeagent.api.context import ITEM_FORMAT, Responses
from edgeagent.conversation import database
from edgeagent.conversation.history import StoredResponse
from edgeagent.conversation.store import FILE, ResponseStore


async def test_work_in_the_background_ends_before_the_store_is_closed() -> None:
    responses, found = Responses(ResponseStore(ITEM_FORMAT)), list[bytes | None]()

    async def work() -> None:
        await asyncio.sleep(0.02)
        found.append(await responses.store.body("resp_gone", ""))

    responses.carry_on(work())
    await responses.close()
    assert found == [None]


async def test_what_hangs_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "TASKS_S", 0.02)
    responses, is_cancelled = Responses(ResponseStore(ITEM_FORMAT)), asyncio.Event()

    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            is_cancelled.set()

    responses.carry_on(hang())
    await asyncio.sleep(0)
    await responses.close()
    assert is_cancelled.is_set()


async def test_a_stop_finishes_the_writes_that_wait_for_a_slow_disk(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(state, "TASKS_S", 0.02)
    responses = Responses(ResponseStore(ITEM_FORMAT, tmp_path / FILE))
    await responses.store.body("resp_first", "")  # the file is open
    written = []
    add = database.ResponseDatabase.add

    def slow(self: database.ResponseDatabase, response: StoredResponse, body: bytes) -> None:
        time.sleep(0.05)
        add(self, response, body)
        written.append(response.id)

    monkeypatch.setattr(database.ResponseDatabase, "add", slow)

    async def keep(number: int) -> None:
        await responses.store.add(StoredResponse(f"resp_{number}", (), ()), b"{}")

    for number in range(4):
        responses.carry_on(keep(number))
    await asyncio.sleep(0)
    await responses.close()
    assert written == [f"resp_{number}" for number in range(4)]
