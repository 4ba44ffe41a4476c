"""Responses that a client may continue from, and how a chain of them becomes one conversation.

A history remembers the responses of one connection. The store (`conversation.store`) keeps what outlives the
connection. This module does no I/O: `missing` returns the ids that are not remembered, and the caller asks the store
for them, which returns a StoreResult. The module does not depend on any wire protocol.

A short request may continue a long conversation. So its work must not grow with the conversation: messages are made
once, and shared by all continuations (`Transcript`); items that a request refers to are found by one index.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from sys import getsizeof

from edgeagent.conversation.items import (
    CallItem,
    CallOutputItem,
    CompactionItem,
    Item,
    MessageItem,
    ReasoningItem,
    ReferenceItem,
    extended,
    media_of,
)
from edgeagent.errors import EdgeAgentError, InvalidRequest, ResponseNotFound
from edgeagent.router.policy import strictest
from edgeagent.types import Media, Message, RouteMode

# OpenAI promises to keep the latest response of each lane. A client that forks a conversation needs a few more.
MAX_RESPONSES = 128
# The most that a connection's responses take. Items that several responses share count once.
MAX_BYTES = 32 << 20
# The most items and bytes of one conversation, inherited ones included. No model reads as much.
MAX_ITEMS = 8192
MAX_CONVERSATION_BYTES = 32 << 20
_ITEM_BYTES = 128  # what an item takes without its text
_PLACE_BYTES = 16  # what an item takes in each response that inherits it


@dataclass(frozen=True, slots=True)
class Transcript:
    """The messages of a conversation without its instructions, their media, and how much it holds."""

    messages: tuple[Message, ...] = ()
    num_items: int = 0
    num_bytes: int = 0
    media: tuple[Media, ...] = ()

    def extended(self, items: Iterable[Item]) -> Transcript:
        """Return the transcript of the conversation that continues with `items`, which must have no ReferenceItem."""
        new = tuple(items)
        num_items = self.num_items + len(new)
        num_bytes = self.num_bytes + sum(map(_size, new))
        messages = extended(self.messages, new, len(self.media)) if new else self.messages
        return Transcript(messages, num_items, num_bytes, self.media + media_of(new))

    def check(self) -> None:
        """Raise InvalidRequest if the conversation is too long."""
        if self.num_items > MAX_ITEMS or self.num_bytes > MAX_CONVERSATION_BYTES:
            raise too_long()


def too_long() -> InvalidRequest:
    """Return the error for a conversation with too many items or bytes."""
    return InvalidRequest(
        f"the conversation is too long (at most {MAX_ITEMS} items and {MAX_CONVERSATION_BYTES >> 20} MiB, with what it "
        "continues); begin another",
        param="input",
    )


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A finished response: `context`, the items before its output, and its output.

    The first `num_inherited` items of `context` come from the response `previous_id`; the others are the response's own
    input. `partition`: the client that owns the response. `is_failed`: the response cannot be continued. `is_storable`:
    no response of the chain has `store: false` or `no_store: true`. `route`: the strictest mode that a response of the
    chain asked for; continuations inherit it. For `is_storable` and `route`, responses whose items are referenced count
    as part of the chain. `transcript`: of all its items; None if it has not been made.
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
    transcript: Transcript | None = field(default=None, compare=False, repr=False)

    @property
    def items(self) -> tuple[Item, ...]:
        return self.context + self.output

    @property
    def num_bytes(self) -> int:
        """Roughly the memory that the response's items take, with those that it inherits."""
        return Transcript().extended(self.items).num_bytes if self.transcript is None else self.transcript.num_bytes

    def with_transcript(self) -> StoredResponse:
        return self if self.transcript is not None else replace(self, transcript=Transcript().extended(self.items))


@dataclass(frozen=True, slots=True)
class MissingIds:
    """The ids that a new request names but its connection's history does not have. `bool()` of no ids is False."""

    previous_id: str | None = None
    item_ids: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.previous_id is not None or bool(self.item_ids)


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of stored responses: their number, their bytes on disk, and their age in seconds.

    The bytes are those of the compressed content, of the ids, and about those of the rows that hold them.
    """

    max_responses: int = 1000
    max_bytes: int = 256 << 20
    max_age_s: float = 30 * 86400.0


@dataclass(frozen=True, slots=True)
class ListedConversation:
    """A conversation in a list: its first stored response, its first words, and when it began and was last continued.

    Continuations of one response are branches of the same conversation. Times are seconds since 1970.
    """

    id: str
    title: str
    num_responses: int
    created_s: float
    last_s: float


@dataclass(frozen=True, slots=True)
class ConversationTurn:
    """A response of a conversation: the items that it answered, and its JSON.

    `input` has the items before it only for the first response of its conversation.
    """

    input: tuple[Item, ...]
    body: bytes


@dataclass(frozen=True, slots=True)
class StoreResult:
    """What the store found for a MissingIds. `items` has the found items by their ids.

    `previous`: the previous response, even if it failed; None if it was not found or not asked for. `route`: the
    strictest mode of the responses that have the items; None if they set none. `refusal`: why they were not read.
    """

    previous: StoredResponse | None = None
    items: Mapping[str, Item] = field(default_factory=dict)
    route: RouteMode | None = None
    refusal: EdgeAgentError | None = None


@dataclass(frozen=True, slots=True)
class Conversation:
    """The conversation that a new response answers. Its first `num_inherited` items come from the previous response.

    `is_storable` and `route` cover the whole chain, as in StoredResponse.
    """

    items: tuple[Item, ...]
    transcript: Transcript
    num_inherited: int = 0
    is_storable: bool = True
    route: RouteMode | None = None


@dataclass(slots=True, eq=False)
class _Segment:
    """The items that a remembered response added to the conversation of `parent`, or the whole conversation.

    A segment is kept while a response or another segment needs it. `num_users` counts them.
    """

    parent: _Segment | None
    items: tuple[Item, ...]
    is_storable: bool
    route: RouteMode | None
    num_bytes: int
    num_users: int = 0


@dataclass(frozen=True, slots=True)
class _Remembered:
    response: StoredResponse
    lane: str | None
    segment: _Segment


class ConnectionHistory:
    """The responses that one connection may continue without asking the store.

    As in OpenAI's WebSocket mode, an unstored response can be continued only on its own connection. A connection has
    lanes, each of which runs one response at a time. If a continuation fails on the lane of its previous response, that
    response is forgotten here. The store may still have it. `num_bytes`: about the memory of the responses.
    """

    def __init__(self) -> None:
        self._recent: OrderedDict[str, _Remembered] = OrderedDict()
        self._items: dict[str, tuple[Item, _Segment]] = {}  # the latest item with each id
        self.num_bytes = 0
        self._is_cleared = False

    def missing(self, previous_id: str | None, new: tuple[Item, ...]) -> MissingIds:
        """Return the ids in a request that this history does not have, so that the store must be asked for them.

        `previous_id`: the response to continue, or None. `new`: the request's input items, with their references.
        """
        references = dict.fromkeys(item.id for item in new if isinstance(item, ReferenceItem))
        unknown = tuple(item_id for item_id in references if item_id not in self._items)
        return MissingIds(None if previous_id in self._recent else previous_id, unknown)

    def remembers(self, response_id: str) -> bool:
        """Whether a response of this connection can be continued here."""
        return response_id in self._recent

    def add(self, response: StoredResponse, lane: str | None) -> None:
        """Remember a finished response of a lane. None is the default lane.

        If the responses are then too many or too large, forget the least recently used ones.
        """
        self.forget(response.id)
        response = response.with_transcript()
        segment = self._new_segment(response)
        self._recent[response.id] = _Remembered(response, lane, segment)
        while len(self._recent) > MAX_RESPONSES or (self.num_bytes > MAX_BYTES and len(self._recent) > 1):
            self.forget(next(iter(self._recent)))

    def clear(self) -> None:
        """Forget all responses."""
        self._recent.clear()
        self._items.clear()
        self.num_bytes = 0
        self._is_cleared = True

    def forget(self, response_id: str) -> None:
        """Forget a response; an unknown id is ignored."""
        remembered = self._recent.pop(response_id, None)
        segment = None if remembered is None else remembered.segment
        while segment is not None:
            segment.num_users -= 1
            if segment.num_users:
                return
            self.num_bytes -= segment.num_bytes
            for item in segment.items:
                if self._items.get(item.id, (None, None))[1] is segment:
                    del self._items[item.id]
            segment = segment.parent

    def evict_failed(self, previous_id: str, lane: str | None) -> None:
        """Forget the response `previous_id`, whose continuation failed on `lane`. Keep it if it is of another lane."""
        if previous_id in self._recent and self._recent[previous_id].lane == lane:
            self.forget(previous_id)

    def continue_from(self, previous_id: str | None, new: tuple[Item, ...], found: StoreResult) -> Conversation:
        """Return the whole conversation: the previous response's items, then the new ones, with references resolved.

        `found` is what the store found for the ids from `missing`. A reference to an item that the conversation has
        already adds nothing. Raise ResponseNotFound if the previous response is unknown or has failed. Raise
        InvalidRequest for a reference to an unknown item, for a function's output without a call, for a conversation
        that is too long, or if `found` is a refusal.
        """
        if found.refusal is not None:
            raise found.refusal
        previous = self._previous(previous_id, found).with_transcript() if previous_id is not None else None
        inherited = previous.items if previous else ()
        is_storable = previous is None or previous.is_storable
        route = previous.route if previous is not None else None
        # The ids of the conversation are needed only for references, and its calls only for outputs.
        known = {item.id for item in inherited} if any(isinstance(item, ReferenceItem) for item in new) else set()
        resolved: list[Item] = []
        for item in new:
            if not isinstance(item, ReferenceItem):
                resolved.append(item)
            elif item.id not in known:
                known.add(item.id)
                meant, is_item_storable, item_route = self._resolve(item.id, found)
                resolved.append(meant)
                is_storable = is_storable and is_item_storable
                route = strictest(route, item_route)
        _check_calls(inherited, resolved)
        before = previous.transcript if previous is not None and previous.transcript is not None else Transcript()
        transcript = before.extended(resolved)
        transcript.check()
        return Conversation((*inherited, *resolved), transcript, len(inherited), is_storable, route)

    def _new_segment(self, response: StoredResponse) -> _Segment:
        previous = self._recent.get(response.previous_id or "") if response.num_inherited else None
        parent = previous.segment if previous is not None else None
        own = response.items[response.num_inherited if parent is not None else 0 :]
        num_bytes = sum(map(_size, own)) + _PLACE_BYTES * len(response.items)
        segment = _Segment(parent, own, response.is_storable, response.route, num_bytes, num_users=1)
        if parent is not None:
            parent.num_users += 1
        self.num_bytes += num_bytes
        for item in own:
            if item.id:
                self._items[item.id] = (item, segment)
        return segment

    def _previous(self, previous_id: str, found: StoreResult) -> StoredResponse:
        if previous_id in self._recent:
            self._recent.move_to_end(previous_id)
            return self._recent[previous_id].response
        if found.previous is None or found.previous.is_failed:
            message = f"Previous response with id '{previous_id[:128]}' not found."
            if self._is_cleared:
                message += " This connection's responses were forgotten, since clients keep too many; send all items."
            raise ResponseNotFound(message, param="previous_response_id")
        return found.previous

    def _resolve(self, item_id: str, found: StoreResult) -> tuple[Item, bool, RouteMode | None]:
        if item_id in self._items:
            item, segment = self._items[item_id]
            return item, segment.is_storable, segment.route
        if item_id not in found.items:
            raise InvalidRequest(f"Item with id '{item_id[:128]}' not found.", param="input")
        return found.items[item_id], True, found.route


def _check_calls(inherited: tuple[Item, ...], new: list[Item]) -> None:
    call_ids: set[str] = set()
    knows_inherited = False
    for item in new:
        if isinstance(item, CallItem):
            call_ids.add(item.call_id)
        elif isinstance(item, CallOutputItem) and item.call_id not in call_ids:
            if not knows_inherited:
                knows_inherited = True
                call_ids.update(each.call_id for each in inherited if isinstance(each, CallItem))
            if item.call_id not in call_ids:
                raise InvalidRequest(
                    f"No tool call found for function call output with call_id {item.call_id[:128]}.", param="input"
                )


def _size(item: Item) -> int:
    """Return roughly the memory that an item takes. A string's size is not its length, if it has other characters."""
    match item:
        case MessageItem():
            return _ITEM_BYTES + getsizeof(item.text) + sum(len(medium.data) for _, medium in item.media)
        case ReasoningItem():
            return _ITEM_BYTES + getsizeof(item.text)
        case CallItem():
            return _ITEM_BYTES + getsizeof(item.name) + getsizeof(item.arguments)
        case CallOutputItem():
            return _ITEM_BYTES + getsizeof(item.output) + sum(len(medium.data) for _, medium in item.media)
        case CompactionItem():
            return _ITEM_BYTES + getsizeof(item.content) + getsizeof(item.summary)
        case ReferenceItem():
            return _ITEM_BYTES
