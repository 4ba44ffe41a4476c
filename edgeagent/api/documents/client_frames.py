"""The messages that a client of the WebSocket sends, as the documents show them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from edgeagent.api.documents.bodies import OpenBody, ResponseRequest
from edgeagent.api.responses.socket.lanes import STREAM_ID
from edgeagent.api.wire.shape import Json

StreamId = Annotated[str, Field(pattern=f"^{STREAM_ID.pattern}$")]


class ResponseCreate(ResponseRequest):
    """Create a response; `generate: false` computes its prompt and no more. `stream` is ignored here."""

    type: Literal["response.create"]
    stream_id: StreamId | None = None
    """The lane: responses of one lane come one after another, those of different lanes side by side."""


class ResponseCancel(OpenBody):
    """Cancel a response, which then ends in response.incomplete; unknown and finished ones are ignored."""

    type: Literal["response.cancel"]
    response_id: str | None = None
    """The response; without one, that of the lane."""
    stream_id: StreamId | None = None


class ResponseSteer(OpenBody):
    """Send an input to a response that is under way: it stops, and a successor answers."""

    type: Literal["response.steer"]
    previous_response_id: str
    input: str | list[Json]


class ResponseProcessed(OpenBody):
    """An acknowledgement, which some clients send and none needs."""

    type: Literal["response.processed"]
    response_id: str | None = None


CLIENT_FRAMES = (ResponseCreate, ResponseCancel, ResponseSteer, ResponseProcessed)
