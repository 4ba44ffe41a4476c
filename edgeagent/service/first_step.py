"""Waits a moment for a stream's first step, so that an early refusal gets an HTTP status. Also reads whole streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from contextlib import aclosing, suppress
from typing import Generic, Protocol, TypeVar

# After this time a waiting request gets its headers, and a later error is part of the stream. Refusals (a full queue,
# an unknown model, a prompt that is too long) take milliseconds. A request that takes longer is accepted and waits for
# a place or for a model to load. Clients wait 5 s or more for headers.
PATIENCE_S = 2.0

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Stream(Protocol[T_co]):
    """What can be iterated once, and must be closed."""

    def __aiter__(self) -> AsyncIterator[T_co]: ...

    def __anext__(self) -> Awaitable[T_co]: ...

    def aclose(self) -> Awaitable[None]: ...


class BegunStream(Generic[T]):
    """A stream whose first step is here or is being waited for. It costs nothing for the steps behind the first."""

    def __init__(self, steps: AsyncGenerator[T, None]) -> None:
        self._steps = steps
        self._first = asyncio.ensure_future(anext(steps))
        self._is_first_taken = False

    @property
    def first(self) -> T | None:
        """The first step; None if it is not here yet."""
        is_here = self._first.done() and self._first.exception() is None
        return self._first.result() if is_here else None

    def __aiter__(self) -> BegunStream[T]:
        return self

    def __anext__(self) -> Awaitable[T]:
        if self._is_first_taken:
            return anext(self._steps)
        self._is_first_taken = True
        return self._first

    async def aclose(self) -> None:
        """Close the stream, even while its first step is being waited for."""
        self._first.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await self._first
        await self._steps.aclose()

    async def wait(self) -> None:
        """Wait for the first step, at most PATIENCE_S seconds. Raise the stream's error if it comes in this time."""
        await asyncio.wait({self._first}, timeout=PATIENCE_S)
        if self._first.done():
            self._first.result()


async def wait_for_first_step(steps: AsyncGenerator[T, None]) -> BegunStream[T]:
    """Wait for the first step, at most PATIENCE_S seconds, and return a stream of all steps.

    If `steps` fails during this wait, raise its error. The returned stream raises any later error. If this function
    raises or is cancelled, it closes `steps`.
    """
    begun = BegunStream(steps)
    try:
        await begun.wait()
    except BaseException:
        await begun.aclose()
        raise
    return begun


async def last_of(steps: AsyncGenerator[T, None]) -> T | None:
    """Read a stream to its end; return the last step, or None if there was no step."""
    last: T | None = None
    async with aclosing(steps):
        async for step in steps:
            last = step
    return last
