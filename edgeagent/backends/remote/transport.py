"""Opens every connection from this machine to a remote, and requires a permit for each call.

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
from typing import Any, TypeVar
from urllib.parse import urlsplit

import h2.errors
import h2.events
import h2.exceptions
import httpcore
from msgspec import Struct, field

from edgeagent import metrics
from edgeagent.backends.remote.failures import Failure, Kind
from edgeagent.backends.remote.network import Network, Stages, is_ours, source_of
from edgeagent.errors import ConfigError, Forbidden
from edgeagent.remotes import Remote, Tls
from edgeagent.remotes.check import is_loopback
from edgeagent.types import Permit, ProbePermit, RouteMode

MAX_STREAM_BYTES = 256 << 20
_KEEP_ALIVE_S = 60.0
_MAX_DRAINED_BYTES = 64 * 1024
_DRAIN_S = 1.0
_MAX_PROXY_CHARS = 100
# If the boot clock advanced by this much more than the monotonic clock, the machine slept.
_SLEPT_S = 5.0
# Connections beyond those for requests: for probes, and for connections that are being closed.
_SPARE_CONNECTIONS = 4
_CUT = (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException, h2.exceptions.ProtocolError)

Result = TypeVar("Result")


class BackgroundTasks:
    """Runs work that must not be cancelled twice. Each piece of work has its own task.

    httpcore awaits while it cleans up after a cancel. A second cancel, for example from a client that disconnects after
    a timeout, would interrupt the cleanup. The connection would then never be closed, and the remote would continue to
    generate.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def begin(self, work: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
        """Start work in the background and return its task."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def run(
        self, work: Coroutine[Any, Any, Result], undo: Callable[[Result], Coroutine[Any, Any, Any]] | None = None
    ) -> Result:
        """Await work and return its result; raise the work's error, or a Failure if `finish` ended the work.

        If the caller is cancelled, cancel the work once and do not wait for it. If the work completes nevertheless,
        call `undo` with its result.
        """
        task = self.begin(work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            waiting = asyncio.current_task()
            if task.cancelled() and waiting is not None and not waiting.cancelling():
                raise Failure(Kind.CUT, "its connections were closed on this machine") from None
            task.cancel()
            if undo is not None:
                task.add_done_callback(lambda done: self._undo(done, undo))
            raise

    def _undo(self, done: asyncio.Task[Result], undo: Callable[[Result], Coroutine[Any, Any, Any]]) -> None:
        if not done.cancelled() and done.exception() is None:
            self.begin(undo(done.result()))

    async def finish(self) -> None:
        """Cancel all running work, and wait until it has ended."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)


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
        self._tasks = BackgroundTasks()
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
            http2=True,
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
        self._tasks.begin(connections.pool.aclose())

    def _leave(self, connections: _Connections) -> None:
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
        pool, network = used.pool, used.network

        async def trace(event: str, details: dict[str, Any]) -> None:
            stages.note(event, network.stages)
            if event == "http2.response_closed.started":
                await _reset_stream(pool, request, details["stream_id"])

        request = httpcore.Request(
            "GET" if call.body is None else "POST",
            f"{self._base}{self._root if call.is_at_root else self._path}{call.path}",
            headers=self._headers(call),
            content=call.body,
            extensions={"trace": trace},
        )
        used.num_used += 1
        try:
            response = await self._tasks.run(pool.handle_async_request(request), httpcore.Response.aclose)
        except httpcore.ProxyError as error:
            self._leave(used)
            raise Failure(Kind.UNREACHABLE, f"the proxy refused: {str(error)[:_MAX_PROXY_CHARS]}") from None
        except _CUT:
            self._leave(used)
            kind = Kind.CUT if stages.sent_s else Kind.UNREACHABLE
            raise Failure(kind, "the connection broke before an answer came", was_reused=not stages.is_new) from None
        except ValueError:  # httpcore converts an HTTP/2 status to a number without checking it
            self._leave(used)
            raise Failure(Kind.GARBLED, "the head of its answer is not valid HTTP") from None
        except BaseException:
            self._leave(used)
            raise
        self._measure(stages, is_request=bool(call.request_id))
        return Exchange(response, stages, self._tasks, partial(self._leave, used))

    async def fetch(self, permit: Permit | ProbePermit, call: Call, max_bytes: int) -> tuple[Exchange, bytes]:
        """Send a call and return the exchange, which is closed, with the whole body; see `open`."""
        exchange = await self.open(permit, call)
        try:
            return exchange, await exchange.read_all(max_bytes)
        finally:
            await exchange.close(is_done=True)

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
        headers = [("Host", self.host), ("User-Agent", "edgeagent"), ("Accept-Encoding", "identity"), *call.headers]
        if call.body is not None:
            headers += [("Content-Type", "application/json"), ("Content-Length", str(len(call.body)))]
        return headers

    async def drop(self) -> None:
        """Close every connection at once; the next call opens new ones."""
        await self._tasks.finish()
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
    """An answer whose status and headers have arrived. `read` returns the body in pieces. Always call `close`."""

    def __init__(
        self,
        response: httpcore.Response,
        stages: CallStages,
        tasks: BackgroundTasks,
        leave: Callable[[], None],
    ) -> None:
        self._response = response
        self._tasks = tasks
        self._leave = leave
        self._chunks = response.aiter_stream()
        self._num_bytes = 0
        self._is_at_end = False
        self._is_closed = False
        self.stages = stages
        self.status = response.status
        self.headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.headers}

    @property
    def content_type(self) -> str:
        """The type of the body, without its parameters."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def is_http2(self) -> bool:
        """Whether the exchange uses HTTP/2."""
        return self._response.extensions.get("http_version") == b"HTTP/2"

    async def read(self, max_bytes: int = MAX_STREAM_BYTES) -> bytes:
        """Return the next bytes of the body, b"" at its end.

        Raise a Failure if the body breaks off, or if it is compressed or too large.
        """
        if self.headers.get("content-encoding", "identity") != "identity":
            raise Failure(Kind.GARBLED, "it compressed its answer, though it was asked not to")
        if self._is_at_end:
            return b""
        try:
            chunk = await self._tasks.run(self._next())
        except _CUT:
            raise Failure(Kind.CUT, "the connection broke in the middle of its answer") from None
        self._num_bytes += len(chunk)
        if self._num_bytes > max_bytes:
            raise Failure(Kind.GARBLED, f"its answer is larger than {max_bytes} bytes")
        self._is_at_end = not chunk
        return chunk

    async def read_all(self, max_bytes: int) -> bytes:
        """Return the rest of the body; raise the errors of `read`."""
        parts: list[bytes] = []
        while part := await self.read(max_bytes):
            parts.append(part)
        return b"".join(parts)

    async def close(self, *, is_done: bool = False) -> None:
        """End the exchange. If not `is_done`, reset the HTTP/2 stream or close the connection to stop the remote."""
        if self._is_closed:
            return
        self._is_closed = True
        if is_done and not self._is_at_end:
            # Read the few bytes after the end in the background, so that the connection can be reused.
            self._tasks.begin(self._read_off())
        else:
            # `drop` may cancel `ending`. asyncio.wait does not pass that cancel on to the task that called `close`.
            ending = self._tasks.begin(self._end())
            await asyncio.wait([ending])
            if not ending.cancelled():
                ending.result()

    async def _next(self) -> bytes:
        return await anext(self._chunks, b"")

    async def _read_off(self) -> None:
        num_bytes = 0
        try:
            async with asyncio.timeout(_DRAIN_S):
                while num_bytes <= _MAX_DRAINED_BYTES and (chunk := await self._next()):
                    num_bytes += len(chunk)
        except (TimeoutError, *_CUT):
            pass
        finally:
            await self._end()

    async def _end(self) -> None:
        try:
            with contextlib.suppress(*_CUT):
                await self._response.aclose()
        finally:
            self._leave()


def _proxy_of(remote: Remote, url: str) -> str | None:
    """Return the URL of the proxy for an endpoint; None if the endpoint is reached directly.

    A proxy on another machine is not used for an endpoint on this machine, because it could read the traffic.
    """
    is_needless = remote.proxy is not None and is_loopback(url) and not is_loopback(remote.proxy)
    return None if is_needless else remote.proxy


async def _reset_stream(pool: httpcore.AsyncConnectionPool, request: httpcore.Request, stream_id: int) -> None:
    """Cancel an HTTP/2 stream that has not ended, also at the server.

    httpcore 1.0 forgets a half-read stream without telling the server. The server would continue to generate. Until the
    connection ends, the stream would count against the connection's limit of streams, and its unread bytes against the
    flow-control window. httpcore has no public way to cancel a stream.
    """
    held = next((held for held in pool._requests if held.request is request), None)
    connection: Any = getattr(held and held.connection, "_connection", None)
    state = getattr(connection, "_h2_state", None)
    if state is None:
        return
    try:
        for unread in connection._events.get(stream_id, ()):
            if isinstance(unread, h2.events.DataReceived):
                state.acknowledge_received_data(unread.flow_controlled_length, stream_id)
        state.reset_stream(stream_id, error_code=h2.errors.ErrorCodes.CANCEL)
    except h2.exceptions.ProtocolError:  # the stream or the connection has already ended
        pass
    with contextlib.suppress(httpcore.NetworkError):
        await connection._write_outgoing_data(request)


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
