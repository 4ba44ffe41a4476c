"""A small HTTP/2 server whose streams follow a script; it records which of them were reset."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.settings

from tests.backends.remote.fault_server import Act
from tests.present import present


class Http2Server:
    """Answers every request with `script`: pieces of data, then acts."""

    def __init__(self, script: list[bytes | Act], max_streams: int = 100) -> None:
        self.script = script
        self.max_streams = max_streams
        self.status = "200"
        self.port = 0
        self.num_connections = 0
        self.asked: list[dict[str, str]] = []
        self.resets: list[int] = []
        self._open: dict[h2.connection.H2Connection, set[int]] = {}
        self.serving: dict[asyncio.Task[Any], asyncio.StreamWriter] = {}

    @property
    def url(self) -> str:
        """The base URL."""
        return f"https://127.0.0.1:{self.port}/v1"

    @property
    def num_open(self) -> int:
        """The number of open streams on open connections."""
        return sum(map(len, self._open.values()))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        self.num_connections += 1
        task = present(asyncio.current_task())
        self.serving[task] = writer
        state = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
        state.local_settings[h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS] = self.max_streams
        self._open[state] = set()
        state.initiate_connection()
        writer.write(state.data_to_send())
        try:
            while data := await reader.read(65_536):
                events = state.receive_data(data)
                reset = {each.stream_id for each in events if isinstance(each, h2.events.StreamReset)}
                for event in events:
                    if not (isinstance(event, h2.events.StreamEnded) and event.stream_id in reset):
                        self._take(event, state, writer)
                writer.write(state.data_to_send())
                await writer.drain()
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            del self.serving[task], self._open[state]
            writer.close()

    def _take(self, event: h2.events.Event, state: h2.connection.H2Connection, writer: asyncio.StreamWriter) -> None:
        match event:
            case h2.events.RequestReceived():
                self._open[state].add(event.stream_id)
                assert event.headers is not None
                self.asked.append({name.decode(): value.decode() for name, value in event.headers})
            case h2.events.DataReceived():
                state.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            case h2.events.StreamEnded():
                self._answer(event.stream_id, state, writer)
            case h2.events.StreamReset():
                self.resets.append(event.stream_id)
                self._open[state].discard(event.stream_id)

    def _answer(self, stream_id: int, state: h2.connection.H2Connection, writer: asyncio.StreamWriter) -> None:
        if self.script[0] is not Act.STALL:
            state.send_headers(stream_id, [(":status", self.status), ("content-type", "text/event-stream")])
        for act in self.script:
            match act:
                case bytes():
                    state.send_data(stream_id, act)
                case Act.STALL:
                    return
                case Act.RESET:
                    state.reset_stream(stream_id, h2.errors.ErrorCodes.INTERNAL_ERROR)
                    return
                case Act.CLOSE:
                    writer.write(state.data_to_send())
                    writer.close()
                    return
        state.end_stream(stream_id)
        self._open[state].discard(stream_id)


@asynccontextmanager
async def http2(context: ssl.SSLContext, *script: bytes | Act, max_streams: int = 100) -> AsyncIterator[Http2Server]:
    """Run a server."""
    scripted = Http2Server(list(script), max_streams)
    server = await asyncio.start_server(scripted.serve, "127.0.0.1", 0, ssl=context)
    scripted.port = server.sockets[0].getsockname()[1]
    try:
        yield scripted
    finally:
        server.close()
        for writer in scripted.serving.values():
            writer.transport.abort()
        if scripted.serving:
            await asyncio.wait(list(scripted.serving), timeout=10)
        await asyncio.sleep(0)
