"""The Responses API over a WebSocket. A Connection performs the actions of its Session, with one task per request."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from fastapi import APIRouter, WebSocket
from pydantic_core import to_json

from edgeagent import metrics
from edgeagent.api.context import Context, context_of
from edgeagent.api.gate.access import client_of
from edgeagent.api.gate.envelope import WEBSOCKET
from edgeagent.api.responses.events import set_delivery
from edgeagent.api.responses.socket.frames import CreateFrame, Frame, read_frame
from edgeagent.api.responses.socket.lanes import LaneTurn, UndeliveredResponse
from edgeagent.api.responses.socket.session import Action, Cancel, Drop, End, Fetch, OwnAction, Queue, Session, Start
from edgeagent.api.responses.turn import steps_of
from edgeagent.api.socket.outbox import Send
from edgeagent.api.socket.pump import Pump
from edgeagent.api.wire.errors import to_client_error
from edgeagent.api.wire.shape import Json
from edgeagent.conversation.history import StoreResult
from edgeagent.errors import InternalError

# A merged delta stays well under the 1 MiB that clients take as a frame.
MAX_MERGED_CHARS = 64 << 10
MAX_MERGED_LOGPROBS = 200
_ENTRY_BYTES = 512
_TEXT = "response.output_text.delta"


class TextMerging:
    """The rules for merging in one connection's outbox, and the numbers of its events after merging."""

    def __init__(self) -> None:
        # By response id: how many of its events were merged into earlier ones. The entry of the last response that
        # ended is kept, because events about its steers follow its terminal event at once, and are numbered too.
        self._num_merged: dict[str, int] = {}
        self._ended_id = ""

    def cost(self, event: Json) -> int:
        """Return roughly how many bytes of memory an event takes."""
        # The event at a text's end holds the text once more. The events after it share that text.
        text = event.get("delta") or event.get("text") or event.get("arguments") or ""
        return _ENTRY_BYTES * (1 + len(event.get("logprobs", ()))) + len(text)

    def merge(self, waiting: Send, entry: Send) -> bool:
        """Append a text delta to a waiting text delta of the same item, if the result is not too large for a frame.

        Return whether the delta was appended.
        """
        first, second = waiting.event, entry.event
        if not _is_same_text(first, second):
            return False
        if len(first["delta"]) > MAX_MERGED_CHARS or len(first["logprobs"]) > MAX_MERGED_LOGPROBS:
            return False
        first["delta"] += second["delta"]
        first["logprobs"] = first["logprobs"] + second["logprobs"]
        self._num_merged[entry.request_id] = self._num_merged.get(entry.request_id, 0) + 1
        return True

    def append(self, entry: Send) -> None:
        """Lower an event's number by 1 for each earlier event of its response that was merged."""
        if entry.request_id in self._num_merged:
            entry.event["sequence_number"] -= self._num_merged[entry.request_id]
        if entry.is_terminal:
            self._num_merged.pop(self._ended_id, None)
            self._ended_id = entry.request_id


def _is_same_text(first: Json, second: Json) -> bool:
    return first["type"] == _TEXT and second["type"] == _TEXT and bool(first["item_id"] == second["item_id"])


# After this time a request that is neither refused nor started is announced as begun, since clients time out without an
# event. Until then an error is sent with its own status instead of as a failed response.
ADMISSION_S = 0.25
# How long a terminal event may wait for its response to be stored.
KEEP_S = 5.0

router = APIRouter()


@router.websocket("/v1/responses")
@router.websocket("/v1")
async def serve_socket(websocket: WebSocket) -> None:
    """Serve one client until it disconnects. The path `/v1` is for clients that connect to their base URL unchanged."""
    await Connection(websocket, context_of(websocket)).run()


class Connection(Pump[Frame, OwnAction]):
    """One client's socket. The session decides what to do, and the connection does it."""

    def __init__(self, websocket: WebSocket, context: Context) -> None:
        super().__init__(websocket, TextMerging())
        self._service = context.service
        self._live = context.service.live
        self._store = context.responses.store
        self._warnings = context.warnings
        self._partition = client_of(websocket)
        self._session = Session(
            context.service,
            self._store.new_history(),
            default_model=websocket.query_params.get("model"),
            partition=self._partition,
        )
        # The requests, by id. Each is kept until its task has ended and its terminal event is written.
        self._requests: dict[str, LaneTurn | UndeliveredResponse] = {}

    def read(self, text: str) -> Frame:
        """Return the content of a text frame."""
        return read_frame(text)

    def receive(self, frame: Frame) -> list[Action]:
        """Return the actions with which the session answers a frame."""
        if isinstance(frame, CreateFrame) and frame.warning:
            self._warnings.write(frame.warning)
        return self._session.receive(frame)

    def lose_token(self) -> list[Action]:
        """Refuse further `response.create` frames, because the token is no longer valid. Close when no lane is busy."""
        return self._session.expire()

    def act(self, action: OwnAction) -> None:
        """Perform an action that only this protocol has."""
        match action:
            case Queue(live):
                self._show(live)
            case Start(live):
                live.task = self.start(self._run_turn(live))
                self._show(live)
                # A callback, not code in the task: a task that is cancelled before it starts runs no code.
                live.task.add_done_callback(lambda _: self._release(live))
            case Fetch():
                self.start(self._fetch(action))
            case End(live, response):
                live.is_ending = True
                self._register(live)
                if response is not None:
                    live.stored_future = self._store.add(response, to_json(live.turn.events.response))
                self._shrink(live)
            case Cancel(live):
                self._service.cancel(live.id)
            case Drop(live):
                if live.task is not None:
                    live.task.cancel()
                else:
                    self._release(live)

    async def before_end(self, entry: Send) -> None:
        """Wait until the response is stored, at most KEEP_S. Write the mean delivery time into its terminal event."""
        live = self._requests.get(entry.request_id)
        if live is None:
            return
        if live.stored_future is not None:
            # A client that has seen the end may continue from it, even if this process dies.
            await asyncio.wait({live.stored_future}, timeout=KEEP_S)
        if live.delivery_time.num:
            set_delivery(entry.event, live.delivery_time.mean_ms)

    def sent(self, entry: Send) -> None:
        """Measure an event's delivery time. Count the outcome if the event is terminal or an error."""
        if live := self._requests.get(entry.request_id):
            if entry.is_terminal:
                self._settle(live)
            else:
                live.delivery_time.add(entry.at_s)
        if entry.is_terminal or entry.event["type"] == "error":
            self._count(entry.event)

    def disconnect(self) -> None:
        """Forget the lanes, so that no further request starts."""
        self._session.disconnected()

    def close(self) -> None:
        """Release all requests. Their tasks have already ended."""
        for live in list(self._requests.values()):
            if isinstance(live, LaneTurn):
                self._release(live)
        for each in list(self._requests.values()):
            self._settle(each)

    def _count(self, event: Json) -> None:
        """Count a `response.create` that has ended, by the status of its response or the HTTP status of its error."""
        outcome = str(event["status"]) if event["type"] == "error" else event["response"]["status"]
        metrics.requests_total.labels(self.websocket.scope["path"], WEBSOCKET, outcome).inc()

    def _register(self, live: LaneTurn) -> None:
        """Register a request, so that a stopping daemon waits until its terminal event is written."""
        self._live.expect_delivery(live)
        self._requests[live.id] = live

    def _show(self, live: LaneTurn) -> None:
        """Make a response visible to requests for its id, until its release."""
        live.cancel = lambda: self.perform(self._session.cancel(live))
        self._live.show(live)
        self._register(live)

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
        self.perform(self._session.fetched(fetch.lane, found))

    async def _run_turn(self, live: LaneTurn) -> None:
        """Send the events of one request's steps to the client. Every outcome gives exactly one terminal event."""
        admission = asyncio.get_running_loop().call_later(ADMISSION_S, self._admit, live)
        try:
            async with aclosing(steps_of(live.turn, self._service)) as steps:
                async for step in steps:
                    self.perform(self._session.step(live, step))
                    if self.is_full and live.is_under_way:
                        await self.wait_for_room()
            # This has no effect after a terminal event. It ends the request if the backend sent no Finished.
            self.perform(self._session.failed(live, InternalError("the backend ended without finishing")))
        except Exception as error:
            self.perform(self._session.failed(live, to_client_error(live.id, error)))
        finally:
            admission.cancel()

    def _admit(self, live: LaneTurn) -> None:
        self.perform(self._session.admitted(live))
