"""The messages that a client of the WebSocket sends, as the documents show them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from edgeagent.api.documents.bodies import OpenBody, ResponseRequest

StreamId = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,256}$")]


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
    input: str | list[dict[str, Any]]


class ResponseProcessed(OpenBody):
    """An acknowledgement, which some clients send and none needs."""

    type: Literal["response.processed"]
    response_id: str | None = None


CLIENT_FRAMES = (ResponseCreate, ResponseCancel, ResponseSteer, ResponseProcessed)
