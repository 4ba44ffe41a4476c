"""Opens sockets for `transport`: resolves names, connects and starts TLS. Each stage has its own limit and is timed.

httpcore uses it as its network backend.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import math
import socket
import ssl
import sys
import time
from collections.abc import Iterable
from typing import Any, cast

import httpcore
from msgspec import Struct

from edgeagent.backends.remote.connection.names import resolve
from edgeagent.backends.remote.connection.route_lookup import NOWHERE
from edgeagent.backends.remote.failures import Failure, Kind

NAME_S = 2.0
"""Timeout for resolving a name, in seconds."""
_STAGGER_S = 0.25
_MAX_BUFFERED_BYTES = 256 * 1024
_NO_DELAY = (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
_QUICK_ACK: int | None = getattr(socket, "TCP_QUICKACK", None)  # only on Linux


class Stages(Struct):
    """How many seconds each stage of one connection took; 0 for a stage that was not needed."""

    name_s: float = 0.0
    connect_s: float = 0.0
    tls_s: float = 0.0


class Network(httpcore.AsyncNetworkBackend):
    """Opens the sockets of one endpoint.

    `stages`, `peer` (the other side's address) and `local` (this side's address) describe the newest connection. If TLS
    uses the context `pinned`, the SHA-256 of the other side's certificate must be `pin`. A proxy's certificate is not
    pinned, because TLS to a proxy uses another context.
    """

    def __init__(self, connect_s: float, pinned: ssl.SSLContext | None = None, pin: str = "") -> None:
        self._connect_s = connect_s
        self._pinned = pinned
        self._pin = pin
        self.stages = Stages()
        self.peer: tuple[str, int] = NOWHERE
        self.local: str | None = None

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's signature
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Resolve a name and connect to the first of its addresses that answers; raise a Failure if none does."""
        del timeout, local_address, socket_options
        began_s = time.monotonic()
        addresses = await self._addresses(host, port)
        resolved_s = time.monotonic()
        try:
            async with asyncio.timeout(self._connect_s):
                wire = await _connect_first(addresses, self._connect_s)
        except TimeoutError:
            raise Failure(Kind.UNREACHABLE, f"no connection within {self._connect_s:g} s") from None
        except OSError as error:
            raise Failure(Kind.UNREACHABLE, f"no connection: {_reason(error)}") from None
        self.stages = Stages(resolved_s - began_s, time.monotonic() - resolved_s)
        self.peer, self.local = wire.addresses()
        return _Stream(wire, self)

    async def _addresses(self, host: str, port: int) -> list[tuple[str, int]]:
        try:
            async with asyncio.timeout(NAME_S):
                found = await resolve(host, port)
        except TimeoutError:
            raise Failure(Kind.UNREACHABLE, f"its name was not resolved within {NAME_S:g} s") from None
        except OSError as error:
            raise Failure(Kind.UNREACHABLE, f"its name could not be resolved: {_reason(error)}") from None
        if not found:
            raise Failure(Kind.UNREACHABLE, "its name resolves to an address that a remote may not have")
        return [(address, port) for address in found]

    async def secure(self, wire: _Wire, context: ssl.SSLContext, hostname: str | None) -> None:
        """Start TLS on a connection. If the other side cannot be trusted, raise a Failure before any data is sent."""
        began_s = time.monotonic()
        try:
            async with asyncio.timeout(self._connect_s):
                await wire.start_tls(context, hostname)
            if context is self._pinned:
                _check_pin(wire, self._pin)
        except (TimeoutError, OSError, Failure) as error:
            wire.close()
            raise _tls_failure(error) from None
        except BaseException:
            wire.close()
            raise
        self.stages.tls_s = time.monotonic() - began_s

    async def sleep(self, seconds: float) -> None:
        """Wait. httpcore calls this only between retries, which are switched off."""
        await asyncio.sleep(seconds)


class _Stream(httpcore.AsyncNetworkStream):
    """One connection, as httpcore sees it. Timeouts apply to whole exchanges, not to each read."""

    def __init__(self, wire: _Wire, network: Network) -> None:
        self._wire = wire
        self._network = network

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109
        del timeout
        try:
            return await self._wire.read(max_bytes)
        except OSError as error:
            raise httpcore.ReadError(_reason(error)) from None

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109
        del timeout
        if not buffer:
            return
        try:
            await self._wire.write(buffer)
        except OSError as error:
            raise httpcore.WriteError(_reason(error)) from None

    async def aclose(self) -> None:
        self._wire.close()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> httpcore.AsyncNetworkStream:
        del timeout
        await self._network.secure(self._wire, ssl_context, server_hostname)
        return self

    def get_extra_info(self, info: str) -> Any:
        match info:
            case "ssl_object":
                return self._wire.transport.get_extra_info("ssl_object")
            case "server_addr":
                return self._wire.transport.get_extra_info("peername")
            case "is_readable":
                return self._wire.is_readable
        return None


class _Wire(asyncio.Protocol):
    """A socket with a buffer of unread bytes and one waiting reader. It stops receiving while the buffer is full."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self._connection: Any = None
        self._unread = bytearray()
        self._unsent: list[bytes] = []
        self._num_turns = self._num_turns_left = 0
        self._is_paused = False
        self._is_over = False
        self._error: OSError | None = None
        self._arrival: asyncio.Future[None] | None = None
        self._drained: asyncio.Future[None] | None = None

    @property
    def is_readable(self) -> bool:
        """Whether a read would return at once. If so, httpcore does not reuse an idle connection."""
        return bool(self._unread) or self._is_over

    def addresses(self) -> tuple[tuple[str, int], str]:
        """Return the other side's address and port, and our address; NOWHERE and "" if the connection has ended."""
        there, here = (self.transport.get_extra_info(name) for name in ("peername", "sockname"))
        return (there[0], there[1]) if there else NOWHERE, here[0] if here else ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's transport is not an instance of asyncio's
        self._connection = transport.get_extra_info("socket")

    def data_received(self, data: bytes) -> None:
        self._acknowledge()
        self._unread += data
        if len(self._unread) > _MAX_BUFFERED_BYTES and not self._is_paused:
            self._is_paused = True
            self.transport.pause_reading()
        _wake(self._arrival)

    def eof_received(self) -> bool:
        self._is_over = True
        _wake(self._arrival)
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_over = True
        if exc is not None:
            self._error = exc if isinstance(exc, OSError) else ConnectionResetError(str(exc))
        _wake(self._arrival)
        _wake(self._drained)

    def pause_writing(self) -> None:
        self._drained = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        _wake(self._drained)
        self._drained = None

    async def read(self, max_bytes: int) -> bytes:
        """Return the next bytes (at least one), or b"" at the end; raise OSError if the connection broke."""
        while not self._unread:
            if self._error is not None:
                raise self._error
            if self._is_over:
                return b""
            self._arrival = asyncio.get_running_loop().create_future()
            await self._arrival
        data = bytes(self._unread[:max_bytes])
        del self._unread[:max_bytes]
        if self._is_paused and len(self._unread) < _MAX_BUFFERED_BYTES:
            self._is_paused = False
            self.transport.resume_reading()
        return data

    async def write(self, data: bytes) -> None:
        """Send bytes, and wait while the send buffer is full. Raise OSError if the connection is closed.

        A request's head and body are sent together.
        """
        if self._is_over or self.transport.is_closing():
            raise self._error or ConnectionResetError("the connection was closed")
        if not self._unsent:
            asyncio.get_running_loop().call_soon(self._flush)
        self._num_turns_left = self._num_turns
        self._unsent.append(data)
        if self._drained is not None:
            await self._drained

    def _acknowledge(self) -> None:
        """Make the kernel acknowledge received data at once, instead of after 40 ms.

        A server that does not set TCP_NODELAY waits for the acknowledgement of an answer's head before it sends more.
        The kernel resets this socket option with each packet.
        """
        if _QUICK_ACK is not None and self._connection is not None:
            with contextlib.suppress(OSError):
                self._connection.setsockopt(socket.IPPROTO_TCP, _QUICK_ACK, 1)

    def _flush(self) -> None:
        if self._num_turns_left:
            self._num_turns_left -= 1
            asyncio.get_running_loop().call_soon(self._flush)
            return
        data, self._unsent = b"".join(self._unsent), []
        if not self._is_over:
            self.transport.write(data)

    async def start_tls(self, context: ssl.SSLContext, hostname: str | None) -> None:
        """Start TLS on the connection."""
        loop = asyncio.get_running_loop()
        secured = await loop.start_tls(self.transport, self, context, server_hostname=hostname)
        if secured is None:
            raise ConnectionResetError("the connection was closed")
        self.transport = secured
        if secured.get_extra_info("ssl_object").selected_alpn_protocol() == "h2":
            # With HTTP/2, httpcore writes each frame of a request in a separate turn of the event loop.
            self._num_turns = 1

    def close(self) -> None:
        """Close at once, and drop data that has not been sent."""
        self._is_over = True
        self.transport.abort()


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)


async def _connect_first(addresses: list[tuple[str, int]], connect_s: float) -> _Wire:
    """Return a connection to the first of the addresses that answers. Raise OSError if all attempts fail.

    The next attempt starts when an earlier one fails, or after a quarter of a second. Earlier attempts continue.
    """
    loop = asyncio.get_running_loop()
    running: set[asyncio.Task[_Wire]] = set()
    waiting = list(addresses)
    last: OSError = ConnectionRefusedError("no address")
    try:
        while waiting or running:
            if waiting:
                host, port = waiting.pop(0)
                running.add(loop.create_task(_connect(host, port, connect_s)))
            done, running = await asyncio.wait(
                running, timeout=_STAGGER_S if waiting else None, return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                error = task.exception()
                if error is None:
                    running |= done - {task}
                    return task.result()
                if not isinstance(error, OSError):
                    raise error
                last = error
        raise last
    finally:
        for task in running:
            task.add_done_callback(_close_late)
            task.cancel()


def _close_late(task: asyncio.Task[_Wire]) -> None:
    if not task.cancelled() and task.exception() is None:
        task.result().close()


async def _connect(host: str, port: int, connect_s: float) -> _Wire:
    _, wire = await asyncio.get_running_loop().create_connection(_Wire, host, port)
    connection = wire.transport.get_extra_info("socket")
    if connection is not None:
        for level, option, value in (_NO_DELAY, *_lost_after(connect_s), *_probed_after(connect_s)):
            with contextlib.suppress(OSError):
                connection.setsockopt(level, option, value)
    return wire


def _lost_after(seconds: float) -> list[tuple[int, int, int]]:
    """Return the socket option that ends a connection if sent data stays unacknowledged for this many seconds.

    The list is empty if the system has no such option. Without it, requests would use a dead connection of the pool for
    up to a quarter of an hour, for example after a change of network. A server that is slow to answer is not affected,
    since its kernel acknowledges the data.
    """
    if sys.platform == "linux":
        return [(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(seconds * 1000))]
    if sys.platform == "darwin":
        return [(socket.IPPROTO_TCP, 0x80, math.ceil(seconds))]  # TCP_RXT_CONNDROPTIME
    return [(socket.IPPROTO_TCP, 5, math.ceil(seconds))] if sys.platform == "win32" else []  # TCP_MAXRT


def _probed_after(seconds: float) -> list[tuple[int, int, int]]:
    """Return the keepalive options that detect a dead other side within about this many seconds.

    While this side only receives an answer, it sends no data, so the option of `_lost_after` has no effect. If the
    network path breaks at that time, the keepalive options end the answer sooner than the idle timeout would. They do
    not affect a server that is slow to answer.
    """
    each = max(1, int(seconds / 3))
    idle = "TCP_KEEPIDLE" if hasattr(socket, "TCP_KEEPIDLE") else "TCP_KEEPALIVE"  # macOS's name
    values = ((idle, each), ("TCP_KEEPINTVL", each), ("TCP_KEEPCNT", 2))
    found = [(socket.IPPROTO_TCP, getattr(socket, name), value) for name, value in values if hasattr(socket, name)]
    return [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1), *found]


def _check_pin(wire: _Wire, pin: str) -> None:
    secure = wire.transport.get_extra_info("ssl_object")
    certificate = secure.getpeercert(binary_form=True) if secure is not None else None
    if certificate is None or not hmac.compare_digest(hashlib.sha256(certificate).hexdigest(), pin):
        raise Failure(Kind.UNTRUSTED, "its certificate is not the pinned one")


def _tls_failure(error: Exception) -> Failure:
    match error:
        case Failure():
            return error
        case ssl.SSLCertVerificationError():
            return Failure(Kind.UNTRUSTED, f"its certificate is not trusted: {error.verify_message}")
        case ssl.SSLError():
            return Failure(Kind.UNTRUSTED, f"TLS failed: {error.reason or type(error).__name__}")
        case TimeoutError():
            return Failure(Kind.UNTRUSTED, "the TLS handshake did not end within the limit for a connection")
        case _:
            return Failure(Kind.UNTRUSTED, "it closed the connection during the TLS handshake")


def _reason(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__
