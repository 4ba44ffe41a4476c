"""Of two places, the first with content wins and the other is closed; a failure before the hedge starts no hedge."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from edgeagent.errors import EdgeAgentError, Overloaded, RemoteUnavailable
from edgeagent.router.hedge import HedgeBudget, has_content, race
from edgeagent.types import Interrupted, PromptProgress, Started, Step, TextDelta
from tests.backends.fake import finished

START, TEXT, END = Step((Started(1, 0),)), Step((TextDelta("x"),)), Step((finished(),))
NEVER_S = 3600.0


class Source:
    """Yields steps, waits for an Event, raises an error."""

    def __init__(self, *acts: Step | asyncio.Event | EdgeAgentError) -> None:
        self._acts = acts
        self.is_closed = False
        self.has_begun = asyncio.Event()

    async def steps(self) -> AsyncGenerator[Step, None]:
        self.has_begun.set()
        try:
            for act in self._acts:
                if isinstance(act, asyncio.Event):
                    await act.wait()
                elif isinstance(act, EdgeAgentError):
                    raise act
                else:
                    yield act
        finally:
            self.is_closed = True


async def run(first: Source, second: Source | None, after_s: float = 0.0) -> tuple[list[Step], list[int]]:
    chosen: list[int] = []
    start = lambda: None if second is None else second.steps()  # noqa: E731
    return [step async for step in race(first.steps(), start, after_s, chosen.append)], chosen


def test_what_is_content() -> None:
    assert has_content(TEXT) and has_content(END)
    for delta in (Started(1, 0), PromptProgress(3), Interrupted("worker_killed")):
        assert not has_content(Step((delta,)))
    assert not has_content(Step((), (1,)))


async def test_a_first_place_that_is_quick_is_alone() -> None:
    first, second = Source(START, TEXT, END), Source(TEXT)
    assert await run(first, second, NEVER_S) == ([START, TEXT, END], [0])
    assert not second.has_begun.is_set() and first.is_closed


async def test_no_second_place_is_started_before_its_time() -> None:
    gate = asyncio.Event()
    first, second = Source(START, gate, TEXT, END), Source(TEXT)
    running = asyncio.create_task(run(first, second, NEVER_S))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not second.has_begun.is_set(), "the first one takes its time, and has it"
    gate.set()
    assert await running == ([START, TEXT, END], [0])


async def test_the_second_place_wins_and_the_first_is_closed() -> None:
    first, second = Source(START, asyncio.Event()), Source(START, TEXT, END)
    assert await run(first, second) == ([START, TEXT, END], [1])
    assert first.is_closed and second.is_closed


async def test_the_first_place_may_still_win() -> None:
    gate = asyncio.Event()
    first, second = Source(START, gate, TEXT, END), Source(START, asyncio.Event())
    running = asyncio.create_task(run(first, second))
    await second.has_begun.wait()
    gate.set()
    assert await running == ([START, TEXT, END], [0])
    assert second.is_closed


async def test_one_that_fails_leaves_it_to_the_other() -> None:
    gate = asyncio.Event()
    first, second = Source(START, gate, RemoteUnavailable("first")), Source(START, TEXT, END)
    assert (await run(first, second))[1] == [1]
    first, second = Source(START, gate, TEXT, END), Source(RemoteUnavailable("second"))
    running = asyncio.create_task(run(first, second))
    await second.has_begun.wait()
    gate.set()
    assert (await running)[1] == [0]


async def test_where_both_fail_the_first_ones_error_is_told() -> None:
    gate = asyncio.Event()
    first, second = Source(gate, Overloaded("first")), Source(RemoteUnavailable("second"))
    running = asyncio.create_task(run(first, second))
    await second.has_begun.wait()
    gate.set()
    with pytest.raises(Overloaded, match="first"):
        await running


async def test_a_failure_before_the_hedge_starts_none() -> None:
    second = Source(TEXT)
    with pytest.raises(Overloaded):
        await run(Source(START, Overloaded("first")), second, NEVER_S)
    assert not second.has_begun.is_set()


async def test_where_the_second_is_not_started_the_first_is_waited_for() -> None:
    gate = asyncio.Event()
    running = asyncio.create_task(run(Source(START, gate, TEXT), None))
    await asyncio.sleep(0.01)
    gate.set()
    assert await running == ([START, TEXT], [0])


async def test_a_client_that_leaves_closes_both() -> None:
    first, second = Source(START, asyncio.Event()), Source(START, asyncio.Event())
    running = asyncio.create_task(run(first, second))
    await second.has_begun.wait()
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert first.is_closed and second.is_closed


def test_the_budget_is_a_share_of_the_requests_that_might_be_hedged() -> None:
    budget = HedgeBudget(fraction=0.25, max_saved=2.0)
    assert budget.spend() and not budget.spend()
    for _ in range(4):
        assert not budget.spend()
        budget.earn()
    assert budget.spend() and not budget.spend()
    for _ in range(100):
        budget.earn()
    assert [budget.spend() for _ in range(3)] == [True, True, False]
