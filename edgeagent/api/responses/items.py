"""The items of conversations: what clients send and get, and the file of stored responses has.

An item that is sent or stored has an id and, unless it is a compaction, a status. Its content is at most one part: the
texts of several parts are joined. Pydantic checks only what clients send: it takes much longer, and a conversation is
read whole from the file when it is continued.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, NoReturn, NotRequired, cast

import msgspec
from pydantic import AfterValidator, BeforeValidator, ConfigDict, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

from edgeagent.api.wire.body import Body, Settings, validate
from edgeagent.api.wire.fields import (
    ROLES,
    Arguments,
    By,
    Name,
    OutputContent,
    UserContent,
    earlier_as_notes,
    values_of,
)
from edgeagent.api.wire.generation import Scored
from edgeagent.api.wire.shape import Json, Shape
from edgeagent.conversation.history import MAX_ITEMS
from edgeagent.conversation.items import (
    CallItem,
    CallOutputItem,
    CompactionItem,
    FindMedia,
    Item,
    MessageItem,
    ReasoningItem,
    ReferenceItem,
    summary_of,
)
from edgeagent.errors import InvalidRequest, NotSupported
from edgeagent.media_files import as_base64, as_data_url, sound_format, spliced
from edgeagent.types import Media

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
            return _message(item, *_input_parts(item.text, item.media))
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
                "output": list(_input_parts(item.output, item.media)) if item.media else item.output,
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


def item_of(body: Any) -> Item:
    """Return the item of a JSON object: the inverse of `item_body`. Raise KeyError or TypeError if it is none."""
    match body["type"]:
        case "message":
            return MessageItem(body["id"], body["role"], _text(body["content"]), body.get("phase"))
        case "reasoning":
            return ReasoningItem(body["id"], _text(body["content"]))
        case "function_call" | "custom_tool_call":
            return call_of(body)
        case "function_call_output" | "custom_tool_call_output" as kind:
            return CallOutputItem(body["id"], body["call_id"], body["output"], kind == "custom_tool_call_output")
        case "compaction":
            content = body["encrypted_content"]
            return CompactionItem(body["id"], content, summary_of(content) or "")
    raise KeyError(f"no item has the type {body['type']!r:.80}")


def call_of(body: Any) -> CallItem:
    """Return the call of a JSON object: the inverse of `call_body`."""
    is_custom = body["type"] == "custom_tool_call"
    arguments = custom_arguments(body["input"]) if is_custom else body["arguments"]
    return CallItem(body["id"], body["call_id"], body["name"], arguments, body.get("namespace", ""), is_custom)


def custom_arguments(text: str) -> str:
    """Return the arguments of the function that stands for a custom tool, from the tool's input."""
    return json.dumps({CUSTOM_INPUT: text}, ensure_ascii=False)


def custom_input(arguments: str) -> str:
    """Return the input of a custom tool: the inverse of `custom_arguments`.

    Another server's model may write arguments that are no object with a text as input. They are then the input.
    """
    try:
        fields = json.loads(arguments)
    except ValueError:
        return arguments
    text = fields.get(CUSTOM_INPUT) if isinstance(fields, dict) else None
    return text if isinstance(text, str) else arguments


def _message(item: MessageItem, *parts: Json) -> Json:
    return {"id": item.id, "type": "message", "role": item.role, "status": "completed", "content": list(parts)}


def _input_parts(said: str, media: Sequence[tuple[int, Media]]) -> Iterator[Json]:
    """Yield the parts of a message or a result: its text, or the pieces of the text with the media between them."""
    before, *behind = spliced(said, [offset for offset, _ in media])
    if before or not behind:
        yield {"type": "input_text", "text": before}
    for (_, medium), text in zip(media, behind, strict=True):
        if medium.kind == "image":
            yield {"type": "input_image", "image_url": as_data_url(medium), "detail": "auto"}
        else:
            sound = {"data": as_base64(medium), "format": sound_format(medium)}
            yield {"type": "input_audio", "input_audio": sound}
        if text:
            yield {"type": "input_text", "text": text}


def encode_items(items: Sequence[Item]) -> bytes:
    """Return the JSON list of items for the file, which must have no references. Media are named by their digests."""
    return msgspec.json.encode([_stored(item) for item in items])


def _stored(item: Item) -> Json:
    if not (isinstance(item, MessageItem | CallOutputItem) and item.media):
        return item_body(item)
    media = [{"at": offset, "kind": medium.kind, "sha256": medium.digest.hex()} for offset, medium in item.media]
    return {**item_body(replace(item, media=())), "media": media}


def _find_none(kind: str, digest: bytes) -> NoReturn:
    raise ValueError(f"there is no {kind} {digest.hex()}")


def decode_items(content: bytes, find_media: FindMedia = _find_none) -> tuple[Item, ...]:
    """Return the items of a JSON list; raise ValueError if it is no such list, or an error of `find_media`."""

    def decoded(body: Any) -> Item:
        item = item_of(body)
        if "media" not in body or not isinstance(item, MessageItem | CallOutputItem):
            return item
        found = [(each["at"], find_media(each["kind"], bytes.fromhex(each["sha256"]))) for each in body["media"]]
        return replace(item, media=tuple(found))

    try:
        return tuple([decoded(body) for body in msgspec.json.decode(content, type=list)])
    except (msgspec.DecodeError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(str(error)) from error


def _text(parts: list[Any]) -> str:
    return "".join([part["text"] for part in parts])


# Fields of another server's items that say nothing to the model.
_UNSHOWN = frozenset({"status", "call_id", "encrypted_content", "created_by", "result"})
MAX_SHOWN_CHARS = 16_384
_DATA_URL = re.compile(r'"data:[^"]*"')
# Clients send anything as an id. An id that is not a string is ignored.
ItemId = Annotated[
    Name, BeforeValidator(lambda value: value if isinstance(value, str) else "", json_schema_input_type=Any)
]


def _readable(content: str) -> str:
    try:
        summary_of(content)
    except ValueError as error:
        message = "is not what this daemon made ({error}); send it unchanged"
        raise PydanticCustomError("compaction", message, {"error": str(error)}) from None
    return content


class _Item(Settings):
    id: ItemId = ""


class InputMessage(_Item):
    """A message. Images and sounds may be in a user's message, if the model reads them.

    `phase` is a mark that a client sets on the assistant's messages. It is stored and returned.
    """

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: UserContent
    phase: Annotated[Name | None, BeforeValidator(lambda phase: phase if isinstance(phase, str) else None)] = None


class InputCall(_Item):
    """A call the model made. A call without a `call_id` gets one."""

    type: Literal["function_call"]
    call_id: Name | None = None
    name: Name
    namespace: Name | None = None
    arguments: Arguments


class InputCustomCall(_Item):
    """A call of a custom tool, whose input is text. A call without a `call_id` gets one."""

    type: Literal["custom_tool_call"]
    call_id: Name | None = None
    name: Name
    namespace: Name | None = None
    input: str = ""


class InputCallOutput(_Item):
    """A tool's result; its call is in the conversation. The model sees the images in it, if it reads images.

    Without a `call_id`, it answers the first call of the input that has no result yet.
    """

    type: Literal["function_call_output", "custom_tool_call_output"]
    call_id: Name | None = None
    output: OutputContent


class InputOtherItem(_Item):
    """An item of a tool that another server runs, such as web_search_call. The model sees it as text."""

    model_config = ConfigDict(extra="allow")

    type: Name


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
    id: Name


class InputCompaction(_Item):
    """A summary of the earlier conversation, as a client sends it back.

    A summary that another service encrypted is accepted, but left out, because it cannot be read here.
    """

    type: Literal["compaction", "context_compaction"]
    encrypted_content: Annotated[str, AfterValidator(_readable)] | None = None


InputItem = Annotated[
    InputMessage
    | InputCall
    | InputCustomCall
    | InputCallOutput
    | InputReasoning
    | InputReference
    | InputCompaction
    | InputOtherItem,
    By("type", "message"),
]
_KINDS = values_of(InputItem, "type")
Input = Annotated[
    Annotated[str, Tag("#text")]
    | Annotated[list[InputItem], Field(fail_fast=True, max_length=MAX_ITEMS), earlier_as_notes(), Tag("#items")],
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
    calls = _Calls()
    made = [_item(each, calls, f"input[{index}]") for index, each in enumerate(sent or ())]
    return tuple([item for item in made if item is not None])


class _Calls:
    """The ids of the calls of an input. It makes those that a client left out."""

    def __init__(self) -> None:
        self._num = 0
        self._unanswered: dict[str, None] = {}

    def made(self, call_id: str | None) -> str:
        """Return the id of the next call."""
        self._num += 1
        call_id = call_id or f"call_{self._num}"
        self._unanswered[call_id] = None
        return call_id

    def answered(self, call_id: str | None, place: str) -> str:
        """Return the id of the call that a result answers; raise InvalidRequest if it has none and no call waits."""
        call_id = call_id or next(iter(self._unanswered), None)
        if call_id is None:
            path = f"{place}.call_id"
            raise InvalidRequest(f"{path} is required: no call before it in the input waits for a result", param=path)
        self._unanswered.pop(call_id, None)
        return call_id


def _item(sent: InputItem, calls: _Calls, place: str) -> Item | None:
    match sent:
        case InputMessage():
            said = sent.content
            if said.media and sent.role != "user":
                problem = f"{place}.content: only a user's message may have images, sounds and files"
                raise NotSupported(problem, param=f"{place}.content")
            return MessageItem(sent.id, ROLES[sent.role], said.text, sent.phase, said.media)
        case InputCall():
            return CallItem(sent.id, calls.made(sent.call_id), sent.name, sent.arguments, sent.namespace or "")
        case InputCustomCall():
            call_id, arguments = calls.made(sent.call_id), custom_arguments(sent.input)
            return CallItem(sent.id, call_id, sent.name, arguments, sent.namespace or "", is_custom=True)
        case InputCallOutput():
            is_custom = sent.type == "custom_tool_call_output"
            call_id = calls.answered(sent.call_id, place)
            return CallOutputItem(sent.id, call_id, sent.output.text, is_custom, sent.output.media)
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
        if isinstance(kind, str) and kind not in _KINDS:
            yield f"input[{index}]: an item of type {kind[:64]} is shown to the model as text"


def read_items(value: object) -> tuple[Item, ...]:
    """Return the items of an `input` (absent, a string or a list); raise InvalidRequest or NotSupported."""
    return to_items(validate(InputBody, {"input": value}).input)
