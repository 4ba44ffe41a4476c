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

T = TypeVar("T")


def event(document: object, name: str | None = None) -> bytes:
    """Return one server-sent event that carries `document` as JSON. `name`: the event's type; None: it has no type.

    JSON text has no raw line breaks, so one `data:` line is enough.
    """
    head = f"event: {name}\ndata: ".encode() if name else b"data: "
    return b"%s%s\n\n" % (head, to_json(document))


class Stream(Response):
    """A response that sends each chunk when a generator yields it. The generator is closed if the client disconnects.

    The generator must yield its own failures as content, because the status line has been sent by then.
    """

    def __init__(self, chunks: AsyncGenerator[bytes, None]) -> None:
        super().__init__(headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._chunks = chunks
        self._sent_at_s = 0.0
        self._is_ended = False

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        with suppress(ClientDisconnect):
            await unless_disconnected(receive, self._pump(send))

    async def _pump(self, send: Send) -> None:
        clock = asyncio.get_running_loop().time
        async with aclosing(self._chunks) as chunks:
            async for chunk in chunks:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
                self._sent_at_s = clock()
        self._is_ended = True
        await send({"type": "http.response.body", "body": b""})


class EventStream(Stream):
    """A stream of whole server-sent events. It sends a comment if there was no event for `ping_interval_s`.

    Without the comment, a client could take the silence for a lost connection.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None], ping_interval_s: float = PING_INTERVAL_S) -> None:
        super().__init__(events)
        self._ping_interval_s = ping_interval_s

    async def _pump(self, send: Send) -> None:
        self._sent_at_s = asyncio.get_running_loop().time()
        pings = asyncio.create_task(self._ping(send))
        try:
            await super()._pump(send)
        finally:
            pings.cancel()
            with suppress(asyncio.CancelledError):
                await pings

    async def _ping(self, send: Send) -> None:
        clock = asyncio.get_running_loop().time
        while not self._is_ended:
            silent_s = clock() - self._sent_at_s
            if silent_s >= self._ping_interval_s:
                await send({"type": "http.response.body", "body": PING, "more_body": True})
                self._sent_at_s, silent_s = clock(), 0.0
            await asyncio.sleep(self._ping_interval_s - silent_s)


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
            if not each.done():
                each.cancel()
                with suppress(asyncio.CancelledError):
                    await each


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
