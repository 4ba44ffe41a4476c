"""The items of a request's `input`: their form on the wire, and their conversion into a conversation's items."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, PlainValidator, Tag
from pydantic_core import PydanticCustomError

from edgeagent.api.wire.fields import ROLES, Body, validate
from edgeagent.api.wire.messages import Content, discriminated_by
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

# Clients send anything as an id. An id that is not a string is ignored.
ItemId = Annotated[
    str, PlainValidator(lambda value: value if isinstance(value, str) else "", json_schema_input_type=Any)
]


def _readable(content: str) -> str:
    try:
        summary_of(content)
    except ValueError as error:
        message = "is not what this daemon made ({error}); send it unchanged"
        raise PydanticCustomError("compaction", message, {"error": str(error)}) from None
    return content


class _Item(Body):
    id: ItemId = ""


class InputMessage(_Item):
    """A message. `phase` is a mark that a client sets on the assistant's messages. It is stored and returned."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Content
    phase: Annotated[str | None, BeforeValidator(lambda phase: phase if isinstance(phase, str) else None)] = None


class InputCall(_Item):
    """A call the model made."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str


class InputCallOutput(_Item):
    """A function's result; its call is in the conversation."""

    type: Literal["function_call_output"]
    call_id: str
    output: Content


class ReasoningPart(Body):
    """A part of the model's reasoning, or of a summary of it."""

    type: Literal["reasoning_text", "summary_text"]
    text: str


class InputReasoning(_Item):
    """The model's reasoning, as a client sends it back. If it has no `content`, its `summary` is used."""

    type: Literal["reasoning"]
    content: Annotated[list[ReasoningPart], Field(fail_fast=True)] | None = None
    summary: Annotated[list[ReasoningPart], Field(fail_fast=True)] | None = None


class InputReference(Body):
    """A reference to an item of a response that is stored, or that the connection remembers."""

    type: Literal["item_reference"]
    id: str


class InputCompaction(_Item):
    """A summary of the earlier conversation, as a client sends it back.

    A summary that another service encrypted is accepted, but left out, because it cannot be read here.
    """

    type: Literal["compaction", "context_compaction"]
    encrypted_content: Annotated[str, AfterValidator(_readable)] | None = None


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
    discriminated_by("type", _TAGS, default="message"),
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
    """The field `input` of a body: a string, or a list of items."""

    input: Input | None = None


def to_items(sent: Input | None) -> tuple[Item, ...]:
    """Return the items of a checked `input`. Summaries of other services are left out."""
    if isinstance(sent, str):
        return (MessageItem("", "user", sent),)
    return tuple([item for each in sent or () if (item := _item(each)) is not None])


def _item(sent: InputItem) -> Item | None:
    match sent:
        case InputMessage():
            return MessageItem(sent.id, ROLES[sent.role], sent.content, sent.phase)
        case InputCall():
            return CallItem(sent.id, sent.call_id, sent.name, sent.arguments)
        case InputCallOutput():
            return CallOutputItem(sent.id, sent.call_id, sent.output)
        case InputReasoning():
            return ReasoningItem(sent.id, "".join([part.text for part in sent.content or sent.summary or ()]))
        case InputReference():
            return ReferenceItem(sent.id)
    content = sent.encrypted_content or ""
    summary = summary_of(content)
    return None if summary is None else CompactionItem(sent.id, content, summary)


def read_items(value: object) -> tuple[Item, ...]:
    """Return the items of an `input` (absent, a string or a list); raise InvalidRequest or NotSupported."""
    return to_items(validate(InputBody, {"input": value}).input)
