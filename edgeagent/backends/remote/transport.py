"""Opens every connection from this machine to a remote, and requires a permit for each call.

An image that is fetched for a client comes through here, too, with a row of the egress ledger in place of a permit.

It knows a remote's address, its TLS settings and its limits, but not the content of requests. It sends no cookies,
follows no redirects, uses no compression, and uses no proxy except the one configured for the remote.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import httpcore
from msgspec import Struct, field

from edgeagent import metrics
from edgeagent.backends.remote.failures import Failure, Kind
from edgeagent.backends.remote.network import MayBe, Network, Stages, is_ours, source_of
from edgeagent.errors import ConfigError, Forbidden
from edgeagent.remotes import Remote, Tls
from edgeagent.remotes.check import is_loopback
from edgeagent.types import Permit, ProbePermit, RouteMode

MAX_STREAM_BYTES = 256 << 20
_HEADERS = (("User-Agent", "edgeagent"), ("Accept-Encoding", "identity"))
_KEEP_ALIVE_S = 60.0
# A connection is not read while this much of its answer waits. After the end of an answer no more is read off.
_MAX_UNREAD_BYTES = 64 * 1024
_DRAIN_S = 1.0
_MAX_PROXY_CHARS = 100
# If the boot clock advanced by this much more than the monotonic clock, the machine slept.
_SLEPT_S = 5.0
# Connections beyond those for requests: for probes, and for connections that are being closed.
_SPARE_CONNECTIONS = 4
# After these of its events, httpcore awaits a lock. A cancel at that moment would leave the request, or a connection
# that is neither idle nor closed, in the pool forever.
_NOT_TO_CANCEL_AFTER = frozenset(
    {
        "connect_tcp.complete",
        "start_tls.complete",
        "setup_socks5_connection.complete",
        "response_closed.started",
        "response_closed.complete",
    }
)
_CUT = (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException)


class Call(Struct, frozen=True):
    """One HTTP request: a POST if it has a body, else a GET.

    `path` is relative to the endpoint's base URL, or with `is_at_root` to the base URL without its /v1. `request_id` is
    the id of the client's request that this call sends; the permit must be for the same request. A probe has no request
    id and no body.
    """

    path: str
    body: bytes | None = None
    headers: tuple[tuple[str, str], ...] = ()
    request_id: str = ""
    is_at_root: bool = False


class Transport:
    """A pool of connections to one endpoint. Idle connections stay open for a while."""

    def __init__(self, remote: Remote, url: str, context: ssl.SSLContext) -> None:
        self._remote = remote
        parts = urlsplit(url)
        self.host = parts.netloc
        self._base = f"{parts.scheme}://{parts.netloc}"
        self._path = parts.path.rstrip("/")
        self._root = self._path.removesuffix("/v1")
        self._pinned = context if remote.tls.pin is not None else None
        self._context = context
        self._proxy = _proxy_of(remote, url)
        self._tasks: set[asyncio.Task[None]] = set()
        self._lag_s = lag_s()
        self._connections = self._new_connections()

    def _new_connections(self) -> _Connections:
        remote = self._remote
        network = Network(remote.limits.connect_s, self._pinned, remote.tls.pin or "")
        num_connections = remote.limits.max_concurrent + _SPARE_CONNECTIONS
        pool = httpcore.AsyncConnectionPool(
            ssl_context=self._context,
            proxy=httpcore.Proxy(self._proxy) if self._proxy else None,
            max_connections=num_connections,
            max_keepalive_connections=num_connections,
            keepalive_expiry=_KEEP_ALIVE_S,
            http1=True,
            network_backend=network,
        )
        return _Connections(pool, network)

    def renew_if_network_changed(self) -> bool:
        """Renew the connections if the network has changed since the last call; return whether it has.

        The network has changed if the route to the endpoint begins at another local address, or if the machine has
        slept.
        """
        network = self._connections.network
        here, former_lag_s, self._lag_s = source_of(network.peer), self._lag_s, lag_s()
        has_slept = abs(self._lag_s - former_lag_s) > _SLEPT_S
        if network.local in (None, here) and not has_slept:
            network.local = here
            return False
        self.renew()
        return True

    def renew(self) -> None:
        """Use new connections from now on. Streams on the old ones continue, unless our local address is gone."""
        old, self._connections = self._connections, self._new_connections()
        here = source_of(old.network.peer)
        self._connections.network.peer, self._connections.network.local = old.network.peer, here
        old.is_retired = True
        if not old.num_used or not is_ours(old.network.local or here):
            self._close_later(old)

    def _close_later(self, connections: _Connections) -> None:
        self._begin(connections.pool.aclose())

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _leave(self, connections: _Connections, _: asyncio.Task[None]) -> None:
        connections.num_used -= 1
        if connections.is_retired and not connections.num_used:
            self._close_later(connections)

    async def open(self, permit: Permit | ProbePermit, call: Call, stages: CallStages | None = None) -> Exchange:
        """Send a call and wait for the head of the response. `stages` is filled in as the call proceeds.

        The caller must set a timeout around this, and must close the exchange. Raise Forbidden if the permit does not
        allow the call, or a Failure if the call fails.
        """
        check_permit(permit, self._remote.name, call)
        stages = stages or CallStages()
        used = self._connections
        exchange = Exchange(stages, used.network)
        request = httpcore.Request(
            "GET" if call.body is None else "POST",
            f"{self._base}{self._root if call.is_at_root else self._path}{call.path}",
            headers=self._headers(call),
            content=call.body,
            extensions={"trace": exchange.trace},
        )
        exchange.task = self._begin(exchange.work(used.pool, request))
        exchange.task.add_done_callback(exchange.end)
        exchange.task.add_done_callback(partial(self._leave, used))
        used.num_used += 1
        try:
            await exchange.head()
        except BaseException:
            exchange.close()
            raise
        self._measure(stages, is_request=bool(call.request_id))
        return exchange

    async def fetch(self, permit: Permit | ProbePermit, call: Call, max_bytes: int) -> tuple[Exchange, bytes]:
        """Send a call and return the exchange, which is closed, with the whole body; see `open`."""
        exchange = await self.open(permit, call)
        try:
            return exchange, await exchange.read_all(max_bytes)
        finally:
            exchange.close(is_done=True)

    def _measure(self, stages: CallStages, *, is_request: bool) -> None:
        seconds: dict[str, float] = {}
        if stages.is_new:
            opened = stages.connection
            seconds = {"name": opened.name_s, "connect": opened.connect_s}
            seconds |= {"tls": opened.tls_s} if opened.tls_s else {}
        if is_request:
            seconds["first_byte"] = stages.answered_s - stages.sent_s
        for stage, value in seconds.items():
            metrics.remote_stage_seconds.labels(self._remote.name, stage).observe(value)

    def _headers(self, call: Call) -> list[tuple[str, str]]:
        headers = [("Host", self.host), *_HEADERS, *call.headers]
        if call.body is not None:
            headers += [("Content-Type", "application/json"), ("Content-Length", str(len(call.body)))]
        return headers

    async def drop(self) -> None:
        """Close every connection at once; the next call opens new ones."""
        tasks = list(self._tasks)
        for task in tasks:
            if not task.cancelling():
                task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        old, self._connections = self._connections, self._new_connections()
        await old.pool.aclose()


class _Connections:
    """A connection pool, and how many exchanges use it. A retired pool takes no new exchanges."""

    def __init__(self, pool: httpcore.AsyncConnectionPool, network: Network) -> None:
        self.pool = pool
        self.network = network
        self.num_used = 0
        self.is_retired = False


class CallStages(Struct):
    """When a call reached its stages, in seconds of time.monotonic, and how long a new connection took.

    A time is 0 if the call has not reached the stage.
    """

    is_new: bool = False
    sent_s: float = 0.0
    answered_s: float = 0.0
    connection: Stages = field(default_factory=Stages)

    def note(self, event: str, connection: Stages) -> None:
        """Record one of httpcore's trace events."""
        stage = event.partition(".")[2]
        if stage in ("connect_tcp.complete", "start_tls.complete"):
            self.is_new, self.connection = True, connection
        elif stage == "send_request_headers.started":
            self.sent_s = time.monotonic()
        elif stage == "receive_response_headers.complete":
            self.answered_s = time.monotonic()


class Exchange:
    """A call and its answer. `read` returns the body in pieces. Always call `close`.

    One task does all its work, and is cancelled at most once. httpcore awaits while it cleans up after a cancel. A
    second cancel, for example from a client that disconnects after a timeout, would interrupt the cleanup. The
    connection would then never be closed, and the remote would continue to generate. For the same reason, a cancel
    waits until httpcore has a new connection in use, and does not come while httpcore closes the answer.
    """

    def __init__(self, stages: CallStages, network: Network) -> None:
        self.stages = stages
        self._network = network
        self.status = 0
        self.headers: dict[str, str] = {}
        self.task: asyncio.Task[None] | None = None  # runs `work`
        self._parts: list[bytes] = []
        self._num_bytes = self._num_unread_bytes = 0
        self._arrived, self._taken = asyncio.Event(), asyncio.Event()
        self._failure: BaseException | None = None
        self._is_complete = self._is_left = False
        self._is_not_to_cancel = self._must_stop = False

    @property
    def content_type(self) -> str:
        """The type of the body, without its parameters."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    async def head(self) -> None:
        """Wait for `status` and `headers`; raise a Failure if the call fails before."""
        while not self.status:
            await self._more()

    async def read(self, max_bytes: int = MAX_STREAM_BYTES) -> bytes:
        """Return the next bytes of the body, b"" at its end.

        Raise a Failure if the body breaks off, or if it is compressed or too large.
        """
        if self.headers.get("content-encoding", "identity") != "identity":
            raise Failure(Kind.GARBLED, "it compressed its answer, though it was asked not to")
        while not self._parts:
            if self._is_complete:
                return b""
            await self._more()
        chunk = b"".join(self._parts)
        self._parts.clear()
        self._num_bytes, self._num_unread_bytes = self._num_bytes + len(chunk), 0
        self._taken.set()
        if self._num_bytes > max_bytes:
            raise Failure(Kind.GARBLED, f"its answer is larger than {max_bytes} bytes")
        return chunk

    async def read_all(self, max_bytes: int, count: Callable[[int], None] = lambda _: None) -> bytes:
        """Return the rest of the body; raise the errors of `read`. `count` is told how many bytes have come so far."""
        parts: list[bytes] = []
        while part := await self.read(max_bytes):
            parts.append(part)
            count(self._num_bytes)
        return b"".join(parts)

    def close(self, *, is_done: bool = False) -> None:
        """End the exchange. If not `is_done`, close its connection, which stops the remote.

        Otherwise the few bytes after the end are read in the background, so that the connection can be reused.
        """
        if self._is_left:
            return
        self._is_left = True
        self._taken.set()
        if is_done:
            asyncio.get_running_loop().call_later(_DRAIN_S, self._stop)
        else:
            self._stop()

    async def work(self, pool: httpcore.AsyncConnectionPool, request: httpcore.Request) -> None:
        """Send the request, and receive the answer until it ends."""
        response = await pool.handle_async_request(request)
        try:
            self.headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.headers}
            self.status = response.status
            self._arrived.set()
            async for chunk in response.aiter_stream():
                self._num_unread_bytes += len(chunk)
                if self._is_left and self._num_unread_bytes > _MAX_UNREAD_BYTES:
                    break
                self._parts.append(chunk)
                self._arrived.set()
                while self._num_unread_bytes > _MAX_UNREAD_BYTES and not self._is_left:
                    self._taken.clear()
                    await self._taken.wait()
            self._is_complete = True
        finally:
            with contextlib.suppress(*_CUT):
                await response.aclose()

    async def trace(self, event: str, details: dict[str, Any]) -> None:
        """Note one of httpcore's trace events; carry out a cancel that had to wait for it."""
        del details
        self.stages.note(event, self._network.stages)
        stage = event.partition(".")[2]
        self._is_not_to_cancel = stage in _NOT_TO_CANCEL_AFTER
        if not self._must_stop or self._is_not_to_cancel:
            return
        self._must_stop = False
        if stage == "send_request_headers.started":
            raise asyncio.CancelledError  # at once: nothing is to be sent
        self._stop()

    def end(self, task: asyncio.Task[None]) -> None:
        """Note why the task has ended."""
        if task.cancelled():
            self._failure = Failure(Kind.CUT, "its connections were closed on this machine")
        elif (error := task.exception()) is not None:
            self._failure = self._failed(error)
        self._arrived.set()

    def _failed(self, error: BaseException) -> BaseException:
        if isinstance(error, httpcore.ProxyError):
            return Failure(Kind.UNREACHABLE, f"the proxy refused: {str(error)[:_MAX_PROXY_CHARS]}")
        if not isinstance(error, _CUT):
            return error  # a Failure of `network`, or a mistake of ours
        if self.status:
            return Failure(Kind.CUT, "the connection broke in the middle of its answer")
        kind = Kind.CUT if self.stages.sent_s else Kind.UNREACHABLE
        return Failure(kind, "the connection broke before an answer came", was_reused=not self.stages.is_new)

    def _stop(self) -> None:
        if self._is_not_to_cancel:
            self._must_stop = True
        elif self.task is not None and not self.task.cancelling():
            self.task.cancel()

    async def _more(self) -> None:
        if self._failure is not None:
            raise self._failure
        self._arrived.clear()
        await self._arrived.wait()


async def get(
    row: int,
    url: str,
    context: ssl.SSLContext | None,
    *,
    connect_s: float,
    may_be: MayBe | None,
    accept: str,
    max_bytes: int,
    count: Callable[[int], None],
) -> tuple[int, bytes]:
    """Send a GET to an address that is no remote's, over a connection of its own; return the status and the body.

    `row`: the number of its row in the egress ledger, which must be written before. Nothing is sent but the address.
    `may_be` says which addresses the host's name may have; None means those that a remote may have. The body is read
    only if the status is 200; `count` is told how many bytes have come so far. The caller must set a timeout. Raise a
    Failure if the call fails.
    """
    assert row > 0
    network = Network(connect_s, may_be=may_be)
    exchange = Exchange(CallStages(), network)
    headers = [("Host", urlsplit(url).netloc), *_HEADERS, ("Accept", accept)]
    request = httpcore.Request("GET", url.partition("#")[0], headers=headers, extensions={"trace": exchange.trace})
    async with httpcore.AsyncConnectionPool(ssl_context=context, network_backend=network) as pool:
        exchange.task = asyncio.create_task(exchange.work(pool, request))
        exchange.task.add_done_callback(exchange.end)
        try:
            await exchange.head()
            data = await exchange.read_all(max_bytes, count) if exchange.status == 200 else b""
            return exchange.status, data
        finally:
            exchange.close()
            await asyncio.wait([exchange.task])


def _proxy_of(remote: Remote, url: str) -> str | None:
    """Return the URL of the proxy for an endpoint; None if the endpoint is reached directly.

    A proxy on another machine is not used for an endpoint on this machine, because it could read the traffic.
    """
    is_needless = remote.proxy is not None and is_loopback(url) and not is_loopback(remote.proxy)
    return None if is_needless else remote.proxy


def check_permit(permit: Permit | ProbePermit, remote: str, call: Call) -> None:
    """Raise Forbidden if the permit does not cover this call to this remote, or if the permit's mode is local_only."""
    is_request = type(permit) is Permit and bool(call.request_id) and permit.request_id == call.request_id
    is_probe = type(permit) is ProbePermit and call.body is None and not call.request_id
    is_for_us = (is_request or is_probe) and permit.remote == remote
    if not is_for_us or permit.mode not in _REMOTE_MODES:
        raise Forbidden(f"there is no permit to send this to remote {remote!r}")


_REMOTE_MODES = (RouteMode.PREFER_LOCAL, RouteMode.PREFER_REMOTE, RouteMode.REMOTE_ONLY)


def tls_context(tls: Tls) -> ssl.SSLContext:
    """Return the context that verifies a remote, with TLS 1.2 or later; raise ConfigError if a file cannot be used.

    A remote with its own CA file is verified by that CA. A remote with only a pin is verified by the pin alone; the
    certificate's issuer does not matter. Other remotes are verified by the CAs that the system trusts.
    """
    path = tls.ca_file
    try:
        context = ssl.create_default_context(cafile=tls.ca_file)
        if tls.pin is not None and tls.ca_file is None:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE  # the pin is compared before a byte is sent
        if tls.client_certificate is not None:
            path = tls.client_certificate
            context.load_cert_chain(tls.client_certificate, tls.client_key, password=lambda: b"")
    except (OSError, ValueError) as error:
        raise ConfigError(f"TLS: {path} cannot be used: {_said(error)}; fix the file or name another one") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def lag_s() -> float:
    """Return how many seconds the boot clock is ahead of the monotonic clock.

    Unlike the monotonic clock, the boot clock also runs while the machine sleeps. On systems without a boot clock, the
    wall clock takes its place. Setting the wall clock then looks like a sleep, and connections are reopened
    unnecessarily.
    """
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    return (time.time() if boot is None else time.clock_gettime(boot)) - time.monotonic()


def _said(error: Exception) -> str:
    return getattr(error, "reason", None) or getattr(error, "strerror", None) or type(error).__name__
