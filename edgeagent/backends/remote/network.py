"""Opens sockets for `transport`: resolves names, connects and starts TLS, each with its own limit.

httpcore uses `Network` as its network backend.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import ipaddress
import math
import socket
import ssl
import sys
import threading
import time
from collections.abc import Iterable
from typing import Any

import httpcore
from msgspec import Struct

from edgeagent.backends.remote.failures import Failure, Kind

NOWHERE = ("192.0.2.1", 9)
"""An address that no machine has (RFC 5737), for a remote to which there was no connection yet."""
NAME_S = 2.0
"""Timeout for resolving a name, in seconds."""
# A resolver may hang. More lookups than these at a time are refused, so that threads do not pile up.
_MAX_LOOKUPS = 16
# RFC 8305 recommends 250 ms.
_STAGGER_S = 0.25
_QUICK_ACK: int | None = getattr(socket, "TCP_QUICKACK", None)  # only on Linux
Connection = tuple["_Reader", asyncio.StreamWriter]


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
        addresses = await _resolve(host, port)
        resolved_s = time.monotonic()
        try:
            async with asyncio.timeout(self._connect_s):
                reader, writer = await _connect_first(addresses, port)
        except TimeoutError:
            raise Failure(Kind.UNREACHABLE, f"no connection within {self._connect_s:g} s") from None
        except OSError as error:
            raise Failure(Kind.UNREACHABLE, f"no connection: {_reason(error)}") from None
        self.stages = Stages(resolved_s - began_s, time.monotonic() - resolved_s)
        there, here = (writer.get_extra_info(name) for name in ("peername", "sockname"))
        self.peer, self.local = (there[0], there[1]) if there else NOWHERE, here[0] if here else ""
        for option in (*_lost_after(self._connect_s), *_probed_after(self._connect_s)):
            _set(writer.get_extra_info("socket"), option)
        return _Stream(reader, writer, self)

    async def secure(self, writer: asyncio.StreamWriter, context: ssl.SSLContext, hostname: str | None) -> None:
        """Start TLS on a connection. If the other side cannot be trusted, raise a Failure before any data is sent."""
        began_s, plain = time.monotonic(), writer.transport
        try:
            async with asyncio.timeout(self._connect_s):
                await writer.start_tls(context, server_hostname=hostname)
            secured: asyncio.WriteTransport | None = writer.transport
            if secured is None:
                raise ConnectionResetError("the connection ended during the handshake")
            if context is self._pinned:
                _check_pin(writer.get_extra_info("ssl_object"), self._pin)
        except BaseException as error:
            plain.abort()
            if isinstance(error, OSError):
                raise _tls_failure(error) from None
            raise
        self.stages.tls_s = time.monotonic() - began_s

    async def sleep(self, seconds: float) -> None:
        """Wait. httpcore calls this only between retries, which are switched off."""
        await asyncio.sleep(seconds)


class _Stream(httpcore.AsyncNetworkStream):
    """One connection. Timeouts apply to whole exchanges, not to each read."""

    def __init__(self, reader: _Reader, writer: asyncio.StreamWriter, network: Network) -> None:
        self._reader = reader
        self._writer = writer
        self._network = network
        self._socket = writer.get_extra_info("socket")

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109
        """Return the next bytes, and make the kernel acknowledge them at once instead of after 40 ms.

        A server that does not set TCP_NODELAY sends a token only after the former one was acknowledged. The kernel
        resets this socket option with each packet.
        """
        del timeout
        try:
            data = await self._reader.next(max_bytes)
        except OSError as error:
            raise httpcore.ReadError(_reason(error)) from None
        if _QUICK_ACK is not None:
            _set(self._socket, (socket.IPPROTO_TCP, _QUICK_ACK, 1))
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109
        del timeout
        if not buffer:
            return
        try:
            self._writer.write(buffer)
            await self._writer.drain()
        except OSError as error:
            raise httpcore.WriteError(_reason(error)) from None

    async def aclose(self) -> None:
        """Close at once, and drop data that has not been sent."""
        self._writer.transport.abort()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> httpcore.AsyncNetworkStream:
        del timeout
        await self._network.secure(self._writer, ssl_context, server_hostname)
        return self

    def get_extra_info(self, info: str) -> Any:
        if info == "is_readable":
            # httpcore does not reuse an idle connection that the server has closed, or on which it has sent something.
            return self._reader.num_unread > 0 or self._reader.at_eof()
        return self._writer.get_extra_info(info)


class _Reader(asyncio.StreamReader):
    """Counts the bytes that have arrived and are not read. They can be read even if the connection has broken since."""

    def __init__(self) -> None:
        super().__init__()
        self.num_unread = 0
        self._error: Exception | None = None

    def feed_data(self, data: bytes) -> None:  # type: ignore[override] # the loop feeds bytes
        self.num_unread += len(data)
        super().feed_data(data)

    def set_exception(self, exc: Exception) -> None:
        self._error = exc
        self.feed_eof()

    async def next(self, max_bytes: int) -> bytes:
        """Return the next bytes, b"" at the end; raise the error that broke the connection."""
        data = await self.read(max_bytes)
        self.num_unread -= len(data)
        if not data and self._error is not None:
            raise self._error
        return data


async def _resolve(host: str, port: int) -> list[str]:
    """Return a host's addresses in the order to try, without those that `_may_be` forbids for a remote.

    If `host` is an address itself, it is returned without this check. Raise a Failure if there is no address. Addresses
    are not cached, since they may change with the network.
    """
    try:
        ipaddress.ip_address(host)
    except ValueError:
        pass
    else:
        return [host]
    try:
        async with asyncio.timeout(NAME_S):
            found = await _look_up(host, port)
    except TimeoutError:
        raise Failure(Kind.UNREACHABLE, f"its name was not resolved within {NAME_S:g} s") from None
    except OSError as error:
        raise Failure(Kind.UNREACHABLE, f"its name could not be resolved: {_reason(error)}") from None
    allowed = [address for address in found if _may_be(host, address)]
    if not allowed:
        raise Failure(Kind.UNREACHABLE, "its name resolves to an address that a remote may not have")
    return _alternating(allowed)


_lookups: set[threading.Thread] = set()


async def _look_up(host: str, port: int) -> list[str]:
    """Resolve a name in a thread of its own; raise OSError if that fails, or if too many earlier lookups still hang.

    A lookup that hangs would occupy a thread of the loop's executor, which also loads models, and delay the exit.
    """
    if len(_lookups) >= _MAX_LOOKUPS:
        raise OSError(f"{_MAX_LOOKUPS} earlier lookups still hang")
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[list[str]] = loop.create_future()

    def tell(found: list[str] | OSError) -> None:
        if answer.done():
            return
        if isinstance(found, OSError):
            answer.set_exception(found)
        else:
            answer.set_result(found)

    def ask() -> None:
        found: list[str] | OSError
        try:
            infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            found = list(dict.fromkeys(str(info[4][0]) for info in infos))
        except OSError as error:
            found = error
        except UnicodeError:
            found = OSError("it is not a valid host name")
        _lookups.discard(thread)
        with contextlib.suppress(RuntimeError):  # the loop is closed, and no task waits
            loop.call_soon_threadsafe(tell, found)

    thread = threading.Thread(target=ask, name="edgeagent-dns", daemon=True)
    _lookups.add(thread)
    try:
        thread.start()
    except RuntimeError as error:  # the system gives no more threads
        _lookups.discard(thread)
        raise OSError(str(error)) from error
    return await answer


def _may_be(host: str, address: str) -> bool:
    """Whether a remote with this host name may have this address.

    A name must not resolve to this machine, to a link-local address such as a cloud's metadata service, or to a
    multicast or unspecified address. Such a result is a mistake of the resolver or a DNS rebinding attack. An owner
    who means such an address configures the address itself, or localhost. The name localhost must resolve to this
    machine, because no TLS is required for it. Private networks are allowed, because clusters are there.
    """
    ip = ipaddress.ip_address(address.partition("%")[0])
    # The system connects to ::ffff:127.0.0.1 as to 127.0.0.1.
    ip = getattr(ip, "ipv4_mapped", None) or ip
    if ip.is_link_local or ip.is_multicast or ip.is_unspecified:
        return False
    return ip.is_loopback == (host == "localhost" or host.endswith(".localhost"))


def _alternating(addresses: list[str]) -> list[str]:
    """Put the first address of the other IP version second, since one version may be broken here (RFC 8305)."""
    is_first_ipv6 = ":" in addresses[0]
    other = next((address for address in addresses if (":" in address) != is_first_ipv6), None)
    if other is None:
        return addresses
    return [addresses[0], other, *(address for address in addresses[1:] if address != other)]


async def _connect_first(addresses: list[str], port: int) -> Connection:
    """Return a connection to the first of the addresses that answers; raise OSError if none does.

    The next attempt starts when an earlier one fails, or after a quarter of a second. Earlier attempts continue.
    """
    waiting = list(addresses)
    running: set[asyncio.Task[Connection]] = set()
    try:
        while True:
            if waiting:
                running.add(asyncio.create_task(_connect(waiting.pop(0), port)))
            timeout_s = _STAGGER_S if waiting else None
            done, running = await asyncio.wait(running, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            # Several may end at once: one that failed must not hide one that succeeded.
            for task in sorted(done, key=lambda task: task.exception() is not None):
                if task.exception() is None or not (waiting or running):
                    running |= done - {task}
                    return task.result()
    finally:
        for task in running:
            task.add_done_callback(_close_late)
            task.cancel()


async def _connect(address: str, port: int) -> Connection:
    loop, reader = asyncio.get_running_loop(), _Reader()
    protocol = asyncio.StreamReaderProtocol(reader)
    transport, _ = await loop.create_connection(lambda: protocol, address, port)
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


def _close_late(task: asyncio.Task[Connection]) -> None:
    if not task.cancelled() and task.exception() is None:
        task.result()[1].transport.abort()


def _set(connection: socket.socket | None, option: tuple[int, int, int]) -> None:
    """Set a socket option, if the connection has not ended and the system has this option."""
    if connection is not None:
        with contextlib.suppress(OSError):
            connection.setsockopt(*option)


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


def _check_pin(secure: ssl.SSLObject, pin: str) -> None:
    certificate = secure.getpeercert(binary_form=True)
    if certificate is None or not hmac.compare_digest(hashlib.sha256(certificate).hexdigest(), pin):
        raise Failure(Kind.UNTRUSTED, "its certificate is not the pinned one")


def _tls_failure(error: OSError) -> Failure:
    match error:
        case ssl.SSLCertVerificationError():
            return Failure(Kind.UNTRUSTED, f"its certificate is not trusted: {error.verify_message}")
        case ssl.SSLError():
            return Failure(Kind.UNTRUSTED, f"TLS failed: {error.reason or type(error).__name__}")
        case TimeoutError():
            return Failure(Kind.UNTRUSTED, "the TLS handshake did not end within the limit for a connection")
    return Failure(Kind.UNTRUSTED, "it closed the connection during the TLS handshake")


def _reason(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__


def source_of(peer: tuple[str, int]) -> str:
    """Return the local address that the route to a peer uses; "" if there is no route.

    If it changes, the network has changed. Nothing is sent: connecting a datagram socket only makes the kernel look up
    the route.
    """
    try:
        with socket.socket(_family(peer[0]), socket.SOCK_DGRAM) as probe:
            probe.connect(peer)
            return str(probe.getsockname()[0])
    except OSError:
        return ""


def is_ours(address: str) -> bool:
    """Whether this machine currently has an address."""
    try:
        with socket.socket(_family(address), socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))
            return True
    except OSError:
        return False


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET
