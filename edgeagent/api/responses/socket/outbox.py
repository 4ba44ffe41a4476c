"""The events that wait to be written to one client: in order, bounded, and merged if the client reads slowly.

Many tasks add events, and one writer takes them, usually at once. Adjacent text deltas of one item that wait here are
merged into one. Later events of the response get smaller numbers, so that the numbers have no gap.
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
    one of its request.
    """

    event: Json
    request_id: str = ""
    at_s: float = 0.0
    is_terminal: bool = False


@dataclass(frozen=True, slots=True)
class Close:
    """Close the connection once all earlier events are sent."""

    code: int
    reason: str


# Above this, a connection's requests are asked for no more steps, so their backend pauses.
MAX_PENDING_BYTES = 256 << 10
# Only a client that sends bad frames and does not read the errors gets so far above MAX_PENDING_BYTES.
MAX_FLOOD_BYTES = 4 << 20


# A merged delta stays well under the 1 MiB that clients take as a frame.
MAX_MERGED_CHARS = 64 << 10
MAX_MERGED_LOGPROBS = 200
_ENTRY_BYTES = 512
_TEXT = "response.output_text.delta"


class Outbox:
    """A queue of Send and Close actions. `push` never waits. A task that can wait calls `wait_for_room`."""

    def __init__(self) -> None:
        # By response id: how many of its events were merged into earlier ones. The entry of the last response that
        # ended is kept, because events about its steers follow its terminal event at once, and are numbered too.
        self._num_merged: dict[str, int] = {}
        self._ended_id = ""
        self._entries: deque[Send | Close] = deque()
        self._num_bytes = 0
        self._drained = asyncio.Event()
        self._drained.set()

    @property
    def is_full(self) -> bool:
        """Whether the queue takes more than MAX_PENDING_BYTES. Tasks that can wait then call `wait_for_room`."""
        return not self._drained.is_set()

    @property
    def is_flooded(self) -> bool:
        """Whether the queue takes more than MAX_FLOOD_BYTES. Tasks that call `wait_for_room` cannot add so much.

        The client has caused this, for example by sending bad frames without reading the errors.
        """
        return self._num_bytes > MAX_FLOOD_BYTES

    def push(self, entry: Send | Close) -> None:
        """Add an entry at the end, or merge it into the last entry."""
        if isinstance(entry, Close):
            self._entries.append(entry)
        elif not self._merge(entry):
            self._renumber(entry)
            self._entries.append(entry)
            self._num_bytes += _cost(entry.event)
        if self._num_bytes > MAX_PENDING_BYTES:
            self._drained.clear()

    def take(self) -> Send | Close | None:
        """Remove the next entry from the queue, and return it; None if there is none."""
        if not self._entries:
            return None
        entry = self._entries.popleft()
        if isinstance(entry, Send):
            self._num_bytes -= _cost(entry.event)
            if self._num_bytes <= MAX_PENDING_BYTES:
                self._drained.set()
        return entry

    async def wait_for_room(self) -> None:
        """Wait until the queue takes at most MAX_PENDING_BYTES."""
        await self._drained.wait()

    def _merge(self, entry: Send) -> bool:
        """Append a text delta to the last event, if that is a delta of the same item and the result is not too large.

        Return whether the delta was appended.
        """
        last = self._entries[-1] if self._entries else None
        if not isinstance(last, Send) or not _is_same_text(last.event, entry.event):
            return False
        first, second = last.event, entry.event
        if len(first["delta"]) > MAX_MERGED_CHARS or len(first["logprobs"]) > MAX_MERGED_LOGPROBS:
            return False
        self._num_bytes -= _cost(first)
        first["delta"] += second["delta"]
        first["logprobs"] = first["logprobs"] + second["logprobs"]
        self._num_bytes += _cost(first)
        self._num_merged[entry.request_id] = self._num_merged.get(entry.request_id, 0) + 1
        return True

    def _renumber(self, entry: Send) -> None:
        """Lower an event's number by 1 for each earlier event of its response that was merged."""
        if entry.request_id in self._num_merged:
            entry.event["sequence_number"] -= self._num_merged[entry.request_id]
        if entry.is_terminal:
            self._num_merged.pop(self._ended_id, None)
            self._ended_id = entry.request_id


def _cost(event: Json) -> int:
    """Return roughly how many bytes of memory an event takes."""
    # The event at a text's end holds the text once more. The events after it share that text.
    text = event.get("delta") or event.get("text") or event.get("arguments") or ""
    return _ENTRY_BYTES * (1 + len(event.get("logprobs", ()))) + len(text)


def _is_same_text(first: Json, second: Json) -> bool:
    return first["type"] == _TEXT and second["type"] == _TEXT and bool(first["item_id"] == second["item_id"])
