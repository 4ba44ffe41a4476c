"""The socket around a Session: one reader that never waits for generation, one writer, one task for each live request.

Security has judged the handshake before this is reached. Of an event it knows only the size and the time it was made.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from fastapi import APIRouter, WebSocket
from pydantic_core import to_json
from starlette.websockets import WebSocketDisconnect

from edgeagent import metrics
from edgeagent.api.context import Context, context_of
from edgeagent.api.gate.access import client_of
from edgeagent.api.gate.envelope import WEBSOCKET
from edgeagent.api.gate.grants import until_revoked
from edgeagent.api.gate.pace import Pace
from edgeagent.api.responses.events import set_delivery
from edgeagent.api.responses.generation import steps_of
from edgeagent.api.responses.socket.actions import Action, Cancel, Close, Drop, Fetch, Keep, Queue, Send, Start
from edgeagent.api.responses.socket.frames import CreateFrame, read_frame
from edgeagent.api.responses.socket.lanes import Expiry
from edgeagent.api.responses.socket.outbox import Outbox
from edgeagent.api.responses.socket.session import Session
from edgeagent.api.responses.turn import Turn, told
from edgeagent.api.wire.delivery_time import DeliveryTime
from edgeagent.api.wire.json_body import aside
from edgeagent.api.wire.shape import Json
from edgeagent.errors import InternalError

# After this time a request that is neither refused nor started is announced as begun, since clients time out without an
# event. Until then an error is sent with its own status instead of as a failed response.
ADMISSION_S = 0.25
# A client that reads nothing for this long counts as gone, even if the connection is still open.
STALL_S = 10.0
CLOSE_S = 1.0
# Limits on a client's frames: a burst is read at once, then this many a second, which take a tenth of the loop's time.
FRAMES_PER_S = 500.0
FRAMES_BURST = 250
# How long a terminal event may wait for its response to be stored.
KEEP_S = 5.0
INTERNAL_ERROR = 1011
TRY_AGAIN_LATER = 1013

router = APIRouter()


@router.websocket("/v1/responses")
@router.websocket("/v1")
async def serve_socket(websocket: WebSocket) -> None:
    """Serve one client until it leaves. Some clients use their base URL as it is, hence the second path."""
    await Connection(websocket, context_of(websocket)).run()


@dataclass(slots=True)
class _InFlight:
    """A request of this connection, until its pump has ended and its terminal event is written.

    `is_held`: it can be found by its id. `is_ending`: its terminal event waits to be written, and before that the
    storing of its response, which is `kept`.
    """

    pump: asyncio.Task[None] | None = None
    is_held: bool = False
    is_ending: bool = False
    kept: asyncio.Future[None] | None = None
    delivery_time: DeliveryTime = field(default_factory=DeliveryTime)


class Connection:
    """One socket, from its handshake to its end."""

    def __init__(self, websocket: WebSocket, context: Context) -> None:
        self._websocket = websocket
        self._service = context.service
        self._store = context.history
        self._turns = context.turns
        self._warnings = context.warnings
        self._max_age_s = context.config.server.max_websocket_age_s
        self._partition = client_of(websocket)
        self._session = Session(
            context.service,
            context.history.new_history(),
            default_model=websocket.query_params.get("model"),
            partition=self._partition,
        )
        self._outbox = Outbox()
        self._requests: dict[str, _InFlight] = {}
        self._fetches: set[asyncio.Task[None]] = set()
        self._is_stalled = asyncio.Event()
        # When writing the current frame began, and the timer that checks it. Many frames share a timer, since a timer
        # for each frame would cost more than most frames.
        self._sending_since_s: float | None = None
        self._stall_timer: asyncio.TimerHandle | None = None

    async def run(self) -> None:
        """Accept and serve the socket, and end all its requests with it; it ends when its token does."""
        await self._websocket.accept()
        with until_revoked(self._end_with_token):
            await self._serve()

    async def _serve(self) -> None:
        metrics.open_websockets.inc()
        reader, writer = asyncio.create_task(self._read()), asyncio.create_task(self._write())
        stalled = asyncio.create_task(self._is_stalled.wait())
        expiry = asyncio.get_running_loop().call_later(self._max_age_s, self._expire) if self._max_age_s else None
        try:
            await asyncio.wait((reader, writer, stalled), return_when=asyncio.FIRST_COMPLETED)
        finally:
            metrics.open_websockets.dec()
            self._session.disconnected()
            for timer in (expiry, self._stall_timer):
                if timer is not None:
                    timer.cancel()
            pumps = [request.pump for request in self._requests.values() if request.pump is not None]
            await _cancel([reader, writer, stalled, *self._fetches, *pumps])
            for request_id in list(self._requests):
                self._release(request_id)
                self._settle(request_id)
        for task in (reader, writer):
            if not task.cancelled() and isinstance(error := task.exception(), Exception):
                told("a WebSocket", error)
                await self._close(INTERNAL_ERROR, "internal error")
        # If the client does not read the close frame either, the transport cuts the connection and counts it.
        if self._is_stalled.is_set() and await self._close(TRY_AGAIN_LATER, "the client does not read"):
            metrics.slow_clients_cut_total.labels("websocket").inc()

    async def _close(self, code: int, reason: str) -> bool:
        with suppress(TimeoutError, WebSocketDisconnect, RuntimeError):
            async with asyncio.timeout(CLOSE_S):
                await self._websocket.close(code, reason)
                return True
        return False

    async def _read(self) -> None:
        pace = Pace(FRAMES_PER_S, FRAMES_BURST)
        while True:
            message = await self._websocket.receive()
            if message["type"] == "websocket.disconnect":
                return
            if wait_s := pace.take():
                await asyncio.sleep(wait_s)
            text = message.get("text")
            if text is None:
                self._perform(self._session.receive_binary())
            else:
                frame = await aside(len(text), partial(read_frame, text))
                if isinstance(frame, CreateFrame) and frame.warning:
                    self._warnings.write(frame.warning)
                self._perform(self._session.receive(frame))

    async def _write(self) -> None:
        websocket, outbox = self._websocket, self._outbox
        with suppress(WebSocketDisconnect):
            while True:
                entry = await outbox.take()
                if isinstance(entry, Close):
                    await websocket.close(entry.code, entry.reason)
                    return
                request = self._requests.get(entry.request_id)
                if entry.is_terminal and request is not None:
                    if request.kept is not None:
                        # A client that has seen the end may continue from it, even if this process dies.
                        await asyncio.wait({request.kept}, timeout=KEEP_S)
                    if request.delivery_time.num:
                        set_delivery(entry.event, request.delivery_time.mean_ms)
                # The quickest encoder of a dict at hand in this layer: 0.5 µs a delta, where json.dumps takes 2.
                await self._send(to_json(entry.event).decode())
                if entry.is_terminal:
                    self._settle(entry.request_id)
                elif request is not None:
                    request.delivery_time.add(entry.at_s)
                if entry.is_terminal or entry.event["type"] == "error":
                    self._count(entry.event)

    def _settle(self, request_id: str) -> None:
        """Note that a request's terminal event is written, or is not to come."""
        self._service.delivered(request_id)
        if request := self._requests.get(request_id):
            request.is_ending = False
            self._forget_ended(request_id, request)

    async def _send(self, text: str) -> None:
        """Send a frame; if the client does not read it, or earlier ones, in time, the socket has stalled."""
        loop = asyncio.get_running_loop()
        self._sending_since_s = loop.time()
        if self._stall_timer is None:
            self._stall_timer = loop.call_later(STALL_S, self._look_for_stall)
        await self._websocket.send({"type": "websocket.send", "text": text})
        self._sending_since_s = None

    def _look_for_stall(self) -> None:
        self._stall_timer = None
        if self._sending_since_s is None:
            return
        loop = asyncio.get_running_loop()
        left_s = self._sending_since_s + STALL_S - loop.time()
        if left_s <= 0:
            self._is_stalled.set()
        else:
            self._stall_timer = loop.call_later(left_s, self._look_for_stall)

    def _count(self, event: Json) -> None:
        """Count how a create ended: by its response's status, or by that of the error that came instead."""
        outcome = str(event["status"]) if event["type"] == "error" else event["response"]["status"]
        metrics.requests_total.labels(self._websocket.scope["path"], WEBSOCKET, outcome).inc()

    def _perform(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Send() | Close():
                    if isinstance(action, Send) and action.is_terminal:
                        self._accept(action.request_id).is_ending = True
                    self._outbox.push(action)
                case Queue(turn):
                    self._hold(turn)
                case Start(turn):
                    task = asyncio.create_task(self._pump(turn), name=turn.request.id)
                    self._hold(turn).pump = task
                    # Not at the pump's own end: a task that is cancelled before its first step never gets there.
                    task.add_done_callback(lambda done: self._release(done.get_name()))
                case Fetch():
                    fetch = asyncio.create_task(self._fetch(action))
                    self._fetches.add(fetch)
                    fetch.add_done_callback(self._fetches.discard)
                case Keep(response, body):
                    self._accept(response.id).kept = self._store.add(response, to_json(body))
                case Cancel(request_id):
                    self._service.cancel(request_id)
                case Drop(request_id):
                    self._drop(request_id)
        if self._outbox.is_flooded:
            self._is_stalled.set()

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
            request.is_held, request.pump = False, None
            self._forget_ended(request_id, request)

    def _forget_ended(self, request_id: str, request: _InFlight) -> None:
        if not request.is_held and not request.is_ending:
            del self._requests[request_id]
            self._service.delivered(request_id)  # one that was refused has no terminal event

    def _cancel(self, request_id: str) -> None:
        self._perform(self._session.cancel(request_id))

    def _drop(self, request_id: str) -> None:
        request = self._requests.get(request_id)
        if request is not None and request.pump is not None:
            request.pump.cancel()
        else:
            self._release(request_id)

    async def _fetch(self, fetch: Fetch) -> None:
        self._perform(self._session.fetched(fetch.lane, await self._store.find(fetch.missing, self._partition)))

    def _expire(self) -> None:
        self._perform(self._session.expire(Expiry.by_age(self._max_age_s)))

    def _end_with_token(self) -> None:
        self._perform(self._session.expire(Expiry.by_token()))

    async def _pump(self, turn: Turn) -> None:
        """Carry one request's steps to the client; the session ends it in one terminal event, whatever happens."""
        request = turn.request
        admission = asyncio.get_running_loop().call_later(ADMISSION_S, self._admit, request.id)
        try:
            async with aclosing(steps_of(turn, self._service)) as steps:
                async for step in steps:
                    self._perform(self._session.step(request.id, step))
                    if self._outbox.is_full:
                        await self._wait_for_room()
            # Without effect after a terminal event. It keeps the rule if a backend breaks its own.
            self._perform(self._session.failed(request.id, InternalError("the backend ended without finishing")))
        except Exception as error:
            self._perform(self._session.failed(request.id, told(request.id, error)))
        finally:
            admission.cancel()

    def _admit(self, request_id: str) -> None:
        self._perform(self._session.admitted(request_id))

    async def _wait_for_room(self) -> None:
        try:
            async with asyncio.timeout(STALL_S):
                await self._outbox.room()
        except TimeoutError:
            self._is_stalled.set()


async def _cancel(tasks: list[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
