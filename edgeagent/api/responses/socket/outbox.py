"""The events that wait to be written to one client: in order, bounded, and merged if the client reads slowly.

Adjacent text deltas of one item become one while they wait. It does not know sockets; one writer takes, many push.
"""

from __future__ import annotations

import asyncio
from collections import deque

from edgeagent.api.responses.socket.actions import Close, Send
from edgeagent.api.wire.shape import Json

# Above this the requests of a connection are no longer asked for more (their backend then pauses).
MAX_PENDING_BYTES = 256 << 10
# Only a client that sends bad frames and does not read the errors gets far above it.
MAX_FLOOD_BYTES = 4 << 20
# A merged delta stays well under the 1 MiB that clients take as a frame.
MAX_MERGED_CHARS = 64 << 10
MAX_MERGED_LOGPROBS = 200
_ENTRY_BYTES = 512


class Outbox:
    """A queue of Send and Close. `push` never waits; a producer that can wait awaits `room` first."""

    def __init__(self) -> None:
        self._entries: deque[Send | Close] = deque()
        self._num_bytes = 0
        # How many events of each response were merged away: its later numbers move up, without a gap.
        self._num_merged: dict[str, int] = {}
        self._filled = asyncio.Event()
        self._drained = asyncio.Event()
        self._drained.set()

    @property
    def is_full(self) -> bool:
        """Whether producers that can wait should wait."""
        return not self._drained.is_set()

    @property
    def is_flooded(self) -> bool:
        """Whether there is more than waiting producers can have caused."""
        return self._num_bytes > MAX_FLOOD_BYTES

    def push(self, entry: Send | Close) -> None:
        """Add an entry behind the others."""
        if isinstance(entry, Close):
            self._entries.append(entry)
        elif not self._merge(entry):
            self._number(entry)
            self._entries.append(entry)
            self._num_bytes += _cost(entry.event)
        self._filled.set()
        if self._num_bytes > MAX_PENDING_BYTES:
            self._drained.clear()

    async def take(self) -> Send | Close:
        """Return the next entry, when there is one."""
        while not self._entries:
            self._filled.clear()
            await self._filled.wait()
        entry = self._entries.popleft()
        if isinstance(entry, Send):
            self._num_bytes -= _cost(entry.event)
            if self._num_bytes <= MAX_PENDING_BYTES:
                self._drained.set()
        return entry

    async def room(self) -> None:
        """Return once there is room."""
        await self._drained.wait()

    def _number(self, entry: Send) -> None:
        if entry.request_id in self._num_merged:
            entry.event["sequence_number"] -= self._num_merged[entry.request_id]
            if entry.is_terminal:
                del self._num_merged[entry.request_id]

    def _merge(self, entry: Send) -> bool:
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


def _is_same_text(first: Json, second: Json) -> bool:
    kind = "response.output_text.delta"
    return first["type"] == kind and second["type"] == kind and bool(first["item_id"] == second["item_id"])


def _cost(event: Json) -> int:
    # A text's end holds the text once more; the events after it share that one.
    text = event.get("delta") or event.get("text") or event.get("arguments") or ""
    return _ENTRY_BYTES * (1 + len(event.get("logprobs", ()))) + len(text)
