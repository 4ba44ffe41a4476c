"""The AsyncAPI document of the WebSockets: every frame that a client may send, and every event that it gets."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, NotRequired

from pydantic import ConfigDict, Field

# pydantic makes no schema of typing's TypedDict before Python 3.12.
from typing_extensions import TypedDict

from edgeagent import __version__
from edgeagent.api.documents.components import Components, kind_of
from edgeagent.api.realtime.body import CLIENT_EVENTS, MAX_EVENT_BYTES, MAX_ITEMS
from edgeagent.api.realtime.events import RealtimeError, RealtimeItem, RealtimeResponse, RealtimeSettings
from edgeagent.api.realtime.session import MAX_APART
from edgeagent.api.responses.body import CreateResponseBody
from edgeagent.api.responses.event_json import RequiredInput, ResponseBody, SteerEcho, SteerError
from edgeagent.api.responses.items import InputMessage, OutputItem, OutputText, ReasoningText
from edgeagent.api.responses.socket.lanes import STREAM_ID
from edgeagent.api.wire.body import Body
from edgeagent.api.wire.errors import ErrorEvent
from edgeagent.api.wire.generation import RunsAt, Scored, Wait
from edgeagent.api.wire.shape import Json

StreamId = Annotated[str, Field(pattern=f"^{STREAM_ID.pattern}$")]


class ResponseCreate(CreateResponseBody):
    """Create a response. With `generate: false` only its prompt is computed. `stream` is ignored here."""

    type: Literal["response.create"]
    stream_id: Annotated[
        StreamId | None,
        Field(description="The lane. Responses of one lane run in sequence, those of different lanes concurrently."),
    ] = None


class ResponseCancel(Body):
    """Cancel a response, which then ends in response.incomplete. An unknown or finished response is ignored."""

    type: Literal["response.cancel"]
    response_id: Annotated[str | None, Field(description="Without it, cancel the response of the lane.")] = None
    stream_id: StreamId | None = None


class ResponseSteer(Body):
    """Send more input while a response is generated. The response ends, and a new response answers the input."""

    type: Literal["response.steer"]
    previous_response_id: Annotated[str, Field(description="The response to steer.")]
    input: str | list[InputMessage]


class ResponseProcessed(Body):
    """Acknowledge a response. Some clients send this message; it has no effect."""

    type: Literal["response.processed"]
    response_id: str | None = None


CLIENT_FRAMES = (ResponseCreate, ResponseCancel, ResponseSteer, ResponseProcessed)
REALTIME_FRAMES = tuple(CLIENT_EVENTS.values())


_PLACE = Annotated[
    RunsAt, Field(description="Where the response runs, and why. Only in the first event after the decision.")
]

_WAIT = Annotated[Wait, Field(description="Only if it waits for other requests, or is expected to begin late.")]


def _event(kind: str, says: str, **fields: Any) -> type:
    """Return the type of an event for the documents. Every event has its number, and its lane if that has a name."""
    name = _name_of(kind)
    name = name if kind.count(".") == 1 else name.removeprefix("Response")
    common = {"sequence_number": int, "stream_id": NotRequired[str], "edgeagent": NotRequired[_PLACE]}
    return _type(name, kind, says, common | fields)


def _realtime(kind: str, says: str, **fields: Any) -> type:
    return _type(f"Realtime{_name_of(kind)}Event", kind, says, {"event_id": str} | fields)


def _name_of(kind: str) -> str:
    return "".join(word.capitalize() for word in re.split(r"[._]", kind))


def _type(name: str, kind: str, says: str, fields: Json) -> type:
    make: Any = TypedDict  # mypy wants the fields to stand here
    event: type = make(name, {"type": Literal[kind]} | fields)
    event.__doc__ = says
    event.__pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[attr-defined]
    return event


_RESPONSE: Json = {"response": ResponseBody}
_ITEM: Json = {"output_index": int, "item": OutputItem}
_IN_ITEM: Json = {"item_id": str, "output_index": int}
_IN_PART: Json = {**_IN_ITEM, "content_index": int}
_PART: Json = {**_IN_PART, "part": OutputText | ReasoningText}

SERVER_EVENTS = (
    _event("response.created", "The response exists; this is its first event.", **_RESPONSE),
    _event(
        "response.queued",
        "The response waits: for other responses of its WebSocket, for other requests, or, in the background, for its "
        "first step.",
        **_RESPONSE,
        edgeagent=NotRequired[_WAIT],
    ),
    _event("response.in_progress", "The response has begun.", **_RESPONSE),
    _event("response.output_item.added", "An item begins.", **_ITEM),
    _event("response.content_part.added", "An item's content begins.", **_PART),
    _event("response.output_text.delta", "More text.", **_IN_PART, delta=str, logprobs=list[Scored]),
    _event("response.output_text.done", "The whole text.", **_IN_PART, text=str, logprobs=list[Scored]),
    _event("response.reasoning_text.delta", "More reasoning.", **_IN_PART, delta=str),
    _event("response.reasoning_text.done", "The whole reasoning.", **_IN_PART, text=str),
    _event("response.content_part.done", "An item's content ends.", **_PART),
    _event("response.function_call_arguments.delta", "More of a call's arguments.", **_IN_ITEM, delta=str),
    _event("response.function_call_arguments.done", "A call's whole arguments.", **_IN_ITEM, arguments=str, name=str),
    _event("response.custom_tool_call_input.delta", "More of a custom tool's input.", **_IN_ITEM, delta=str),
    _event("response.custom_tool_call_input.done", "A custom tool's whole input.", **_IN_ITEM, input=str),
    _event(
        "response.compaction.compacting",
        "The earlier part of the conversation is being summarized, because the request has `context_management`.",
        **_IN_ITEM,
    ),
    _event("response.output_item.done", "An item ends; this is its final form.", **_ITEM),
    _event(
        "response.completed",
        "The response is complete. Each response ends in this event, response.incomplete or response.failed.",
        **_RESPONSE,
    ),
    _event(
        "response.incomplete",
        "The response was cut short by max_output_tokens, a full context, a cancel (status cancelled) or a steer.",
        **_RESPONSE,
    ),
    _event("response.failed", "The response failed.", **_RESPONSE),
    _event(
        "response.steer.accepted",
        "The input was accepted: the response ends, and a new response (its successor) answers the input.",
        steer=SteerEcho,
    ),
    _event(
        "response.steer.pending",
        "The response ended with calls. The input waits for the `response.create` that has their results.",
        steer=SteerEcho,
        reason=Literal["waiting_for_required_input"],
        required_input=list[RequiredInput],
    ),
    _event("response.steer.failed", "The input was refused, and is returned.", error=SteerError, steer=SteerEcho),
    ErrorEvent,
)
"""The types of all events. Tests compare the events that are sent with them."""

_OF_RESPONSE: Json = {"response_id": str, "output_index": int}
_IN_RESPONSE: Json = {**_OF_RESPONSE, "item_id": str}
_IN_TEXT: Json = {**_IN_RESPONSE, "content_index": int}
_ADDED: Json = {"previous_item_id": str | None, "item": RealtimeItem}

REALTIME_SERVER_EVENTS = (
    _realtime("session.created", "The first event: the settings of the session.", session=RealtimeSettings),
    _realtime("session.updated", "The settings have changed.", session=RealtimeSettings),
    _realtime("conversation.item.added", "An item is in the conversation. One of a response is empty yet.", **_ADDED),
    _realtime("conversation.item.done", "An item has its final content.", **_ADDED),
    _realtime("conversation.item.retrieved", "An item that was asked for.", item=RealtimeItem),
    _realtime("conversation.item.deleted", "An item is no longer in the conversation.", item_id=str),
    _realtime("response.created", "The response exists; this is its first event.", response=RealtimeResponse),
    _realtime("response.output_item.added", "An item begins.", **_OF_RESPONSE, item=RealtimeItem),
    _realtime("response.content_part.added", "A message's text begins.", **_IN_TEXT, part=Json),
    _realtime("response.output_text.delta", "More text.", **_IN_TEXT, delta=str),
    _realtime("response.output_text.done", "The whole text.", **_IN_TEXT, text=str),
    _realtime("response.content_part.done", "A message's text ends.", **_IN_TEXT, part=Json),
    _realtime(
        "response.function_call_arguments.delta", "More of a call's arguments.", **_IN_RESPONSE, call_id=str, delta=str
    ),
    _realtime(
        "response.function_call_arguments.done",
        "A call's whole arguments.",
        **_IN_RESPONSE,
        call_id=str,
        name=str,
        arguments=str,
    ),
    _realtime("response.output_item.done", "An item ends; this is its final form.", **_OF_RESPONSE, item=RealtimeItem),
    _realtime(
        "response.done", "The response is over, whatever its status. It has the items.", response=RealtimeResponse
    ),
    _realtime(
        "error",
        "An event of the client was refused, for example a `response.create` whose response was never created. "
        "`status` is the status that HTTP would have.",
        status=int,
        error=RealtimeError,
    ),
)
"""The types of all events of the Realtime API."""

_DESCRIPTION = """\
OpenAI's Responses API in WebSocket mode. Text frames of one JSON object each, both ways. A client's binary frame is \
an image or a sound, which a later `response.create` names by its hash (`sha256:` and the digits) in place of its data.

Each `response.create` is answered by exactly one terminal event: `error` if the response was never created, else \
`response.completed`, `response.incomplete` or `response.failed`. Responses of one lane (`stream_id`) come one after \
another, those of different lanes side by side. Closing the socket cancels the responses that run on it.

The headers `x-edgeagent-tier`, `x-edgeagent-ttft-ms`, `x-edgeagent-itl-ms` and `x-edgeagent-deadline-ms` of the \
handshake hold for every `response.create`, beside its field `edgeagent`.

The token, where one is needed, is in the Authorization header, or for browsers in a subprotocol \
`openai-insecure-api-key.<token>` beside another one. Close codes: 1001 the daemon stops, 1002 and 1007 a frame broke \
the protocol, 1003 a binary frame is neither an image nor a sound, 1008 too many requests wait or the token has ended, \
1009 a message is too large, 1011 a bug, 1013 the client does not read, or clients send or keep too much at once."""

_REALTIME_DESCRIPTION = f"""\
OpenAI's Realtime API with text. `?model=NAME` in the address chooses the model. Token, headers and close codes are \
those of `/v1/responses`.

The session keeps one conversation, until the socket closes. No response of it is stored; the prompt cache on disk \
keeps its prompts, unless `store` is false. `response.create` answers it, one response at a time. With \
`conversation: "none"`, up to {MAX_APART} responses may run beside it. Each ends in `response.done`, or in `error` if \
it was never created.

Prompts are computed ahead: when the settings change, and when an item is added at the end. With \
`edgeagent: {{"ahead": true}}` in the settings, the answer begins too. A model that is not loaded is loaded for this, \
so that the first answer does not wait for it.

An item may name a file of a binary frame, as for `/v1/responses`. A message with an image that the session's model \
finds damaged is refused, and not added, if the model is loaded.

Audio is refused: each event `input_audio_buffer.*` with an error (`append` once), and so are the modality `audio` and \
parts of items with audio in this API's form. An event has at most {MAX_EVENT_BYTES:,} bytes, and the conversation \
{MAX_ITEMS} items."""


_ALSO = "Also served at /v1, for clients that use their base URL as it is."


def asyncapi_document() -> Json:
    """Return the AsyncAPI 3 document."""
    components = Components()
    channels, operations, messages = {}, {}, {}
    for name, prefix, received, sent, address, description in (
        ("responses", "", CLIENT_FRAMES, SERVER_EVENTS, "/v1/responses", _ALSO),
        ("realtime", "realtime.", REALTIME_FRAMES, REALTIME_SERVER_EVENTS, "/v1/realtime", _REALTIME_DESCRIPTION),
    ):
        refs = {}
        for frame in (*received, *sent):
            messages[f"{prefix}{kind_of(frame)}"] = _message(frame, components)
            refs[kind_of(frame)] = {"$ref": f"#/components/messages/{prefix}{kind_of(frame)}"}
        channels[name] = {
            "address": address,
            "description": description,
            "messages": refs,
            "bindings": {"ws": {"method": "GET"}},
        }
        operations[f"{name}.receive"] = _operation(name, "receive", received)
        operations[f"{name}.send"] = _operation(name, "send", sent)
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "edgeagent WebSocket API",
            "version": __version__,
            "description": _DESCRIPTION,
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": "application/json",
        "servers": {
            "local": {
                "host": "127.0.0.1:8127",
                "protocol": "ws",
                "security": [{"$ref": "#/components/securitySchemes/token"}],
            }
        },
        "channels": channels,
        "operations": operations,
        "components": {
            "messages": messages,
            "schemas": components.schemas,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _message(frame: type, components: Components) -> Json:
    return {
        "name": kind_of(frame),
        "summary": (frame.__doc__ or "").strip(),
        "payload": components.ref(frame),
    }


def _operation(channel: str, action: str, frames: tuple[type, ...]) -> Json:
    kinds = (kind_of(frame) for frame in frames)
    return {
        "action": action,
        "channel": {"$ref": f"#/channels/{channel}"},
        "messages": [{"$ref": f"#/channels/{channel}/messages/{kind}"} for kind in kinds],
    }
