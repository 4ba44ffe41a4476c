"""The AsyncAPI document of the WebSocket: every frame that a client may send, and every event that it gets."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from edgeagent import __version__
from edgeagent.api.documents.components import Components, kind_of
from edgeagent.api.responses import event_json
from edgeagent.api.responses.body import CreateResponseBody
from edgeagent.api.responses.items import InputMessage
from edgeagent.api.responses.socket.lanes import STREAM_ID
from edgeagent.api.wire.body import Body
from edgeagent.api.wire.errors import ErrorEvent
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
    previous_response_id: str
    input: str | list[InputMessage]


class ResponseProcessed(Body):
    """Acknowledge a response. Some clients send this message; it has no effect."""

    type: Literal["response.processed"]
    response_id: str | None = None


CLIENT_FRAMES = (ResponseCreate, ResponseCancel, ResponseSteer, ResponseProcessed)


SERVER_EVENTS = (
    event_json.ResponseCreated,
    event_json.ResponseQueued,
    event_json.ResponseInProgress,
    event_json.OutputItemAdded,
    event_json.ContentPartAdded,
    event_json.OutputTextDelta,
    event_json.OutputTextDone,
    event_json.ReasoningTextDelta,
    event_json.ReasoningTextDone,
    event_json.ContentPartDone,
    event_json.FunctionCallArgumentsDelta,
    event_json.FunctionCallArgumentsDone,
    event_json.CustomToolCallInputDelta,
    event_json.CustomToolCallInputDone,
    event_json.CompactionCompacting,
    event_json.OutputItemDone,
    event_json.ResponseCompleted,
    event_json.ResponseIncomplete,
    event_json.ResponseFailed,
    event_json.ResponseSteerAccepted,
    event_json.ResponseSteerPending,
    event_json.ResponseSteerFailed,
    ErrorEvent,
)

_DESCRIPTION = """\
OpenAI's Responses API in WebSocket mode. Text frames of one JSON object each, both ways.

Each `response.create` is answered by exactly one terminal event: `error` if the response was never created, else \
`response.completed`, `response.incomplete` or `response.failed`. Responses of one lane (`stream_id`) come one after \
another, those of different lanes side by side. Closing the socket cancels the responses that run on it.

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
