"""Responses that a client may continue from, and how a chain of them becomes one conversation.

A history remembers the responses of one connection. The store (`conversation.store`) keeps what outlives the
connection. This module does no I/O: `missing` returns the ids that are not remembered, and the caller asks the store
for them, which returns a StoreResult. The module does not depend on any wire protocol.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field

from edgeagent.conversation.items import CallItem, CallOutputItem, Item, ReferenceItem
from edgeagent.errors import InvalidRequest, ResponseNotFound
from edgeagent.router.modes import strictest
from edgeagent.types import RouteMode

# OpenAI promises to keep the latest response of each lane. A client that forks a conversation needs a few more.
MAX_RESPONSES = 128
# Only each response's own items count. The items that it inherits are shared with the previous response, not copied.
MAX_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A finished response: `context`, the items before its output, and its output.

    The first `num_inherited` items of `context` come from the response `previous_id`; the others are the response's own
    input. `partition`: the client that owns the response. `is_failed`: the response cannot be continued. `is_storable`:
    no response of the chain has `store: false` or `no_store: true`. `route`: the strictest mode that a response of the
    chain asked for; continuations inherit it. For `is_storable` and `route`, responses whose items are referenced count
    as part of the chain.
    """

    id: str
    context: tuple[Item, ...]
    output: tuple[Item, ...]
    num_inherited: int = 0
    previous_id: str | None = None
    partition: str = ""
    is_storable: bool = True
    is_failed: bool = False
    route: RouteMode | None = None

    @property
    def items(self) -> tuple[Item, ...]:
        """The conversation up to and with this response."""
        return self.context + self.output

    @property
    def own_size_bytes(self) -> int:
        """Roughly the memory that the response takes, without the items that it inherits."""
        return sum(_size(item) for item in (*self.context[self.num_inherited :], *self.output))


@dataclass(frozen=True, slots=True)
class MissingIds:
    """The ids that a new request names but its connection's history does not have. `bool()` of no ids is False."""

    previous_id: str | None = None
    item_ids: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.previous_id is not None or bool(self.item_ids)


@dataclass(frozen=True, slots=True)
class StoreResult:
    """What the store found for a MissingIds. `items` has the found items by their ids.

    `previous`: the previous response, even if it failed; None if it was not found or not asked for. `route`: the
    strictest mode of the responses that have the items; None if they set none.
    """

    previous: StoredResponse | None = None
    items: Mapping[str, Item] = field(default_factory=dict)
    route: RouteMode | None = None


@dataclass(frozen=True, slots=True)
class Conversation:
    """The conversation that a new response answers. Its first `num_inherited` items come from the previous response.

    `is_storable` and `route` cover the whole chain, as in StoredResponse.
    """

    items: tuple[Item, ...]
    num_inherited: int = 0
    is_storable: bool = True
    route: RouteMode | None = None


class ConnectionHistory:
    """The responses that one connection may continue without asking the store.

    As in OpenAI's WebSocket mode, an unstored response can be continued only on its own connection. A connection has
    lanes, each of which runs one response at a time. If a continuation fails on the lane of its previous response, that
    response is forgotten here. The store may still have it.
    """

    def __init__(self) -> None:
        self._recent: OrderedDict[str, tuple[str | None, StoredResponse]] = OrderedDict()
        self._num_bytes = 0

    def missing(self, previous_id: str | None, new: tuple[Item, ...]) -> MissingIds:
        """Return the ids in a request that this history does not have, so that the store must be asked for them.

        `previous_id`: the response to continue, or None. `new`: the request's input items, with their references.
        """
        references = [item.id for item in new if isinstance(item, ReferenceItem)]
        if references:
            known = {item.id for _, response in self._recent.values() for item in response.items}
            references = [item_id for item_id in references if item_id not in known]
        return MissingIds(None if previous_id in self._recent else previous_id, tuple(references))

    def remembers(self, response_id: str) -> bool:
        """Whether a response of this connection can be continued here."""
        return response_id in self._recent

    def add(self, response: StoredResponse, lane: str | None) -> None:
        """Remember a finished response of a lane. None is the default lane.

        If the responses are then too many or too large, forget the least recently used ones.
        """
        self._recent[response.id] = (lane, response)
        self._num_bytes += response.own_size_bytes
        while len(self._recent) > MAX_RESPONSES or (self._num_bytes > MAX_BYTES and len(self._recent) > 1):
            self.forget(next(iter(self._recent)))

    def forget(self, response_id: str) -> None:
        """Forget a response; an unknown id is ignored."""
        if response_id in self._recent:
            _, response = self._recent.pop(response_id)
            self._num_bytes -= response.own_size_bytes

    def evict_failed(self, previous_id: str, lane: str | None) -> None:
        """Forget the response `previous_id`, whose continuation failed on `lane`. Keep it if it is of another lane."""
        if previous_id in self._recent and self._recent[previous_id][0] == lane:
            self.forget(previous_id)

    def continue_from(self, previous_id: str | None, new: tuple[Item, ...], found: StoreResult) -> Conversation:
        """Return the whole conversation: the previous response's items, then the new ones, with references resolved.

        `found` is what the store found for the ids from `missing`. A reference to an inherited item adds nothing. Raise
        ResponseNotFound if the previous response is unknown or has failed. Raise InvalidRequest for a reference to an
        unknown item, or for a function's output without a call.
        """
        previous = self._previous(previous_id, found) if previous_id is not None else None
        inherited = previous.items if previous else ()
        is_storable = previous is None or previous.is_storable
        route = previous.route if previous is not None else None
        known = {item.id for item in inherited if item.id}
        resolved: list[Item] = []
        for item in new:
            if not isinstance(item, ReferenceItem):
                resolved.append(item)
            elif item.id not in known:
                meant, is_item_storable, item_route = self._resolve(item.id, found)
                resolved.append(meant)
                is_storable = is_storable and is_item_storable
                route = strictest(route, item_route)
        items = (*inherited, *resolved)
        _check_calls(items)
        return Conversation(items, len(inherited), is_storable, route)

    def _previous(self, previous_id: str, found: StoreResult) -> StoredResponse:
        if previous_id in self._recent:
            self._recent.move_to_end(previous_id)
            return self._recent[previous_id][1]
        if found.previous is None or found.previous.is_failed:
            raise ResponseNotFound(
                f"Previous response with id '{previous_id[:128]}' not found.", param="previous_response_id"
            )
        return found.previous

    def _resolve(self, item_id: str, found: StoreResult) -> tuple[Item, bool, RouteMode | None]:
        for _, response in reversed(self._recent.values()):
            for item in response.items:
                if item.id == item_id:
                    return item, response.is_storable, response.route
        if item_id not in found.items:
            raise InvalidRequest(f"Item with id '{item_id[:128]}' not found.", param="input")
        return found.items[item_id], True, found.route


def _check_calls(items: tuple[Item, ...]) -> None:
    call_ids: set[str] = set()
    for item in items:
        if isinstance(item, CallItem):
            call_ids.add(item.call_id)
        elif isinstance(item, CallOutputItem) and item.call_id not in call_ids:
            raise InvalidRequest(
                f"No tool call found for function call output with call_id {item.call_id[:128]}.", param="input"
            )


def _size(item: Item) -> int:
    text_fields = ("text", "output", "arguments", "summary")
    return 128 + sum(len(getattr(item, name, "")) for name in text_fields)
