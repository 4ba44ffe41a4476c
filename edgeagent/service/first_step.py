"""Waits a moment for a stream's first step, so that an early refusal gets an HTTP status. Also reads whole streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import TypeVar

# After this time a waiting request gets its headers, and a later error is part of the stream. Refusals (a full queue,
# an unknown model, a prompt that is too long) take milliseconds. A request that takes longer is accepted and waits for
# a place or for a model to load. Clients wait 5 s or more for headers.
PATIENCE_S = 2.0

T = TypeVar("T")


async def wait_for_first_step(steps: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
    """Wait for the first step, at most PATIENCE_S seconds, and return a stream of all steps.

    If `steps` fails during this wait, raise its error. The returned stream raises any later error. If this function
    raises or is cancelled, it closes `steps`.
    """
    first = asyncio.ensure_future(anext(steps))
    try:
        await asyncio.wait({first}, timeout=PATIENCE_S)
        if first.done():
            first.result()
    except BaseException:
        await _close(first, steps)
        raise
    return _resume(first, steps)


async def _resume(first: asyncio.Future[T], steps: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
    try:
        yield await first
        async for step in steps:
            yield step
    finally:
        await _close(first, steps)


async def _close(first: asyncio.Future[T], steps: AsyncGenerator[T, None]) -> None:
    first.cancel()
    with suppress(asyncio.CancelledError, Exception):
        await first
    await steps.aclose()


async def last_of(steps: AsyncGenerator[T, None]) -> T | None:
    """Read a stream to its end; return the last step, or None if there was no step."""
    last: T | None = None
    async with aclosing(steps):
        async for step in steps:
            last = step
    return last
