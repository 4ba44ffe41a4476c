"""Hedging: if a backend gives no content for a while, a second backend starts too. The first to give content wins."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress

from edgeagent.errors import EdgeAgentError
from edgeagent.types import Interrupted, PromptProgress, Started, Step

Steps = AsyncGenerator[Step, None]

_BEFORE_CONTENT = (Started, PromptProgress, Interrupted)


def has_content(step: Step) -> bool:
    """Whether a step has content or the end of an answer, and not only reports about its start or progress."""
    return any(not isinstance(delta, _BEFORE_CONTENT) for delta in step.deltas)


class HedgeBudget:
    """Limits hedged requests, which run on two backends, to a fraction of the requests that qualify."""

    def __init__(self, fraction: float = 0.1, max_saved: float = 2.0) -> None:
        self._fraction = fraction
        self._max_saved = max_saved
        self._saved = 1.0

    def earn(self) -> None:
        """Count a request that qualifies for a hedge."""
        self._saved = min(self._max_saved, self._saved + self._fraction)

    def spend(self) -> bool:
        """Take one hedge from the budget; return False if the budget is used up."""
        if self._saved < 1.0:
            return False
        self._saved -= 1.0
        return True


class _Runner:
    """Reads the steps of one stream up to its first content, and keeps them in `held`."""

    def __init__(self, steps: Steps) -> None:
        self.steps = steps
        self.held: list[Step] = []
        self.error: EdgeAgentError | None = None
        self.task = self._pull()

    def _pull(self) -> asyncio.Future[Step]:
        return asyncio.ensure_future(anext(self.steps))

    def look(self) -> bool:
        """Take the step that has arrived, and return whether it has content.

        If the stream failed instead, set `error` and return False. Call this only after `task` is done.
        """
        try:
            step = self.task.result()
        except EdgeAgentError as error:
            self.error = error
            return False
        self.held.append(step)
        if has_content(step):
            return True
        self.task = self._pull()
        return False

    async def close(self) -> None:
        """End the stream, and ignore any further step or error from it."""
        self.task.cancel()
        with suppress(asyncio.CancelledError, StopAsyncIteration, EdgeAgentError):
            await self.task
        await self.steps.aclose()


async def race(
    first: Steps, start_second: Callable[[], Steps | None], after_s: float, choose: Callable[[int], None]
) -> Steps:
    """Yield the steps of the stream that gives content first, and close the other stream.

    If `first` gives no content within `after_s` seconds and does not fail, `start_second` is called. It returns None if
    no second stream may start. `choose` gets the winner's number, 0 or 1, before the winner's first step is yielded. If
    all streams fail, the error of `first` is raised.
    """
    runners = [_Runner(first)]
    loop = asyncio.get_running_loop()
    due_s: float | None = loop.time() + after_s
    try:
        winner: _Runner | None = None
        while winner is None:
            waiting = [runner for runner in runners if runner.error is None]
            if not waiting:
                assert runners[0].error is not None
                raise runners[0].error
            timeout = None if due_s is None else max(0.0, due_s - loop.time())
            done, _ = await asyncio.wait(
                [runner.task for runner in waiting], timeout=timeout, return_when=asyncio.FIRST_COMPLETED
            )
            winner = next((runner for runner in waiting if runner.task in done and runner.look()), None)
            if winner is None and due_s is not None and (not done or runners[0].error is not None):
                due_s = None
                second = start_second() if runners[0].error is None else None
                runners += [] if second is None else [_Runner(second)]
        choose(runners.index(winner))
        for loser in [runner for runner in runners if runner is not winner]:
            await loser.close()
        for step in winner.held:
            yield step
        async for step in winner.steps:
            yield step
    finally:
        for runner in runners:
            await runner.close()
