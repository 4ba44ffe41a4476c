"""Puts timeouts around a request's work, and ends the work if the request is cancelled or may no longer be sent."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import TypeVar

Result = TypeVar("Result")


class Cause(StrEnum):
    """Why a request was ended from outside."""

    CANCELLED = "cancelled"
    WITHDRAWN = "withdrawn"


class RequestEnded(Exception):
    """The request was ended from outside. `Control.cause` says why."""


class OutOfTime(Exception):
    """A time limit has passed."""


class Control:
    """Runs one request's operations under their timeouts, until the request is ended. For use in one event loop."""

    def __init__(self) -> None:
        self.cause: Cause | None = None
        self.message = ""
        self._scope: asyncio.Timeout | None = None

    def end(self, cause: Cause, message: str = "") -> None:
        """End the request: cancel its current operation, and allow no further operation. Later calls do nothing."""
        if self.cause is not None:
            return
        self.cause, self.message = cause, message
        if self._scope is not None and not self._scope.expired():
            self._scope.reschedule(asyncio.get_running_loop().time())

    async def wait(self, until_s: float, work: Callable[[], Awaitable[Result]]) -> Result:
        """Call `work` and return its result.

        Raise OutOfTime at `until_s` on the event loop's clock, or RequestEnded after `end`.
        """
        if self.cause is not None:
            raise RequestEnded
        try:
            async with asyncio.timeout_at(until_s) as self._scope:
                return await work()
        except TimeoutError:
            raise (OutOfTime if self.cause is None else RequestEnded) from None
        finally:
            self._scope = None
