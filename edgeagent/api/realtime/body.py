"""A Realtime client's events: every field is read once, checked and converted.

Audio is refused. Settings of audio have no effect, because there is no audio that they could change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_core import PydanticCustomError

from edgeagent.api.responses.body import (
    CreateResponseBody,
    Metadata,
    Reasoning,
    ResponseCreate,
    ResponsesEdgeagent,
    read_choice,
)
from edgeagent.api.responses.items import InputCall, InputCallOutput, InputMessage, InputReference
from edgeagent.api.responses.tools import ResponsesTool, offered_tools
from edgeagent.api.wire.addresses import ADDRESSES, keep_if_local
from edgeagent.api.wire.body import NOT_SUPPORTED, FieldWarning, Settings, parse_object, validate, warning_about
from edgeagent.api.wire.fields import (
    By,
    Count,
    HostedTool,
    ModelName,
    Name,
    SamplingBody,
    hosted_tools,
)
from edgeagent.api.wire.latency import asked_latency
from edgeagent.api.wire.shape import Json
from edgeagent.errors import EdgeAgentError, InvalidRequest, NotSupported, PayloadTooLarge
from edgeagent.types import MAX_TOOLS, TextFormat

if TYPE_CHECKING:
    from edgeagent.api.realtime.events import RealtimeSettings

MAX_EVENT_BYTES = 1_000_000
"""The largest event of a client. It gets its items back, and clients take frames of at most 1 MiB."""
MAX_ITEMS = 1024
"""The most items of a conversation, and of a response's `input`."""

NO_AUDIO = 'audio is neither heard nor spoken here; send text, and output_modalities ["text"]'


def _text_only(modalities: list[str]) -> list[str]:
    if modalities != ["text"]:
        raise PydanticCustomError(NOT_SUPPORTED, NO_AUDIO)
    return modalities


def _refuse_prompt(prompt: object) -> NoReturn:
    del prompt
    raise PydanticCustomError(NOT_SUPPORTED, "stored prompt templates are not supported; send instructions")


class RealtimeEdgeagent(ResponsesEdgeagent):
    """The field `edgeagent` of a session or a response."""

    ahead: Annotated[
        bool | None,
        Field(
            description="Also begin the answer when an item is added. A `response.create` that asks for the same gets "
            "it at once, any other drops it."
        ),
    ] = None


class ResponseSettings(SamplingBody):
    """What a session asks of all its responses, and what `response.create` changes for one. All may be null."""

    without_effect = ("audio", "expires_at", "id", "include", "object", "tracing")
    notices = (hosted_tools,)

    output_modalities: Annotated[list[Name], AfterValidator(_text_only)] | None = None
    instructions: str | None = None
    tools: (
        Annotated[
            list[Annotated[ResponsesTool | HostedTool, By("type", "function")]],
            Field(fail_fast=True, max_length=MAX_TOOLS),
        ]
        | None
    ) = None
    tool_choice: str | Json | None = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: Annotated[
        Count | None,
        BeforeValidator(
            lambda count: None if count == "inf" else count, json_schema_input_type=Count | Literal["inf"] | None
        ),
    ] = None
    reasoning: Reasoning | None = None
    prompt: Annotated[Json, AfterValidator(_refuse_prompt)] | None = None
    edgeagent: RealtimeEdgeagent | None = None


class SessionSettings(ResponseSettings):
    """The settings of a session. `store: false` keeps its prompts out of the cache on disk."""

    type: Literal["realtime"] = "realtime"
    model: ModelName | None = None
    truncation: Literal["auto", "disabled"] | None = None
    store: bool | None = None


class RealtimeCallOutput(InputCallOutput):
    """The result of a call that is in the conversation. The model sees the images in it, if it reads images."""

    type: Literal["function_call_output"]
    call_id: Name


RealtimeInput = Annotated[InputMessage | InputCall | RealtimeCallOutput | InputReference, By("type", "message")]


class ResponseParams(ResponseSettings):
    """What one response is asked for, besides the session's settings.

    With `input`, the response answers these items instead of the conversation. With `conversation: "none"`, its output
    is not added to the conversation, and it may run beside others.
    """

    conversation: Literal["auto", "none"] | None = None
    input: Annotated[list[RealtimeInput], Field(fail_fast=True, max_length=MAX_ITEMS)] | None = None
    metadata: Metadata | None = None


class ClientEvent(Settings):
    """An event of a client. If it causes an error, the error repeats its `event_id`."""

    event_id: Name | None = None


class SessionUpdate(ClientEvent):
    """Change the settings that are sent. Null and an empty value clear one. The answer is `session.updated`."""

    type: Literal["session.update"]
    session: SessionSettings


class ItemCreate(ClientEvent):
    """Add an item to the conversation. At its end, the prompt is computed at once, if no response is under way."""

    type: Literal["conversation.item.create"]
    previous_item_id: Annotated[
        Name | None, Field(description='The item before it; "root": none. Without it, the item comes last.')
    ] = None
    item: RealtimeInput


class ItemRetrieve(ClientEvent):
    """Ask for an item."""

    type: Literal["conversation.item.retrieve"]
    item_id: Name


class ItemDelete(ClientEvent):
    """Remove an item from the conversation."""

    type: Literal["conversation.item.delete"]
    item_id: Name


class ItemTruncate(ClientEvent):
    """Shorten an item's audio. Refused, because no item has audio: delete it, and create a shorter one."""

    type: Literal["conversation.item.truncate"]
    item_id: Name


class RealtimeResponseCreate(ClientEvent):
    """Answer the conversation, or the items in `input`."""

    type: Literal["response.create"]
    response: ResponseParams | None = None


class RealtimeResponseCancel(ClientEvent):
    """Cancel a response, which then ends in `response.done` with the status cancelled."""

    type: Literal["response.cancel"]
    response_id: Annotated[
        Name | None, Field(description="Without it, cancel the response that answers the conversation.")
    ] = None


CLIENT_EVENTS: dict[str, type[ClientEvent]] = {
    "session.update": SessionUpdate,
    "conversation.item.create": ItemCreate,
    "conversation.item.retrieve": ItemRetrieve,
    "conversation.item.delete": ItemDelete,
    "conversation.item.truncate": ItemTruncate,
    "response.create": RealtimeResponseCreate,
    "response.cancel": RealtimeResponseCancel,
}


@dataclass(frozen=True, slots=True)
class Received:
    """An event as it was read. `event_id`: the client's name for it.

    `event`: its checked fields, or why it is refused. `settings`: those that the event changes, by name; None clears a
    setting. `warning` is about fields without effect among them. `is_append`: it is one of many pieces of audio.
    `is_unchecked`: it adds an item whose files no model has read yet.

    Of an event that is prepared, `create` is what its settings and those of the session ask for together; None if it
    changes none. `shown` is how the session shows them.
    """

    event: ClientEvent | EdgeAgentError
    event_id: str | None = None
    settings: Json = field(default_factory=dict)
    warning: FieldWarning | None = None
    is_append: bool = False
    is_unchecked: bool = False
    create: ResponseCreate | None = None
    shown: RealtimeSettings | None = None


def read_event(text: str, *, is_local: bool = False) -> Received:
    """Return the event in a frame. It has no side effects, so a large frame can be read in a thread.

    `is_local`: no image may be fetched for it.
    """
    fields: Json = {}
    try:
        if len(text.encode()) > MAX_EVENT_BYTES:
            raise PayloadTooLarge(f"an event has at most {MAX_EVENT_BYTES} bytes; split it into several items")
        fields = parse_object(text, "an event must be a JSON object with a type")
        if (addresses := ADDRESSES.get()) is not None and is_local:
            addresses.keep_here()
        keep_if_local(fields.get("response"))
        event = validate(_class_of(fields.get("type")), fields)
    except EdgeAgentError as error:
        return Received(error, _event_id(fields), is_append=fields.get("type") == "input_audio_buffer.append")
    match event:
        case SessionUpdate(session=session):
            raw = fields["session"]
            settings = {name: getattr(session, name) for name in SessionSettings.model_fields if name in raw}
            return Received(event, event.event_id, settings, warning_about(SessionSettings, raw))
        case RealtimeResponseCreate(response=ResponseParams() as params):
            raw = fields["response"]
            names = (name for name in ResponseParams.model_fields if raw.get(name) is not None)
            settings = {name: getattr(params, name) for name in names}
            return Received(event, event.event_id, settings, warning_about(ResponseParams, raw))
    return Received(event, event.event_id)


def _event_id(fields: Json) -> str | None:
    event_id = fields.get("event_id")
    return event_id[:512] if isinstance(event_id, str) else None


def _class_of(kind: object) -> type[ClientEvent]:
    if not isinstance(kind, str):
        raise InvalidRequest(f"type is required: send one of {', '.join(CLIENT_EVENTS)}", param="type")
    if kind.startswith(("input_audio_buffer.", "output_audio_buffer.")):
        raise NotSupported(f"{kind[:64]}: {NO_AUDIO}", param="type")
    if kind not in CLIENT_EVENTS:
        raise InvalidRequest(f"unknown type {kind[:64]!r}; send one of {', '.join(CLIENT_EVENTS)}", param="type")
    return CLIENT_EVENTS[kind]


def create_of(settings: Mapping[str, Any], place: str, warning: FieldWarning | None = None) -> ResponseCreate:
    """Return the create, without items, that checked settings ask for; raise InvalidRequest.

    The fields are those of the Responses API. `place`: the object that the settings were sent in, for the error.
    """
    own = {name: settings.get(name) for name in CreateResponseBody.model_fields if name not in ("input", "tools")}
    own["truncation"] = own["truncation"] or "auto"
    body = CreateResponseBody().model_copy(update=own)
    try:
        offered = offered_tools(settings.get("tools") or ())
        choice = read_choice(body.tool_choice, offered.tools)
        return ResponseCreate(body, (), offered, choice, TextFormat(), asked_latency(None, body.edgeagent), warning)
    except InvalidRequest as error:
        name = error.param
        if name and not name.startswith("x-"):  # a header's name stays
            error.param = f"{place}.{name}"
            error.message = error.message.replace(name, error.param, 1)
        raise
