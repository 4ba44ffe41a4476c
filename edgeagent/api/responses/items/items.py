"""The items of a conversation as the Responses API has them, and the prompt's messages made of them.

Items are what a chain of responses is made of; messages are what a chat template renders. It does not know chains.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from dataclasses import dataclass, field

from edgeagent.types import Message, Role, ToolCall


@dataclass(frozen=True, slots=True)
class MessageItem:
    """A message. `phase` is a client's mark on assistant messages; it is kept, not interpreted."""

    id: str
    role: Role
    text: str
    phase: str | None = None


@dataclass(frozen=True, slots=True)
class ReasoningItem:
    """The model's reasoning; empty if the client sends neither text nor summary, e.g. only ciphertext."""

    id: str
    text: str


@dataclass(frozen=True, slots=True)
class CallItem:
    """A call the model made."""

    id: str
    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class CallOutputItem:
    """The result of a client's function."""

    id: str
    call_id: str
    output: str


@dataclass(frozen=True, slots=True)
class ReferenceItem:
    """Stands for an item of a stored response."""

    id: str


@dataclass(frozen=True, slots=True)
class CompactionItem:
    """Stands for the conversation before it: an opaque `content` that this daemon made, and the summary in it."""

    id: str
    content: str
    summary: str


Item = MessageItem | ReasoningItem | CallItem | CallOutputItem | CompactionItem | ReferenceItem

# An opaque text, not a secret one: it holds only text that the client sent or received.
COMPACTION_PREFIX = "edgeagent.1."


def compaction_item(item_id: str, summary: str) -> CompactionItem:
    """Return an item that stands for a conversation with this summary."""
    return CompactionItem(item_id, COMPACTION_PREFIX + base64.urlsafe_b64encode(summary.encode()).decode(), summary)


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
    """Return the messages of a conversation. References must have been resolved.

    Reasoning, text and calls that follow each other are one assistant turn, as the model wrote them. System messages at
    the head become one, since many templates know only one.
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
