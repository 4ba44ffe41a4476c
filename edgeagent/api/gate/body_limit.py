"""Limits on a request's body, applied while it is received: its size, its time, and its part of all bytes in flight.

A single body or frame has a limit of its own, but a hundred that never end would take the machine's memory. So all
that the daemon holds for its clients, over all connections, has one limit too (see InFlight).
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edgeagent import metrics
from edgeagent.api.gate.refusal_log import RefusalLog
from edgeagent.api.wire.body import CLIENT_KEY
from edgeagent.errors import InvalidRequest, Overloaded, PayloadTooLarge
from edgeagent.freed_memory import MUCH_BYTES, FreedMemory


class InFlight:
    """The bytes that the daemon holds for its clients: what arrives, the requests that wait or run, unread answers.

    If they take more than `max_bytes`, unfinished ones are cut: those of the client that takes the most, and first the
    one that has held the most bytes for the longest time. Many small ones then do not cut another client's large one. A
    body or frame that has arrived as a whole is never cut, and counts until the application has read it. What waits on
    a WebSocket after that, and what a client does not read, counts as unfinished. A request counts until it ends (see
    `holding`).

    Another instance counts what WebSockets keep between frames, which is unfinished too.
    """

    def __init__(self, max_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.max_bytes = max_bytes
        self.clock = clock
        self._num_bytes = 0
        self._arrivals: set[Arrival] = set()
        self._requests = Counter[str]()  # the bytes of each client's requests, which are among `_arrivals` too
        self._peak_bytes = 0
        self._is_cutting = False
        self._freed = FreedMemory()
        self._cuts = RefusalLog("cut")

    def begin(self, cut: Callable[[], None]) -> Arrival:
        """Return the account of one body, or of the frames of one connection. `cut` ends it; it must not raise."""
        return Arrival(self, cut)

    @contextmanager
    def holding(self, client: str, num_bytes: int) -> Iterator[None]:
        """Count a request of `num_bytes` during the `with` block.

        Raise Overloaded if its client has others, and they would take with it more than all requests leave free. So one
        client may take half, and another half of the rest. A client that has none is let in whatever others hold.
        """
        own_bytes, all_bytes = self._requests[client], self._requests.total()
        if own_bytes and own_bytes + num_bytes > self.max_bytes - all_bytes:
            raise Overloaded(
                f"the {num_bytes} bytes of this request are too many now: its client's other requests hold {own_bytes} "
                f"bytes, and all together {all_bytes} of {self.max_bytes}; send it again when one has ended",
                retry_after_s=2.0,
            )
        self._requests[client] += num_bytes
        arrival = self.begin(lambda: None)
        arrival.client = client
        arrival.hold(num_bytes, is_whole=True)
        try:
            yield
        finally:
            arrival.end()
            self._requests[client] -= num_bytes
            if not self._requests[client]:
                del self._requests[client]

    def note_slow(self, transport: str, client: str | None) -> None:
        """Count and log a connection that is cut because its client does not read. `transport`: http or websocket."""
        metrics.slow_clients_cut_total.labels(transport).inc()
        self.log_cut("it does not read", transport, client)

    def log_cut(self, why: str, transport: str, client: str | None) -> None:
        """Log a connection that is cut because of its client."""
        self._cuts.write(why, f"the client {client!r}" if client else "a client without a name", transport)

    def held(self, arrival: Arrival, before_bytes: int) -> None:
        """Count an arrival whose size or state has changed. Cut unfinished ones if all together take too much."""
        self._num_bytes += arrival.num_bytes - before_bytes
        self._peak_bytes = max(self._peak_bytes, self._num_bytes)
        if not arrival.num_bytes:
            self._arrivals.discard(arrival)
            if self._peak_bytes - self._num_bytes >= MUCH_BYTES:
                self._peak_bytes = self._num_bytes
                self._freed.plan()
            return
        if not before_bytes:
            arrival.since_s = self.clock()
        self._arrivals.add(arrival)
        if not self._is_cutting:  # an owner that is told of a cut may hold less instead
            self._is_cutting = True
            try:
                while self._num_bytes > self.max_bytes and (victim := self._costliest()) is not None:
                    victim.end_with_cut()
            finally:
                self._is_cutting = False

    def _costliest(self) -> Arrival | None:
        """Return the unfinished arrival to cut next; None if there is none."""
        taken = Counter[str | None]()
        for arrival in self._arrivals:
            taken[arrival.client] += arrival.num_bytes
        now_s = self.clock()
        unfinished = (arrival for arrival in self._arrivals if not arrival.is_whole)
        return max(
            unfinished,
            key=lambda each: (taken[each.client], each.num_bytes * (now_s - each.since_s), each.num_bytes),
            default=None,
        )


class Arrival:
    """The bytes that one body, or the frames of one connection, take.

    `client`: the client that sends them, as in Peer. `since_s`: when the first byte arrived, or the last `renew`.
    """

    def __init__(self, in_flight: InFlight, cut: Callable[[], None]) -> None:
        self.client: str | None = None
        self._in_flight = in_flight
        self._cut: Callable[[], None] | None = cut
        self.num_bytes = 0
        self.is_whole = False
        self.since_s = 0.0

    def renew(self) -> None:
        """Count the time from now, because the bytes are in use."""
        self.since_s = self._in_flight.clock()

    def hold(self, num_bytes: int, *, is_whole: bool) -> None:
        """Set how many bytes are held; no effect after the end. `is_whole`: nothing is missing, so all is used soon."""
        if self._cut is None:
            return
        before_bytes, self.num_bytes, self.is_whole = self.num_bytes, num_bytes, is_whole
        self._in_flight.held(self, before_bytes)

    def end(self) -> None:
        """Hold nothing any more."""
        self.hold(0, is_whole=True)
        # The owner, whose method this is, has this object: such a cycle would keep its buffers for minutes.
        self._cut = None

    def end_with_cut(self) -> None:
        """End, and tell the owner."""
        cut = self._cut
        self.end()
        if cut is not None:
            cut()


# A body may take BODY_GRACE_S seconds, and one second more for each 64 KiB that has arrived.
BODY_GRACE_S = 10.0
MIN_BODY_BYTES_PER_S = 64 << 10


class BodyLimit:
    """The ASGI middleware that limits a body's size, and the time that it takes to arrive.

    The application's `receive` raises PayloadTooLarge if the body is too large, InvalidRequest if the body arrives
    too slowly, and Overloaded if all bodies and frames together take too much memory. The answer then closes the
    connection. A body counts until the application has read it: until it asks for the message after the body, to learn
    whether the client has left, or answers.
    """

    def __init__(self, app: ASGIApp, max_bytes: int, in_flight: InFlight, grace_s: float = BODY_GRACE_S) -> None:
        self._app = app
        self.max_bytes = max_bytes
        self.in_flight = in_flight
        self.grace_s = grace_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = _Body(self, scope, receive, send)
        try:
            await self._app(scope, body.receive, body.send)
        finally:
            body.arrival.end()


class _Body:
    """The `receive` and `send` of one request. They count the bytes of its body and apply the limits."""

    def __init__(self, limit: BodyLimit, scope: Scope, receive: Receive, send: Send) -> None:
        self._limit = limit
        self._receive = receive
        self._send = send
        self._announced = _announced_bytes(scope)
        self._num_bytes = 0
        self._is_complete = self._announced == 0
        self._started_at = asyncio.get_running_loop().time()
        self.arrival = limit.in_flight.begin(self._cut)
        self.arrival.client = scope.get(CLIENT_KEY)
        self._is_cut = False
        self._timeout: asyncio.Timeout | None = None

    async def receive(self) -> Message:
        if self._is_complete:
            self.arrival.end()
            return await self._receive()
        self._check_size(self._announced or 0)
        deadline = self._started_at + self._limit.grace_s + self._num_bytes / MIN_BODY_BYTES_PER_S
        try:
            async with asyncio.timeout_at(deadline) as self._timeout:
                message = await self._receive()
        except TimeoutError as error:
            self._check_cut()
            said = f"the body came too slowly: {self._num_bytes} bytes in {self._limit.grace_s:g} s"
            raise InvalidRequest(said) from error
        finally:
            self._timeout = None
        self._check_cut()
        if message["type"] == "http.request":
            self._num_bytes += len(message.get("body", b""))
            self._check_size(self._num_bytes)
            self._is_complete = not message.get("more_body", False)
            self.arrival.hold(self._num_bytes, is_whole=self._is_complete)
            self._check_cut()
        return message

    async def send(self, message: Message) -> None:
        # The unread rest must not be taken for the next request, nor be read only to be thrown away.
        if message["type"] == "http.response.start":
            self.arrival.end()
            if not self._is_complete:
                message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
        await self._send(message)

    def _cut(self) -> None:
        self._is_cut = True
        if self._timeout is not None and not self._timeout.expired():
            self._timeout.reschedule(0)

    def _check_cut(self) -> None:
        if self._is_cut:
            raise Overloaded(
                f"{self._num_bytes} bytes of this body have arrived, and clients are sending too much at once; "
                "send it again",
                retry_after_s=2.0,
            )

    def _check_size(self, num_bytes: int) -> None:
        if num_bytes > self._limit.max_bytes:
            raise PayloadTooLarge(f"the body is larger than {self._limit.max_bytes} bytes")


def _announced_bytes(scope: Scope) -> int | None:
    """Return how many bytes of body the headers announce: 0 without Content-Length, None if it is unknown."""
    headers = {name.lower(): value for name, value in scope["headers"]}
    if b"transfer-encoding" in headers:
        return None
    length = headers.get(b"content-length", b"0")
    if not length.isdigit():
        return None
    return int(length) if len(length) < 20 else sys.maxsize
