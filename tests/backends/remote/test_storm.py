"""Many concurrent requests, many of them cut, cancelled or left: each ends once, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import random
from functools import partial

import pytest

from edgeagent.backends.remote.backend import RemoteBackend
from edgeagent.backends.remote.failures import Failure
from edgeagent.backends.remote.transport import Call, _Connections
from edgeagent.remotes import Limits
from edgeagent.types import ChatPrompt, Message, replace
from tests.backends.reading import steps_of
from tests.backends.remote.fault_server import Act, Script, faults, half, plain, stream
from tests.backends.remote.streams import ROLE, answer, chunk
from tests.backends.remote.support import REQUEST, Rows, ask, backend, permit, until

LIMITS = Limits(max_concurrent=200, connect_s=2.0, first_token_s=0.4, idle_s=0.4, total_s=5.0)
SCRIPTS: list[Script] = [
    stream(answer("a", "b", "c")),
    stream(answer("a")),
    half(ROLE, chunk({"content": "a"}), Act.STALL),
    half(ROLE, chunk({"content": "a"}), Act.RESET),
    half(ROLE, Act.CLOSE),
    [Act.STALL],
    plain(500),
    plain(429, headers="Retry-After: 0\r\n"),
]


async def ask_somehow(remote: RemoteBackend, number: int, chance: random.Random) -> None:
    """Run a request to its end, cancel it, close it early, or cancel its task."""
    # Each request is a conversation of its own, so the requests are spread over the endpoints.
    request = replace(REQUEST, id=f"r{number}", prompt=ChatPrompt((Message("user", f"canary {number}"),)))
    way, delay_s = chance.choice(["end", "end", "cancel", "leave", "task"]), chance.random() * 0.1
    if way == "leave":
        steps = steps_of(remote.generate, request, permit(request))
        try:
            await anext(steps)
        except Exception as error:
            assert "remote:gpu" in str(error)
        await steps.aclose()
        return
    task = asyncio.create_task(ask(remote, request))
    if way == "cancel":
        asyncio.get_running_loop().call_later(delay_s, remote.cancel, request.id)
    if way == "task":
        asyncio.get_running_loop().call_later(delay_s, task.cancel)
    await asyncio.wait([task])
    if not task.cancelled():
        task.result()


async def weather(remote: RemoteBackend, rows: Rows, seed: int, num_requests: int) -> None:
    """Run many requests, then check that nothing of them remains."""
    chance = random.Random(seed)
    cluster = remote._cluster
    num_tasks = len(asyncio.all_tasks())
    for first in range(0, num_requests, 30):
        await asyncio.gather(*(ask_somehow(remote, first + number, chance) for number in range(30)))
        for endpoint in cluster.endpoints:
            endpoint.breaker.succeed(cluster.clock())
    assert remote.status().num_live == 0
    assert "open" not in rows.outcomes and "completed" in rows.outcomes
    assert all(endpoint.num_live == 0 for endpoint in cluster.endpoints)
    pools = [endpoint.transport._connections for endpoint in cluster.endpoints]
    await until(lambda: all(connections.num_used == 0 for connections in pools))
    assert not any(connections.pool._requests for connections in pools)
    await until(lambda: len(asyncio.all_tasks()) <= num_tasks + 60)


@pytest.mark.parametrize("seed", range(2))
async def test_a_storm(seed: int) -> None:
    rows = Rows()
    chance = random.Random(seed)
    scripts = [chance.choice(SCRIPTS) for _ in range(400)]
    async with (
        faults(*scripts) as one,
        faults(*reversed(scripts)) as other,
        backend(one.url, other.url, ledger=rows, limits=LIMITS) as remote,
    ):
        await weather(remote, rows, seed, 90)


@pytest.mark.parametrize("is_headed", [False, True], ids=["before its head", "after its head"])
@pytest.mark.parametrize("script", [stream(answer("a")), plain(500), half(ROLE, Act.RESET), [Act.RESET]])
async def test_a_call_that_is_left_at_any_moment_leaves_nothing_in_the_pool(script: Script, is_headed: bool) -> None:
    call = Call("/chat/completions", b"{}", request_id=REQUEST.id)
    async with faults(script) as server, backend(server.url) as remote:
        transport = remote._cluster.endpoints[0].transport
        for num_steps in range(60):
            # New connections for each call: a call can also be left while it opens its own.
            await transport.drop()
            used = transport._connections
            opening = asyncio.create_task(transport.open(permit(), call))
            if is_headed:
                await asyncio.wait([opening])
            for _ in range(num_steps):
                await asyncio.sleep(0)
            opening.cancel()
            with contextlib.suppress(asyncio.CancelledError, Failure):
                (await opening).close()
            await until(partial(_is_unused, used))
            left = [each.info() for each in used.pool.connections if not (each.is_idle() or each.is_closed())]
            assert (used.pool._requests, left) == ([], []), f"left after {num_steps} steps"


def _is_unused(connections: _Connections) -> bool:
    return not connections.num_used
