"""Connect, generate and cancel, many times: nothing is left behind in the daemon or its worker."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest
from websockets.asyncio.client import ClientConnection, connect

from tests.integration.conftest import Daemon
from tests.integration.leaks import Holdings, idle, purge, settled

MAX_TOKENS = 400
SCHEMA = {
    "type": "object",
    "properties": {"numbers": {"type": "array", "items": {"type": "integer"}, "minItems": 900}},
    "required": ["numbers"],
}
# The answer does not end for a while, begins the same each time, and stays short even if the cancel comes late.
CREATE = {
    "type": "response.create",
    "input": "Hello!",
    "temperature": 0,
    "max_output_tokens": MAX_TOKENS,
    "text": {"format": {"type": "json_schema", "name": "numbers", "schema": SCHEMA, "strict": True}},
}
NUM_WARM_UP = 12
MAX_GROWTH_MIB = 3.0


async def until(socket: ClientConnection, *kinds: str) -> dict[str, object]:
    while True:
        event: dict[str, object] = json.loads(await asyncio.wait_for(socket.recv(), 60))
        if event["type"] in kinds:
            return event


async def cancel(socket: ClientConnection) -> None:
    """Cancel the response and wait for its end."""
    await socket.send(json.dumps({"type": "response.cancel"}))
    end = await until(socket, "response.incomplete", "response.completed", "response.failed", "error")
    assert end["type"] == "response.incomplete", end


async def close(socket: ClientConnection) -> None:
    """Disconnect with a closing handshake."""
    await socket.close()


async def drop(socket: ClientConnection) -> None:
    """Disconnect without a closing handshake."""
    socket.transport.abort()


async def ask_no_more(socket: ClientConnection) -> None:
    """Disconnect before the first token."""
    await socket.send(json.dumps({**CREATE, "stream_id": "other"}))


WAYS = (cancel, close, drop, ask_no_more)


async def cycle(daemon: Daemon, number: int) -> None:
    async with connect(f"ws://127.0.0.1:{daemon.port}/v1/responses") as socket:
        # Every other cycle leaves its prefix in the cache.
        await socket.send(json.dumps({**CREATE, "cache_prompt": number // len(WAYS) % 2 == 0}))
        await until(socket, "response.output_text.delta")
        await WAYS[number % len(WAYS)](socket)


async def cycles(daemon: Daemon, count: int) -> Holdings:
    """Run this many cycles; return what is held after the cache is purged too."""
    for number in range(count):
        await cycle(daemon, number)
    await idle(daemon)
    await asyncio.to_thread(purge, daemon)
    return await settled(daemon)


async def check(daemon: Daemon, count: int) -> None:
    before = await cycles(daemon, NUM_WARM_UP)
    after = await cycles(daemon, count)
    assert before.num_cells_used == after.num_cells_used == 0
    assert after.daemon_mib <= before.daemon_mib + MAX_GROWTH_MIB
    assert after.worker_mib <= before.worker_mib + MAX_GROWTH_MIB
    # A file or connection that was still open at the first measurement is not a leak, nor is one that opens once, late:
    # a leak grows again.
    if after.daemon_descriptors > before.daemon_descriptors:
        before, after = after, await cycles(daemon, count)
    assert after.daemon_descriptors <= before.daemon_descriptors
    kept = {"daemon_mib": 0.0, "worker_mib": 0.0, "daemon_descriptors": 0}
    assert replace(after, **kept) == replace(before, **kept)  # type: ignore[arg-type]


async def test_twenty_cycles_leave_nothing_behind(own_daemon: Daemon) -> None:
    await check(own_daemon, 20)


@pytest.mark.slow(seconds=10)
async def test_two_hundred_cycles_leave_nothing_behind(own_daemon: Daemon) -> None:
    await check(own_daemon, 200)
