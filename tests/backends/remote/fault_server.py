"""A remote on a loopback port that sends exactly the bytes of a script, and records the requests.

It is not an HTTP library's server, because it exists to produce faults that such a server prevents.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from tests.present import present


class Act(Enum):
    """A script's acts other than sending bytes.

    At the end of a script the connection stays open for the next request.
    """

    CLOSE = auto()
    RESET = auto()
    STALL = auto()
    """Send nothing more until the client leaves."""


Script = Sequence[bytes | Act]
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
LAST = b"0\r\n\r\n"


def chunked(data: bytes) -> bytes:
    """Return data as one chunk of a body."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def stream(*parts: bytes) -> Script:
    """Return a whole event stream, each part in a chunk of its own."""
    return [HEAD, *map(chunked, parts), LAST]


def half(*parts: bytes | Act) -> Script:
    """Return a stream's beginning, with the acts that follow."""
    return [HEAD, *(part if isinstance(part, Act) else chunked(part) for part in parts)]


def plain(status: int, body: bytes = b"", headers: str = "", kind: str = "application/json") -> Script:
    """Return a whole answer that is not a stream."""
    head = f"HTTP/1.1 {status} Said\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
    return [head.encode() + body]


def models(*names: str, owner: str = "vllm") -> Script:
    """Return a list of models as a server sends it."""
    listed = [{"id": name, "object": "model", "owned_by": owner} for name in names]
    return plain(200, json.dumps({"object": "list", "data": listed}).encode())


@dataclass(slots=True)
class Asked:
    """One request as received, and whether its client left before the answer ended."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    left: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def json(self) -> Any:
        """The parsed body."""
        return json.loads(self.body)


class FaultServer:
    """Answers each POST with the next script, and repeats the last one. Answers GET from `gets`, else with 404."""

    def __init__(self, *scripts: Script, gets: dict[str, Script] | None = None) -> None:
        self.scripts = list(scripts)
        self.gets = gets or {}
        self.num_connections = 0
        self.asked: list[Asked] = []
        self.arrived = asyncio.Event()
        self.port = 0
        self.scheme = "http"
        self.pace_s = 0.0
        self._writers: set[asyncio.StreamWriter] = set()
        self._serving: set[asyncio.Task[Any]] = set()

    @property
    def url(self) -> str:
        """The base URL."""
        return f"{self.scheme}://127.0.0.1:{self.port}/v1"

    @property
    def posts(self) -> list[Asked]:
        """The requests for an answer; all others were probes."""
        return [asked for asked in self.asked if asked.method == "POST"]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        self.num_connections += 1
        self._writers.add(writer)
        task = present(asyncio.current_task())
        self._serving.add(task)
        try:
            while (asked := await _read_request(reader)) is not None:
                self.asked.append(asked)
                self.arrived.set()
                try:
                    is_kept = await self._answer(asked, reader, writer)
                except ConnectionError:
                    asked.left.set()
                    raise
                if not is_kept:
                    return
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._writers.discard(writer)
            self._serving.discard(task)
            writer.close()

    async def _answer(self, asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        script = self._script(asked)
        for act in script:
            if isinstance(act, bytes):
                writer.write(act)
                await writer.drain()
                # The client should receive each piece in a read of its own, as far as that is possible.
                await asyncio.sleep(self.pace_s)
                continue
            if act is Act.STALL:
                with contextlib.suppress(ConnectionError):
                    await reader.read(1)
                asked.left.set()
            elif act is Act.RESET:
                connection = writer.get_extra_info("socket")
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                writer.transport.abort()
            return False
        return True

    def _script(self, asked: Asked) -> Script:
        if asked.method == "GET":
            return self.gets.get(asked.path, plain(404))
        return self.scripts.pop(0) if len(self.scripts) > 1 else self.scripts[0]

    async def end(self) -> None:
        """Close every connection, and wait until its task has ended."""
        for writer in self._writers:
            writer.transport.abort()
        if self._serving:
            await asyncio.wait(self._serving, timeout=10)

    def cut(self, num_connections: int | None = None) -> None:
        """Close this many connections, or all if None."""
        for writer in list(self._writers)[:num_connections]:
            writer.close()


async def _read_request(reader: asyncio.StreamReader) -> Asked | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.decode("latin-1").split("\r\n")[:-2]
    method, path, _ = first.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Asked(method, path, headers, body)


@asynccontextmanager
async def faults(
    *scripts: Script,
    gets: dict[str, Script] | None = None,
    tls: ssl.SSLContext | None = None,
    host: str = "127.0.0.1",
    server_class: type[FaultServer] | None = None,
) -> AsyncIterator[FaultServer]:
    """Run a scripted remote."""
    scripted = (server_class or FaultServer)(*scripts, gets=gets)
    server = await asyncio.start_server(scripted.serve, host, 0, ssl=tls)
    scripted.port = server.sockets[0].getsockname()[1]
    scripted.scheme = "https" if tls is not None else "http"
    try:
        yield scripted
    finally:
        server.close()
        await scripted.end()
        await asyncio.sleep(0)


_RESERVED: list[socket.socket] = []


def closed_port() -> int:
    """Return a port that refuses connections. It stays bound, so that no other process listens there."""
    _RESERVED.append(socket.socket())
    _RESERVED[-1].bind(("127.0.0.1", 0))
    return int(_RESERVED[-1].getsockname()[1])
