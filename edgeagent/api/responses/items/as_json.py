"""The JSON of items, on the wire and in the store: the inverse of input_items.read_items.

Every item has an id here, and every item but a compaction has a status. The content of an item is at most one part: the
texts of several parts are joined. The store's file is read by msgspec. Pydantic, which reads what clients send, takes
much longer, and a conversation is read whole when it is continued.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal, NotRequired, cast

import msgspec

from edgeagent.api.wire.logprobs import Scored
from edgeagent.api.wire.shape import Json, Shape
from edgeagent.conversation.items import (
    CallItem,
    CallOutputItem,
    CompactionItem,
    Item,
    MessageItem,
    ReasoningItem,
    ReferenceItem,
    summary_of,
)
from edgeagent.types import Role

CUSTOM_INPUT = "input"
"""The one parameter of the function that stands for a custom tool, whose input is text."""

ItemStatus = Literal["in_progress", "completed", "incomplete"]


class OutputText(Shape):
    """Text that was generated."""

    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[Scored]


class ReasoningText(Shape):
    """Reasoning that was generated."""

    type: Literal["reasoning_text"]
    text: str


class OutputMessage(Shape):
    """A message of the model."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    status: ItemStatus
    content: list[OutputText]


class OutputReasoning(Shape):
    """The model's reasoning."""

    id: str
    type: Literal["reasoning"]
    summary: list[Any]
    content: list[ReasoningText]
    status: ItemStatus


class OutputCall(Shape):
    """A call the model makes; the arguments are JSON text."""

    id: str
    type: Literal["function_call"]
    call_id: str
    name: str
    namespace: NotRequired[str]
    arguments: str
    status: ItemStatus


class OutputCustomCall(Shape):
    """A call of a custom tool; the input is text."""

    id: str
    type: Literal["custom_tool_call"]
    call_id: str
    name: str
    namespace: NotRequired[str]
    input: str
    status: ItemStatus


class OutputCompaction(Shape):
    """A summary that replaces the conversation before it. Clients send it back unchanged."""

    id: str
    type: Literal["compaction"]
    encrypted_content: str


OutputItem = OutputMessage | OutputReasoning | OutputCall | OutputCustomCall | OutputCompaction


_PREFIXES: dict[type[Item], str] = {
    MessageItem: "msg",
    ReasoningItem: "rs",
    CallItem: "fc",
    CallOutputItem: "fco",
    CompactionItem: "cmp",
}


def with_id(item: Item, make_id: Callable[[str], str]) -> Item:
    """Return the item with an id. A new id is made if the client gave none. A reference is returned unchanged."""
    return item if item.id or isinstance(item, ReferenceItem) else replace(item, id=make_id(_PREFIXES[type(item)]))


def item_body(item: Item) -> Json:
    """Return the JSON object of an item. References must have been resolved."""
    match item:
        case MessageItem(role="assistant"):
            part = {"type": "output_text", "text": item.text, "annotations": [], "logprobs": []}
            return _message(item, part) | ({"phase": item.phase} if item.phase else {})
        case MessageItem():
            return _message(item, {"type": "input_text", "text": item.text})
        case ReasoningItem():
            content = [{"type": "reasoning_text", "text": item.text}] if item.text else []
            return {"id": item.id, "type": "reasoning", "summary": [], "content": content, "status": "completed"}
        case CallItem():
            return cast("Json", call_body(item, "completed"))
        case CallOutputItem():
            return {
                "id": item.id,
                "type": "custom_tool_call_output" if item.is_custom else "function_call_output",
                "call_id": item.call_id,
                "output": item.output,
                "status": "completed",
            }
        case CompactionItem():
            return {"id": item.id, "type": "compaction", "encrypted_content": item.content}
        case ReferenceItem():
            raise AssertionError(f"unresolved reference {item.id}")


def call_body(call: CallItem, status: ItemStatus) -> OutputCall | OutputCustomCall:
    """Return the JSON object of a call."""
    space: Json = {"namespace": call.namespace} if call.namespace else {}
    named: Json = {"id": call.id, "call_id": call.call_id, "name": call.name, **space, "status": status}
    if call.is_custom:
        return cast("OutputCustomCall", {"type": "custom_tool_call", **named, "input": custom_input(call.arguments)})
    return cast("OutputCall", {"type": "function_call", **named, "arguments": call.arguments})


def call_of(body: OutputCall | OutputCustomCall) -> CallItem:
    """Return the call of a JSON object: the inverse of `call_body`."""
    space, is_custom = body.get("namespace", ""), body["type"] == "custom_tool_call"
    arguments = custom_arguments(body["input"]) if body["type"] == "custom_tool_call" else body["arguments"]
    return CallItem(body["id"], body["call_id"], body["name"], arguments, space, is_custom)


def custom_arguments(text: str) -> str:
    """Return the arguments of the function that stands for a custom tool, from the tool's input."""
    return json.dumps({CUSTOM_INPUT: text}, ensure_ascii=False)


def custom_input(arguments: str) -> str:
    """Return the input of a custom tool: the inverse of `custom_arguments`.

    Arguments that are no object with a text as input, as another server's model may write them, are the input as such.
    """
    try:
        fields = json.loads(arguments)
    except ValueError:
        return arguments
    text = fields.get(CUSTOM_INPUT) if isinstance(fields, dict) else None
    return text if isinstance(text, str) else arguments


def _message(item: MessageItem, part: Json) -> Json:
    return {"id": item.id, "type": "message", "role": item.role, "status": "completed", "content": [part]}


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
