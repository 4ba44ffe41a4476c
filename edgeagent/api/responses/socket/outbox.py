"""The events that wait to be written to one client: in order, and bounded.

Many tasks add events, and one writer takes them, usually at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass

from edgeagent.api.wire.shape import Json

# Close codes of RFC 6455, section 7.4.1. 1013 is only in IANA's registry.
GOING_AWAY = 1001
UNSUPPORTED_DATA = 1003
POLICY_VIOLATION = TOO_MANY_REQUESTS = 1008
INTERNAL_ERROR = 1011
TRY_AGAIN_LATER = 1013


@dataclass(frozen=True, slots=True)
class Send:
    """Send an event to the client.

    `request_id`: the request that the event belongs to; empty if it belongs to none. `at_s`: when the engine computed
    the step that the event reports (time.monotonic); 0 if there is no such step. `is_terminal`: the event is the last
    one of its request. `num_bytes`: the memory of what the event repeats, if it may be large.
    """

    event: Json
    request_id: str = ""
    at_s: float = 0.0
    is_terminal: bool = False
    num_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Close:
    """Close the connection once all earlier events are sent."""

    code: int
    reason: str


# Above this, a connection's requests are asked for no more steps, so their backend pauses, and its frames wait, but for
# cancels.
MAX_PENDING_BYTES = 256 << 10


class Outbox:
    """A queue of Send and Close actions. `push` never waits. A task that can wait calls `wait_for_room`.

    `num_bytes`: about the memory of the queue, and of the entry that was taken last, until the next `take`. `is_full`:
    this is more than MAX_PENDING_BYTES.
    """

    def __init__(self) -> None:
        self._entries: deque[tuple[Send | Close, int]] = deque()
        self._num_taken_bytes = 0
        self.num_bytes = 0
        self.is_full = False
        self._drained = asyncio.Event()

    def push(self, entry: Send | Close) -> None:
        """Add an entry at the end."""
        num_bytes = _cost(entry.event) + entry.num_bytes if isinstance(entry, Send) else 0
        self._entries.append((entry, num_bytes))
        self.num_bytes += num_bytes
        if self.num_bytes > MAX_PENDING_BYTES:
            self.is_full = True
            self._drained.clear()

    def take(self) -> Send | Close | None:
        """Remove the next entry from the queue, and return it; None if there is none. The one before it is written."""
        self.num_bytes -= self._num_taken_bytes
        if self.is_full and self.num_bytes <= MAX_PENDING_BYTES:
            self.is_full = False
            self._drained.set()
        entry, self._num_taken_bytes = self._entries.popleft() if self._entries else (None, 0)
        return entry

    def clear(self) -> None:
        """Drop all entries."""
        self._entries.clear()

    async def wait_for_room(self) -> None:
        """Wait until the outbox is not full."""
        if self.is_full:
            await self._drained.wait()


def _cost(event: Json) -> int:
    """Return roughly how many bytes of memory an event takes."""
    # The event at a text's end holds the text once more. The events after it share that text.
    text = event.get("delta") or event.get("text") or event.get("arguments") or ""
    return 512 * (1 + len(event.get("logprobs", ()))) + len(text)
