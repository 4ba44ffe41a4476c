"""`response.steer`: an input that a client sends to a response that is under way, and the events about this input.

The response stops at a token boundary, and a new response (its successor) answers the input. If the response ended with
calls, the input waits for the create that brings the results of the calls. This module does not use lanes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgeagent.api.responses.event_json import RequiredInput, SteerEcho, SteerError
from edgeagent.api.responses.events import new_id
from edgeagent.api.responses.items import read_items, with_id
from edgeagent.api.wire.shape import Json
from edgeagent.conversation.items import CallItem, Item, MessageItem
from edgeagent.errors import EdgeAgentError

MAX_STEERS = 16
# A longer input is not returned to its client if it is refused.
MAX_RETURNED_BYTES = 256 << 10

NOT_FOUND = "response_not_found"
ALREADY_COMPLETED = "response_already_completed"
NOT_ACTIVE = "response_not_active"
NOT_SUPPORTED = "steering_not_supported"
TOO_MANY_STEERS = "too_many_pending_steers"
INVALID_INPUT = "invalid_input"
NO_SUCCESSOR = "successor_creation_failed"


class SteerRefused(Exception):
    """Raised if the input of a `response.steer` is refused. The client gets the `code` and the message."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


@dataclass(frozen=True, slots=True)
class Steer:
    """An accepted `response.steer`. `raw`: the input as the client sent it. `items`: the input as user messages.

    `num_bytes`: about the memory that it takes.
    """

    id: str
    previous_id: str
    raw: object
    items: tuple[Item, ...]
    num_bytes: int = 0


def read_steer_input(raw: object) -> tuple[Item, ...] | SteerRefused:
    """Return the items of a steer's input, with ids. It must be a non-empty string or a list of user messages.

    Return the refusal of any other input.
    """
    if not isinstance(raw, str | list) or not raw:
        return SteerRefused(INVALID_INPUT, "input must be a non-empty string or a non-empty list of user messages")
    try:
        items = read_items(raw)
    except EdgeAgentError as error:
        return SteerRefused(INVALID_INPUT, error.message)
    if not all(isinstance(item, MessageItem) and item.role == "user" for item in items):
        return SteerRefused(INVALID_INPUT, "only messages with the role user can steer a response")
    return tuple([with_id(item, new_id) for item in items])


def accepted(steer: Steer) -> Json:
    """Return the event which tells the client that its input was accepted."""
    return {"type": "response.steer.accepted", "sequence_number": 0, "steer": _echo(steer)}


def pending(steer: Steer, calls: Sequence[CallItem]) -> Json:
    """Return the event which tells the client that its input waits for the results of these tool calls."""
    stubs: list[RequiredInput] = [
        {"type": "function_call_output", "call_id": call.call_id, "name": call.name} for call in calls
    ]
    return {
        "type": "response.steer.pending",
        "sequence_number": 0,
        "steer": _echo(steer),
        "reason": "waiting_for_required_input",
        "required_input": stubs,
    }


def failed(refusal: SteerRefused, previous_id: object, raw: object, steer_id: str | None = None) -> Json:
    """Return the event which tells the client that its input was refused.

    The event contains the input, or "" if the input is neither a string nor a list.
    """
    shown_id = previous_id if isinstance(previous_id, str) else ""
    steer: SteerEcho = {"previous_response_id": shown_id, "input": _shown(raw)}
    if steer_id is not None:
        steer["id"] = steer_id
    error: SteerError = {"type": "invalid_request_error", "code": refusal.code, "message": refusal.message}
    return {"type": "response.steer.failed", "sequence_number": 0, "error": error, "steer": steer}


def _echo(steer: Steer) -> SteerEcho:
    return {"id": steer.id, "previous_response_id": steer.previous_id}


def _shown(raw: object) -> object:
    """Return an input in the form that a refusal sends back. Any value but a string or a list becomes "".

    In a list, an object without a type gets the type `message`, which typed clients need.
    """
    match raw:
        case str():
            return raw
        case list():
            return [{"type": "message", **message} if isinstance(message, dict) else message for message in raw]
    return ""
