"""What every protocol can ask of its WebSocket: send an event, or close. A protocol adds actions of its own."""

from __future__ import annotations

from dataclasses import dataclass

from edgeagent.api.wire.shape import Json

# Close codes of RFC 6455, section 7.4.1. 1013 is only in IANA's registry.
GOING_AWAY = 1001
UNSUPPORTED_DATA = 1003
POLICY_VIOLATION = TOO_MANY_REQUESTS = 1008
INTERNAL_ERROR = 1011
TRY_AGAIN_LATER = 1013


@dataclass(frozen=True, slots=True)
class Send:
    """Send an event to the client.

    `request_id`: the request that the event belongs to; empty if it belongs to none. `at_s`: when the engine computed
    the step that the event reports (time.monotonic); 0 if there is no such step. `is_terminal`: the event is the last
    one of its request.
    """

    event: Json
    request_id: str = ""
    at_s: float = 0.0
    is_terminal: bool = False


@dataclass(frozen=True, slots=True)
class Close:
    """Close the connection once all earlier events are sent."""

    code: int
    reason: str
