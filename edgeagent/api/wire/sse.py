"""Streamed bodies: server-sent events, keeping a silent stream alive, and noticing that the client has gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing, suppress
from typing import Any, TypeVar

from pydantic_core import to_json
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

PING_INTERVAL_S = 5.0
PING = b": ping\n\n"
DONE = b"data: [DONE]\n\n"

SEND_KEY = "edgeagent.send"
"""The key in an ASGI scope of the server's own `send`. For a part of a stream, no middleware has anything to add."""

T = TypeVar("T")


def event(document: object, name: str | None = None) -> bytes:
    """Return one server-sent event that carries `document` as JSON. `name`: the event's type; None: it has no type.

    JSON text has no raw line breaks, so one `data:` line is enough.
    """
    head = f"event: {name}\ndata: ".encode() if name else b"data: "
    return b"%s%s\n\n" % (head, to_json(document))


class Stream(Response):
    """A response whose body is what a generator yields: each chunk is sent at once.

    If the client disconnects, the generator is closed. If the generator fails, it must yield the error as a chunk,
    because the status line was sent before. After `ping_interval_s` without a chunk, `ping` is sent, so that the client
    does not take the connection for lost: a comment, or an event without content. None: no pings.
    """

    ping = PING
    ping_interval_s: float | None = None

    def __init__(self, chunks: AsyncGenerator[bytes, None] | None = None, media_type: str | None = None) -> None:
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        super().__init__(headers=headers, media_type=media_type)
        del self.headers["content-length"]
        self._chunks = chunks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._send_part = scope.get(SEND_KEY, send)
        self._clock = asyncio.get_running_loop().time  # get_running_loop is a system call before Python 3.12
        self._sent_at_s = self._clock()
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        with suppress(ClientDisconnect):
            await unless_disconnected(receive, self._send_body(send))

    async def write(self, part: bytes) -> None:
        """Send a part of the body. This waits only while the client's socket is full."""
        await self._send_part({"type": "http.response.body", "body": part, "more_body": True})
        self._sent_at_s = self._clock()

    async def write_all(self) -> None:
        """Write the whole body. It is cancelled if the client disconnects. A subclass may have no generator."""
        assert self._chunks is not None
        async with aclosing(self._chunks) as chunks:
            async for chunk in chunks:
                await self.write(chunk)

    async def _send_body(self, send: Send) -> None:
        pings = None if self.ping_interval_s is None else asyncio.create_task(self._ping(self.ping_interval_s))
        try:
            await self.write_all()
        finally:
            if pings is not None:
                pings.cancel()
                with suppress(asyncio.CancelledError):
                    await pings
        await send({"type": "http.response.body", "body": b""})

    async def _ping(self, interval_s: float) -> None:
        while True:
            silent_s = self._clock() - self._sent_at_s
            if silent_s >= interval_s:
                await self.write(self.ping)
                silent_s = 0.0
            await asyncio.sleep(interval_s - silent_s)


class EventStream(Stream):
    """A stream of whole server-sent events."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None], ping_interval_s: float = PING_INTERVAL_S) -> None:
        super().__init__(events)
        self.ping_interval_s = ping_interval_s


async def unless_disconnected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`. If the client disconnects first, cancel `work` and raise ClientDisconnect.

    The caller must have read the request's body.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.create_task(_disconnected(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        for each in (task, gone):
            each.cancel()
        await asyncio.wait({task, gone})  # it passes on a cancellation of this task, which awaiting each would swallow


async def last_of(steps: AsyncGenerator[T, None]) -> T:
    """Read a generator to its end, and return the last value. There must be one."""
    async with aclosing(steps):
        async for step in steps:
            last = step
    return last


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
