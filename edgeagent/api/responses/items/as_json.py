"""The JSON of items, on the wire and in the store: the inverse of input_items.read_items.

Every item has an id here, and every item but a compaction has a status. The content of an item is at most one part: the
texts of several parts are joined.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, NotRequired, cast

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
)

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
