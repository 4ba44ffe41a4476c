"""The AsyncAPI document of the WebSocket: every frame that a client may send, and every event that it gets."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, NotRequired

from pydantic import ConfigDict, Field

# pydantic makes no schema of typing's TypedDict before Python 3.12.
from typing_extensions import TypedDict

from edgeagent import __version__
from edgeagent.api.documents.components import Components, kind_of
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


_PLACE = Annotated[
    RunsAt, Field(description="Where the response runs, and why. Only in the first event after the decision.")
]

_WAIT = Annotated[Wait, Field(description="Only if it waits for other requests, or is expected to begin late.")]


def _event(kind: str, says: str, **fields: Any) -> type:
    """Return the type of an event for the documents. Every event has its number, and its lane if that has a name."""
    name = "".join(word.capitalize() for word in re.split(r"[._]", kind))
    name = name if kind.count(".") == 1 else name.removeprefix("Response")
    common = {"sequence_number": int, "stream_id": NotRequired[str], "edgeagent": NotRequired[_PLACE]}
    make: Any = TypedDict  # mypy wants the fields to stand here
    event: type = make(name, common | {"type": Literal[kind]} | fields)
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

_DESCRIPTION = """\
OpenAI's Responses API in WebSocket mode. Text frames of one JSON object each, both ways.

Each `response.create` is answered by exactly one terminal event: `error` if the response was never created, else \
`response.completed`, `response.incomplete` or `response.failed`. Responses of one lane (`stream_id`) come one after \
another, those of different lanes side by side. Closing the socket cancels the responses that run on it.

The headers `x-edgeagent-tier`, `x-edgeagent-ttft-ms`, `x-edgeagent-itl-ms` and `x-edgeagent-deadline-ms` of the \
handshake hold for every `response.create`, beside its field `edgeagent`.

The token, where one is needed, is in the Authorization header, or for browsers in a subprotocol \
`openai-insecure-api-key.<token>` beside another one. Close codes: 1001 the daemon stops, 1002 and 1007 a frame broke \
the protocol, 1003 a frame is binary, 1008 too many requests wait or the token has ended, 1009 a message is too large, \
1011 a bug, 1013 the client does not read, or clients send too much at once."""


def asyncapi_document() -> Json:
    """Return the AsyncAPI 3 document."""
    components = Components()
    messages = {kind_of(frame): _message(frame, components) for frame in (*CLIENT_FRAMES, *SERVER_EVENTS)}
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
        "channels": {
            "responses": {
                "address": "/v1/responses",
                "description": "Also served at /v1, for clients that use their base URL as it is.",
                "messages": {kind: {"$ref": f"#/components/messages/{kind}"} for kind in messages},
                "bindings": {"ws": {"method": "GET"}},
            }
        },
        "operations": {
            "receiveFrames": _operation("receive", CLIENT_FRAMES),
            "sendEvents": _operation("send", SERVER_EVENTS),
        },
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


def _operation(action: str, frames: tuple[type, ...]) -> Json:
    kinds = (kind_of(frame) for frame in frames)
    return {
        "action": action,
        "channel": {"$ref": "#/channels/responses"},
        "messages": [{"$ref": f"#/channels/responses/messages/{kind}"} for kind in kinds],
    }
