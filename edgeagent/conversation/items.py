"""The items of a conversation, of which a chain of responses consists, and the messages that are rendered of them.

The JSON form of items is not defined here.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from edgeagent.types import Media, MediaKind, MediaPlace, Message, Role, ToolCall


@dataclass(frozen=True, slots=True)
class MessageItem:
    """A message. `phase` is a value that the client gives to an assistant message; it is kept and not interpreted.

    `media`: the images and sounds in it, each with its offset in the text. Only the user's messages have any.
    """

    id: str
    role: Role
    text: str
    phase: str | None = None
    media: tuple[tuple[int, Media], ...] = ()


@dataclass(frozen=True, slots=True)
class ReasoningItem:
    """The model's reasoning. `text` is empty if the client sent only ciphertext, without text or a summary."""

    id: str
    text: str


@dataclass(frozen=True, slots=True)
class CallItem:
    """A call that the model made. `is_custom`: the tool takes text, which is the field `input` of the arguments."""

    id: str
    call_id: str
    name: str
    arguments: str
    namespace: str = ""
    is_custom: bool = False

    @property
    def full_name(self) -> str:
        return f"{self.namespace}.{self.name}" if self.namespace else self.name


@dataclass(frozen=True, slots=True)
class CallOutputItem:
    """The result of a call, from the client. `is_custom`: the tool takes text. `media`: as in a MessageItem."""

    id: str
    call_id: str
    output: str
    is_custom: bool = False
    media: tuple[tuple[int, Media], ...] = ()


@dataclass(frozen=True, slots=True)
class ReferenceItem:
    """A reference to an item of an earlier response: one that is stored, or that the connection remembers."""

    id: str


@dataclass(frozen=True, slots=True)
class CompactionItem:
    """A summary that replaces the items before it. `content` is the summary as clients get it: encoded text."""

    id: str
    content: str
    summary: str


_Shown = MessageItem | CallOutputItem
"""The items that may have media."""
Item = MessageItem | ReasoningItem | CallItem | CallOutputItem | CompactionItem | ReferenceItem

# The `content` of a CompactionItem begins with this. The content is encoded, but not encrypted: the client knows the
# conversation that it summarizes.
COMPACTION_PREFIX = "edgeagent.1."


def compaction_item(item_id: str, summary: str) -> CompactionItem:
    return CompactionItem(item_id, COMPACTION_PREFIX + base64.urlsafe_b64encode(summary.encode()).decode(), summary)


def summary_of(content: str) -> str | None:
    """Return the summary in a compaction; None if another service made it. Raise ValueError if it is damaged."""
    if not content.startswith(COMPACTION_PREFIX):
        return None
    return base64.b64decode(content.removeprefix(COMPACTION_PREFIX), altchars=b"-_", validate=True).decode()


FindMedia = Callable[[MediaKind, bytes], Media]
"""Returns the medium that has this digest; raises ValueError or an EdgeAgentError if it is not there."""


@dataclass(frozen=True, slots=True)
class ItemFormat:
    """How items are written to a file. `encode` returns the bytes of several items, and `decode` reads them.

    The bytes name media by their digests only. `decode` gets a function that finds them. It raises ValueError or an
    EdgeAgentError if the bytes have other content.
    """

    encode: Callable[[Sequence[Item]], bytes]
    decode: Callable[[bytes, FindMedia], tuple[Item, ...]]


@dataclass(slots=True)
class _Turn:
    role: Role
    # The texts of joined system messages; otherwise at most one text. They are joined once, at the end.
    texts: list[str]
    reasoning: str = ""
    calls: list[ToolCall] = field(default_factory=list)
    call_id: str | None = None
    media: tuple[MediaPlace, ...] = ()

    @classmethod
    def of(cls, message: Message) -> _Turn:
        calls = list(message.tool_calls)
        return cls(message.role, [message.content], message.reasoning, calls, message.tool_call_id, message.media)

    def message(self) -> Message:
        text = "\n\n".join(self.texts)
        return Message(self.role, text, self.reasoning, tuple(self.calls), self.call_id, media=self.media)


def media_of(items: Iterable[Item]) -> tuple[Media, ...]:
    """Return the media of a conversation. The messages that `to_messages` returns name them by their index."""
    return tuple([medium for item in items if isinstance(item, _Shown) for _, medium in item.media])


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


def extended(messages: tuple[Message, ...], items: Iterable[Item], num_media: int = 0) -> tuple[Message, ...]:
    """Return the messages of a conversation that continues with `items`. Earlier messages are not made again.

    An item may become part of the last message; see `to_messages`. `num_media`: how many media the messages have.
    """
    turns = [_Turn.of(messages[-1])] if messages else []
    num_kept = len(messages) - len(turns)
    for item in items:
        _add(turns, item, is_start=num_kept == 0)
        if isinstance(item, _Shown) and item.media:
            places = [MediaPlace(offset, num_media + index) for index, (offset, _) in enumerate(item.media)]
            turns[-1].media = tuple(places)
            num_media += len(places)
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
