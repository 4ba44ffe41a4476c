"""The sinks at the end of a step's way: one holds steps while its client cannot take them, one keeps only the end."""

from __future__ import annotations

import asyncio
import types
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from contextvars import copy_context
from itertools import chain
from typing import Any

from edgeagent.types import Delta, Finished, ReasoningDelta, Sink, Step, TextDelta, ToolCallDelta

MAX_HELD_STEPS = 64
# Clients limit a frame to 1 MiB, and a token with twenty alternatives takes 2 KiB.
MAX_JOINED_LOGPROBS = 200


def start_now(work: Coroutine[Any, Any, None]) -> asyncio.Task[None] | None:
    """Run a coroutine up to its first wait. Return None if it has ended, else a task that runs the rest of it.

    A server's `send` waits only while the client's socket is full. So a step is usually written without waking a task.
    Before its first wait, the coroutine must not use its task, as asyncio.timeout does.
    """
    try:
        waiting = work.send(None)
    except StopIteration:
        return None
    return asyncio.create_task(_rest(work, waiting))


async def _rest(work: Coroutine[Any, Any, None], waiting: object) -> None:
    await _resumed(work, waiting)


@types.coroutine
def _resumed(work: Coroutine[Any, Any, None], waiting: object) -> Generator[object, Any, None]:
    """Run the rest of a coroutine, which waits for the future `waiting`."""
    with suppress(StopIteration):
        while True:
            try:
                sent = yield waiting
            except BaseException as error:
                waiting = work.throw(error)
            else:
                waiting = work.send(sent)


class ClientSink(Sink):
    """A sink that gives each step to `deliver`. It holds steps before it is opened, and while `deliver` waits.

    `deliver` runs in the context of the client's request. A worker's steps come in the context of the request that
    started the worker, which may be another client's. Like `put`, it raises no EdgeAgentError. Many held steps are
    merged, so a client that reads slowly gets fewer and longer deltas, and no other client waits for it.
    """

    def __init__(
        self, deliver: Callable[[Step], Coroutine[Any, Any, None]], arrived: asyncio.Event | None = None
    ) -> None:
        """`arrived` is set when a step arrives before `open`."""
        self._deliver = deliver
        self._arrived = arrived
        self._context = copy_context()
        self._held: deque[Step] = deque()
        self._opened = asyncio.Event()
        self._is_ready = False  # it is open, and no step is held or being delivered
        self._delivering: asyncio.Task[None] | None = None

    def put(self, step: Step) -> None:
        if self._is_ready:
            self._start(step)
            return
        if len(self._held) >= MAX_HELD_STEPS:
            merged = merge_steps(list(self._held))
            self._held.clear()
            self._held.append(merged)
        self._held.append(step)
        if self._arrived is not None:
            self._arrived.set()

    async def room(self) -> None:
        """Wait until the sink is open and holds no step."""
        await self._opened.wait()
        while (delivering := self._delivering) is not None:
            # To await the task itself would not let `_go_on` run if the task has just ended.
            await asyncio.wait({delivering})
            delivering.result()

    @property
    def first(self) -> Step | None:
        """The oldest step that is held; None if none is."""
        return self._held[0] if self._held else None

    @property
    def last(self) -> Step | None:
        """The newest step that is held; None if none is."""
        return self._held[-1] if self._held else None

    def open(self) -> None:
        """Deliver the held steps, and from now on each step as it comes."""
        self._opened.set()
        self._go_on()

    async def close(self) -> None:
        """Deliver nothing more."""
        self._opened.clear()
        self._is_ready = False
        if self._delivering is not None:
            self._delivering.cancel()
            await asyncio.wait({self._delivering})

    def _go_on(self, _: object = None) -> None:
        self._delivering, self._is_ready = None, self._opened.is_set()
        while self._is_ready and self._held:
            self._start(self._held.popleft())

    def _start(self, step: Step) -> None:
        self._is_ready = False
        self._delivering = self._context.run(start_now, self._deliver(step))
        if self._delivering is None:
            self._is_ready = True
        else:
            self._delivering.add_done_callback(self._go_on)


class Ending(Sink):
    """A sink that keeps only how an answer ended: `finished` is its terminal delta, None if it has none."""

    def __init__(self) -> None:
        self.finished: Finished | None = None

    def put(self, step: Step) -> None:
        if step.deltas and isinstance(step.deltas[-1], Finished):
            self.finished = step.deltas[-1]


def merge_steps(steps: list[Step]) -> Step:
    """Merge one or more steps into one step, with the time of the first.

    Adjacent deltas are joined if both are text, both are reasoning, or both are arguments of the same tool call. Text
    with many log probabilities stays apart.
    """
    deltas: list[Delta] = []
    run: list[Delta] = []
    num_logprobs = 0
    for delta in chain.from_iterable(step.deltas for step in steps):
        if run and not (_are_joinable(run[-1], delta) and num_logprobs < MAX_JOINED_LOGPROBS):
            deltas.append(_join(run))
            run, num_logprobs = [], 0
        run.append(delta)
        num_logprobs += len(delta.logprobs) if isinstance(delta, TextDelta) else 0
    if run:
        deltas.append(_join(run))
    tokens = tuple(chain.from_iterable(step.tokens for step in steps))
    num_withheld = sum(step.num_withheld for step in steps)
    return Step(tuple(deltas), tokens, steps[0].at_s, num_withheld, any(step.is_estimated for step in steps))


def _are_joinable(left: Delta, right: Delta) -> bool:
    match left, right:
        case (TextDelta(), TextDelta()) | (ReasoningDelta(), ReasoningDelta()):
            return True
        case ToolCallDelta(index=one), ToolCallDelta(index=other):
            return one == other
    return False


def _join(run: list[Delta]) -> Delta:
    match run[0]:
        case TextDelta():
            texts = [delta for delta in run if isinstance(delta, TextDelta)]
            logprobs = tuple(chain.from_iterable(delta.logprobs for delta in texts))
            return TextDelta("".join(delta.text for delta in texts), logprobs)
        case ReasoningDelta():
            return ReasoningDelta("".join(delta.text for delta in run if isinstance(delta, ReasoningDelta)))
        case ToolCallDelta(index=index):
            return ToolCallDelta(index, "".join(delta.arguments for delta in run if isinstance(delta, ToolCallDelta)))
        case single:
            return single
