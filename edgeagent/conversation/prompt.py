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
    # The texts of joined system messages; otherwise at most one text. They are joined once, at the end.
    texts: list[str]
    reasoning: str = ""
    calls: list[ToolCall] = field(default_factory=list)
    call_id: str | None = None

    @classmethod
    def of(cls, message: Message) -> _Turn:
        calls = list(message.tool_calls)
        return cls(message.role, [message.content], message.reasoning, calls, message.tool_call_id)

    def message(self) -> Message:
        return Message(self.role, "\n\n".join(self.texts), self.reasoning, tuple(self.calls), self.call_id)


def to_messages(instructions: str | None, items: Iterable[Item]) -> tuple[Message, ...]:
    """Return the messages of a conversation. `instructions`, if any, are its first system message.

    The items must have no ReferenceItem. Reasoning, text and calls that follow each other in this order become one
    assistant message. System messages at the start are joined, since many templates accept only one.
    """
    return with_instructions(instructions, extended((), items))


def with_instructions(instructions: str | None, messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Return the messages with `instructions`, if any, as the first system message, or at its beginning."""
    if not instructions:
        return messages
    if not messages or messages[0].role != "system":
        return (Message("system", instructions), *messages)
    return (Message("system", f"{instructions}\n\n{messages[0].content}"), *messages[1:])


def extended(messages: tuple[Message, ...], items: Iterable[Item]) -> tuple[Message, ...]:
    """Return the messages of a conversation that continues with `items`. Earlier messages are not made again.

    An item may become part of the last message; see `to_messages`.
    """
    turns = [_Turn.of(messages[-1])] if messages else []
    num_kept = len(messages) - len(turns)
    for item in items:
        _add(turns, item, is_start=num_kept == 0)
    return (*messages[:num_kept], *[turn.message() for turn in turns])


def _add(turns: list[_Turn], item: Item, *, is_start: bool) -> None:
    last = turns[-1] if turns else _Turn("user", [])
    is_answering = last.role == "assistant"
    match item:
        case MessageItem(role="system") if is_start and len(turns) == 1 and last.role == "system":
            last.texts.append(item.text)
        case MessageItem(role="assistant") if is_answering and not any(last.texts) and not last.calls:
            last.texts = [item.text]
        case MessageItem():
            turns.append(_Turn(item.role, [item.text]))
        case ReasoningItem():
            if item.text:
                turns.append(_Turn("assistant", [], item.text))
        case CallItem():
            if not is_answering:
                turns.append(last := _Turn("assistant", []))
            last.calls.append(ToolCall(item.call_id, item.full_name, item.arguments))
        case CallOutputItem():
            turns.append(_Turn("tool", [item.output], call_id=item.call_id))
        case CompactionItem():
            _add(turns, MessageItem(item.id, "system", item.summary), is_start=is_start)
        case ReferenceItem():
            raise AssertionError(f"unresolved reference {item.id}")
