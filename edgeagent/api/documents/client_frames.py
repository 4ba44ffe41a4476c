"""The types of the messages that a client of the WebSocket may send. Only the documents use them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from edgeagent.api.responses.body import CreateResponseBody
from edgeagent.api.responses.items.input_items import InputMessage
from edgeagent.api.responses.socket.lanes import STREAM_ID
from edgeagent.api.wire.fields import Body

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
