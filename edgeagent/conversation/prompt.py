"""Turns a conversation into the messages that a chat template renders."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from edgeagent.conversation.items import (
    CallItem,
    CallOutputItem,
    CompactionItem,
    Item,
    MessageItem,
    ReasoningItem,
    ReferenceItem,
)
from edgeagent.types import Message, Role, ToolCall


@dataclass(slots=True)
class _Turn:
    role: Role
    content: str = ""
    reasoning: str = ""
    calls: list[ToolCall] = field(default_factory=list)
    call_id: str | None = None

    def message(self) -> Message:
        return Message(self.role, self.content, self.reasoning, tuple(self.calls), self.call_id)


def to_messages(instructions: str | None, items: Iterable[Item]) -> tuple[Message, ...]:
    """Return the messages of a conversation. `instructions`, if any, are its first system message.

    The items must have no ReferenceItem. Reasoning, text and calls that follow each other in this order become one
    assistant message. System messages at the start are joined, since many templates accept only one.
    """
    turns: list[_Turn] = [_Turn("system", instructions)] if instructions else []
    for item in items:
        _add(turns, item)
    return tuple(turn.message() for turn in turns)


def _add(turns: list[_Turn], item: Item) -> None:
    last = turns[-1] if turns else _Turn("user")
    is_answering = last.role == "assistant"
    match item:
        case MessageItem(role="system") if len(turns) == 1 and last.role == "system":
            last.content = f"{last.content}\n\n{item.text}"
        case MessageItem(role="assistant") if is_answering and not last.content and not last.calls:
            last.content = item.text
        case MessageItem():
            turns.append(_Turn(item.role, item.text))
        case ReasoningItem():
            if item.text:
                turns.append(_Turn("assistant", reasoning=item.text))
        case CallItem():
            if not is_answering:
                turns.append(last := _Turn("assistant"))
            last.calls.append(ToolCall(item.call_id, item.name, item.arguments))
        case CallOutputItem():
            turns.append(_Turn("tool", item.output, call_id=item.call_id))
        case CompactionItem():
            _add(turns, MessageItem(item.id, "system", item.summary))
        case ReferenceItem():
            raise AssertionError(f"unresolved reference {item.id}")
