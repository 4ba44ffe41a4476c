"""The Responses API over a WebSocket. A Connection performs the actions of its Session, with one task per request."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import suppress
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from fastapi import WebSocket
from pydantic_core import to_json
from starlette.types import Message
from starlette.websockets import WebSocketDisconnect

from edgeagent import metrics
from edgeagent.api.context import Context, context_of
from edgeagent.api.gate.access import client_of
from edgeagent.api.gate.body_limit import Arrival
from edgeagent.api.gate.envelope import WEBSOCKET
from edgeagent.api.responses.body import ResponseCreate
from edgeagent.api.responses.events import set_delivery
from edgeagent.api.responses.socket.ahead import AheadAnswer
from edgeagent.api.responses.socket.files import SentFiles
from edgeagent.api.responses.socket.frames import CreateFrame, Frame, OtherFrame, RefusedFrame, read_frame
from edgeagent.api.responses.socket.lanes import LaneTurn, UndeliveredResponse
from edgeagent.api.responses.socket.outbox import (
    INTERNAL_ERROR,
    TRY_AGAIN_LATER,
    UNSUPPORTED_DATA,
    Close,
    Outbox,
    Send,
)
from edgeagent.api.responses.socket.session import (
    Action,
    BeginAhead,
    Cancel,
    Drop,
    End,
    EndAhead,
    Fetch,
    OwnAction,
    Queue,
    Session,
    Start,
)
from edgeagent.api.responses.turn import compare, run_turn, summarize_early, why_kept_here
from edgeagent.api.wire.addresses import LOCAL_ONLY
from edgeagent.api.wire.body import read_with_images, warnings_for
from edgeagent.api.wire.errors import to_client_error
from edgeagent.api.wire.route import Routes
from edgeagent.api.wire.sse import SEND_KEY
from edgeagent.conversation.history import StoreResult
from edgeagent.conversation.items import Item, ReferenceItem
from edgeagent.credentials.grants import until_revoked
from edgeagent.credentials.keys import Scope
from edgeagent.errors import EdgeAgentError, InternalError
from edgeagent.media_files import mime_of
from edgeagent.service.client_sink import ClientSink, start_now
from edgeagent.types import RouteMode, Step

# After this time a request that is neither refused nor started is announced as begun, since clients time out without an
# event. Until then an error is sent with its own status instead of as a failed response.
ANNOUNCE_S = 0.25
# How long a terminal event may wait for its response to be stored. That of a cancelled one must come at once. If this
# process dies in the same moment, the response cannot be continued.
KEEP_S, KEEP_CANCELLED_S = 5.0, 0.02
# A client that reads nothing for this long counts as gone, even if the connection is still open.
STALL_S = 10.0
_NOT_READ = "the client does not read"
CLOSE_S = 1.0

# While a frame waits, this much is read behind it, and one frame more: a cancel among them passes.
MAX_EARLY_BYTES = 64 << 10
MAX_CANCEL_CHARS = 4 << 10

T = TypeVar("T")

routes = Routes()


@routes.add_socket("/v1/responses", Scope.INFER)
@routes.add_socket("/v1", Scope.INFER)
async def serve_socket(websocket: WebSocket) -> None:
    """Serve one client until it disconnects. The path `/v1` is for clients that connect to their base URL unchanged."""
    await Connection(websocket, context_of(websocket)).run()


class Connection:
    """One client's socket, from its handshake to its end. The session decides what to do, and the connection does it.

    Security has already checked the handshake. The HTTP server sends the pings and limits the rate of frames. One task
    reads and never waits for a request, and each request has a task, as has each frame. What is in the outbox is
    written at once, or by a task while the client's socket is full or a response is being stored.
    """

    def __init__(self, websocket: WebSocket, context: Context) -> None:
        self._websocket = websocket
        self._send: Callable[[Message], Awaitable[None]] = websocket.scope.get(SEND_KEY, websocket.send)
        self._outbox = Outbox()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._early: deque[Message] = deque()  # the frames that came while an earlier one waits
        self._arriving: asyncio.Task[Message] | None = None
        self._writing: asyncio.Task[None] | None = None
        self._is_writing = False
        self._is_closed = asyncio.Event()  # the outbox is not written any more
        self._trouble: Exception | None = None  # what ended the writing, other than the client
        self._stall = _Stall()
        self._api, self._service = context, context.service
        self._live = context.service.live
        self._responses, self._store = context.responses, context.responses.store
        self._partition = client_of(websocket)
        self._context = copy_context()  # that of the client, with the grant of its token
        self._session = self._new_session()
        self._files = SentFiles(context.in_flight, self._partition)
        self._held = self._begin_to_hold()
        self._kept = self._begin_to_keep()
        self._why_closed = _NOT_READ
        # The requests, by id. Each is kept until its task has ended and its terminal event is written.
        self._requests: dict[str, LaneTurn | UndeliveredResponse] = {}
        self._ahead: dict[AheadAnswer, asyncio.Task[None]] = {}

    def _new_session(self) -> Session:
        return Session(
            self._service,
            self._store.new_history(),
            default_model=self._websocket.query_params.get("model"),
            partition=self._partition,
        )

    async def run(self) -> None:
        """Accept the socket, serve it until it closes, and end its tasks.

        If the client's token becomes invalid meanwhile, refuse further `response.create` frames, and close when no lane
        is busy. Raise Unauthorized if the token is invalid already when the socket is accepted.
        """
        await self._websocket.accept()
        with until_revoked(lambda: self._perform(self._session.expire())):
            await self._serve()

    async def _serve(self) -> None:
        metrics.open_websockets.inc()
        reader = asyncio.create_task(self._read())
        ends = [asyncio.create_task(event.wait()) for event in (self._is_closed, self._stall.is_found)]
        try:
            await asyncio.wait((reader, *ends), return_when=asyncio.FIRST_COMPLETED)
        finally:
            metrics.open_websockets.dec()
            self._stall.cancel()
            try:
                self._session.disconnected()  # no further request starts
            finally:
                try:
                    writing = [] if self._writing is None else [self._writing]
                    await _cancel([reader, *ends, *writing, *self._tasks])
                finally:
                    self._release_all()
                    self._files.close()
                    # The objects of a connection refer to each other, so that they may be freed minutes later.
                    self._outbox.clear()
                    self._early.clear()
                    self._held.end()
                    self._session.history.clear()
                    self._kept.end()
                    self._responses.early_summaries.disconnected(self)
        trouble = self._trouble if reader.cancelled() else self._trouble or reader.exception()
        if isinstance(trouble, Exception):
            to_client_error("a WebSocket", trouble)
            await self._close(INTERNAL_ERROR, "internal error")
        if not self._stall.is_found.is_set():
            return
        is_told, is_slow = await self._close(TRY_AGAIN_LATER, self._why_closed), self._why_closed == _NOT_READ
        if not is_slow:
            self._api.in_flight.log_cut(self._why_closed, "websocket", self._partition)
        elif is_told:  # if it does not read the close frame either, the transport cuts the connection and tells it
            self._api.in_flight.note_slow("websocket", self._partition)

    async def _close(self, code: int, reason: str) -> bool:
        with suppress(TimeoutError, WebSocketDisconnect, RuntimeError):
            async with asyncio.timeout(CLOSE_S):
                await self._websocket.close(code, reason)
                return True
        return False

    async def _read(self) -> None:
        """Act on the frames in order. While one waits, as for an image, a cancel of what is under way passes it."""
        while (message := await self._next_message())["type"] != "websocket.disconnect":
            work = self._start(self._act_on(message))
            del message  # a frame may be large, and the next one late
            # Many frames may have arrived at once. `receive` does not let others run while there are more.
            await asyncio.sleep(0)
            while not work.done():
                await self._read_beside(work)
            work.result()

    async def _next_message(self) -> Message:
        if self._early:
            message = self._early.popleft()
            self._hold()
            return message
        arriving, self._arriving = self._arriving, None
        return await (arriving or self._websocket.receive())

    async def _read_beside(self, work: asyncio.Task[None]) -> None:
        """Wait for `work`, or for a frame. Pass the frame's cancel to the session, or keep the frame for its turn."""
        is_last = bool(self._early) and self._early[-1]["type"] == "websocket.disconnect"
        if self._arriving is None and not is_last and self._num_early_bytes < MAX_EARLY_BYTES:
            self._arriving = self._start(self._websocket.receive())
        if self._arriving is None:
            await asyncio.wait({work})
            return
        await asyncio.wait({work, self._arriving}, return_when=asyncio.FIRST_COMPLETED)
        if not self._arriving.done():
            return
        message, self._arriving = self._arriving.result(), None
        text = message.get("text") or ""
        is_short = len(text) <= MAX_CANCEL_CHARS
        actions = self._cancelled(text) if is_short and "response.cancel" in text else None
        if actions is None:
            self._early.append(message)
        self._perform(actions or [])

    @property
    def _num_early_bytes(self) -> int:
        """About the memory of the frames that were read before their turn."""
        return sum(512 + len(message.get("text") or message.get("bytes") or "") for message in self._early)

    async def _act_on(self, message: Message) -> None:
        text = message.get("text")
        if text is None:
            self._perform(await self._take_file(message.get("bytes") or b""))
        else:
            self._perform(await self._receive(text))

    def _cancelled(self, text: str) -> list[Action] | None:
        """Return the actions of a frame that cancels what is under way; None for any other frame."""
        frame = read_frame(text)
        is_cancel = isinstance(frame, OtherFrame) and self._session.can_cancel(frame)
        return self._session.receive(frame) if is_cancel else None

    async def _take_file(self, data: bytes) -> list[Action]:
        """Keep the file of a binary frame, which the next creates may name."""
        if not mime_of(data):
            return [Close(UNSUPPORTED_DATA, "a binary frame must be an image or a sound")]
        await self._files.add(data)
        return []

    async def _receive(self, text: str) -> list[Action]:
        """Return the actions that answer a frame. No image is fetched for a create that is refused."""
        read, files = partial(read_frame, text), self._files.by_name
        frame = await read_with_images(self._websocket, len(text), read, files, self._why_kept_or_refused)
        if isinstance(frame, CreateFrame) and frame.warning:
            warnings_for(self._websocket).log.write(frame.warning)
        return await self._acted_on(frame)

    async def _acted_on(self, frame: Frame) -> list[Action]:
        """Return the session's actions for a frame, once the client has read what it was sent.

        A cancel does not wait. Any other frame may be answered with as much as was sent.
        """
        if not (isinstance(frame, OtherFrame) and frame.fields.get("type") == "response.cancel"):
            await self._outbox.wait_for_room()
        return self._session.receive(frame)

    async def _why_kept_or_refused(self, frame: Frame) -> str | Frame:
        assert isinstance(frame, CreateFrame), "only creates have images"
        create = frame.create_or_refusal
        if not isinstance(create, ResponseCreate):
            return frame
        try:
            return await self._why_kept(create.previous_id, create.items)
        except EdgeAgentError as error:
            return replace(frame, create_or_refusal=RefusedFrame(error, create.previous_id))

    async def _why_kept(self, previous_id: str | None, items: tuple[Item, ...]) -> str:
        """See `why_kept_here`. The response `previous_id` may still be under way on this connection."""
        if isinstance(live := self._requests.get(previous_id or ""), LaneTurn):
            if live.turn.request.route is RouteMode.LOCAL_ONLY:
                return LOCAL_ONLY
            known = {item.id for item in live.turn.events.items}
            previous_id = None
            items = tuple(item for item in items if isinstance(item, ReferenceItem) and item.id not in known)
        return await why_kept_here(previous_id, items, self._session.history, self._store, self._partition)

    async def _write(self) -> None:
        """Write what is in the outbox."""
        try:
            while (entry := self._outbox.take()) is not None:
                if isinstance(entry, Close):
                    await self._websocket.close(entry.code, entry.reason)
                    self._is_closed.set()
                    return
                if entry.is_terminal:
                    await self._before_end(entry)
                self._stall.begin()
                # to_json takes 0.5 µs for a delta, and json.dumps 2 µs.
                await self._send({"type": "websocket.send", "text": to_json(entry.event).decode()})
                self._stall.end()
                self._sent(entry)
        except (WebSocketDisconnect, OSError):  # OSError: the server's own `send`
            self._is_closed.set()
        except Exception as error:
            self._trouble = error
            self._is_closed.set()
        finally:
            self._is_writing = False
            self._hold()

    def _perform(self, actions: Iterable[Action]) -> None:
        """Perform actions in order."""
        for action in actions:
            if isinstance(action, Send | Close):
                self._outbox.push(action)
            else:
                self._act(action)
        if not (self._is_writing or self._is_closed.is_set()):
            self._is_writing = True
            self._writing = start_now(self._write())
        self._hold()

    def _begin_to_hold(self) -> Arrival:
        arrival = self._api.in_flight.begin(self._cut)
        arrival.client = self._partition
        return arrival

    def _begin_to_keep(self) -> Arrival:
        arrival = self._api.kept.begin(self._forget)
        arrival.client = self._partition
        return arrival

    def _hold(self) -> None:
        """Count what waits, and what the client does not read, among the bytes that clients send; and what is kept."""
        if (num_kept_bytes := self._num_kept_bytes) != self._kept.num_bytes:
            self._kept.renew()
            self._kept.hold(num_kept_bytes, is_whole=False)
        num_bytes = self._session.num_waiting_bytes + self._num_early_bytes
        num_bytes += self._outbox.num_bytes if self._outbox.is_full else 0
        if num_bytes != self._held.num_bytes and not self._stall.is_found.is_set():
            self._held.hold(num_bytes, is_whole=False)

    @property
    def _num_kept_bytes(self) -> int:
        """The bytes that the connection keeps between frames."""
        return self._session.history.num_bytes

    def _forget(self) -> None:
        """Forget what can be continued here, since all connections keep too much. The store may still have it."""
        self._session.history.clear()
        self._kept = self._begin_to_keep()

    def _cut(self) -> None:
        """Refuse the creates that wait, since clients send too much at once. If none does, close the connection."""
        num_bytes = self._session.num_waiting_bytes
        self._session.refuse_waiting()
        if self._session.num_waiting_bytes < num_bytes:
            self._held = self._begin_to_hold()
            self._hold()
        else:
            self._end("clients are sending too much at once; send it again")

    def _end(self, why: str) -> None:
        self._why_closed = why
        self._stall.is_found.set()

    def _start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run a coroutine as a task in this client's context. If it still runs when the connection ends, cancel it.

        The caller's context may be another client's: a cancel can come from another connection.
        """
        task = asyncio.create_task(work, context=self._context.copy())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _act(self, action: OwnAction) -> None:
        """Begin an action other than Send and Close, without waiting for its end."""
        match action:
            case Queue(live):
                self._show(live)
            case Start(live):
                live.task = self._start(self._run_turn(live))
                self._show(live)
                # A callback, not code in the task: a task that is cancelled before it starts runs no code.
                live.task.add_done_callback(lambda _: self._release(live))
            case Fetch():
                self._start(self._fetch(action))
            case End(live, response):
                live.is_ending = True
                self._register(live)
                summarize_early(live.turn, self._api, self)
                if response is not None:
                    live.stored_future = self._store.add(response, live.turn.events.to_store())
                self._shrink(live)
            case Cancel(live):
                self._service.cancel(live.id)
            case Drop(live):
                if live.task is not None:
                    live.task.cancel()
                else:
                    self._release(live)
            case BeginAhead(answer):
                task = self._ahead[answer] = self._start(self._answer_ahead(answer))
                task.add_done_callback(lambda _: self._ahead.pop(answer))
            case EndAhead(answer):
                if answer in self._ahead:
                    self._ahead[answer].cancel()

    async def _answer_ahead(self, answer: AheadAnswer) -> None:
        try:
            await self._service.generate(answer.request, answer)
        except Exception as error:
            to_client_error(answer.request.id, error)  # it logs a bug; the client has asked for nothing yet

    async def _before_end(self, entry: Send) -> None:
        """Wait a while until the response is stored. Write the mean delivery time into its terminal event."""
        live = self._requests.get(entry.request_id)
        if live is None:
            return
        if live.stored_future is not None:
            # A client that has seen the end may continue from it, even if this process dies.
            is_cancelled = entry.event["response"]["status"] == "cancelled"
            await asyncio.wait({live.stored_future}, timeout=KEEP_CANCELLED_S if is_cancelled else KEEP_S)
        if live.delivery_time.num:
            set_delivery(entry.event, live.delivery_time.mean_ms)

    def _sent(self, entry: Send) -> None:
        """Measure an event's delivery time. If it is terminal or an error, count its status: HTTP's for an error."""
        if live := self._requests.get(entry.request_id):
            if entry.is_terminal:
                self._settle(live)
            else:
                live.delivery_time.add(entry.at_s)
        if entry.is_terminal or entry.event["type"] == "error":
            event = entry.event
            outcome = str(event["status"]) if event["type"] == "error" else event["response"]["status"]
            metrics.requests_total.labels(self._websocket.scope["path"], WEBSOCKET, outcome).inc()

    def _release_all(self) -> None:
        """Release all requests. Their tasks have already ended."""
        for live in list(self._requests.values()):
            if isinstance(live, LaneTurn):
                self._release(live)
        for each in list(self._requests.values()):
            self._settle(each)

    def _register(self, live: LaneTurn) -> None:
        """Register a request, so that a stopping daemon waits until its terminal event is written."""
        self._live.expect_delivery(live)
        self._requests[live.id] = live

    def _show(self, live: LaneTurn) -> None:
        """Make a response visible to requests for its id, until its release."""
        live.cancel = partial(self._cancel, live.id)
        self._live.show(live)
        self._register(live)

    def _cancel(self, request_id: str) -> None:
        live = self._requests.get(request_id)
        if isinstance(live, LaneTurn):
            self._perform(self._session.cancel(live))

    def _release(self, live: LaneTurn) -> None:
        """Hide a request whose task has ended or never began, and free the memory that is no longer needed."""
        live.task = None
        self._live.hide(live)
        self._forget_ended(live)
        self._shrink(live)

    def _shrink(self, live: LaneTurn) -> None:
        """Free a turn's inputs if it is over and hidden. Keep only what is needed to write its terminal event.

        This limits the memory that is kept for a client that does not read.
        """
        is_kept = self._requests.get(live.id) is live  # not yet reduced, nor written
        if is_kept and live.is_ending and live.task is None and not live.is_visible:
            undelivered = self._requests[live.id] = UndeliveredResponse(live)
            self._live.expect_delivery(undelivered)

    def _settle(self, live: LaneTurn | UndeliveredResponse) -> None:
        """Note that a request's terminal event is written, or will not come."""
        live.is_ending = False
        self._live.mark_delivered(live)
        self._forget_ended(live)

    def _forget_ended(self, live: LaneTurn | UndeliveredResponse) -> None:
        if not live.is_visible and not live.is_ending:
            self._requests.pop(live.id, None)
            self._live.mark_delivered(live)  # one that was refused has no terminal event

    async def _fetch(self, fetch: Fetch) -> None:
        try:
            found = await self._store.find(fetch.missing, self._partition)
        except Exception as error:  # otherwise the lane would wait for ever
            found = StoreResult(refusal=to_client_error("a WebSocket", error))
        self._perform(self._session.fetched(fetch.lane, found))

    async def _run_turn(self, live: LaneTurn) -> None:
        """Send the events of one request's steps to the client. Every outcome gives exactly one terminal event."""
        loop = asyncio.get_running_loop()
        announcement = loop.call_later(ANNOUNCE_S, lambda: self._perform(self._session.announce(live)))
        sink = ClientSink(partial(self._on_step, live))
        sink.open()
        try:
            await compare(live.turn, self._store)
            await run_turn(live.turn, self._service, sink, self._responses.early_summaries)
            await sink.room()
            # This has no effect after a terminal event. It ends the request if the backend sent no Finished.
            self._failed(live, InternalError("the backend ended without finishing"))
        except Exception as error:
            await sink.room()
            self._failed(live, to_client_error(live.id, error))
        finally:
            announcement.cancel()
            await sink.close()

    def _failed(self, live: LaneTurn, error: EdgeAgentError) -> None:
        """End a response with an error, if it has not ended yet."""
        self._perform(self._session.failed(live, error))

    async def _on_step(self, live: LaneTurn, step: Step) -> None:
        """Send the events of a step. If the client reads too slowly, the next steps of this request wait."""
        self._perform(self._session.step(live, step))
        if self._outbox.is_full and live.is_under_way:
            await self._outbox.wait_for_room()


class _Stall:
    """Detects a client that does not read: if the write of a frame takes STALL_S seconds, it sets `is_found`.

    All writes share one timer, because a timer for each write would cost more than most writes.
    """

    def __init__(self) -> None:
        self.is_found = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._since_s: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Note that a frame is being written."""
        self._since_s = self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_later(STALL_S, self._look)

    def end(self) -> None:
        self._since_s = None

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self._timer = None
        if self._since_s is None:
            return
        left_s = self._since_s + STALL_S - self._loop.time()
        if left_s <= 0:
            self.is_found.set()
        else:
            self._timer = self._loop.call_later(left_s, self._look)


async def _cancel(tasks: list[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
