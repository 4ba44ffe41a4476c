"""The response headers that tell a client where its answer is computed, and what of its request is not observed.

In OpenAI's APIs, a stream says the same in an early event, and where it was computed again at its end, because a
generation may move.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Protocol, TypeVar
from urllib.parse import quote

from starlette.responses import Response

from edgeagent.api.wire.errors import printable
from edgeagent.api.wire.known_fields import HEADER
from edgeagent.api.wire.shape import Json
from edgeagent.api.wire.usage import placement_body
from edgeagent.types import Placement, Started

# The characters that are not quoted: printable ASCII without the percent sign. A remote's names may have others.
_PLAIN = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")


MAX_WARNINGS = 8
_MAX_WARNING_CHARS = 600


class HasDeltas(Protocol):
    """A step of an answer or of a compaction. A compaction's step has no placement."""

    @property
    def deltas(self) -> Sequence[object]: ...


ItemT = TypeVar("ItemT", bound=HasDeltas | tuple[int, HasDeltas])


def warnings_of(started: Started) -> list[str]:
    """Return the first MAX_WARNINGS of an answer's warnings, each cut and safe to show."""
    return [printable(text[:_MAX_WARNING_CHARS]) for text in started.warnings[:MAX_WARNINGS]]


def started_body(started: Started) -> Json:
    """Return where a generation runs and its warnings, for the first part of a stream; empty if neither is known."""
    place = {} if started.placement is None else {**placement_body(started.placement)}
    return {**place, "warnings": warnings_of(started)} if started.warnings else place


def placement_of(step: HasDeltas) -> Placement | None:
    """Return the placement in a step; None if the step has no placement."""
    for delta in step.deltas:
        if isinstance(delta, Started):
            return delta.placement
    return None


class PlacementHeaders:
    """The headers of one answer, taken from its first steps."""

    def __init__(self) -> None:
        self._placement: Placement | None = None
        self._warnings: list[str] = []

    async def noting(self, steps: AsyncGenerator[ItemT, None]) -> AsyncGenerator[ItemT, None]:
        """Yield the items of `steps` unchanged, and keep the first placement and the warnings in them."""
        async with aclosing(steps):
            async for item in steps:
                step = item[1] if isinstance(item, tuple) else item
                if self._placement is None:
                    self._placement = placement_of(step)
                for delta in step.deltas:
                    if isinstance(delta, Started) and not self._warnings:
                        self._warnings = warnings_of(delta)
                yield item

    def put(self, response: Response) -> None:
        """Add the headers to `response`. Add none if the answer has not started yet."""
        for text in self._warnings:
            response.headers.append(HEADER.decode(), text.encode("ascii", "backslashreplace").decode())
        if (place := self._placement) is None:
            return
        fields = {
            "x-edgeagent-served-by": place.served_by,
            "x-edgeagent-reason": place.reason,
            "x-edgeagent-model": place.model,
            "x-edgeagent-model-sha256": place.sha256,
            "x-edgeagent-host": place.host,
        }
        response.headers.update({name: quote(value, safe=_PLAIN) for name, value in fields.items() if value})
