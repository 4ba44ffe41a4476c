"""The pump of a WebSocket: one reader that never waits for a request, one writer, and the connection's tasks.

A protocol derives its connection class from Pump. That class parses frames, answers each frame with actions, and
performs the actions that only this protocol has.
Security has already checked the handshake. The HTTP server sends the pings and limits the rate of frames.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, Generic, TypeVar

from fastapi import WebSocket
from pydantic_core import to_json
from starlette.websockets import WebSocketDisconnect

from edgeagent import metrics
from edgeagent.api.socket.outbox import INTERNAL_ERROR, TRY_AGAIN_LATER, UNSUPPORTED_DATA, Close, Merging, Outbox, Send
from edgeagent.api.wire.errors import to_client_error
from edgeagent.api.wire.json_body import run_inline_or_in_thread
from edgeagent.credentials.grants import until_revoked

# A client that reads nothing for this long counts as gone, even if the connection is still open.
STALL_S = 10.0
CLOSE_S = 1.0

FrameT = TypeVar("FrameT")
ActionT = TypeVar("ActionT")


class Pump(ABC, Generic[FrameT, ActionT]):
    """One socket, from its handshake to its end."""

    def __init__(self, websocket: WebSocket, merging: Merging) -> None:
        self.websocket = websocket
        self._outbox = Outbox(merging)
        self._tasks: set[asyncio.Task[None]] = set()
        self._stall = _Stall()

    @abstractmethod
    def read(self, text: str) -> FrameT:
        """Return the content of a text frame. It must have no side effects: a large frame is read in a thread.

        It must not raise for a bad frame: an exception closes the socket with INTERNAL_ERROR.
        """

    @abstractmethod
    def receive(self, frame: FrameT) -> Iterable[ActionT | Send | Close]:
        """Return the actions that answer a frame."""

    def receive_binary(self) -> Iterable[ActionT | Send | Close]:
        """Return the actions that answer a binary frame. A protocol without binary frames closes the connection."""
        return [Close(UNSUPPORTED_DATA, "text frames only")]

    @abstractmethod
    def act(self, action: ActionT) -> None:
        """Begin an action that only this protocol has, without waiting for its end."""

    @abstractmethod
    def lose_token(self) -> Iterable[ActionT | Send | Close]:
        """Return the actions for a connection whose token is no longer valid."""

    async def before_end(self, entry: Send) -> None:
        """Prepare a terminal event just before it is sent. Until this method returns, no later event is sent."""

    def sent(self, entry: Send) -> None:
        """Take note of an event that has been handed to the socket."""

    def disconnect(self) -> None:
        """Make sure that no request begins any more. Called before the connection's tasks are cancelled."""

    def close(self) -> None:
        """Release what the connection holds, after its tasks have ended."""

    async def run(self) -> None:
        """Accept the socket, serve it until it closes, and end its tasks.

        Call `lose_token` if the client's token becomes invalid meanwhile. Raise Unauthorized if the token is invalid
        already when the socket is accepted.
        """
        await self.websocket.accept()
        with until_revoked(lambda: self.perform(self.lose_token())):
            await self._serve()

    def perform(self, actions: Iterable[ActionT | Send | Close]) -> None:
        """Perform actions in order."""
        for action in actions:
            if isinstance(action, Send | Close):
                self._outbox.push(action)
            else:
                self.act(action)
        if self._outbox.is_flooded:
            self._stall.is_found.set()

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a coroutine as a task. If it still runs when the connection ends, it is cancelled."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    @property
    def is_full(self) -> bool:
        """Whether the outbox is full. A task that makes events should then call `wait_for_room`."""
        return self._outbox.is_full

    async def wait_for_room(self) -> None:
        """Wait until the outbox has room. After STALL_S seconds, mark the client as stalled and return."""
        try:
            async with asyncio.timeout(STALL_S):
                await self._outbox.wait_for_room()
        except TimeoutError:
            self._stall.is_found.set()

    async def _serve(self) -> None:
        metrics.open_websockets.inc()
        reader, writer = asyncio.create_task(self._read()), asyncio.create_task(self._write())
        stalled = asyncio.create_task(self._stall.is_found.wait())
        try:
            await asyncio.wait((reader, writer, stalled), return_when=asyncio.FIRST_COMPLETED)
        finally:
            metrics.open_websockets.dec()
            self._stall.cancel()
            try:
                self.disconnect()
            finally:
                try:
                    await _cancel([reader, writer, stalled, *self._tasks])
                finally:
                    self.close()
        for task in (reader, writer):
            if not task.cancelled() and isinstance(error := task.exception(), Exception):
                to_client_error("a WebSocket", error)
                await self._close(INTERNAL_ERROR, "internal error")
        # If the client does not read the close frame either, the transport cuts the connection and counts it.
        if self._stall.is_found.is_set() and await self._close(TRY_AGAIN_LATER, "the client does not read"):
            metrics.slow_clients_cut_total.labels("websocket").inc()

    async def _close(self, code: int, reason: str) -> bool:
        with suppress(TimeoutError, WebSocketDisconnect, RuntimeError):
            async with asyncio.timeout(CLOSE_S):
                await self.websocket.close(code, reason)
                return True
        return False

    async def _read(self) -> None:
        while True:
            message = await self.websocket.receive()
            if message["type"] == "websocket.disconnect":
                return
            text = message.get("text")
            if text is None:
                self.perform(self.receive_binary())
            else:
                self.perform(self.receive(await run_inline_or_in_thread(len(text), partial(self.read, text))))
            # Many frames may have arrived at once. `receive` does not let others run while there are more.
            await asyncio.sleep(0)

    async def _write(self) -> None:
        with suppress(WebSocketDisconnect):
            while True:
                entry = await self._outbox.take()
                if isinstance(entry, Close):
                    await self.websocket.close(entry.code, entry.reason)
                    return
                if entry.is_terminal:
                    await self.before_end(entry)
                self._stall.begin()
                # to_json takes 0.5 µs for a delta, and json.dumps 2 µs.
                await self.websocket.send({"type": "websocket.send", "text": to_json(entry.event).decode()})
                self._stall.end()
                self.sent(entry)


class _Stall:
    """Detects a client that does not read: if the write of a frame takes STALL_S seconds, it sets `is_found`.

    All writes share one timer, because a timer for each write would cost more than most writes.
    """

    def __init__(self) -> None:
        self.is_found = asyncio.Event()
        self._since_s: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Note that a frame is being written."""
        loop = asyncio.get_running_loop()
        self._since_s = loop.time()
        if self._timer is None:
            self._timer = loop.call_later(STALL_S, self._look)

    def end(self) -> None:
        """Note that the frame is written."""
        self._since_s = None

    def cancel(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self._timer = None
        if self._since_s is None:
            return
        loop = asyncio.get_running_loop()
        left_s = self._since_s + STALL_S - loop.time()
        if left_s <= 0:
            self.is_found.set()
        else:
            self._timer = loop.call_later(left_s, self._look)


async def _cancel(tasks: list[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
