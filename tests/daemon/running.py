"""The daemon's own server around a fake backend, in this process, and raw sockets to connect to it."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import httpx
from starlette.types import ASGIApp

from edgeagent.answers.answers import Answers
from edgeagent.api.app import create_app
from edgeagent.config import Config, ServerConfig
from edgeagent.credentials.keys import Keys
from edgeagent.daemon.console import ConsoleReporter
from edgeagent.daemon.lifecycle import StopRequest
from edgeagent.daemon.listeners import bind
from edgeagent.daemon.server import Server, make_server
from edgeagent.runtime_file import Runtime
from edgeagent.service.live_service import Trace
from edgeagent.service.service import Service
from edgeagent.types import ModelStatus
from tests.api.checked_app import CheckedApp
from tests.owner_key import OwnerKey

TOKEN = "x" * 43


@dataclass
class RecordingReporter(ConsoleReporter):
    """Records the reported events."""

    events: list[str] = field(default_factory=list)

    def listening(self, runtime: Runtime, token_file: Path | None, urls: Sequence[str] = ()) -> None:
        self.events.append(f"listening {runtime.url}{' token' if token_file else ''}")

    def loading(self, model: ModelStatus) -> None:
        self.events.append(f"loading {model.name}")

    def ready(self, model: ModelStatus) -> None:
        self.events.append(f"ready {model.name}")

    def failed(self, model: ModelStatus) -> None:
        self.events.append(f"failed {model.name}: {model.cause}")

    def stopping(self, num_live: int) -> None:
        self.events.append(f"stopping {num_live}")

    def error(self, message: str) -> None:
        self.events.append(f"error {message}")


def limited(**limits: Any) -> Config:
    """Return a configuration whose server has smaller limits: `max_connections`, for example."""
    return Config(server=type("LimitedServer", (ServerConfig,), {**limits, "__module__": __name__})())


@dataclass
class Running:
    """A listening server."""

    port: int
    service: Service
    http: httpx.AsyncClient
    stop: StopRequest
    server: Server
    serving: asyncio.Task[None]
    reporter: RecordingReporter

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@asynccontextmanager
async def running(
    service: Service,
    config: Config | None = None,
    keys: Keys | None = None,
    trace: Trace | None = None,
    port: int = 0,
    answers: Answers | None = None,
) -> AsyncIterator[Running]:
    """Serve on a port of the configured host; 0: on a free one. `answers`: a cache of answers in front of `service`."""
    config = config or Config()
    stop, reporter, listening = StopRequest(), RecordingReporter(), asyncio.Event()
    with closing(bind(config.server.host, port)) as listener:
        served = create_app(
            config, service, keys=keys or OwnerKey(TOKEN), stop=stop.request, trace=trace, answers=answers
        )
        server = make_server(served, stop, reporter, listening.set)
        # uvicorn only calls the app.
        app = CheckedApp(cast(ASGIApp, server.config.app))
        server.config.app = app
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        await listening.wait()
        try:
            async with httpx.AsyncClient() as http:
                yield Running(listener.getsockname()[1], service, http, stop, server, serving, reporter)
        finally:
            if not serving.done():
                stop.request()
                stop.request()
            await serving
        app.check()


@dataclass(frozen=True)
class Reply:
    """A parsed HTTP response."""

    status: int
    headers: dict[str, str]
    body: bytes

    def error(self) -> dict[str, str | None]:
        """Return the OpenAI-shaped error; fail if the body is not one."""
        document = json.loads(self.body)
        assert set(document) == {"error"}
        assert set(document["error"]) == {"message", "type", "param", "code"}
        error: dict[str, str | None] = document["error"]
        return error


async def exchange(port: int, request: bytes, *, host: str = "127.0.0.1") -> Reply:
    """Send bytes and return the first response; the connection is then closed."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(request)
        return await read_reply(reader, has_body=not request.startswith(b"HEAD "))
    finally:
        writer.transport.abort()


async def read_reply(reader: asyncio.StreamReader, *, has_body: bool = True) -> Reply:
    """Return the next response of a connection."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    status_line, *lines = head.strip().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = b""
    if not has_body:
        return Reply(int(status_line.split()[1]), headers, body)
    if headers.get("transfer-encoding") == "chunked":
        while size := int(await reader.readuntil(b"\r\n"), 16):
            body += (await reader.readexactly(size + 2))[:-2]
        await reader.readexactly(2)
    elif "content-length" in headers:
        body = await reader.readexactly(int(headers["content-length"]))
    return Reply(int(status_line.split()[1]), headers, body)


def has_ipv6_loopback() -> bool:
    """Return whether this machine can listen on ::1."""
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False
