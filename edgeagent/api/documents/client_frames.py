"""The messages that a client of the WebSocket sends, as the documents show them."""

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
        Field(description="The lane. Responses of one lane come one after another, those of several side by side."),
    ] = None


class ResponseCancel(Body):
    """Cancel a response, which then ends in response.incomplete. An unknown or finished response is ignored."""

    type: Literal["response.cancel"]
    response_id: Annotated[str | None, Field(description="The response; without one, that of the lane.")] = None
    stream_id: StreamId | None = None


class ResponseSteer(Body):
    """Send an input to a response that is under way. The response stops, and a successor answers the input."""

    type: Literal["response.steer"]
    previous_response_id: str
    input: str | list[InputMessage]


class ResponseProcessed(Body):
    """Acknowledge a response. Some clients send this message; it has no effect."""

    type: Literal["response.processed"]
    response_id: str | None = None


CLIENT_FRAMES = (ResponseCreate, ResponseCancel, ResponseSteer, ResponseProcessed)
