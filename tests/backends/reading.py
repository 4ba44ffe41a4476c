"""Reads what a backend or the router puts into a sink, one step after another."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import suppress
from typing import Any

from edgeagent.types import GenerateRequest, Sink, Step

Generate = Callable[..., Coroutine[Any, Any, None]]


class _Reader(Sink):
    """A sink whose steps are taken out one by one. It has room once its reader asks for another step."""

    def __init__(self) -> None:
        self.steps: deque[Step] = deque()
        self.changed = asyncio.Event()
        self.asked = asyncio.Event()

    def put(self, step: Step) -> None:
        self.steps.append(step)
        self.asked.clear()
        self.changed.set()

    async def room(self) -> None:
        await self.asked.wait()


async def steps_of(generate: Generate, request: GenerateRequest, *args: Any) -> AsyncGenerator[Step, None]:
    """Yield the steps of a request, and raise its error after them. Closing the generator cancels the request."""
    reader = _Reader()
    reader.asked.set()
    task = asyncio.ensure_future(generate(request, reader, *args))
    task.add_done_callback(lambda _: reader.changed.set())
    try:
        while True:
            while reader.steps:
                yield reader.steps.popleft()
            if task.done():
                task.result()
                return
            reader.asked.set()
            reader.changed.clear()
            await reader.changed.wait()
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await task


async def pump(steps: AsyncGenerator[Step, None], sink: Sink) -> None:
    """Put the steps of a generator into a sink, each when the sink has room, and close the generator."""
    try:
        async for step in steps:
            sink.put(step)
            await sink.room()
    finally:
        await steps.aclose()
