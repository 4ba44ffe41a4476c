"""How the events of responses wait for a slow client: adjacent text deltas of one item become one.

The numbers of a response's later events move up, so that none is missing.
"""

from __future__ import annotations

from edgeagent.api.socket.actions import Send
from edgeagent.api.wire.shape import Json

# A merged delta stays well under the 1 MiB that clients take as a frame.
MAX_MERGED_CHARS = 64 << 10
MAX_MERGED_LOGPROBS = 200
_ENTRY_BYTES = 512
_TEXT = "response.output_text.delta"


class TextMerging:
    """The merging of one connection's outbox."""

    def __init__(self) -> None:
        # How many events of each response were merged away.
        self._num_merged: dict[str, int] = {}

    def cost(self, event: Json) -> int:
        """Return roughly how many bytes of memory an event takes."""
        # A text's end holds the text once more; the events after it share that one.
        text = event.get("delta") or event.get("text") or event.get("arguments") or ""
        return _ENTRY_BYTES * (1 + len(event.get("logprobs", ()))) + len(text)

    def merge(self, waiting: Send, entry: Send) -> bool:
        """Add a text delta to one of the same item that waits before it, within the limits of a frame."""
        first, second = waiting.event, entry.event
        if not _is_same_text(first, second):
            return False
        if len(first["delta"]) > MAX_MERGED_CHARS or len(first["logprobs"]) > MAX_MERGED_LOGPROBS:
            return False
        first["delta"] += second["delta"]
        first["logprobs"] = first["logprobs"] + second["logprobs"]
        self._num_merged[entry.request_id] = self._num_merged.get(entry.request_id, 0) + 1
        return True

    def append(self, entry: Send) -> None:
        """Give an event of a response the number that it has after merging."""
        if entry.request_id in self._num_merged:
            entry.event["sequence_number"] -= self._num_merged[entry.request_id]
            if entry.is_terminal:
                del self._num_merged[entry.request_id]


def _is_same_text(first: Json, second: Json) -> bool:
    return first["type"] == _TEXT and second["type"] == _TEXT and bool(first["item_id"] == second["item_id"])
