"""One client's WebSocket session without the socket: frames and steps in, actions out.

It owns the lanes and the responses on them. Every `response.create` ends in exactly one terminal message: an error
envelope if `response.created` was not sent, else `response.completed`, `response.incomplete` or `response.failed`. The
session does no I/O and sets no timers. The connection performs the returned actions in order.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import cast

from edgeagent.api.responses.body import ResponseCreate
from edgeagent.api.responses.events import TERMINAL, Compacted, Compacting, NewId, new_id
from edgeagent.api.responses.socket import steering
from edgeagent.api.responses.socket.ahead import AheadAnswer
from edgeagent.api.responses.socket.frames import CreateFrame, Frame, OtherFrame, RefusedFrame
from edgeagent.api.responses.socket.lanes import (
    InvalidStreamId,
    Lane,
    Lanes,
    LaneTurn,
    StreamLimitReached,
    Successor,
    WaitingCreate,
)
from edgeagent.api.responses.socket.outbox import POLICY_VIOLATION, TOO_MANY_REQUESTS, Close, Send
from edgeagent.api.responses.socket.steering import MAX_RETURNED_BYTES, MAX_STEERS, Steer, SteerRefused
from edgeagent.api.responses.turn import Turn, begin_turn
from edgeagent.api.wire.errors import error_body, error_event
from edgeagent.api.wire.generation import is_wait
from edgeagent.api.wire.shape import Json
from edgeagent.conversation.history import ConnectionHistory, MissingIds, StoredResponse, StoreResult
from edgeagent.conversation.items import CallItem, Item
from edgeagent.credentials.grants import revoked
from edgeagent.errors import EdgeAgentError, InvalidRequest, Overloaded
from edgeagent.service.live_service import LiveService
from edgeagent.types import Delta, Finished, FinishReason, Queued, RouteMode, Step, unrun
from edgeagent.types import replace as msgspec_replace


@dataclass(frozen=True, slots=True)
class Fetch:
    """Look up in the store what a lane's next create continues. Then call `Session.fetched` with the result."""

    lane: str | None
    missing: MissingIds


@dataclass(frozen=True, slots=True)
class Queue:
    """Make a queued response visible to requests for its id, until its Start or its Drop."""

    live: LaneTurn


@dataclass(frozen=True, slots=True)
class Start:
    """Run a response: pass each step to `Session.step`, or a failure to `Session.failed`.

    Call `Session.announce` after ANNOUNCE_S if the response still runs.
    """

    live: LaneTurn


@dataclass(frozen=True, slots=True)
class Cancel:
    """Cancel a request. Its last step, a Finished with the reason `cancelled`, is still passed to `Session.step`."""

    live: LaneTurn


@dataclass(frozen=True, slots=True)
class Drop:
    """End a request that has no step yet. Cancel its task or, if it was only queued, hide the request."""

    live: LaneTurn


@dataclass(frozen=True, slots=True)
class End:
    """A response is over. The next Sends include its terminal event.

    Store `stored` before the terminal event is sent; None: store nothing.
    """

    live: LaneTurn
    stored: StoredResponse | None


@dataclass(frozen=True, slots=True)
class BeginAhead:
    """Generate an answer ahead: put its steps into it. A failure ends it without a trace."""

    answer: AheadAnswer


@dataclass(frozen=True, slots=True)
class EndAhead:
    """Stop generating an answer ahead, because it was taken or dropped."""

    answer: AheadAnswer


OwnAction = Fetch | Queue | Start | Cancel | Drop | End | BeginAhead | EndAhead
Action = OwnAction | Send | Close


class Steers:
    """The steers of one connection. `history`: the responses of the connection that are over."""

    def __init__(self, history: ConnectionHistory, make_id: NewId) -> None:
        self._history = history
        self._make_id = make_id
        self._waiting: dict[str, tuple[Lane, tuple[Steer, ...]]] = {}
        self._num_failures = 0

    def accept(self, live: LaneTurn | None, frame: OtherFrame, num_free_bytes: int) -> Steer:
        """Return the steer that a client sends; raise SteerRefused if it is not accepted.

        `live` is the response that it names if that is under way, else None. `num_free_bytes`: the memory that may
        still wait.
        """
        if live is None:
            raise self._unsteerable(frame.fields.get("previous_response_id"))
        if isinstance(frame.steered, SteerRefused):
            raise frame.steered
        if live.is_cancelled:
            raise SteerRefused(steering.NOT_ACTIVE, f"the response '{live.id}' is being cancelled")
        if live.turn.request.prefill_only:
            raise SteerRefused(steering.NOT_SUPPORTED, "a response that generates nothing cannot be steered")
        if live.turn.create.compact_threshold is not None:
            raise SteerRefused(steering.NOT_SUPPORTED, "a response with context_management cannot be steered")
        if len(live.steers) >= MAX_STEERS or frame.num_bytes > num_free_bytes:
            raise SteerRefused(
                steering.TOO_MANY_STEERS,
                f"{MAX_STEERS} inputs for the response's successor, or {MAX_WAITING_BYTES >> 20} MiB, wait already",
            )
        if len(self._waiting) >= MAX_STEERS:
            raise SteerRefused(
                steering.TOO_MANY_STEERS,
                f"the inputs of {MAX_STEERS} responses wait for the results of their calls already; send the results",
            )
        return Steer(self._make_id("steer"), live.id, frame.fields["input"], frame.steered, frame.num_bytes)

    def keep_waiting(self, live: LaneTurn) -> None:
        """Keep the steers of a response that ended in calls, until a create on its lane brings their results."""
        self._waiting[live.id] = (live.lane, tuple(live.steers))

    def waiting_for(self, previous_id: str | None, lane: Lane) -> tuple[Steer, ...]:
        """Return the steers that wait for the create that continues `previous_id` on this lane.

        Return an empty tuple if no steers wait, or if they wait on another lane.
        """
        waiting_lane, steers = self._waiting.get(previous_id or "", (None, ()))
        return steers if waiting_lane is lane else ()

    def release(self, previous_id: str | None, lane: Lane) -> int:
        """Forget the steers that `waiting_for` returns, because the create that they waited for has begun.

        Return their bytes.
        """
        if not self.waiting_for(previous_id, lane):
            return 0
        _, steers = self._waiting.pop(previous_id or "")
        return sum(steer.num_bytes for steer in steers)

    def refused(
        self,
        refusal: SteerRefused,
        lane: Lane | None,
        previous_id: object,
        raw: object,
        num_bytes: int,
        steer_id: str | None = None,
    ) -> Send:
        """Return the event which tells the client that its input was refused.

        It contains the input of `num_bytes`, unless that is long: writing it would take the event loop for 20 ms.
        """
        if num_bytes > MAX_RETURNED_BYTES:
            refusal = SteerRefused(refusal.code, f"{refusal.message} (the input is too long to be returned)")
            raw, num_bytes = "", 0
        event = steering.failed(refusal, previous_id, raw, steer_id)
        event["sequence_number"] = self._num_failures
        if lane is not None and lane.name is not None:
            event["stream_id"] = lane.name
        self._num_failures += 1
        return Send(event, num_bytes=num_bytes)

    def _unsteerable(self, previous_id: object) -> SteerRefused:
        if not isinstance(previous_id, str):
            text = "send the id of the response to steer as previous_response_id"
            return SteerRefused(steering.NOT_FOUND, text)
        shown = repr(previous_id[:128])
        if self._history.remembers(previous_id):
            return SteerRefused(steering.ALREADY_COMPLETED, f"the response {shown} is over; create another")
        return SteerRefused(steering.NOT_FOUND, f"no response {shown} is under way on this connection")


MAX_ACTIVE = 16
MAX_WAITING = 64
MAX_WAITING_BYTES = 32 << 20
MAX_REFUSALS = 1024


class Session:
    """The session of one connection.

    `default_model` is the model that the client's URL names. A model that a create names takes precedence. `translate`
    replaces the actions that each method returns by others: a protocol with other events sets it. `num_waiting_bytes`:
    about the memory of the creates and steers that wait.
    """

    def __init__(
        self,
        service: LiveService,
        history: ConnectionHistory,
        *,
        default_model: str | None = None,
        partition: str = "",
        make_id: NewId = new_id,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.translate: Callable[[list[Action]], list[Action]] = list
        self.service = service
        self.history = history
        self.default_model = default_model
        self._partition = partition
        self.make_id = make_id
        self._clock = clock
        self._monotonic = monotonic
        self._lanes = Lanes()
        self._steers = Steers(history, make_id)
        self._queued: deque[LaneTurn] = deque()
        self._freed: deque[Lane] = deque()
        self._is_expired = False
        self._is_closed = False
        self.num_waiting_bytes = 0
        self._actions: list[Action] = []

    def receive(self, frame: Frame) -> list[Action]:
        """Return the actions that answer a frame."""
        match frame:
            case RefusedFrame():
                # The frame may have been a create, which must be answered in order.
                self._wait(self._lanes.default, WaitingCreate(frame))
            case CreateFrame():
                self._create(frame)
            case OtherFrame():
                self._receive_other(frame)
        return self._take()

    def can_cancel(self, frame: OtherFrame) -> bool:
        """Whether a frame is a cancel of a response that is under way, so that no earlier frame matters to it."""
        if frame.fields.get("type") != "response.cancel":
            return False
        live = self._named(frame.fields)
        return live is not None and live.is_under_way

    def _named(self, cancel: Json) -> LaneTurn | None:
        """Return the response that a cancel names, by its id or its lane."""
        if response_id := cancel.get("response_id") or None:
            return self._lanes.turn(response_id)
        lane = self._lanes.find(cancel.get("stream_id"))
        return lane.live if lane else None

    def _receive_other(self, frame: OtherFrame) -> None:
        match frame.fields.get("type"):
            case "response.cancel":
                self._cancel(frame.fields)
            case "response.steer":
                self._steer(frame)
            case "response.processed":
                pass
            case unknown:
                self._refuse_unknown(unknown)

    def fetched(self, lane_name: str | None, found: StoreResult) -> list[Action]:
        """Begin the create that waited for a Fetch, and return the actions. `found`: what the store has for it."""
        lane = self._lanes.find(lane_name)
        if lane is not None and lane.fetching is not None:
            create, lane.fetching = lane.fetching, None
            self._begin_turn(lane, create, found)
            self._advance(lane)
        return self._take()

    def announce(self, live: LaneTurn) -> list[Action]:
        """Return the actions that send a request's first events, since the service did not refuse it at once."""
        if live.is_under_way:
            self._begin(live, live.wait)
        return self._take()

    def step(self, live: LaneTurn, step: Step) -> list[Action]:
        """Return the actions for one step of a live request. A step after the terminal event is ignored."""
        if live.is_under_way and is_wait(step.deltas) and not live.is_created:
            live.wait = cast("Queued", step.deltas[0])  # it may be refused yet, so `announce` tells of it
        elif live.is_under_way:
            live.has_steps |= not is_wait(step.deltas)
            if live.is_created and live.turn.events.is_queued and not is_wait(step.deltas):
                self._send(live, live.turn.events.in_progress())
            self._feed(live, step.deltas, step.at_s)
            if live.turn.request.prefill_only and live.turn.events.response["status"] == "completed":
                self._begin_ahead(live)
        return self._take()

    def failed(self, live: LaneTurn, error: EdgeAgentError) -> list[Action]:
        """Return the actions for the failure of a live request."""
        if live.is_under_way:
            if live.is_created:
                events = live.turn.events.fail(error)
                self._keep_end(live)
                self._send(live, events)
            else:
                self._refuse(live.lane, error, live.answers)
            self._evict(live.turn.create.previous_id, live.lane)
            self._end(live)
        return self._take()

    def cancel(self, live: LaneTurn) -> list[Action]:
        """Return the actions that cancel a live request. Another connection asked for the cancel."""
        self._cancel_live(live)
        return self._take()

    def expire(self) -> list[Action]:
        """Refuse further creates, since the client's token is no longer valid, and close when no lane is busy."""
        self._is_expired = True
        return self._take()

    def refuse_waiting(self) -> None:
        """Refuse the creates that wait on their lanes. Each keeps its place, so that its error comes in order."""
        error = Overloaded("clients are sending too much at once; send it again", retry_after_s=2.0)
        for lane in self._lanes:
            for place, waiting in enumerate(lane.waiting):
                if isinstance(waiting.content, ResponseCreate):
                    lane.waiting[place] = WaitingCreate(RefusedFrame(error))
                    self.num_waiting_bytes -= waiting.num_bytes

    def disconnected(self) -> None:
        """Forget everything. Afterwards no request is started and no event is sent."""
        self._queued.clear()
        self._freed.clear()
        self._lanes.clear()
        self._is_expired = False

    def _take(self) -> list[Action]:
        self._go_on()
        if self._is_expired and not self._is_closed and not any(lane.is_busy for lane in self._lanes):
            self._is_closed = True
            self._send_error(revoked(), None)
            self._actions.append(Close(POLICY_VIOLATION, "the token has ended"))
        taken, self._actions = self._actions, []
        return self.translate(taken)

    def _create(self, frame: CreateFrame) -> None:
        try:
            lane = self._lanes.use(frame.stream_id, is_named=frame.is_named)
        except StreamLimitReached as error:
            self._send_error(error, str(frame.stream_id))
        except InvalidStreamId as error:
            self._wait(self._lanes.default, WaitingCreate(RefusedFrame(error)))
        else:
            self._wait(lane, WaitingCreate(frame.create_or_refusal, frame.num_bytes, self._monotonic()))

    def _wait(self, lane: Lane, waiting: WaitingCreate) -> None:
        is_full = len(lane.waiting) >= MAX_WAITING or self.num_waiting_bytes + waiting.num_bytes > MAX_WAITING_BYTES
        if is_full and (lane.is_busy or self._num_active >= MAX_ACTIVE):
            # The request keeps its place, so that its error comes in order. Only its body is dropped.
            most = f"{MAX_WAITING} requests on a lane, {MAX_WAITING_BYTES >> 20} MiB on the connection"
            error = Overloaded(f"too much waits here (at most {most}); wait for answers before you send more")
            waiting = WaitingCreate(RefusedFrame(error))
        if len(lane.waiting) >= MAX_REFUSALS:
            self._actions.append(Close(TOO_MANY_REQUESTS, "too many requests are waiting"))
            return
        lane.waiting.append(waiting)
        self.num_waiting_bytes += waiting.num_bytes
        self._advance(lane)

    def _advance(self, lane: Lane) -> None:
        while lane.waiting and (not lane.is_busy or self._supersede(lane)):
            waiting = lane.waiting.popleft()
            self.num_waiting_bytes -= waiting.num_bytes
            lane.arrived_s, lane.num_bytes = waiting.arrived_s, waiting.num_bytes
            match waiting.content:
                case RefusedFrame(error, previous_id):
                    self._evict(previous_id, lane)
                    self._send_error(error, lane.name)
                case Successor(create, steers):
                    self._begin_turn(lane, create, StoreResult(), steers)
                case create:
                    self._open(lane, create)

    def _supersede(self, lane: Lane) -> bool:
        """End a lane's prefill for the create that waits behind it. Return False if the lane runs anything else.

        What was computed stays cached, and the create computes the rest. A prefill with `context_management` may be
        writing a summary, which its client is waiting for.
        """
        live = lane.live
        if live is None or not live.turn.request.prefill_only or live.turn.create.compact_threshold is not None:
            return False
        following = lane.waiting[0].content
        if not isinstance(following, ResponseCreate):
            return False
        if live.turn.events.is_queued:  # only a response in progress can be completed
            self._send(live, live.turn.events.in_progress())
        if following.previous_id != live.id:
            live.turn.events.response["store"] = False  # its words were revised
        self._end_early(live, FinishReason.STOP, "superseded")
        return True

    def _open(self, lane: Lane, create: ResponseCreate) -> None:
        if self._is_expired:
            self._evict(create.previous_id, lane)
            self._send_error(revoked(), lane.name)
        elif missing := self.history.missing(create.previous_id, create.items):
            lane.fetching = create
            self._actions.append(Fetch(lane.name, missing))
        else:
            self._begin_turn(lane, create, StoreResult())

    def _begin_turn(
        self, lane: Lane, create: ResponseCreate, found: StoreResult, answers: tuple[Steer, ...] = ()
    ) -> None:
        waited_s = self._waited_s(lane)
        is_cancelled, lane.is_fetch_cancelled = lane.is_fetch_cancelled, False
        if waiting := self._steers.waiting_for(create.previous_id, lane):
            create = replace(create, items=(*_items(waiting), *create.items))
        try:
            turn = begin_turn(
                create,
                self.service,
                self.history,
                found,
                default_model=self.default_model,
                stream_id=lane.name,
                partition=self._partition,
                lane=lane.key,
                make_id=self.make_id,
                clock=self._clock,
            )
        except EdgeAgentError as error:
            self._evict(create.previous_id, lane)
            self._refuse(lane, error, answers)
            return
        turn.count_wait(waited_s)
        ahead = self._take_ahead(lane, turn)
        live = LaneTurn(turn, lane, answers)
        if is_cancelled:
            lane.live = live
            self._feed(live, [unrun(FinishReason.CANCELLED, "cancelled before it began")])
        elif ahead is not None:
            self._release(live, ahead)
        else:
            self._start(live)

    def _begin_ahead(self, live: LaneTurn) -> None:
        """Begin the answer to a revision whose prompt is computed, if it asks for that and the lane has none.

        No answer with log probabilities is continued, and a summary would be another one the next time. What a client
        wants from a remote is not answered by this machine.
        """
        turn, lane, request = live.turn, live.lane, live.turn.request
        is_asked = turn.create.is_answered_ahead and request.logprobs is None and not turn.why_uncomputed
        is_asked = is_asked and request.asked_route not in (RouteMode.PREFER_REMOTE, RouteMode.REMOTE_ONLY)
        if is_asked and turn.create.compact_threshold is None and lane.ahead is None and not self._is_expired:
            lane.ahead = AheadAnswer(request, self.make_id("ahead"))
            self._actions.append(BeginAhead(lane.ahead))

    def _take_ahead(self, lane: Lane, turn: Turn) -> AheadAnswer | None:
        """Return the lane's answer ahead for a turn that begins, if it has tokens and the turn asks for it.

        Another turn drops it, and so does one that has waited for longer than its limits allow: it is refused. A
        revision with the same text keeps it.
        """
        ahead = lane.ahead
        if ahead is None or (turn.request.prefill_only and ahead.answers(turn.request)):
            return None
        self._end_ahead(lane)
        limit_s = turn.request.latest_first_token_s
        is_late = limit_s is not None and limit_s <= turn.request.waited_s
        return ahead if ahead.num_tokens and ahead.answers(turn.request) and not is_late else None

    def _end_ahead(self, lane: Lane) -> None:
        if lane.ahead is not None:
            lane.ahead.end()
            self._actions.append(EndAhead(lane.ahead))
            lane.ahead = None

    def _release(self, live: LaneTurn, ahead: AheadAnswer) -> None:
        """Send what was generated ahead, and generate the rest."""
        live.lane.live = live
        live.turn.events.notes["ahead_tokens"] = ahead.num_tokens
        deltas = ahead.step.deltas
        if isinstance(deltas[-1], Finished):
            end = self.service.give(msgspec_replace(live.turn.request, so_far=ahead.so_far), deltas[-1])
            self._feed(live, (*deltas[:-1], end))
        else:
            self._feed(live, deltas)
            live.turn.ahead = ahead.so_far
            self._actions.append(Start(live))

    def _start(self, live: LaneTurn) -> None:
        is_full = self._num_active >= MAX_ACTIVE
        live.lane.live = live
        if is_full:
            self._queued.append(live)
            self.num_waiting_bytes += live.lane.num_bytes
            self._actions.append(Queue(live))
            self._begin(live, is_queued=True)
        else:
            self._run(live)

    def _run(self, live: LaneTurn) -> None:
        if why := live.turn.why_uncomputed:
            self._feed(live, [unrun(FinishReason.STOP, why)])
        else:
            self._actions.append(Start(live))

    def _feed(self, live: LaneTurn, deltas: Sequence[Delta | Compacting | Compacted], at_s: float = 0.0) -> None:
        self._begin(live)
        events = live.turn.events.step(deltas)
        if live.turn.events.is_over:
            self._keep_end(live)
        self._send(live, events, at_s)
        if live.turn.events.is_over:
            self._end(live)

    def _begin(self, live: LaneTurn, queued: Queued | None = None, *, is_queued: bool = False) -> None:
        if not live.is_created:
            live.is_created = True
            self.num_waiting_bytes -= self._steers.release(live.turn.create.previous_id, live.lane)
            self._send(live, live.turn.events.created(queued, is_queued=is_queued))

    def _keep_end(self, live: LaneTurn) -> None:
        stored = live.turn.stored()
        if not stored.is_failed:
            self.history.add(stored, live.lane.name)
        self._actions.append(End(live, stored if stored.is_storable else None))

    def _end(self, live: LaneTurn) -> None:
        live.lane.live = None
        if live.steers:
            self._follow(live)
        self._freed.append(live.lane)

    def _go_on(self) -> None:
        """Begin the creates that waited for a response to end.

        Queued responses of other lanes start first. Otherwise a lane with many creates would delay them.
        """
        while self._freed or (self._queued and self._num_active < MAX_ACTIVE):
            if self._queued and self._num_active < MAX_ACTIVE:
                following = self._queued.popleft()
                self.num_waiting_bytes -= following.lane.num_bytes
                following.turn.count_wait(self._waited_s(following.lane) - following.turn.request.waited_s)
                self._send(following, following.turn.events.in_progress())
                self._run(following)
            else:
                self._advance(self._freed.popleft())

    @property
    def _num_active(self) -> int:
        return self._lanes.num_under_way - len(self._queued)

    def _waited_s(self, lane: Lane) -> float:
        """Return how long the create of a lane has waited, in hundredths: one that did not wait keeps its limits."""
        return round(self._monotonic() - lane.arrived_s, 2)

    def _evict(self, previous_id: object, lane: Lane) -> None:
        if isinstance(previous_id, str):
            self.history.evict_failed(previous_id, lane.name)

    def _cancel(self, frame: Json) -> None:
        response_id = frame.get("response_id") or None
        if response_id is None:
            lane = self._lanes.find(frame.get("stream_id"))
            if lane and lane.fetching:
                lane.is_fetch_cancelled = True
        else:
            lane = next((each for each in self._lanes if each.ahead and each.ahead.revision_id == response_id), None)
        if lane is not None:
            self._end_ahead(lane)
        self._cancel_live(self._named(frame))

    def _cancel_live(self, live: LaneTurn | None) -> None:
        # Unknown and finished ids are ignored: a late error would be read as the next turn's failure.
        if live is not None and live.is_under_way:
            live.is_cancelled = True
            live.turn.events.is_steered = False
            self._stop(live)

    def _stop(self, live: LaneTurn) -> None:
        if live.has_steps:
            self._actions.append(Cancel(live))
        else:
            # The request may still wait for a model or a slot. No step could report the cancel, so its end is
            # reported here.
            self._end_early(live, FinishReason.CANCELLED, "cancelled before it began")

    def _end_early(self, live: LaneTurn, reason: FinishReason, why: str) -> None:
        if live in self._queued:
            self._queued.remove(live)
            self.num_waiting_bytes -= live.lane.num_bytes
        self._actions.append(Drop(live))
        self._feed(live, [unrun(reason, why, live.turn.usage_ahead)])

    def _steer(self, frame: OtherFrame) -> None:
        previous_id, raw = frame.fields.get("previous_response_id"), frame.fields.get("input")
        live = self._lanes.turn(previous_id)
        try:
            steer = self._steers.accept(live, frame, MAX_WAITING_BYTES - self.num_waiting_bytes)
        except SteerRefused as refusal:
            lane = live.lane if live else None
            self._actions.append(self._steers.refused(refusal, lane, previous_id, raw, frame.num_bytes))
            return
        assert live is not None, "only a response that is under way can be steered"
        self._begin(live)
        live.steers.append(steer)
        self.num_waiting_bytes += steer.num_bytes
        self._send(live, live.turn.events.numbered(steering.accepted(steer)))
        if not live.turn.events.is_steered:
            live.turn.events.is_steered = True
            self._stop(live)

    def _follow(self, live: LaneTurn) -> None:
        """Decide what happens to the steers of a response that has ended.

        1. If the response failed or its client cancelled it, the steers are refused and returned to the client.
        2. If it ended in calls, they wait for the create that has the results.
        3. Otherwise a successor answers them, before other creates on the lane.
        """
        steers = tuple(live.steers)
        num_bytes = sum(steer.num_bytes for steer in steers)
        calls = [item for item in live.turn.events.items if isinstance(item, CallItem)]
        if live.is_cancelled or live.turn.events.response["status"] == "failed":
            refusal = SteerRefused(steering.NOT_ACTIVE, f"the response '{live.id}' ended without a successor")
            self.num_waiting_bytes -= num_bytes
            self._return_steers(live.lane, steers, refusal)
        elif calls:
            self._steers.keep_waiting(live)
            for steer in steers:
                self._send(live, live.turn.events.numbered(steering.pending(steer, calls)))
        else:
            create = live.turn.create.succeeded_by(live.id, _items(steers))
            live.lane.waiting.appendleft(WaitingCreate(Successor(create, steers), num_bytes, self._monotonic()))

    def _return_steers(self, lane: Lane, steers: Sequence[Steer], refusal: SteerRefused) -> None:
        for steer in steers:
            refused = self._steers.refused(refusal, lane, steer.previous_id, steer.raw, steer.num_bytes, steer.id)
            self._actions.append(refused)

    def _refuse(self, lane: Lane, error: EdgeAgentError, answers: Sequence[Steer]) -> None:
        """Send the error of a create that failed before it began. If it answers steers, refuse them instead."""
        if answers:
            self._return_steers(lane, answers, SteerRefused(steering.NO_SUCCESSOR, str(error_body(error)["message"])))
        else:
            self._send_error(error, lane.name)

    def _refuse_unknown(self, kind: object) -> None:
        # While a response is under way, an error would be read as its end.
        if not self._lanes.default.is_busy:
            other = "no type" if kind is None else "a type that is no string"
            shown = f"'{kind[:64]}'" if isinstance(kind, str) else other
            message = f"unknown event type: got {shown}; send response.create, response.cancel or response.steer"
            self._send_error(InvalidRequest(message, param="type"), None)

    def _send(self, live: LaneTurn, events: list[Json], at_s: float = 0.0) -> None:
        last = len(events) - 1
        for index, event in enumerate(events):
            is_terminal = index == last and event["type"] in TERMINAL
            # The events of a response share what they repeat of its create.
            num_bytes = live.turn.create.num_echo_bytes if is_terminal else 0
            self._actions.append(Send(event, live.id, at_s, is_terminal, num_bytes))

    def _send_error(self, error: EdgeAgentError, stream_id: str | None) -> None:
        self._actions.append(Send(cast("Json", error_event(error, stream_id))))


def _items(steers: Sequence[Steer]) -> tuple[Item, ...]:
    return tuple(item for steer in steers for item in steer.items)
