"""The items of a request's `input`, as clients send them, and as conversations have them."""

from __future__ import annotations

import base64
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, PlainValidator, Tag, field_validator
from pydantic_core import PydanticCustomError

from edgeagent.api.responses.items.items import (
    COMPACTION_PREFIX,
    CallItem,
    CallOutputItem,
    CompactionItem,
    Item,
    MessageItem,
    ReasoningItem,
    ReferenceItem,
)
from edgeagent.api.wire.fields import ROLES, Body, validate
from edgeagent.api.wire.messages import Content, told_by

# Clients send anything as an id. One that is no string is none.
ItemId = Annotated[
    str, PlainValidator(lambda value: value if isinstance(value, str) else "", json_schema_input_type=Any)
]


class InputMessage(Body):
    """A message. `phase` is a client's mark on messages of the assistant, which is kept."""

    type: Literal["message"] = "message"
    id: ItemId = ""
    role: Literal["user", "assistant", "system", "developer"]
    content: Content
    phase: str | None = None

    def item(self) -> MessageItem:
        """Return it as an item of a conversation."""
        return MessageItem(self.id, ROLES[self.role], self.content, self.phase)


class InputCall(Body):
    """A call the model made."""

    type: Literal["function_call"]
    id: ItemId = ""
    call_id: str
    name: str
    arguments: str

    def item(self) -> CallItem:
        """Return it as an item of a conversation."""
        return CallItem(self.id, self.call_id, self.name, self.arguments)


class InputCallOutput(Body):
    """A function's result; its call is in the conversation."""

    type: Literal["function_call_output"]
    id: ItemId = ""
    call_id: str
    output: Content

    def item(self) -> CallOutputItem:
        """Return it as an item of a conversation."""
        return CallOutputItem(self.id, self.call_id, self.output)


class ReasoningPart(Body):
    """A part of the model's reasoning."""

    type: Literal["reasoning_text"]
    text: str


class SummaryPart(Body):
    """A part of a summary of the model's reasoning."""

    type: Literal["summary_text"]
    text: str


class InputReasoning(Body):
    """The model's reasoning, sent back. Its summary counts where it has no content."""

    type: Literal["reasoning"]
    id: ItemId = ""
    content: Annotated[list[ReasoningPart], Field(fail_fast=True)] | None = None
    summary: Annotated[list[SummaryPart], Field(fail_fast=True)] | None = None

    def item(self) -> ReasoningItem:
        """Return it as an item of a conversation."""
        return ReasoningItem(self.id, "".join([part.text for part in self.content or self.summary or ()]))


class InputReference(Body):
    """An item of a stored response."""

    type: Literal["item_reference"]
    id: str

    def item(self) -> ReferenceItem:
        """Return it as an item of a conversation."""
        return ReferenceItem(self.id)


class InputCompaction(Body):
    """The item that stands for the earlier part of a conversation, sent back.

    What another service encrypted is accepted, but this model cannot read it.
    """

    type: Literal["compaction", "context_compaction"]
    id: ItemId = ""
    encrypted_content: str | None = None

    @field_validator("encrypted_content")
    @classmethod
    def _check(cls, content: str | None) -> str | None:
        try:
            _summary(content)
        except ValueError as error:
            told = "is not what this daemon made ({error}); send it unchanged"
            raise PydanticCustomError("compaction", told, {"error": str(error)}) from None
        return content

    def item(self) -> CompactionItem | None:
        """Return it as an item of a conversation, None if another service encrypted it."""
        summary = _summary(self.encrypted_content)
        return None if summary is None else CompactionItem(self.id, self.encrypted_content or "", summary)


def _summary(content: str | None) -> str | None:
    """Return the summary in a compaction's content, None if another service made it; raise ValueError."""
    if content is None or not content.startswith(COMPACTION_PREFIX):
        return None
    return base64.b64decode(content.removeprefix(COMPACTION_PREFIX), altchars=b"-_", validate=True).decode()


_TAGS = {
    "message": "#message",
    "function_call": "#call",
    "function_call_output": "#output",
    "reasoning": "#reasoning",
    "item_reference": "#reference",
    "compaction": "#compaction",
    "context_compaction": "#compaction",
}
InputItem = Annotated[
    Annotated[InputMessage, Tag("#message")]
    | Annotated[InputCall, Tag("#call")]
    | Annotated[InputCallOutput, Tag("#output")]
    | Annotated[InputReasoning, Tag("#reasoning")]
    | Annotated[InputReference, Tag("#reference")]
    | Annotated[InputCompaction, Tag("#compaction")],
    told_by("type", _TAGS, default="message"),
]
Input = Annotated[
    Annotated[str, Tag("#text")] | Annotated[list[InputItem], Field(fail_fast=True), Tag("#items")],
    Discriminator(
        lambda value: {str: "#text", list: "#items"}.get(type(value)),
        custom_error_type="input",
        custom_error_message="must be a string or a list of items",
    ),
]


class InputBody(Body):
    """A body with items."""

    input: Input | None = None


def to_items(sent: Input | None) -> tuple[Item, ...]:
    """Return the items of a conversation."""
    if isinstance(sent, str):
        return (MessageItem("", "user", sent),)
    return tuple([item for each in sent or () if (item := each.item()) is not None])


def read_items(value: object) -> tuple[Item, ...]:
    """Return the items of an `input` (absent, a string or a list); raise InvalidRequest or NotSupported."""
    return to_items(validate(InputBody, {"input": value}).input)
