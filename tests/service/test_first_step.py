"""The time before a stream opens: its first steps, a failure among them, and a client that disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from edgeagent.errors import Overloaded
from edgeagent.service import first_step
from edgeagent.service.first_step import wait_for_first_step


class Source:
    """Steps that wait for `opened`, then arrive or fail; `is_closed` is set when the generator ends or is closed."""

    def __init__(self, error: Exception | None = None) -> None:
        self.opened = asyncio.Event()
        self.is_closed = False
        self._error = error

    async def steps(self) -> AsyncGenerator[int, None]:
        try:
            await self.opened.wait()
            if self._error:
                raise self._error
            yield 1
            yield 2
        finally:
            self.is_closed = True


async def test_every_step_comes_once() -> None:
    source = Source()
    source.opened.set()
    assert [step async for step in await wait_for_first_step(source.steps())] == [1, 2]
    assert source.is_closed


async def test_what_fails_at_once_is_raised_at_once() -> None:
    source = Source(Overloaded("full"))
    source.opened.set()
    with pytest.raises(Overloaded):
        await wait_for_first_step(source.steps())
    assert source.is_closed


async def test_what_fails_later_is_raised_in_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_step, "PATIENCE_S", 0.0)
    source = Source(Overloaded("full"))
    steps = await wait_for_first_step(source.steps())
    source.opened.set()
    with pytest.raises(Overloaded):
        await anext(steps)


async def test_who_leaves_before_the_first_step_closes_the_source() -> None:
    source = Source()
    waiting = asyncio.ensure_future(wait_for_first_step(source.steps()))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert source.is_closed
