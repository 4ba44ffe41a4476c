"""The items of a request's `input`: their form on the wire, and their conversion into a conversation's items."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Discriminator, Field, PlainValidator, Tag
from pydantic_core import PydanticCustomError

from edgeagent.api.responses.items.as_json import custom_arguments
from edgeagent.api.wire.fields import ROLES, Body, Settings, validate
from edgeagent.api.wire.messages import Content, OutputContent, discriminated_by
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

# Fields of another server's items that say nothing to the model.
_UNSHOWN = frozenset({"status", "call_id", "encrypted_content", "created_by", "result"})
MAX_SHOWN_CHARS = 16_384
_DATA_URL = re.compile(r'"data:[^"]*"')
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
    namespace: str | None = None
    arguments: str


class InputCustomCall(_Item):
    """A call of a custom tool, whose input is text."""

    type: Literal["custom_tool_call"]
    call_id: str
    name: str
    namespace: str | None = None
    input: str


class InputCallOutput(_Item):
    """A tool's result; its call is in the conversation. Images and files in it are replaced by a note."""

    type: Literal["function_call_output", "custom_tool_call_output"]
    call_id: str
    output: OutputContent


class InputOtherItem(_Item):
    """An item of a tool that another server runs, such as web_search_call. The model sees it as text."""

    model_config = ConfigDict(extra="allow")

    type: str


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
    "custom_tool_call": "#custom",
    "function_call_output": "#output",
    "custom_tool_call_output": "#output",
    "reasoning": "#reasoning",
    "item_reference": "#reference",
    "compaction": "#compaction",
    "context_compaction": "#compaction",
}
InputItem = Annotated[
    Annotated[InputMessage, Tag("#message")]
    | Annotated[InputCall, Tag("#call")]
    | Annotated[InputCustomCall, Tag("#custom")]
    | Annotated[InputCallOutput, Tag("#output")]
    | Annotated[InputReasoning, Tag("#reasoning")]
    | Annotated[InputReference, Tag("#reference")]
    | Annotated[InputCompaction, Tag("#compaction")]
    | Annotated[InputOtherItem, Tag("#other")],
    discriminated_by("type", _TAGS, default="message", other="#other"),
]
Input = Annotated[
    Annotated[str, Tag("#text")] | Annotated[list[InputItem], Field(fail_fast=True), Tag("#items")],
    Discriminator(
        lambda value: {str: "#text", list: "#items"}.get(type(value)),
        custom_error_type="input",
        custom_error_message="must be a string or a list of items",
    ),
]


class InputBody(Settings):
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
            return CallItem(sent.id, sent.call_id, sent.name, sent.arguments, sent.namespace or "")
        case InputCustomCall():
            arguments = custom_arguments(sent.input)
            return CallItem(sent.id, sent.call_id, sent.name, arguments, sent.namespace or "", is_custom=True)
        case InputCallOutput():
            return CallOutputItem(sent.id, sent.call_id, sent.output, sent.type == "custom_tool_call_output")
        case InputOtherItem():
            return _as_text(sent)
        case InputReasoning():
            return ReasoningItem(sent.id, "".join([part.text for part in sent.content or sent.summary or ()]))
        case InputReference():
            return ReferenceItem(sent.id)
    content = sent.encrypted_content or ""
    summary = summary_of(content)
    return None if summary is None else CompactionItem(sent.id, content, summary)


def _as_text(sent: InputOtherItem) -> MessageItem:
    """Return an item of another server's tool as a message: what the model asked for, or what it was given."""
    shown = {name: value for name, value in (sent.model_extra or {}).items() if name not in _UNSHOWN}
    text = _DATA_URL.sub('"left out"', json.dumps(shown, ensure_ascii=False, separators=(",", ":")))[:MAX_SHOWN_CHARS]
    is_result = sent.type.endswith(("_output", "_response"))
    return MessageItem(sent.id, "user" if is_result else "assistant", f"[{sent.type[:64]}] {text}")


def item_notices(fields: Mapping[str, object]) -> Iterator[str]:
    """Yield what a warning says of a request's items whose types are not served."""
    items = fields.get("input")
    for index, item in enumerate(items if isinstance(items, list) else ()):
        kind = item.get("type", "message") if isinstance(item, dict) else None
        if isinstance(kind, str) and kind not in _TAGS:
            yield f"input[{index}]: an item of type {kind[:64]} is shown to the model as text"


def read_items(value: object) -> tuple[Item, ...]:
    """Return the items of an `input` (absent, a string or a list); raise InvalidRequest or NotSupported."""
    return to_items(validate(InputBody, {"input": value}).input)
