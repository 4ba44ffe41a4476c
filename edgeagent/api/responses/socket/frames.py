"""Reads a client's WebSocket frame: JSON, and the fields of a create.

It has no side effects, so a large frame can be read in a thread.
"""

from __future__ import annotations

from dataclasses import dataclass

from edgeagent.api.responses.body import ResponseCreate, read_create
from edgeagent.api.responses.socket.steering import SteerRefused, read_steer_input
from edgeagent.api.wire.addresses import ADDRESSES, keep_if_local
from edgeagent.api.wire.body import FieldWarning, parse_object
from edgeagent.api.wire.fields import MAX_NAME_CHARS
from edgeagent.api.wire.shape import Json
from edgeagent.conversation.items import Item
from edgeagent.errors import EdgeAgentError, NotSupported
from edgeagent.strict_json import num_of

_ITEM_BYTES = 256  # what an item takes without its text


@dataclass(frozen=True, slots=True)
class RefusedFrame:
    """A frame that is refused. Its error is sent in the order of the lane, after the answers to earlier creates.

    `previous_id`: the frame's `previous_response_id`; None if there is none, or if it cannot be one.
    """

    error: EdgeAgentError
    previous_id: str | None = None


@dataclass(frozen=True, slots=True)
class CreateFrame:
    """A `response.create`, and the lane that it names.

    `create_or_refusal`: the checked create, or its refusal. `stream_id`: the lane's name as sent, which may be of any
    type. `is_named`: the frame has a `stream_id`. `num_bytes`: about the memory that the create takes. The frame's JSON
    is not kept, because it may be large.
    """

    create_or_refusal: ResponseCreate | RefusedFrame
    stream_id: object
    is_named: bool
    num_bytes: int

    @property
    def warning(self) -> FieldWarning | None:
        """The warning about unknown fields of the create; None if there are no unknown fields, or if it is refused."""
        return self.create_or_refusal.warning if isinstance(self.create_or_refusal, ResponseCreate) else None


@dataclass(frozen=True, slots=True)
class OtherFrame:
    """A frame that is a JSON object, but no `response.create`. `num_bytes`: about the memory that its JSON takes.

    `steered`: the items of a `response.steer`, or why its input is refused.
    """

    fields: Json
    num_bytes: int = 0
    steered: tuple[Item, ...] | SteerRefused = ()


Frame = CreateFrame | OtherFrame | RefusedFrame


def read_frame(text: str) -> Frame:
    """Return the content of a frame; a RefusedFrame if the frame is not a JSON object."""
    try:
        fields = parse_object(text, "a frame must be a JSON object with a type")
    except EdgeAgentError as error:
        return RefusedFrame(_bare(error))
    if fields.get("stream_id") == "":
        del fields["stream_id"]
    if fields.get("type") == "response.steer":
        before = ADDRESSES.set(None)  # only creates name files and addresses
        try:
            return OtherFrame(fields, _memory_of(text), read_steer_input(fields.get("input")))
        finally:
            ADDRESSES.reset(before)
    if fields.get("type") != "response.create":
        return OtherFrame(fields, _memory_of(text))
    keep_if_local(fields)
    # `stream` has no effect on a WebSocket. Some clients send it always, and none may be refused for it.
    fields.pop("stream", None)
    read: ResponseCreate | RefusedFrame
    try:
        read = read_create(fields)
        if read.body.background:
            # The response would end with the connection, and the client relies on the opposite.
            message = "background is not supported on a WebSocket; send it with POST /v1/responses"
            raise NotSupported(message, param="background")
    except EdgeAgentError as error:
        previous_id = fields.get("previous_response_id")
        is_short = isinstance(previous_id, str) and len(previous_id) <= MAX_NAME_CHARS
        read = RefusedFrame(_bare(error), previous_id if is_short else None)
    num_bytes = len(text.encode()) + _ITEM_BYTES * len(read.items) if isinstance(read, ResponseCreate) else 0
    return CreateFrame(read, fields.get("stream_id"), "stream_id" in fields, num_bytes)


def _bare(error: EdgeAgentError) -> EdgeAgentError:
    """Return an error without its traceback and causes: they hold the frame's text while the error waits."""
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)


def _memory_of(text: str) -> int:
    """Return about the memory that a JSON text takes once it is read. `[]` and `{}` take 20 to 80 times as much."""
    return len(text.encode()) + 64 * (num_of(",", text) + num_of("[", text)) + 232 * num_of("{", text)
