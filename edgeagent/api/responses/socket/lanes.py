"""A connection's lanes: the name of each, the response that runs on it, and the creates that wait there.

A lane (`stream_id`) runs one response at a time. A create is a `response.create` frame, or a create that the session
makes to answer steers. A steer is an input that a client sends to a response that is under way.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from edgeagent.api.responses.body import ResponseCreate
from edgeagent.api.responses.socket.ahead import AheadAnswer
from edgeagent.api.responses.socket.frames import RefusedFrame
from edgeagent.api.responses.socket.steering import Steer
from edgeagent.api.responses.turn import LiveTurn, Turn
from edgeagent.api.wire.generation import DeliveryTime
from edgeagent.errors import InvalidRequest
from edgeagent.service.live_requests import LiveRequest
from edgeagent.types import Queued

MAX_NAMED_LANES = 32

STREAM_ID = re.compile("[A-Za-z0-9_.-]{1,256}")
"""The pattern of a lane's name."""
_DEFAULT_LANE = None


class InvalidStreamId(InvalidRequest):
    """`stream_id` is not 1 to 256 letters, digits, dots, dashes or underscores."""

    code = "invalid_stream_id"


class StreamLimitReached(InvalidRequest):
    """The WebSocket has as many lanes (`stream_id`) as it may have."""

    code = "websocket_stream_limit_reached"


@dataclass(frozen=True, slots=True)
class Successor:
    """A create that the session makes. It continues a response that was steered, and answers the steers."""

    create: ResponseCreate
    steers: tuple[Steer, ...]


@dataclass(frozen=True, slots=True)
class WaitingCreate:
    """A create or a refused frame that waits on its lane.

    `num_bytes`: about the memory of a create; 0 if not counted. `arrived_s`: when it arrived, by the session's
    monotonic clock.
    """

    content: ResponseCreate | Successor | RefusedFrame
    num_bytes: int = 0
    arrived_s: float = 0.0


class LaneTurn(LiveTurn):
    """A response of a connection, with what the session and the connection know about it.

    `answers`: the steers that this response answers; empty if a client created it. `steers`: the steers that clients
    sent to this response. `is_created`: its first event is made. `wait`: what it waits for; None if unknown.
    `has_steps`: its first step has arrived. `is_ending`: its terminal event is made, but not written yet.
    `stored_future`: it is done when the response is stored; None if nothing is to be stored. The terminal event waits
    at most KEEP_S for it.
    """

    def __init__(self, turn: Turn, lane: Lane, answers: tuple[Steer, ...] = ()) -> None:
        super().__init__(turn)
        self.lane = lane
        self.answers = answers
        self.steers: list[Steer] = []
        self.is_created = False
        self.wait: Queued | None = None
        self.has_steps = False
        self.is_cancelled = False
        # Set by the connection.
        self.task: asyncio.Task[None] | None = None
        self.is_ending = False
        self.stored_future: asyncio.Future[None] | None = None
        self.delivery_time = DeliveryTime()

    @property
    def is_under_way(self) -> bool:
        """Whether the terminal event of the response has not been made yet."""
        return self.lane.live is self


class UndeliveredResponse(LiveRequest):
    """The part of a finished turn that is kept while its terminal event waits to be written."""

    def __init__(self, live: LaneTurn) -> None:
        super().__init__(live.id, live.partition)
        self.is_running = live.is_running
        self.is_ending = True
        self.stored_future = live.stored_future
        self.delivery_time = live.delivery_time


@dataclass(slots=True, eq=False)
class Lane:
    """A lane: the response or the create that is under way, and the creates that wait.

    `fetching`: the create that needs something from the store, which is being looked up. `is_fetch_cancelled`: this
    create ends as cancelled after the lookup. `key`: the lane's unique name among the lanes of all connections.
    `ahead`: the answer that the next create may take. `arrived_s`: when the latest create that left `waiting` arrived,
    and `num_bytes`: its memory.
    """

    name: str | None
    key: str
    live: LaneTurn | None = None
    fetching: ResponseCreate | None = None
    is_fetch_cancelled: bool = False
    ahead: AheadAnswer | None = None
    arrived_s: float = 0.0
    num_bytes: int = 0
    waiting: deque[WaitingCreate] = field(default_factory=deque)

    @property
    def is_busy(self) -> bool:
        return self.live is not None or self.fetching is not None


class Lanes:
    """The default lane, which has no name, and up to MAX_NAMED_LANES lanes with names."""

    def __init__(self) -> None:
        self._connection = secrets.token_hex(8)
        self.default = Lane(_DEFAULT_LANE, self._connection)
        self._lanes: dict[str | None, Lane] = {_DEFAULT_LANE: self.default}

    def __iter__(self) -> Iterator[Lane]:
        return iter(self._lanes.values())

    def find(self, name: object) -> Lane | None:
        """Return the lane called `name` (None: the default lane). Return None if no such lane is in use."""
        return self._lanes.get(name) if name is None or isinstance(name, str) else None

    def use(self, name: object, *, is_named: bool) -> Lane:
        """Return the lane that a frame names, and open it at its first use.

        Raise InvalidStreamId for a wrong name, and StreamLimitReached if no further lane may be opened.
        """
        if not is_named or name is None:
            return self.default
        if not isinstance(name, str) or not STREAM_ID.fullmatch(name):
            raise InvalidStreamId(
                "stream_id must be a non-empty string of at most 256 letters, numbers, underscores, hyphens or periods",
                param="stream_id",
            )
        if name not in self._lanes:
            if len(self._lanes) > MAX_NAMED_LANES:
                raise StreamLimitReached(
                    f"This connection has used the maximum number of distinct stream IDs ({MAX_NAMED_LANES}); "
                    "reuse one or open another connection.",
                    param="stream_id",
                )
            self._lanes[name] = Lane(name, f"{self._connection}/{name}")
        return self._lanes[name]

    def turn(self, response_id: object) -> LaneTurn | None:
        """Return the response with this id if it is under way on a lane; otherwise None."""
        under_way = (lane.live for lane in self._lanes.values() if lane.live is not None)
        return next((live for live in under_way if live.id == response_id), None)

    @property
    def num_under_way(self) -> int:
        """How many responses are under way, including queued ones."""
        return sum(lane.live is not None for lane in self._lanes.values())

    def clear(self) -> None:
        """Forget every lane, and the responses under way."""
        for lane in self._lanes.values():
            lane.live = None
        self._lanes.clear()
