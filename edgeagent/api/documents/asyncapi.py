"""The AsyncAPI document of the WebSocket: every frame that clients may send, every event that they get."""

from __future__ import annotations

from pydantic import BaseModel

from edgeagent import __version__
from edgeagent.api.documents.client_frames import CLIENT_FRAMES
from edgeagent.api.documents.components import Components
from edgeagent.api.documents.events import SERVER_EVENTS, kind_of
from edgeagent.api.wire.shape import Json

_DESCRIPTION = """\
OpenAI's Responses API in WebSocket mode. Text frames of one JSON object each, both ways.

Each `response.create` is answered by exactly one terminal event: `error` if the response was never created, else \
`response.completed`, `response.incomplete` or `response.failed`. Responses of one lane (`stream_id`) come one after \
another, those of different lanes side by side. Closing the socket cancels the responses that run on it.

The token, where one is needed, is in the Authorization header, or for browsers in a subprotocol \
`openai-insecure-api-key.<token>` beside another one. Close codes: 1001 the daemon stops, 1002 and 1007 a frame broke \
the protocol, 1008 too many requests wait or the token has ended, 1009 a message is too large, 1011 a bug, 1013 the \
client does not read."""


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


def _message(frame: type[BaseModel], components: Components) -> Json:
    return {
        "name": kind_of(frame),  # type: ignore[arg-type]
        "summary": (frame.__doc__ or "").strip(),
        "payload": components.ref(frame),
    }


def _operation(action: str, frames: tuple[type[BaseModel], ...]) -> Json:
    kinds = (kind_of(frame) for frame in frames)  # type: ignore[arg-type]
    return {
        "action": action,
        "channel": {"$ref": "#/channels/responses"},
        "messages": [{"$ref": f"#/channels/responses/messages/{kind}"} for kind in kinds],
    }
