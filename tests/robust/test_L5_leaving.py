"""L5: however and whenever a client leaves, its work stops, and nothing of it remains."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path

import psutil
import pytest

from tests.daemon.running import Running, running
from tests.robust.frames import FIN, TEXT, close, frame
from tests.robust.raw import KEY_HEADERS
from tests.robust.stub_service import stub_service
from tests.worker.support import eventually

Leave = Callable[[asyncio.StreamWriter], Awaitable[None]]

PREFILL, DECODE = "begin", "stream"
MAX_GROWN_BYTES = 10 << 20


async def fin(writer: asyncio.StreamWriter) -> None:
    """Close the connection, as a program that exits does."""
    writer.close()


async def rst(writer: asyncio.StreamWriter) -> None:
    """Reset the connection."""
    raw: socket.socket = writer.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def websocket_close(writer: asyncio.StreamWriter) -> None:
    """Send a close frame."""
    writer.write(close(1000))


async def cancel(writer: asyncio.StreamWriter) -> None:
    """Stay connected, but cancel."""
    writer.write(frame(FIN | TEXT, b'{"type":"response.cancel"}'))


# The row allows 250 ms for a stream and 2 s for a prompt; a busy machine gets more.
MAX_STOP_S = 10.0
WAYS: tuple[Leave, ...] = (fin, rst, websocket_close, cancel)


async def open_socket(daemon: Running) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", daemon.port)
    host = f"127.0.0.1:{daemon.port}"
    head = f"GET /v1/responses HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    writer.write(f"{head}{KEY_HEADERS}\r\n\r\n".encode())
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101")
    return reader, writer


async def begin(daemon: Running, phase: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Return a connection with a response in a certain phase."""
    reader, writer = await open_socket(daemon)
    body = json.dumps({"type": "response.create", "input": phase, "store": False})
    writer.write(frame(FIN | TEXT, body.encode()))
    await reader.readuntil(b"output_text.delta" if phase == DECODE else b"response.in_progress")
    return reader, writer


def num_running(daemon: Running) -> int:
    """Return the worker's number of running requests, as of its last pong."""
    worker = daemon.service.models.statuses()[0].worker
    return worker.num_running if worker else 0


async def cycle(daemon: Running, phase: str, leave: Leave) -> None:
    reader, writer = await begin(daemon, phase)
    await leave(writer)
    if leave is cancel:
        await reader.readuntil(b"response.incomplete")
    writer.transport.abort()


@pytest.mark.parametrize("phase", [PREFILL, DECODE])
@pytest.mark.parametrize("leave", WAYS, ids=lambda way: way.__name__)
async def test_work_stops(tmp_path: Path, phase: str, leave: Leave) -> None:
    async with stub_service(tmp_path / "lives") as service, running(service) as daemon:
        reader, writer = await begin(daemon, phase)
        await eventually(lambda: num_running(daemon) == 1)
        await leave(writer)
        await eventually(lambda: num_running(daemon) == 0, MAX_STOP_S)
        if leave is cancel:
            await reader.readuntil(b"response.incomplete")
        writer.transport.abort()
        await eventually(lambda: not daemon.server.server_state.connections, MAX_STOP_S)


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_work_over_http_stops(tmp_path: Path, is_streamed: bool) -> None:
    async with stub_service(tmp_path / "lives") as service, running(service) as daemon:
        body = json.dumps({"input": DECODE, "stream": is_streamed})
        _, writer = await asyncio.open_connection("127.0.0.1", daemon.port)
        head = f"POST /v1/responses HTTP/1.1\r\nHost: 127.0.0.1:{daemon.port}\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        await eventually(lambda: num_running(daemon) == 1)
        writer.transport.abort()
        await eventually(lambda: num_running(daemon) == 0, MAX_STOP_S)


@pytest.mark.parametrize("num_cycles", [24, pytest.param(500, marks=pytest.mark.slow(seconds=4))])
async def test_cycles_leave_nothing(tmp_path: Path, num_cycles: int) -> None:
    process = psutil.Process()
    num_descriptors: Callable[[], int] = getattr(process, "num_fds", None) or process.num_handles
    async with stub_service(tmp_path / "lives") as service, running(service) as daemon:

        async def cycles(num: int) -> None:
            for index in range(num):
                await cycle(daemon, (PREFILL, DECODE)[index % 2], WAYS[index // 2 % len(WAYS)])
            await eventually(lambda: not daemon.server.server_state.connections)
            await eventually(lambda: num_running(daemon) == 0)

        await cycles(8)
        descriptors, tasks, memory = num_descriptors(), len(asyncio.all_tasks()), process.memory_info().rss
        await cycles(num_cycles)
        # A last pong or a timer may still be in progress.
        await eventually(lambda: num_descriptors() <= descriptors and len(asyncio.all_tasks()) <= tasks)
        assert process.memory_info().rss - memory <= MAX_GROWN_BYTES
