"""Runs several generations concurrently, and merges their steps into one stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from edgeagent.service.service import Service
from edgeagent.types import GenerateRequest, Step

MAX_AT_ONCE = 8

NumberedSteps = AsyncGenerator[tuple[int, Step], None]
"""The steps of several requests, each with the index of its request."""


async def run_all(service: Service, requests: Sequence[GenerateRequest]) -> NumberedSteps:
    """Yield the steps of all requests as they come, each with the index of its request.

    At most MAX_AT_ONCE requests run at a time. If one request fails, its error is raised, and the others are cancelled.
    """
    if len(requests) == 1:
        async with aclosing(service.generate(requests[0])) as steps:
            async for step in steps:
                yield 0, step
        return
    generators: list[AsyncGenerator[Step, None]] = []
    waiting: dict[asyncio.Future[Step], int] = {}
    done: set[asyncio.Future[Step]] = set()
    try:
        while waiting or len(generators) < len(requests):
            while len(generators) < len(requests) and len(waiting) < MAX_AT_ONCE:
                generators.append(service.generate(requests[len(generators)]))
                waiting[asyncio.ensure_future(anext(generators[-1]))] = len(generators) - 1
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                index = waiting.pop(task)
                try:
                    step = task.result()
                except StopAsyncIteration:
                    continue
                waiting[asyncio.ensure_future(anext(generators[index]))] = index
                yield index, step
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, *done, return_exceptions=True)
        for generator in generators:
            await generator.aclose()
