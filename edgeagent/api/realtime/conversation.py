"""The conversation of a Realtime session: the items that the client sees, in their order."""

from __future__ import annotations

from typing import NamedTuple

from edgeagent.api.realtime.body import MAX_ITEMS
from edgeagent.api.wire.shape import Json
from edgeagent.conversation.history import MAX_CONVERSATION_BYTES, Transcript
from edgeagent.conversation.items import CallItem, CallOutputItem, Item
from edgeagent.errors import InvalidRequest

ROOT = "root"


class DuplicateItem(InvalidRequest):
    """The conversation of a Realtime session has an item with this id already."""

    code = "item_create_duplicate_item_id"


class UnknownItemToDelete(InvalidRequest):
    """The conversation of a Realtime session has no item with this id, so it cannot be deleted."""

    code = "item_delete_invalid_item_id"


class UnknownItemToRetrieve(InvalidRequest):
    """The conversation of a Realtime session has no item with this id, so it cannot be retrieved."""

    code = "item_retrieve_invalid_item_id"


class UnknownItemToTruncate(InvalidRequest):
    """The conversation of a Realtime session has no item with this id, so it cannot be truncated."""

    code = "item_truncate_invalid_item_id"


class Entry(NamedTuple):
    """An item of the conversation. `shown`: its JSON. `item`: None if the model does not see it, or not yet."""

    shown: Json
    item: Item | None


class RealtimeConversation:
    """The items of a conversation in order, with those of a response that is under way.

    `num_bytes`: about the memory of the items.
    """

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}
        self.num_bytes = 0

    @property
    def items(self) -> tuple[Item, ...]:
        """The items that the model sees. It does not see an output whose call is not before it: it was deleted."""
        seen: list[Item] = []
        call_ids: set[str] = set()
        for item in (entry.item for entry in self._entries.values()):
            if isinstance(item, CallItem):
                call_ids.add(item.call_id)
            if item is not None and (not isinstance(item, CallOutputItem) or item.call_id in call_ids):
                seen.append(item)
        return tuple(seen)

    def after(self, begin: tuple[Item, ...]) -> tuple[Item, ...] | None:
        """Return the items that follow these; None if the conversation does not begin with them.

        Their texts are compared too: an item may have been deleted, and another one created with its id.
        """
        items = self.items
        return items[len(begin) :] if items[: len(begin)] == begin else None

    @property
    def last_id(self) -> str | None:
        return next(reversed(self._entries), None)

    def find(self, item_id: str) -> Entry | None:
        return self._entries.get(item_id)

    def check(self, item: Item) -> None:
        """Raise InvalidRequest if a client's item cannot be added."""
        if item.id == ROOT:
            raise InvalidRequest(
                f"item.id: {ROOT} names the place before the first item; send another", param="item.id"
            )
        if item.id in self._entries:
            raise DuplicateItem(f"Error adding item: an item with id '{item.id}' already exists.", param="item.id")
        if isinstance(item, CallOutputItem):
            calls = (each.call_id for each in self.items if isinstance(each, CallItem))
            if item.call_id not in calls:
                message = f"no function_call with the call_id {item.call_id[:128]!r} is in the conversation"
                raise InvalidRequest(message, param="item.call_id")
        if len(self._entries) >= MAX_ITEMS or self.num_bytes + num_bytes_of(item) > MAX_CONVERSATION_BYTES:
            most = f"at most {MAX_ITEMS} items and {MAX_CONVERSATION_BYTES >> 20} MiB"
            raise InvalidRequest(f"the conversation is too long ({most}); delete items", param="item")

    def insert(self, entry: Entry, previous_id: str | None = None) -> str | None:
        """Add an item behind the item `previous_id` (ROOT: as the first; None: as the last).

        Return the id of the item before it; None if it is the first. Raise InvalidRequest if `previous_id` is unknown.
        """
        names = [*self._entries]
        if previous_id is None:
            previous_id = self.last_id or ROOT
        if previous_id != ROOT and previous_id not in self._entries:
            message = (
                f"there is no item {previous_id[:128]!r}; name another, or root, or none to add the item at the end"
            )
            raise InvalidRequest(message, param="previous_item_id")
        place = 0 if previous_id == ROOT else names.index(previous_id) + 1
        following = {name: self._entries.pop(name) for name in names[place:]}
        self._entries |= {entry.shown["id"]: entry, **following}
        self.num_bytes += num_bytes_of(entry.item)
        return names[place - 1] if place else None

    def complete(self, entry: Entry) -> None:
        """Replace a response's item by its final form, unless it was deleted."""
        if (old := self._entries.get(entry.shown["id"])) is not None:
            self._entries[entry.shown["id"]] = entry
            self.num_bytes += num_bytes_of(entry.item) - num_bytes_of(old.item)

    def clear(self) -> None:
        """Remove all items."""
        self._entries.clear()
        self.num_bytes = 0

    def remove(self, item_id: str) -> None:
        """Remove an item; raise UnknownItemToDelete."""
        if item_id not in self._entries:
            message = f"Error deleting item: the item with id '{item_id}' does not exist."
            raise UnknownItemToDelete(message, param="item_id")
        self.num_bytes -= num_bytes_of(self._entries.pop(item_id).item)


def num_bytes_of(item: Item | None) -> int:
    """Return roughly the memory that an item takes, with the base64 of its images in its JSON; 0 for none."""
    num_media_bytes = sum(len(medium.data) for _, medium in getattr(item, "media", ()))
    return 0 if item is None else Transcript().extended((item,)).num_bytes + 4 * num_media_bytes // 3
