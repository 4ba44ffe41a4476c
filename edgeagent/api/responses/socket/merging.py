"""How the events of responses wait for a slow client: adjacent text deltas of one item are merged into one.

Later events of the response get smaller numbers, so that the numbers have no gap.
"""

from __future__ import annotations

from edgeagent.api.socket.outbox import Send
from edgeagent.api.wire.shape import Json

# A merged delta stays well under the 1 MiB that clients take as a frame.
MAX_MERGED_CHARS = 64 << 10
MAX_MERGED_LOGPROBS = 200
_ENTRY_BYTES = 512
_TEXT = "response.output_text.delta"


class TextMerging:
    """The rules for merging in one connection's outbox, and the numbers of its events after merging."""

    def __init__(self) -> None:
        # By response id: how many of its events were merged into earlier ones. The entry of the last response that
        # ended is kept, because events about its steers follow its terminal event at once, and are numbered too.
        self._num_merged: dict[str, int] = {}
        self._ended_id = ""

    def cost(self, event: Json) -> int:
        """Return roughly how many bytes of memory an event takes."""
        # The event at a text's end holds the text once more. The events after it share that text.
        text = event.get("delta") or event.get("text") or event.get("arguments") or ""
        return _ENTRY_BYTES * (1 + len(event.get("logprobs", ()))) + len(text)

    def merge(self, waiting: Send, entry: Send) -> bool:
        """Append a text delta to a waiting text delta of the same item, if the result is not too large for a frame.

        Return whether the delta was appended.
        """
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
        """Lower an event's number by 1 for each earlier event of its response that was merged."""
        if entry.request_id in self._num_merged:
            entry.event["sequence_number"] -= self._num_merged[entry.request_id]
        if entry.is_terminal:
            self._num_merged.pop(self._ended_id, None)
            self._ended_id = entry.request_id


def _is_same_text(first: Json, second: Json) -> bool:
    return first["type"] == _TEXT and second["type"] == _TEXT and bool(first["item_id"] == second["item_id"])
