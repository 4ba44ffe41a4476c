"""The items in the file of stored responses, in the JSON that `as_json` writes.

They are read by msgspec. Pydantic, which reads what clients send, takes much longer, and a conversation is read whole
when it is continued.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from edgeagent.api.responses.items.as_json import custom_arguments, item_body
from edgeagent.conversation.items import (
    CallItem,
    CallOutputItem,
    CompactionItem,
    Item,
    MessageItem,
    ReasoningItem,
    summary_of,
)
from edgeagent.types import Role


class _Part(msgspec.Struct):
    text: str


class _Stored(msgspec.Struct, tag_field="type"):
    id: str


class _Message(_Stored, tag="message"):
    role: Role
    content: list[_Part]
    phase: str | None = None

    def item(self) -> Item:
        return MessageItem(self.id, self.role, _text(self.content), self.phase)


class _Reasoning(_Stored, tag="reasoning"):
    content: list[_Part]

    def item(self) -> Item:
        return ReasoningItem(self.id, _text(self.content))


class _Call(_Stored, tag="function_call"):
    call_id: str
    name: str
    arguments: str
    namespace: str = ""

    def item(self) -> Item:
        return CallItem(self.id, self.call_id, self.name, self.arguments, self.namespace)


class _CustomCall(_Stored, tag="custom_tool_call"):
    call_id: str
    name: str
    input: str
    namespace: str = ""

    def item(self) -> Item:
        return CallItem(self.id, self.call_id, self.name, custom_arguments(self.input), self.namespace, is_custom=True)


class _Output(_Stored, tag="function_call_output"):
    call_id: str
    output: str

    def item(self) -> Item:
        return CallOutputItem(self.id, self.call_id, self.output)


class _CustomOutput(_Stored, tag="custom_tool_call_output"):
    call_id: str
    output: str

    def item(self) -> Item:
        return CallOutputItem(self.id, self.call_id, self.output, is_custom=True)


class _Compaction(_Stored, tag="compaction"):
    encrypted_content: str

    def item(self) -> Item:
        return CompactionItem(self.id, self.encrypted_content, summary_of(self.encrypted_content) or "")


_DECODER = msgspec.json.Decoder(
    list[_Message | _Reasoning | _Call | _CustomCall | _Output | _CustomOutput | _Compaction]
)


def encode_items(items: Sequence[Item]) -> bytes:
    """Return the JSON list of items, which must have no references."""
    return msgspec.json.encode([item_body(item) for item in items])


def decode_items(content: bytes) -> tuple[Item, ...]:
    """Return the items of a JSON list; raise ValueError if it is no such list."""
    try:
        return tuple([each.item() for each in _DECODER.decode(content)])
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from error


def _text(parts: list[_Part]) -> str:
    return "".join([part.text for part in parts])
