"""Data from a remote is acknowledged as soon as it is read: a server that holds small packets back waits for that."""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
from typing import Any

import pytest

from edgeagent.backends.remote.network import Network

fcntl = pytest.importorskip("fcntl")

_NUM_ROUNDS = 20  # the first answers of a connection are acknowledged at once by any client
_SIOCOUTQ = 0x5411


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can be asked to acknowledge at once")
async def test_an_answer_is_acknowledged_when_it_is_read() -> None:
    held: list[int] = []
    served = asyncio.Event()
    serving: asyncio.Future[socket.socket] = asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.set_result(writer.get_extra_info("socket"))
        while await reader.read(100):
            writer.write(b"an answer")
        writer.close()
        await writer.wait_closed()
        served.set()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        stream = await Network(2.0).connect_tcp("127.0.0.1", server.sockets[0].getsockname()[1])
        try:
            for _ in range(_NUM_ROUNDS):
                await stream.write(b"a request")
                assert await stream.read(100) == b"an answer"
                held.append(_num_unacknowledged(serving.result()))
        finally:
            await stream.aclose()
            await served.wait()
    assert held == [0] * _NUM_ROUNDS


def _num_unacknowledged(connection: Any) -> int:
    """Return the number of sent bytes that the peer has not acknowledged."""
    count = fcntl.ioctl(connection.fileno(), _SIOCOUTQ, struct.pack("i", 0))
    return int(struct.unpack("i", count)[0])
