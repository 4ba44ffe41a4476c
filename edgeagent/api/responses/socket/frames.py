"""A client's WebSocket frame as it is read: JSON, and the fields of a create. Pure: a large one is read in a thread."""

from __future__ import annotations

from dataclasses import dataclass

from edgeagent.api.responses.body import ResponseCreate, read_create
from edgeagent.api.socket.frames import read_object
from edgeagent.api.wire.known_fields import FieldWarning
from edgeagent.api.wire.shape import Json
from edgeagent.errors import EdgeAgentError


@dataclass(frozen=True, slots=True)
class RefusedFrame:
    """A create that will be refused when it is reached, and the response that it wanted to continue."""

    error: EdgeAgentError
    previous_id: object = None


@dataclass(frozen=True, slots=True)
class CreateFrame:
    """A `response.create`, and the lane that it names. Nothing else of its JSON is kept, which may be a large tree."""

    asked: ResponseCreate | RefusedFrame
    stream_id: object
    is_named: bool
    num_bytes: int

    @property
    def warning(self) -> FieldWarning | None:
        """A warning to the client about its create."""
        return self.asked.warning if isinstance(self.asked, ResponseCreate) else None


@dataclass(frozen=True, slots=True)
class OtherFrame:
    """Any other frame that is a JSON object."""

    fields: Json


Frame = CreateFrame | OtherFrame | RefusedFrame


def read_frame(text: str) -> Frame:
    """Return the content of a frame, or why it is none."""
    try:
        fields = read_object(text)
    except EdgeAgentError as error:
        return RefusedFrame(error)
    if fields.get("type") != "response.create":
        return OtherFrame(fields)
    return CreateFrame(_read_asked(fields), fields.get("stream_id"), "stream_id" in fields, len(text))


def _read_asked(fields: Json) -> ResponseCreate | RefusedFrame:
    # `stream` has no effect on a WebSocket. Some clients send it always, and none may be refused for it.
    fields = {name: value for name, value in fields.items() if name != "stream"}
    try:
        return read_create(fields)
    except EdgeAgentError as error:
        return RefusedFrame(error, fields.get("previous_response_id"))
