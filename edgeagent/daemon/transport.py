"""uvicorn's HTTP and WebSocket protocols, with limits on what a connection's bytes, frames and slowness can cost.

The limits bound what a client can cost before the checks of the ASGI scope (Host, Origin, token), which are in
`api.gate.security`.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter, deque
from collections.abc import Callable, Generator
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, cast

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from edgeagent import metrics
from edgeagent.api.gate.access import PEER_KEY
from edgeagent.api.gate.body_limit import Arrival, InFlight
from edgeagent.api.responses.socket.outbox import GOING_AWAY, TRY_AGAIN_LATER
from edgeagent.api.wire.sse import SEND_KEY
from edgeagent.credentials.keys import OWNER
from edgeagent.daemon.listeners import is_other_user
from edgeagent.daemon.peers import TcpPeer

if TYPE_CHECKING:
    from uvicorn._types import ASGIReceiveEvent, ASGISendEvent
    from websockets.frames import Frame


class Pace:
    """A rate limiter: it allows `burst` operations at once, and then `per_s` operations a second."""

    def __init__(self, per_s: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval_s = 1 / per_s
        self._most_ahead_s = burst / per_s
        self._clock = clock
        self._due_s = clock()  # when all counted operations would be done at the even rate

    def take(self, num: int = 1) -> float:
        """Count operations. Return how many seconds the caller must wait before the next; 0 for no wait."""
        now_s = self._clock()
        self._due_s = max(self._due_s, now_s) + num * self._interval_s
        return max(0.0, self._due_s - now_s - self._most_ahead_s)


MAX_HEADERS = 100
MAX_HEADER_BYTES = 16 << 10
MAX_TARGET_BYTES = 8 << 10
# The WebSocket library refuses longer lines in a handshake.
MAX_HANDSHAKE_LINE_BYTES = 8 << 10
HEAD_TIMEOUT_S = 10.0
STALL_TIMEOUT_S = 10.0
# A session closes a socket whose client does not read, and sends the reason. If that close hangs too, this limit aborts
# the connection.
SOCKET_STALL_TIMEOUT_S = 11.0
# Received bytes are parsed in pieces of this size. A piece of the smallest frames or chunks takes some 5 ms. Each takes
# 20 µs, those of 16 MiB 150 ms, so what surely belongs to one frame is a single piece.
PIECE_BYTES = 2 << 10
# After this time, other connections have their turn before the next piece is parsed.
MAX_TURN_S = 0.004
# Frames of one connection: FRAMES_BURST are read at once, and then FRAMES_PER_S a second. Fragments of at least
# LONG_FRAGMENT_BYTES do not count, since the limit on a message's bytes bounds them.
FRAMES_PER_S = 500.0
FRAMES_BURST = 250
LONG_FRAGMENT_BYTES = 1 << 10
# The library limits the size of a message, but not the number of its fragments. A fragment may be empty.
MAX_FRAGMENTS = 16_384
# After a connection has failed, its client's data is read and dropped for this long. An immediate close would reset the
# connection, and the close frame with the reason might be lost.
LINGER_S = 1.0
# For too many fragments. The library uses it too, with a reason of its own, for a message that is too large.
TOO_BIG = 1009

REFUSALS: dict[HTTPStatus, tuple[str, str]] = {
    HTTPStatus.BAD_REQUEST: (
        "bad_request",
        "the request is not valid HTTP/1.1, its target is not a path, or it upgrades with a body or before the last "
        "request is answered",
    ),
    HTTPStatus.FORBIDDEN: ("forbidden", "this socket is another user's; only the daemon's own user may use it"),
    HTTPStatus.REQUEST_TIMEOUT: ("request_timeout", f"the request's headers took longer than {HEAD_TIMEOUT_S:g} s"),
    HTTPStatus.REQUEST_URI_TOO_LONG: (
        "uri_too_long",
        f"the request's target is longer than {MAX_TARGET_BYTES} bytes",
    ),
    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE: (
        "request_header_fields_too_large",
        f"there are more than {MAX_HEADERS} headers, or {MAX_HEADER_BYTES} bytes of them, "
        f"or one of a handshake is longer than {MAX_HANDSHAKE_LINE_BYTES} bytes",
    ),
    HTTPStatus.SERVICE_UNAVAILABLE: (
        "service_unavailable",
        "too many connections; close some, or try again",
    ),
}
"""For each HTTP status with which this module refuses a request: the code and the message of the error."""


class _StallGuard:
    """Aborts a connection `timeout_s` seconds after `start`, if `stop` is not called before.

    It is used for clients that do not read. A normal close would wait for such a client.
    """

    def __init__(self, transport: asyncio.Transport, timeout_s: float, on_cut: Callable[[], None]) -> None:
        self._transport = transport
        self._timeout_s = timeout_s
        self._on_cut = on_cut
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self.stop()
        self._timer = asyncio.get_running_loop().call_later(self._timeout_s, self.cut)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def cut(self) -> None:
        """Abort the connection now."""
        self._on_cut()
        self._transport.abort()


class _Guarded(asyncio.Protocol):
    """The base of `GuardedHttp` and `GuardedWebSocket`.

    It parses what arrives in pieces, so that no client keeps the event loop busy, and it aborts a connection whose
    client does not read: after a time, or if clients leave too much unread. Each subclass sets `_stall`, with its own
    time limit, in `connection_made`, and `_in_flight` before.
    """

    _kind: str
    _stall: _StallGuard
    _in_flight: InFlight
    _unread: Arrival | None = None
    peer: TcpPeer
    transport: asyncio.Transport
    loop: asyncio.AbstractEventLoop
    _is_over = False
    """Whether another protocol has taken over the connection. What the client has sent too early is dropped."""
    used_at_s = 0.0
    """When the connection was made, or something was last received or, on a WebSocket, sent."""
    _unparsed = b""
    _next_turn: asyncio.Handle | None = None

    def parse(self, data: bytes) -> float:
        """Parse a piece of what has arrived. Return how many seconds to wait before the next; 0 for no wait."""
        raise NotImplementedError

    @property
    def num_missing_bytes(self) -> int:
        """How many of the next bytes surely belong to what is being received, and begin nothing."""
        return 0

    @property
    def is_reading_paused(self) -> bool:
        """Whether the protocol itself does not want to read now."""
        raise NotImplementedError

    @property
    def is_busy(self) -> bool:
        """Whether a request is being answered. A WebSocket does not know, and is as busy as it was used lately."""
        return False

    @property
    def is_leaving(self) -> bool:
        return self.transport.is_closing()

    def give_way(self) -> None:
        """Close the connection, which is not busy, since another client needs its place."""
        raise NotImplementedError

    def data_received(self, data: bytes) -> None:
        self.used_at_s = self.loop.time()
        self._unparsed = self._unparsed + data if self._unparsed else data
        if self._next_turn is None:
            self._take_turn()

    def _take_turn(self) -> None:
        """Parse pieces for MAX_TURN_S. If some are left, or the client must wait, read no more until the next turn."""
        was_paused, self._next_turn = self._next_turn is not None, None
        data, self._unparsed = self._unparsed, b""
        wait_s, position, end_s = 0.0, 0, self.loop.time() + MAX_TURN_S
        while position < len(data) and not wait_s and (not position or self.loop.time() < end_s):
            end = position + max(PIECE_BYTES, self.num_missing_bytes)
            wait_s = self.parse(data[position:end])
            position = end
            if self._is_over or self.transport.is_closing():
                return
        if position < len(data) or wait_s:
            self._unparsed = data[position:]
            self._next_turn = self.loop.call_later(wait_s, self._take_turn)
            self.transport.pause_reading()
        elif was_paused and not self.is_reading_paused:
            self.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._writes_again()
        if self._next_turn is not None:
            self._next_turn.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stall.start()
        # At most one event is written at a time, so the size does not grow until writing is resumed.
        self._unread = self._in_flight.begin(self._stall.cut)
        self._unread.client = self.peer.client
        self._unread.hold(self.transport.get_write_buffer_size(), is_whole=False)

    def resume_writing(self) -> None:
        self._writes_again()
        super().resume_writing()

    def _note_cut(self) -> None:
        self._in_flight.note_slow(self._kind, self.peer.client)

    def _writes_again(self) -> None:
        self._stall.stop()
        if self._unread is not None:
            self._unread.end()
            self._unread = None


def _refuse(transport: asyncio.Transport, status: HTTPStatus) -> None:
    """Answer with the error for `status` in REFUSALS, and close the connection."""
    if transport.is_closing():
        return
    kind = "unavailable_error" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error"
    code, message = REFUSALS[status]
    metrics.refused_total.labels(code).inc()
    error = {"message": message, "type": kind, "param": None, "code": code}
    body = json.dumps({"error": error}).encode()
    head = f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/json\r\nconnection: close\r\n"
    retry = "retry-after: 1\r\n" if status is HTTPStatus.SERVICE_UNAVAILABLE else ""
    transport.write(f"{head}{retry}content-length: {len(body)}\r\n\r\n".encode() + body)
    transport.close()


class GuardedHttp(_Guarded, HttpToolsProtocol):
    """One HTTP connection. It refuses requests beyond the limits. GuardedWebSocket takes over WebSocket handshakes."""

    _kind = "http"

    def __init__(self, *args: Any, max_connections: int, in_flight: InFlight, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._in_flight = in_flight
        self._max_connections = max_connections
        self._is_in_head = True
        self._num_head_bytes = 0
        self._refusal = HTTPStatus.BAD_REQUEST
        self._head_timer: asyncio.TimerHandle | None = None
        # The requests without a complete answer, in order. Uvicorn's `cycle` is only the latest of them.
        self._cycles: deque[RequestResponseCycle] = deque()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._stall = _StallGuard(transport, STALL_TIMEOUT_S, self._note_cut)
        self._is_other_user = is_other_user(transport.get_extra_info("socket"))
        self.peer = TcpPeer(self.client, self.server, self.transport.get_extra_info("socket"))
        self.used_at_s = self.loop.time()
        self._arm_head_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm_head_timer()
        for cycle in self._cycles:
            if not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
        self._forget_sends()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        self._forget_sends()
        super().on_response_complete()

    def _forget_sends(self) -> None:
        """Remove the `send` of requests that are over from their scopes, so that they need no garbage collection."""
        for cycle in self._cycles:
            if cycle.response_complete or cycle.disconnected:
                cast(dict[str, Any], cycle.scope).pop(SEND_KEY, None)

    @property
    def is_reading_paused(self) -> bool:
        return self.flow.read_paused

    @property
    def is_busy(self) -> bool:
        return any(not cycle.response_complete for cycle in self._cycles)

    def parse(self, data: bytes) -> float:
        if self._is_in_head:
            self._arm_head_timer()
            self._num_head_bytes += len(data)
        self._unset_keepalive_if_required()
        try:
            self._feed(data)
        except httptools.HttpParserError:
            self._refuse(self._refusal)
        # `on_header` does not see a header that is still incomplete, so its bytes are bounded here. The last read may
        # exceed the limit.
        if self._is_in_head and self._num_head_bytes > MAX_HEADER_BYTES + MAX_TARGET_BYTES + len(data):
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        return 0.0

    def _feed(self, data: bytes | memoryview) -> None:
        """Parse received bytes. Treat a request to upgrade to an unknown protocol as a normal HTTP/1.1 request.

        The parser stops after the head of such a request, and would parse its body as the next request. So the head is
        parsed a second time without its upgrade header, and then the body.
        """
        while True:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                if self._should_upgrade():
                    self.handle_websocket_upgrade()
                    return
                self.parser.feed_data(self._head_without_upgrade())
                data = memoryview(data)[upgrade.args[0] :]
            else:
                return

    def _head_without_upgrade(self) -> bytes:
        start = self.parser.get_method(), self.url, f"HTTP/{self.parser.get_http_version()}".encode()
        fields = [name + b": " + value for name, value in self.headers if name != b"upgrade"]
        return b"\r\n".join([b" ".join(start), *fields, b"", b""])

    def on_message_begin(self) -> None:
        super().on_message_begin()
        cast(dict[str, Any], self.scope)[PEER_KEY] = self.peer
        self._num_head_bytes = 0
        self._num_field_bytes = self._num_trailers = 0

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        if len(self.url) > MAX_TARGET_BYTES:
            self._refuse_in_callback(HTTPStatus.REQUEST_URI_TOO_LONG)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header of the request. A trailer is not added (RFC 9110, section 6.5) but counts towards the limits."""
        if self._is_in_head:
            super().on_header(name, value)
        else:
            self._num_trailers += 1
        self._num_field_bytes += len(name) + len(value)
        if self._num_field_bytes > MAX_HEADER_BYTES or len(self.headers) + self._num_trailers > MAX_HEADERS:
            self._refuse_in_callback(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        self._disarm_head_timer()
        if self._is_other_user:
            self._refuse_in_callback(HTTPStatus.FORBIDDEN)
        if self.peer.client is None and len(self.connections) > self._max_connections and not self._make_room():
            self._refuse_in_callback(HTTPStatus.SERVICE_UNAVAILABLE)
        # The ASGI scope has only the path of http://host/path, so the host in the URL would not be checked.
        if not self.url.startswith(b"/"):
            self._refuse_in_callback(HTTPStatus.BAD_REQUEST)
        # The parser takes CONNECT for an upgrade, whatever its headers.
        if self.parser.get_method() == b"CONNECT":
            self._refuse_in_callback(HTTPStatus.BAD_REQUEST)
        if self._is_read_again:
            return
        if self.parser.should_upgrade():
            self._check_handshake()
        super().on_headers_complete()
        while self._cycles and self._cycles[0].response_complete:
            self._cycles.popleft()
        if self.cycle is not None and not self.parser.should_upgrade():
            self._cycles.append(self.cycle)
            cast(dict[str, Any], self.scope)[SEND_KEY] = self.cycle.send

    def _make_room(self) -> bool:
        """Close a connection of the client that has the most; return False if there is none to close.

        Connections without a request that passed the gate count as one client's. The one that is unused for longest
        is closed. The owner's are not, so a client that is not the owner cannot keep the others out.
        """
        others = [each for each in cast(set[_Guarded], self.connections) if each is not self and not each.is_leaving]
        numbers = Counter(each.peer.client for each in others)
        most = max(numbers, key=lambda client: (numbers[client], client != OWNER.name), default=OWNER.name)
        unused = [each for each in others if each.peer.client == most and not each.is_busy]
        if most == OWNER.name or not unused:
            return False
        min(unused, key=lambda each: each.used_at_s).give_way()
        return True

    def give_way(self) -> None:
        if self._is_in_head and self._head_timer is not None:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE)
        else:
            self.transport.close()

    def _check_handshake(self) -> None:
        """Refuse a handshake with a body, and a handshake with a line of more than MAX_HANDSHAKE_LINE_BYTES.

        A handshake with a body would never be answered: the parser hands the connection over only after the end of the
        body, but no code reads the body.
        """
        for name, value in self.headers:
            if name == b"transfer-encoding" or (name == b"content-length" and value.strip(b" \t0")):
                self._refuse_in_callback(HTTPStatus.BAD_REQUEST)
            if len(name) + len(value) + len(": \r\n") > MAX_HANDSHAKE_LINE_BYTES:
                self._refuse_in_callback(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        if len(b"GET  HTTP/1.1\r\n") + len(self.url) > MAX_HANDSHAKE_LINE_BYTES:
            self._refuse_in_callback(HTTPStatus.REQUEST_URI_TOO_LONG)

    def handle_websocket_upgrade(self) -> None:
        """Hand the connection to the WebSocket protocol if RFC 6455 (section 4.1) allows this handshake.

        Refuse it while an earlier request is still being answered, since the handshake would write into that answer,
        and while its client does not read an earlier answer, since that is counted here.
        """
        is_answering = self._unread is not None or (self.cycle is not None and not self.cycle.response_complete)
        if self.scope["method"] != "GET" or self.scope["http_version"] != "1.1" or is_answering:
            self._refuse(HTTPStatus.BAD_REQUEST)
        else:
            super().handle_websocket_upgrade()
            self._is_over = True

    def on_message_complete(self) -> None:
        if not self._is_read_again:
            super().on_message_complete()
        self._is_in_head = True
        self._num_head_bytes = 0

    @property
    def _is_read_again(self) -> bool:
        """Whether the request asks to upgrade to a protocol other than WebSocket. `_feed` parses its head twice."""
        return self.parser.should_upgrade() and not self._should_upgrade()

    def _refuse_in_callback(self, status: HTTPStatus) -> None:
        self._refusal = status
        raise httptools.HttpParserError(status.phrase)

    def _refuse(self, status: HTTPStatus) -> None:
        if any(cycle.response_started and not cycle.response_complete for cycle in self._cycles):
            self.transport.close()  # an error body would become part of the answer that is being sent
        else:
            _refuse(self.transport, status)

    def _arm_head_timer(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self._on_slow_head)

    def _disarm_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _on_slow_head(self) -> None:
        self._head_timer = None
        # Bytes that arrive while a request is being answered belong to the next one, which is read after the answer.
        if self.cycle is not None and not self.cycle.response_complete:
            self._arm_head_timer()
        else:
            self._refuse(HTTPStatus.REQUEST_TIMEOUT)


class GuardedWebSocket(_Guarded, WebSocketsSansIOProtocol):
    """One WebSocket connection, with limits on the time of its handshake, and on the number and bytes of its frames."""

    _kind = "websocket"

    def __init__(self, *args: Any, in_flight: InFlight, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._in_flight = in_flight
        self._pace = Pace(FRAMES_PER_S, FRAMES_BURST)
        self._num_frames = 0
        self._num_wanted_bytes = 0
        self._read_exact, self.conn.reader.read_exact = self.conn.reader.read_exact, self._read  # type: ignore[method-assign]
        self._arrival = in_flight.begin(self._cut)
        # The bytes of messages that have arrived as a whole and that the application has not read yet.
        self._num_whole_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = cast(asyncio.Transport, transport)  # uvloop's transports have the methods, but not this class
        super().connection_made(stream)
        self._stall = _StallGuard(stream, SOCKET_STALL_TIMEOUT_S, self._note_cut)
        self.peer = TcpPeer(self.client, self.server, stream.get_extra_info("socket"))
        self._handshake_timer = self.loop.call_later(HEAD_TIMEOUT_S, self._on_slow_handshake)

    def connection_lost(self, exc: Exception | None) -> None:
        self._handshake_timer.cancel()
        super().connection_lost(exc)
        self._drop_received()
        del self.conn.reader.read_exact  # it refers to this object

    def _read(self, n: int) -> Generator[None, None, bytearray]:
        """Read a part of a frame for the library, and note how long it is."""
        self._num_wanted_bytes = n
        data = yield from self._read_exact(n)
        self._num_wanted_bytes = 0
        return data

    @property
    def num_missing_bytes(self) -> int:
        return self._num_wanted_bytes - len(self.conn.reader.buffer)

    @property
    def is_reading_paused(self) -> bool:
        return self.read_paused

    @property
    def is_leaving(self) -> bool:
        return self.close_sent or super().is_leaving

    def give_way(self) -> None:
        self._close("there are too many connections, and this client has the most; connect again")

    def parse(self, data: bytes) -> float:
        WebSocketsSansIOProtocol.data_received(self, data)
        num_frames, self._num_frames = self._num_frames, 0
        self._count_bytes()
        if self.conn.handshake_exc is not None and not self.handshake_initiated:
            # These bytes are not a request. The library raises no error and would read forever.
            self.handshake_initiated = self.handshake_complete = self.close_sent = True
            _refuse(self.transport, HTTPStatus.BAD_REQUEST)
        return self._pace.take(num_frames) if num_frames else 0.0

    def handle_events(self) -> None:
        frames = cast("list[Frame]", self.conn.events if self.handshake_initiated else [])
        self._num_frames += sum(frame.fin or len(frame.data) < LONG_FRAGMENT_BYTES for frame in frames)
        super().handle_events()
        for frame in frames:
            frame.data = b""  # the library keeps the latest frame until the next one comes

    def send_receive_event_to_app(self) -> None:
        self._num_whole_bytes += sum(map(len, self.frames))
        super().send_receive_event_to_app()

    async def receive(self) -> ASGIReceiveEvent:
        """Return the next event. The application has then read the messages before it."""
        if self.queue.empty():
            self._num_whole_bytes = 0
            self._count_bytes()
        event = await super().receive()
        if self._next_turn is not None:
            self.transport.pause_reading()  # `receive` has resumed it, but the client must still wait
        return event

    def _count_bytes(self) -> None:
        if not self.close_sent:
            self._arrival.client = self.peer.client
            num_unfinished = len(self.conn.reader.buffer) + (self.conn.current_size or 0)
            self._arrival.hold(self._num_whole_bytes + num_unfinished, is_whole=not num_unfinished)

    def _drop_received(self) -> None:
        """Free the bytes of unfinished messages now. The library's objects refer to each other, and end later."""
        self.conn.reader.discard()
        self.frames = []
        self._arrival.end()

    def _cut(self) -> None:
        why = "clients are sending too much at once; send it again"
        self._in_flight.log_cut(why, self._kind, self.peer.client)
        self._close(why)

    def _close(self, reason: str) -> None:
        self.conn.fail(TRY_AGAIN_LATER, reason)
        self.handle_parser_exception()

    def _on_slow_handshake(self) -> None:
        if not self.handshake_complete:
            _refuse(self.transport, HTTPStatus.REQUEST_TIMEOUT)

    async def run_asgi(self) -> None:
        """Add the client's TcpPeer to the ASGI scope, then run the application for the whole life of the WebSocket."""
        cast(dict[str, Any], self.scope)[PEER_KEY] = self.peer
        cast(dict[str, Any], self.scope)[SEND_KEY] = self.send
        await super().run_asgi()
        while not self.queue.empty():  # these objects refer to each other, and end later
            self.queue.get_nowait()

    async def send(self, message: ASGISendEvent) -> None:
        """Send a message once the client has read enough. Raise ClientDisconnected if the WebSocket is closed."""
        await self.writable.wait()
        self.used_at_s = self.loop.time()
        if self.close_sent and message["type"] == "websocket.send":
            raise ClientDisconnected
        await super().send(message)

    def handle_parser_exception(self) -> None:
        """Close the connection after an error in the client's data.

        The library has chosen the code and the reason, and has queued the close frame. Send it, read and drop the
        client's data for LINGER_S, then close. A failed handshake is answered with HTTP 400 and closed at once.
        """
        if self.close_sent:
            return
        if self.conn.close_sent is None:
            # There is no WebSocket yet, since the library refused the handshake itself.
            self.transport.write(b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
            self.transport.close()
            return
        self.close_sent = True
        self._drop_received()
        code, reason = self.conn.close_sent.code, self.conn.close_sent.reason
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})
        self.transport.write(b"".join(self.conn.data_to_send()))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.stop_keepalive()
        self.close_timer = self.loop.call_later(LINGER_S, self.transport.close)
        if self.read_paused:
            self.read_paused = False
            self.transport.resume_reading()

    def handle_cont(self, event: Frame) -> None:
        """Add a fragment to the current message. Fail the connection if the message has too many fragments."""
        if len(self.frames) >= MAX_FRAGMENTS:
            self.conn.fail(TOO_BIG, f"more than {MAX_FRAGMENTS} fragments")
            self.handle_parser_exception()
            return
        super().handle_cont(event)

    def handle_ping(self) -> None:
        """Answer a ping if the client reads what is sent. Other pings may go unanswered (RFC 6455, section 5.5.3)."""
        answer = self.conn.data_to_send()
        if self.writable.is_set():
            self.transport.write(b"".join(answer))

    def shutdown(self) -> None:
        """Close the connection with code 1001 (going away), since the daemon is stopping."""
        if self.handshake_complete and not self.close_sent:
            self.stop_keepalive()
            if self.conn.close_rcvd is not None:
                return  # the client has just closed the WebSocket itself, so the transport ends by itself
            self.queue.put_nowait({"type": "websocket.disconnect", "code": GOING_AWAY})
            self.conn.send_close(GOING_AWAY, "the daemon is stopping")
            self.close_sent = True
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.transport.close()
        else:
            super().shutdown()
