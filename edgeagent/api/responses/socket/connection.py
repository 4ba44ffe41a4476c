"""The Responses API over a WebSocket: a Session's actions performed, and one task for each live request."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial

from fastapi import APIRouter, WebSocket
from pydantic_core import to_json

from edgeagent import metrics
from edgeagent.api.context import Context, context_of
from edgeagent.api.gate.access import client_of
from edgeagent.api.gate.envelope import WEBSOCKET
from edgeagent.api.responses.events import set_delivery
from edgeagent.api.responses.frontend import Responses
from edgeagent.api.responses.generation import steps_of
from edgeagent.api.responses.socket.actions import Action, Cancel, Drop, Fetch, Keep, OwnAction, Queue, Start
from edgeagent.api.responses.socket.frames import CreateFrame, Frame, read_frame
from edgeagent.api.responses.socket.lanes import Expiry
from edgeagent.api.responses.socket.merging import TextMerging
from edgeagent.api.responses.socket.session import Session
from edgeagent.api.responses.turn import Turn
from edgeagent.api.socket.actions import Send
from edgeagent.api.socket.pump import Pump
from edgeagent.api.wire.delivery_time import DeliveryTime
from edgeagent.api.wire.errors import told
from edgeagent.api.wire.shape import Json
from edgeagent.errors import InternalError

# After this time a request that is neither refused nor started is announced as begun, since clients time out without an
# event. Until then an error is sent with its own status instead of as a failed response.
ADMISSION_S = 0.25
# How long a terminal event may wait for its response to be stored.
KEEP_S = 5.0

router = APIRouter()


@router.websocket("/v1/responses")
@router.websocket("/v1")
async def serve_socket(websocket: WebSocket) -> None:
    """Serve one client until it leaves. Some clients use their base URL as it is, hence the second path."""
    await Connection(websocket, context_of(websocket)).run()


@dataclass(slots=True)
class _InFlight:
    """A request of this connection, until its task has ended and its terminal event is written.

    `is_held`: it can be found by its id. `is_ending`: its terminal event waits to be written, and before that the
    storing of its response, which is `kept`.
    """

    task: asyncio.Task[None] | None = None
    is_held: bool = False
    is_ending: bool = False
    kept: asyncio.Future[None] | None = None
    delivery_time: DeliveryTime = field(default_factory=DeliveryTime)


class Connection(Pump[Frame, OwnAction]):
    """One client's socket: its session decides, and this performs."""

    def __init__(self, websocket: WebSocket, context: Context) -> None:
        self._max_age_s = context.config.server.max_websocket_age_s
        super().__init__(websocket, TextMerging(), self._max_age_s)
        self._service = context.service
        responses = context.frontends.get(Responses)
        self._store = responses.store
        self._turns = responses.turns
        self._warnings = context.warnings
        self._partition = client_of(websocket)
        self._session = Session(
            context.service,
            responses.store.new_history(),
            default_model=websocket.query_params.get("model"),
            partition=self._partition,
        )
        self._requests: dict[str, _InFlight] = {}

    def read(self, text: str) -> Frame:
        """Return what a text frame says."""
        return read_frame(text)

    def receive(self, frame: Frame) -> list[Action]:
        """Return the session's answer to a frame."""
        if isinstance(frame, CreateFrame) and frame.warning:
            self._warnings.write(frame.warning)
        return self._session.receive(frame)

    def grow_old(self) -> list[Action]:
        """Take no more creates, and close once nothing is under way."""
        return self._session.expire(Expiry.by_age(self._max_age_s))

    def lose_token(self) -> list[Action]:
        """Do the same for a token that has ended."""
        return self._session.expire(Expiry.by_token())

    def act(self, action: OwnAction) -> None:
        """Perform one of the session's own actions."""
        match action:
            case Queue(turn):
                self._hold(turn)
            case Start(turn):
                task = self.start(self._run_turn(turn))
                self._hold(turn).task = task
                # Not at the task's own end: a task that is cancelled before its first step never gets there.
                task.add_done_callback(lambda _: self._release(turn.request.id))
            case Fetch():
                self.start(self._fetch(action))
            case Keep(response, body):
                self._accept(response.id).kept = self._store.add(response, to_json(body))
            case Cancel(request_id):
                self._service.cancel(request_id)
            case Drop(request_id):
                self._drop(request_id)

    def ending(self, entry: Send) -> None:
        """Note that a request's terminal event is to be written: the stop waits for that."""
        self._accept(entry.request_id).is_ending = True

    async def before_end(self, entry: Send) -> None:
        """Wait until the response is stored, and write the measured delivery into its terminal event."""
        if request := self._requests.get(entry.request_id):
            if request.kept is not None:
                # A client that has seen the end may continue from it, even if this process dies.
                await asyncio.wait({request.kept}, timeout=KEEP_S)
            if request.delivery_time.num:
                set_delivery(entry.event, request.delivery_time.mean_ms)

    def sent(self, entry: Send) -> None:
        """Measure the delivery of an event, and count the end of a create."""
        if entry.is_terminal:
            self._settle(entry.request_id)
        elif request := self._requests.get(entry.request_id):
            request.delivery_time.add(entry.at_s)
        if entry.is_terminal or entry.event["type"] == "error":
            self._count(entry.event)

    def disconnect(self) -> None:
        """Forget the lanes: nothing more is started."""
        self._session.disconnected()

    def close(self) -> None:
        """Release the requests, whose tasks have ended."""
        for request_id in list(self._requests):
            self._release(request_id)
            self._settle(request_id)

    def _settle(self, request_id: str) -> None:
        """Note that a request's terminal event is written, or is not to come."""
        self._service.delivered(request_id)
        if request := self._requests.get(request_id):
            request.is_ending = False
            self._forget_ended(request_id, request)

    def _count(self, event: Json) -> None:
        """Count how a create ended: by its response's status, or by that of the error that came instead."""
        outcome = str(event["status"]) if event["type"] == "error" else event["response"]["status"]
        metrics.requests_total.labels(self.websocket.scope["path"], WEBSOCKET, outcome).inc()

    def _accept(self, request_id: str) -> _InFlight:
        self._service.accepted(request_id)
        return self._requests.setdefault(request_id, _InFlight())

    def _hold(self, turn: Turn) -> _InFlight:
        """Make a turn visible to requests for its id, until its release."""
        self._turns.add(turn, partial(self._cancel, turn.request.id))
        request = self._accept(turn.request.id)
        request.is_held = True
        return request

    def _release(self, request_id: str) -> None:
        self._turns.remove(request_id)
        if request := self._requests.get(request_id):
            request.is_held, request.task = False, None
            self._forget_ended(request_id, request)

    def _forget_ended(self, request_id: str, request: _InFlight) -> None:
        if not request.is_held and not request.is_ending:
            del self._requests[request_id]
            self._service.delivered(request_id)  # one that was refused has no terminal event

    def _cancel(self, request_id: str) -> None:
        self.perform(self._session.cancel(request_id))

    def _drop(self, request_id: str) -> None:
        request = self._requests.get(request_id)
        if request is not None and request.task is not None:
            request.task.cancel()
        else:
            self._release(request_id)

    async def _fetch(self, fetch: Fetch) -> None:
        self.perform(self._session.fetched(fetch.lane, await self._store.find(fetch.missing, self._partition)))

    async def _run_turn(self, turn: Turn) -> None:
        """Carry one request's steps to the client; the session ends it in one terminal event, whatever happens."""
        request = turn.request
        admission = asyncio.get_running_loop().call_later(ADMISSION_S, self._admit, request.id)
        try:
            async with aclosing(steps_of(turn, self._service)) as steps:
                async for step in steps:
                    self.perform(self._session.step(request.id, step))
                    if self.is_full:
                        await self.room()
            # Without effect after a terminal event. It keeps the rule if a backend breaks its own.
            self.perform(self._session.failed(request.id, InternalError("the backend ended without finishing")))
        except Exception as error:
            self.perform(self._session.failed(request.id, told(request.id, error)))
        finally:
            admission.cancel()

    def _admit(self, request_id: str) -> None:
        self.perform(self._session.admitted(request_id))
