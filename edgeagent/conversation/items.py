"""The items of a conversation, of which a chain of responses consists. Their JSON form is not defined here."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from edgeagent.types import Role


@dataclass(frozen=True, slots=True)
class MessageItem:
    """A message. `phase` is a value that the client gives to an assistant message; it is kept and not interpreted."""

    id: str
    role: Role
    text: str
    phase: str | None = None


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
        """The tool's name as the model knows it."""
        return f"{self.namespace}.{self.name}" if self.namespace else self.name


@dataclass(frozen=True, slots=True)
class CallOutputItem:
    """The result of a call, from the client. `is_custom`: the tool takes text."""

    id: str
    call_id: str
    output: str
    is_custom: bool = False


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


Item = MessageItem | ReasoningItem | CallItem | CallOutputItem | CompactionItem | ReferenceItem

# The `content` of a CompactionItem begins with this. The content is encoded, but not encrypted: the client knows the
# conversation that it summarizes.
COMPACTION_PREFIX = "edgeagent.1."


def compaction_item(item_id: str, summary: str) -> CompactionItem:
    """Return the item that replaces a conversation with this summary."""
    return CompactionItem(item_id, COMPACTION_PREFIX + base64.urlsafe_b64encode(summary.encode()).decode(), summary)


def summary_of(content: str) -> str | None:
    """Return the summary in a compaction; None if another service made it. Raise ValueError if it is damaged."""
    if not content.startswith(COMPACTION_PREFIX):
        return None
    return base64.b64decode(content.removeprefix(COMPACTION_PREFIX), altchars=b"-_", validate=True).decode()


@dataclass(frozen=True, slots=True)
class ItemFormat:
    """How items are written to a file. `encode` returns the bytes of several items, and `decode` reads them.

    `decode` raises ValueError or an EdgeAgentError if the bytes have other content.
    """

    encode: Callable[[Sequence[Item]], bytes]
    decode: Callable[[bytes], tuple[Item, ...]]
