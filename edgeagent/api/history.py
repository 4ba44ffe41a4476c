"""Responses that a client may continue from, and how a chain of them becomes one conversation.

Stored responses (`store: true`) are the process's, bounded, least recently used out first; unstored ones belong to one
connection and die with it. It does not know the wire's events.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from edgeagent.api.items import CallItem, CallOutputItem, Item, ReferenceItem
from edgeagent.errors import InvalidRequest, ResponseNotFound

# Counted by the text of each response's own items: what a chain inherits is shared, not copied.
MAX_STORED_BYTES = 128 << 20
# OpenAI promises the latest response of each lane; a client that forks wants a few more.
MAX_CONNECTION_RESPONSES = 128


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A finished response: all items before its output (inherited and its own input), and its output.

    `num_inherited` of the context's items came from the response it continued. `partition` is the credential's.
    """

    id: str
    context: tuple[Item, ...]
    output: tuple[Item, ...]
    num_inherited: int = 0
    partition: str = ""

    @property
    def items(self) -> tuple[Item, ...]:
        """The conversation up to and with this response."""
        return self.context + self.output

    @property
    def own_size_bytes(self) -> int:
        """Roughly what it adds to memory beside what it inherits."""
        return sum(_size(item) for item in (*self.context[self.num_inherited :], *self.output))


class ResponseStore:
    """Stored responses of all connections. These four methods are all that a persistent form would have to offer."""

    def __init__(self, max_responses: int, max_bytes: int = MAX_STORED_BYTES) -> None:
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._responses: OrderedDict[str, StoredResponse] = OrderedDict()

    def get(self, response_id: str, partition: str = "") -> StoredResponse | None:
        """Return a response of this partition, which makes it the most recently used."""
        response = self._responses.get(response_id)
        if response is None or response.partition != partition:
            return None
        self._responses.move_to_end(response_id)
        return response

    def add(self, response: StoredResponse) -> None:
        """Keep a response, at the cost of the least recently used."""
        self._responses[response.id] = response
        self._num_bytes += response.own_size_bytes
        while len(self._responses) > self._max_responses or (
            self._num_bytes > self._max_bytes and len(self._responses) > 1
        ):
            self.remove(next(iter(self._responses)))

    def remove(self, response_id: str) -> None:
        """Forget a response; an unknown id is ignored."""
        response = self._responses.pop(response_id, None)
        if response is not None:
            self._num_bytes -= response.own_size_bytes

    def find_item(self, item_id: str, partition: str = "") -> Item | None:
        """Return the output item with this id, of this partition. Looks through everything: references are rare."""
        for response in reversed(self._responses.values()):
            if response.partition == partition:
                for item in response.output:
                    if item.id == item_id:
                        return item
        return None


class ConnectionHistory:
    """What one connection may continue from: its own recent responses first, then the store's of its partition.

    The rules are OpenAI's WebSocket mode's: unstored responses are reachable here alone, and a continuation that fails
    on the lane of its parent evicts the parent from this connection (a stored one can still be loaded again).
    """

    def __init__(self, store: ResponseStore, partition: str = "") -> None:
        self._store = store
        self._partition = partition
        self._recent: OrderedDict[str, tuple[str | None, StoredResponse]] = OrderedDict()

    def get(self, response_id: str) -> StoredResponse:
        """Return a response to continue from; raise ResponseNotFound."""
        if response_id in self._recent:
            self._recent.move_to_end(response_id)
            return self._recent[response_id][1]
        response = self._store.get(response_id, self._partition)
        if response is None:
            raise ResponseNotFound(
                f"Previous response with id '{response_id[:128]}' not found.", param="previous_response_id"
            )
        return response

    def add(self, response: StoredResponse, lane: str | None, *, is_stored: bool) -> None:
        """Keep a finished response of a lane (None: the default lane), and store it where the client lets us."""
        self._recent[response.id] = (lane, response)
        if len(self._recent) > MAX_CONNECTION_RESPONSES:
            self._recent.popitem(last=False)
        if is_stored:
            self._store.add(response)

    def evict_failed(self, previous_id: str, lane: str | None) -> None:
        """Forget the parent of a continuation that failed on `lane`; a parent from another lane stays."""
        if previous_id in self._recent and self._recent[previous_id][0] == lane:
            del self._recent[previous_id]

    def continue_from(self, previous: StoredResponse | None, new: tuple[Item, ...]) -> tuple[Item, ...]:
        """Return the whole conversation: the previous response's, then the new items, references resolved.

        Raises InvalidRequest for a reference to nothing, and for a function's output that answers no call.
        """
        inherited = previous.items if previous else ()
        known = {item.id for item in inherited if item.id}
        resolved = [self._resolve(item) for item in new if not isinstance(item, ReferenceItem) or item.id not in known]
        items = (*inherited, *resolved)
        call_ids: set[str] = set()
        for item in items:
            if isinstance(item, CallItem):
                call_ids.add(item.call_id)
            elif isinstance(item, CallOutputItem) and item.call_id not in call_ids:
                raise InvalidRequest(
                    f"No tool call found for function call output with call_id {item.call_id[:128]}.", param="input"
                )
        return items

    def _resolve(self, item: Item) -> Item:
        if not isinstance(item, ReferenceItem):
            return item
        own = (known for _, response in self._recent.values() for known in response.output if known.id == item.id)
        found = next(own, None) or self._store.find_item(item.id, self._partition)
        if found is None:
            raise InvalidRequest(f"Item with id '{item.id[:128]}' not found.", param="input")
        return found


def _size(item: Item) -> int:
    text_fields = ("text", "output", "arguments")
    return 128 + sum(len(getattr(item, name, "")) for name in text_fields)
