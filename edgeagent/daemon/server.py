"""Sets up uvicorn for the daemon. The server uses sockets that are already bound, and a StopRequest ends it."""

from __future__ import annotations

import asyncio
import functools
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

from uvicorn.config import Config
from uvicorn.server import Server as UvicornServer

from edgeagent import metrics
from edgeagent.api.gate.body_limit import InFlight
from edgeagent.daemon.listeners import BACKLOG, notify, server_context
from edgeagent.daemon.transport import GuardedHttp, GuardedWebSocket
from edgeagent.service.live_service import LiveService

if TYPE_CHECKING:
    from fastapi import FastAPI

    from edgeagent.api.context import Context
    from edgeagent.config import ServerConfig
    from edgeagent.daemon.console import ConsoleReporter
    from edgeagent.daemon.lifecycle import StopRequest

TLS_TIMEOUT_S = 10.0
PING_S = 20.0
POLL_S = 0.05
# An idle daemon should rarely wake. At each tick, uvicorn renews the Date of its answers.
TICK_S = 1.0


def make_server(
    app: FastAPI,
    stop: StopRequest,
    reporter: ConsoleReporter,
    on_listening: Callable[[], None],
    unix: socket.socket | None = None,
) -> Server:
    """Return the server of an application. `on_listening` is called once it accepts connections on all its sockets."""
    context: Context = app.state.context
    server = context.config.server
    drain = functools.partial(_drain, context.service, server.drain_s, stop, reporter)
    made = Server(_uvicorn_settings(app, server, context.in_flight), drain, stop, on_listening, unix)
    made.server_state.connections = context.connections
    return made


def _uvicorn_settings(app: FastAPI, server: ServerConfig, in_flight: InFlight) -> Config:
    """Return uvicorn's settings: the guarded protocols and their limits. Features that edgeagent replaces are off."""
    http = functools.partial(GuardedHttp, max_connections=server.max_connections, in_flight=in_flight)
    certificate = server.tls_certificate
    return Config(
        app,
        # uvicorn expects a class but only calls it, so a function that returns a protocol works too.
        http=cast(type[asyncio.Protocol], http),
        ws=cast(type[asyncio.Protocol], functools.partial(GuardedWebSocket, in_flight=in_flight)),
        ws_max_size=server.max_frame_bytes,
        ws_ping_interval=PING_S,
        ws_ping_timeout=PING_S,
        ws_per_message_deflate=False,
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        ssl_context_factory=None if certificate is None else lambda *_: server_context(certificate, server.tls_key),
        timeout_keep_alive=30,
        timeout_graceful_shutdown=2,
    )


async def _drain(service: LiveService, limit_s: float, stop: StopRequest, reporter: ConsoleReporter) -> None:
    """Refuse new requests, and end the live ones: wait for them up to `limit_s`, then cancel those that remain.

    If the daemon is asked to stop a second time, cancel them at once. Return when all terminal events are written, or
    when the time for writing them is over.
    """

    def grace_s() -> float:
        """How long cancelled requests may take to reach their terminal events, and as long again to write these."""
        return 0.25 if stop.is_forced else 2.0  # a cancel takes milliseconds unless the worker hangs

    live, clock = service.live, asyncio.get_running_loop().time
    service.begin_drain()
    if not stop.is_failure:
        reporter.stopping(live.num_running)
    deadline = clock() + limit_s
    while live.num_running and clock() < deadline and not stop.is_forced:
        await live.wait_idle(min(POLL_S, deadline - clock()))
    if live.num_running:
        service.cancel_all()
        await live.wait_idle(grace_s())
    await live.wait_delivered(grace_s())


class Server(UvicornServer):
    """A uvicorn server that a StopRequest ends, not a signal. It calls `drain` before it closes connections."""

    def __init__(
        self,
        config: Config,
        drain: Callable[[], Awaitable[None]],
        stop: StopRequest,
        on_listening: Callable[[], None],
        unix: socket.socket | None,
    ) -> None:
        super().__init__(config)
        self._unix = unix
        self._drain = drain
        self._stop = stop
        self._on_listening = on_listening
        self._lag = metrics.loop_lag_seconds.labels()
        self._ticked_at_s = 0.0

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do nothing, since the daemon handles signals. uvicorn would handle them and raise them again when it ends."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections on all sockets. The Unix socket never uses TLS.

        The asyncio servers are created here and not by uvicorn, since uvicorn would let a TLS handshake take 60 s. All
        that time, the client would not count towards the limit of connections.
        """
        await super().startup([])
        loop, tls = asyncio.get_running_loop(), self.config.ssl
        for each in sockets or ():
            timeout_s = None if tls is None else TLS_TIMEOUT_S
            self.servers.append(
                await loop.create_server(
                    self._protocol, sock=each, ssl=tls, ssl_handshake_timeout=timeout_s, backlog=BACKLOG
                )
            )
        if self._unix is not None:
            self.servers.append(await loop.create_unix_server(self._protocol, sock=self._unix, backlog=BACKLOG))
        self._on_listening()

    def _protocol(self) -> asyncio.Protocol:
        make = cast(Callable[..., asyncio.Protocol], self.config.http_protocol_class)
        return make(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)

    async def main_loop(self) -> None:
        """Call `on_tick` every second until the daemon is asked to stop."""
        while not await self.on_tick(0):
            await self._stop.wait(TICK_S)

    async def on_tick(self, counter: int) -> bool:
        """Measure the event loop's lag. Return True if the server must stop."""
        now_s = asyncio.get_running_loop().time()
        if self._ticked_at_s:
            self._lag.observe(max(0.0, now_s - self._ticked_at_s - TICK_S))
        self._ticked_at_s = now_s
        self.should_exit = self.should_exit or self._stop.is_requested
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting connections, drain, then close every connection."""
        notify("STOPPING=1")
        for server in self.servers:
            server.close()
        force = asyncio.create_task(self._watch_force())
        try:
            await self._drain()
            await super().shutdown(sockets)
        finally:
            force.cancel()

    async def _watch_force(self) -> None:
        while not self.force_exit:
            self.force_exit = self._stop.is_forced
            await asyncio.sleep(POLL_S)
