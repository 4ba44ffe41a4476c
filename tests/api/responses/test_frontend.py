"""What Responses keeps, at the end of the daemon: background work is waited for, but not forever."""

from __future__ import annotations

import asyncio

import pytest

from edgeagent.api.responses import frontend
from edgeagent.api.responses.frontend import Responses
from edgeagent.api.responses.storage.store import ResponseStore


async def test_work_in_the_background_ends_before_the_store_is_closed() -> None:
    responses, found = Responses(ResponseStore()), list[bytes | None]()

    async def work() -> None:
        await asyncio.sleep(0.02)
        found.append(await responses.store.body("resp_gone", ""))

    responses.carry_on(work())
    await responses.close()
    assert found == [None]


async def test_what_hangs_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frontend, "TASKS_S", 0.02)
    responses, is_cancelled = Responses(ResponseStore()), asyncio.Event()

    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            is_cancelled.set()

    responses.carry_on(hang())
    await asyncio.sleep(0)
    await responses.close()
    assert is_cancelled.is_set()
