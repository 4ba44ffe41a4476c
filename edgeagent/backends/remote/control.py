"""Limits of time around what is awaited, and a way to end it from outside: a cancel, or consent that is withdrawn."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import TypeVar

Result = TypeVar("Result")


class Cause(StrEnum):
    """Why a request is ended from outside."""

    CANCELLED = "cancelled"
    WITHDRAWN = "withdrawn"


class Ended(Exception):
    """The request was ended from outside; its Control says why."""


class OutOfTime(Exception):
    """A limit passed."""


class Control:
    """Of one request: whether it was ended, and the limit that holds at the moment. Used within one event loop."""

    def __init__(self) -> None:
        self.cause: Cause | None = None
        self.message = ""
        self._scope: asyncio.Timeout | None = None

    def end(self, cause: Cause, message: str = "") -> None:
        """End the request: cancel the operation that it awaits, and let no further one begin."""
        if self.cause is not None:
            return
        self.cause, self.message = cause, message
        if self._scope is not None and not self._scope.expired():
            self._scope.reschedule(asyncio.get_running_loop().time())

    async def wait(self, until_s: float, work: Callable[[], Awaitable[Result]]) -> Result:
        """Await work, at most until a time of the loop's clock; raise OutOfTime or Ended."""
        if self.cause is not None:
            raise Ended
        try:
            async with asyncio.timeout_at(until_s) as self._scope:
                return await work()
        except TimeoutError:
            raise (OutOfTime if self.cause is None else Ended) from None
        finally:
            self._scope = None
