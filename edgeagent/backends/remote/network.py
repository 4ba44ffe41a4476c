"""Opens sockets for `transport`: resolves names, connects and starts TLS, each with its own limit.

httpcore uses `Network` as its network backend.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import hashlib
import hmac
import ipaddress
import socket
import ssl
import threading
import time
from asyncio.staggered import staggered_race
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import httpcore
from msgspec import Struct

from edgeagent.backends.remote.failures import Failure, Kind
from edgeagent.keepalive import end_if_vanished

NOWHERE = ("192.0.2.1", 9)
"""An address that no machine has (RFC 5737), for a remote to which there was no connection yet."""
NAME_S = 2.0
"""Timeout for resolving a name, in seconds."""
# A resolver may hang. More lookups than these at a time are refused, so that threads do not pile up.
_MAX_LOOKUPS = 16
# RFC 8305 recommends 250 ms.
_STAGGER_S = 0.25
_NUM_PROBES = 2
_QUICK_ACK: int | None = getattr(socket, "TCP_QUICKACK", None)  # only on Linux
Connection = tuple["_Reader", asyncio.StreamWriter]
MayBe = Callable[[str, str], bool]
"""Whether a host with this name may have this address."""


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

    def __init__(
        self, connect_s: float, pinned: ssl.SSLContext | None = None, pin: str = "", may_be: MayBe | None = None
    ) -> None:
        """`may_be` says which addresses a name may have; None means the function `may_be`."""
        self._may_be = may_be
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
        addresses = await _resolve(host, port, self._may_be or may_be)
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
        end_if_vanished(writer.get_extra_info("socket"), self._connect_s, _NUM_PROBES)
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
            with contextlib.suppress(OSError):  # the connection has ended
                self._socket.setsockopt(socket.IPPROTO_TCP, _QUICK_ACK, 1)
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


async def _resolve(host: str, port: int, may_be: MayBe) -> list[str]:
    """Return a host's addresses in the order to try, without those that `may_be` forbids.

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
    allowed = [address for address in found if may_be(host, address)]
    if not allowed:
        raise Failure(Kind.UNREACHABLE, "its name resolves to an address that a remote may not have")
    # The first address of the other IP version comes second, since one version may be broken here (RFC 8305).
    other = next((each for each in allowed if (":" in each) != (":" in allowed[0])), None)
    return allowed if other is None else list(dict.fromkeys([allowed[0], other, *allowed]))


_lookups: set[threading.Thread] = set()


async def _look_up(host: str, port: int) -> list[str]:
    """Resolve a name in a thread of its own; raise OSError if that fails, or if too many earlier lookups still hang.

    A lookup that hangs would occupy a thread of the loop's executor, which also loads models, and delay the exit.
    """
    if len(_lookups) >= _MAX_LOOKUPS:
        raise OSError(f"{_MAX_LOOKUPS} earlier lookups still hang")
    answer: concurrent.futures.Future[list[str]] = concurrent.futures.Future()

    def ask() -> None:
        try:
            infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            tell = partial(answer.set_result, list(dict.fromkeys(str(info[4][0]) for info in infos)))
        except OSError as error:
            tell = partial(answer.set_exception, error)
        except UnicodeError:
            tell = partial(answer.set_exception, OSError("it is not a valid host name"))
        _lookups.discard(thread)
        with contextlib.suppress(concurrent.futures.InvalidStateError):  # the answer came too late
            tell()

    thread = threading.Thread(target=ask, name="edgeagent-dns", daemon=True)
    _lookups.add(thread)
    try:
        thread.start()
    except RuntimeError as error:  # the system gives no more threads
        _lookups.discard(thread)
        raise OSError(str(error)) from error
    return await asyncio.wrap_future(answer)


def may_be(host: str, address: str) -> bool:
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


async def _connect_first(addresses: list[str], port: int) -> Connection:
    """Return a connection to the first of the addresses that answers; raise OSError if none does.

    The next attempt starts when an earlier one fails, or after a quarter of a second. Earlier attempts continue.
    """
    opened: list[Connection] = []
    chosen: Connection | None = None

    async def attempt(address: str) -> Connection:
        opened.append(await _connect(address, port))
        return opened[-1]

    try:
        chosen, _, errors = await staggered_race([partial(attempt, each) for each in addresses], _STAGGER_S)
    finally:
        # Several may succeed at once, and one may succeed in the moment of a cancel.
        for reader, writer in opened:
            if chosen is None or chosen[0] is not reader:
                writer.transport.abort()
    if chosen is None:
        raise next((error for error in errors if isinstance(error, OSError)), OSError("it was given up"))
    return chosen


async def _connect(address: str, port: int) -> Connection:
    loop, reader = asyncio.get_running_loop(), _Reader()
    protocol = asyncio.StreamReaderProtocol(reader)
    transport, _ = await loop.create_connection(lambda: protocol, address, port)
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


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
