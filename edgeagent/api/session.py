"""One client's WebSocket session without the socket: frames and steps in, actions out.

It owns the lanes, what is live on them, and the rule that every `response.create` ends in exactly one terminal message:
an error envelope as long as `response.created` was not sent, otherwise one of completed, incomplete and failed. It does
no I/O and keeps no time; `websocket` performs its actions in order.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from edgeagent.api.errors import error_body, error_headers, http_status
from edgeagent.api.events import NewId, new_id
from edgeagent.api.history import ConnectionHistory
from edgeagent.api.limits import parse_json
from edgeagent.api.output import Event
from edgeagent.api.service import Service
from edgeagent.api.turn import Turn, begin_turn, unrun
from edgeagent.errors import EdgeAgentError, InvalidRequest, Overloaded
from edgeagent.types import Delta, FinishReason, GenerateRequest, Step

MAX_ACTIVE = 16
MAX_NAMED_LANES = 32
MAX_WAITING = 64
MAX_WAITING_BYTES = 32 << 20
MAX_REFUSALS = 1024

_STREAM_ID = re.compile(r"[A-Za-z0-9_.-]{1,256}")
_DEFAULT_LANE = None

TOO_MANY = 1008
UNSUPPORTED_DATA = 1003


class InvalidStreamId(InvalidRequest):
    code = "invalid_stream_id"


class StreamLimitReached(InvalidRequest):
    code = "websocket_stream_limit_reached"


@dataclass(frozen=True, slots=True)
class Start:
    """Run a request: feed its steps to `step`, its failure to `failed`, and call `admitted` if neither comes soon."""

    request: GenerateRequest


@dataclass(frozen=True, slots=True)
class Cancel:
    """Cancel a request politely; its Finished(cancelled) still goes through `step`."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Drop:
    """Close a request's steps, of which none has come; nothing of it is read any more."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Send:
    """Send an event. `at_s` is when the engine brought it (0: not a delta); the last of a response is terminal."""

    event: Event
    request_id: str = ""
    at_s: float = 0.0
    is_terminal: bool = False


@dataclass(frozen=True, slots=True)
class Close:
    """Close the connection after what was sent."""

    code: int
    reason: str


Action = Start | Cancel | Drop | Send | Close


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A create whose turn has not come: its fields, or why it will be refused in its turn."""

    content: dict[str, Any] | EdgeAgentError
    num_bytes: int = 0


@dataclass(slots=True, eq=False)
class _Live:
    turn: Turn
    lane: _Lane
    is_created: bool = False
    has_steps: bool = False

    @property
    def id(self) -> str:
        return self.turn.request.id


@dataclass(slots=True, eq=False)
class _Lane:
    name: str | None
    live: _Live | None = None
    waiting: deque[_Waiting] = field(default_factory=deque)


class Session:
    """See the module. `default_model` is what the client's URL names; a create's own model goes first."""

    def __init__(
        self,
        service: Service,
        history: ConnectionHistory,
        *,
        default_model: str | None = None,
        partition: str = "",
        make_id: NewId = new_id,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._service = service
        self._history = history
        self._default_model = default_model
        self._partition = partition
        self._make_id = make_id
        self._clock = clock
        self._lanes: dict[str | None, _Lane] = {_DEFAULT_LANE: _Lane(_DEFAULT_LANE)}
        self._live: dict[str, _Live] = {}
        self._queued: deque[_Live] = deque()
        self._num_waiting_bytes = 0
        self._num_steers = 0
        self._actions: list[Action] = []

    def receive_text(self, text: str) -> list[Action]:
        """Take a frame."""
        try:
            frame = parse_json(text)
            if not isinstance(frame, dict):
                raise InvalidRequest("a frame must be a JSON object with a type")
        except EdgeAgentError as error:
            # It may have been a create, and then it is answered in its turn.
            self._wait(self._lanes[_DEFAULT_LANE], _Waiting(error))
            return self._take()
        match frame.get("type"):
            case "response.create":
                self._create(frame, len(text))
            case "response.cancel":
                self._cancel(frame)
            case "response.steer":
                self._refuse_steer(frame)
            case "response.processed":
                pass
            case unknown:
                self._refuse_unknown(unknown)
        return self._take()

    def receive_binary(self) -> list[Action]:
        """Take a binary frame: the protocol has none."""
        return [Close(UNSUPPORTED_DATA, "text frames only")]

    def admitted(self, request_id: str) -> list[Action]:
        """Note that a request was not refused at once: its response begins."""
        if live := self._live.get(request_id):
            self._begin(live)
        return self._take()

    def step(self, request_id: str, step: Step) -> list[Action]:
        """Take one step of a live request; after its terminal event there is none."""
        if live := self._live.get(request_id):
            live.has_steps = True
            self._feed(live, step.deltas, step.at_s)
        return self._take()

    def failed(self, request_id: str, error: EdgeAgentError) -> list[Action]:
        """Take the failure of a live request."""
        if live := self._live.get(request_id):
            if live.is_created:
                self._send(live, live.turn.events.fail(error))
            else:
                self._send_error(error, live.lane.name)
            self._evict(live.turn.create.body.previous_response_id, live.lane)
            self._end(live)
        return self._take()

    def disconnected(self) -> None:
        """Forget everything: after this nothing is started and nothing sent."""
        self._live.clear()
        self._queued.clear()
        self._lanes.clear()

    def _take(self) -> list[Action]:
        actions, self._actions = self._actions, []
        return actions

    def _create(self, frame: dict[str, Any], num_bytes: int) -> None:
        try:
            lane = self._lane(frame.get("stream_id"), is_named="stream_id" in frame)
        except StreamLimitReached as error:
            self._send_error(error, frame["stream_id"])
        except InvalidStreamId as error:
            self._wait(self._lanes[_DEFAULT_LANE], _Waiting(error))
        else:
            self._wait(lane, _Waiting(frame, num_bytes))

    def _lane(self, name: object, *, is_named: bool) -> _Lane:
        if not is_named or name is None:
            return self._lanes[_DEFAULT_LANE]
        if not isinstance(name, str) or not _STREAM_ID.fullmatch(name):
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
            self._lanes[name] = _Lane(name)
        return self._lanes[name]

    def _wait(self, lane: _Lane, waiting: _Waiting) -> None:
        is_full = len(lane.waiting) >= MAX_WAITING or self._num_waiting_bytes + waiting.num_bytes > MAX_WAITING_BYTES
        if is_full and lane.live:
            # It keeps its place, so that its error is read as its own; only its body is dropped.
            waiting = _Waiting(
                Overloaded(f"more than {MAX_WAITING} requests wait on this connection; wait for answers")
            )
        if len(lane.waiting) >= MAX_REFUSALS:
            self._actions.append(Close(TOO_MANY, "too many requests are waiting"))
            return
        lane.waiting.append(waiting)
        self._num_waiting_bytes += waiting.num_bytes
        self._advance(lane)

    def _advance(self, lane: _Lane) -> None:
        while lane.live is None and lane.waiting:
            waiting = lane.waiting.popleft()
            self._num_waiting_bytes -= waiting.num_bytes
            if isinstance(waiting.content, EdgeAgentError):
                self._send_error(waiting.content, lane.name)
                continue
            previous_id = waiting.content.get("previous_response_id")
            try:
                live = self._read(waiting.content, lane)
            except EdgeAgentError as error:
                self._evict(previous_id, lane)
                self._send_error(error, lane.name)
                continue
            self._start(live)

    def _read(self, fields: dict[str, Any], lane: _Lane) -> _Live:
        turn = begin_turn(
            fields,
            self._service,
            self._history,
            default_model=self._default_model,
            stream_id=lane.name,
            partition=self._partition,
            make_id=self._make_id,
            clock=self._clock,
        )
        return _Live(turn, lane)

    def _start(self, live: _Live) -> None:
        live.lane.live = live
        is_full = len(self._live) - len(self._queued) >= MAX_ACTIVE
        self._live[live.id] = live
        if is_full:
            self._queued.append(live)
            live.is_created = True
            self._send(live, live.turn.events.created(is_queued=True))
        else:
            self._run(live)

    def _run(self, live: _Live) -> None:
        if live.turn.is_empty:
            self._feed(live, [unrun(FinishReason.STOP, "empty prompt")])
        else:
            self._actions.append(Start(live.turn.request))

    def _feed(self, live: _Live, deltas: Sequence[Delta], at_s: float = 0.0) -> None:
        self._begin(live)
        self._send(live, live.turn.events.step(deltas), at_s)
        if live.turn.events.is_over:
            self._history.add(live.turn.stored(), live.lane.name, is_stored=live.turn.create.is_stored)
            self._end(live)

    def _begin(self, live: _Live) -> None:
        if not live.is_created:
            live.is_created = True
            self._send(live, live.turn.events.created())

    def _end(self, live: _Live) -> None:
        del self._live[live.id]
        live.lane.live = None
        self._advance(live.lane)
        while self._queued and len(self._live) - len(self._queued) < MAX_ACTIVE:
            following = self._queued.popleft()
            self._send(following, following.turn.events.in_progress())
            self._run(following)

    def _evict(self, previous_id: object, lane: _Lane) -> None:
        if isinstance(previous_id, str):
            self._history.evict_failed(previous_id, lane.name)

    def _cancel(self, frame: dict[str, Any]) -> None:
        response_id = frame.get("response_id")
        if response_id is None:
            name = frame.get("stream_id")
            lane = self._lanes.get(name) if name is None or isinstance(name, str) else None
            live = lane.live if lane else None
        else:
            live = self._live.get(response_id) if isinstance(response_id, str) else None
        # Unknown and finished ids are ignored: a late error would be read as the next turn's failure.
        if live is None:
            return
        if live in self._queued:
            self._queued.remove(live)
        elif live.has_steps:
            self._actions.append(Cancel(live.id))
            return
        else:
            # It may wait for a model or a slot, where no step would tell of its end.
            self._actions.append(Drop(live.id))
        self._feed(live, [unrun(FinishReason.CANCELLED, "cancelled before it began")])

    def _refuse_steer(self, frame: dict[str, Any]) -> None:
        previous_id = frame.get("previous_response_id")
        live = self._live.get(previous_id) if isinstance(previous_id, str) else None
        event: Event = {
            "type": "response.steer.failed",
            "sequence_number": self._num_steers,
            "error": {
                "type": "invalid_request_error",
                "code": "steering_not_supported",
                "message": "Steering is not supported; cancel the response and create another.",
            },
            "steer": {"previous_response_id": previous_id, "input": frame.get("input")},
        }
        if live and live.lane.name is not None:
            event["stream_id"] = live.lane.name
        self._num_steers += 1
        self._actions.append(Send(event))

    def _refuse_unknown(self, kind: object) -> None:
        # While a response is under way, an error would be read as its end.
        if self._lanes[_DEFAULT_LANE].live is None:
            shown = f"'{kind[:64]}'" if isinstance(kind, str) else "no type"
            message = f"unknown event type: got {shown}; send response.create or response.cancel"
            self._send_error(InvalidRequest(message, param="type"), None)

    def _send(self, live: _Live, events: list[Event], at_s: float = 0.0) -> None:
        last = len(events) - 1
        for index, event in enumerate(events):
            is_terminal = index == last and live.turn.events.is_over
            self._actions.append(Send(event, live.id, at_s, is_terminal))

    def _send_error(self, error: EdgeAgentError, stream_id: str | None) -> None:
        event: Event = {"type": "error", "status": http_status(error), "error": error_body(error)}
        if headers := error_headers(error):
            event["headers"] = headers
        if stream_id is not None:
            event["stream_id"] = stream_id
        self._actions.append(Send(event))
