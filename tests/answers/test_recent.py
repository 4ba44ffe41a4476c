"""The answers that are held in memory: found without the store's thread, gone with it, bounded, and counted."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from edgeagent.answers import recent
from edgeagent.answers.answer import ID_CHARS
from edgeagent.answers.recent import RecentAnswers
from edgeagent.answers.store import EmbeddedStore
from tests.answers.test_store import Clock, answer, opened
from tests.patience import patient


def key_of(number: int) -> bytes:
    return bytes([number]) * 32


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def inner(clock: Clock) -> AsyncIterator[EmbeddedStore]:
    async with opened(None, clock) as store:
        yield store


@pytest.fixture
def held(inner: EmbeddedStore, clock: Clock) -> RecentAnswers:
    return RecentAnswers(inner, 100.0, clock)


async def test_an_answer_that_was_given_is_found_while_the_thread_is_busy(
    held: RecentAnswers, inner: EmbeddedStore
) -> None:
    for number in (1, 2):
        held.put(key_of(number), answer(number))
    assert await held.get(key_of(1)) == answer(1)
    free = threading.Event()
    busy = inner.run(lambda: free.wait(patient(20)))
    assert [await held.get(key_of(1)) for _ in range(3)] == 3 * [answer(1)]
    free.set()
    assert await busy
    (used, other) = await held.listed(None, 10)
    assert (used.num_uses, other.num_uses) == (4, 0)


async def test_what_is_forgotten_is_not_held(held: RecentAnswers) -> None:
    for number, partition in enumerate(("", "", "other")):
        held.put(key_of(number), answer(number, partition=partition))
        assert await held.get(key_of(number)) is not None
    assert not await held.forget_one(key_of(1).hex()[:ID_CHARS], "other")
    assert await held.forget_one(key_of(1).hex()[:ID_CHARS], "")
    assert [await held.get(key_of(number)) is None for number in range(3)] == [False, True, False]
    assert await held.forget("") == 1
    assert [await held.get(key_of(number)) is None for number in range(3)] == [True, True, False]
    assert await held.forget(None) == 1 and await held.get(key_of(2)) is None


async def test_what_is_read_while_it_is_forgotten_is_not_held(held: RecentAnswers, inner: EmbeddedStore) -> None:
    inner.put(key_of(1), answer(1))
    reading = asyncio.create_task(held.get(key_of(1)))
    await asyncio.sleep(0)  # it asks the thread before the thread is asked to forget
    assert await held.forget(None) == 1
    assert await reading == answer(1)
    assert await held.get(key_of(1)) is None


async def test_what_is_kept_while_it_is_looked_up_is_found(held: RecentAnswers) -> None:
    reading = asyncio.create_task(held.get(key_of(1)))
    await asyncio.sleep(0)  # it asks the thread before the thread is asked to keep
    held.put(key_of(1), answer(1))
    assert await reading == answer(1)


async def test_an_old_answer_is_not_given_and_a_newer_one_is(held: RecentAnswers, clock: Clock) -> None:
    held.put(key_of(1), answer(1))
    assert await held.get(key_of(1)) is not None
    clock.now_s += 101
    assert await held.get(key_of(1)) is not None, "the store's own age limit is longer"
    held.put(key_of(1), answer(2, created_s=clock.now_s))
    assert await held.get(key_of(1)) == answer(2, created_s=clock.now_s)


async def test_few_are_held(held: RecentAnswers, monkeypatch: pytest.MonkeyPatch, inner: EmbeddedStore) -> None:
    monkeypatch.setattr(recent, "MAX_ANSWERS", 2)
    for number in range(3):
        held.put(key_of(number), answer(number))
        await held.get(key_of(number))
    await inner.forget(None)
    assert [await held.get(key_of(number)) is None for number in range(3)] == [True, False, False]
    monkeypatch.setattr(recent, "MAX_BYTES", 10)
    held.put(key_of(4), answer(4))
    assert await held.get(key_of(4)) is not None
    await inner.forget(None)
    assert await held.get(key_of(4)) is None
