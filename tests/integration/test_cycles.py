"""Connect, generate and cancel, many times: nothing is left behind in the daemon or its worker."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace

import httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect

from tests.integration.conftest import Daemon, serving
from tests.integration.leaks import Holdings, idle, settled
from tests.patience import patient

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
Cycle = Callable[[Daemon, int], Awaitable[None]]

NUM_WARM_UP = 12
MAX_GROWTH_MIB = 3.0


@pytest.fixture(scope="module")
def own_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon for these tests alone: each looks at what it holds before and after."""
    with serving(tmp_path_factory.mktemp("cycles") / "state", "builtin") as running:
        yield running


async def until(socket: ClientConnection, *kinds: str) -> dict[str, object]:
    while True:
        event: dict[str, object] = json.loads(await asyncio.wait_for(socket.recv(), patient(60)))
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


async def request(daemon: Daemon, number: int) -> None:
    """Send one of many kinds of requests; a third are refused."""
    text = f"{number} is a number. " * (1 + number % 40)
    chat = {"messages": [{"role": "user", "content": text}], "max_tokens": 2}
    schema = {"type": "object", "properties": {f"field{number}": {"enum": ["a", "b"]}}}
    tool = {"type": "function", "function": {"name": f"tool{number}", "parameters": schema}}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    kinds: list[tuple[str, object]] = [
        ("/v1/chat/completions", chat),
        ("/v1/chat/completions", {**chat, "stream": True}),
        ("/v1/chat/completions", {**chat, "tools": [tool]}),
        ("/v1/chat/completions", {**chat, "response_format": form}),
        ("/v1/chat/completions", {**chat, "model": f"no-{number}"}),
        ("/v1/chat/completions", {**chat, "stop": [""] * 20}),
        ("/v1/completions", {"prompt": [text, "x"], "max_tokens": 2, "logprobs": 3, "echo": True}),
        ("/v1/responses", {"input": text, "max_output_tokens": 2}),
        ("/v1/responses", {"input": text, "max_output_tokens": 2, "stream": True, "store": False}),
        ("/v1/responses", {"input": text, "previous_response_id": f"resp_{number}"}),
        ("/v1/embeddings", {"input": text}),
        ("/api/chat", {"model": "builtin", **chat, "options": {"num_predict": 2}}),
        ("/tokenize", {"content": text}),
        ("/apply-template", chat),
        ("/v1/responses", {"input": [{"type": "item_reference", "id": f"item_{number}"}]}),
        (f"/nowhere/{number}", chat),
    ]
    path, body = kinds[number % len(kinds)]
    # Without certificates, which take longer to load than most of the requests.
    async with httpx.AsyncClient(base_url=daemon.url, timeout=patient(60), verify=False) as client:
        assert (await client.post(path, json=body)).status_code < 500


async def cycles(daemon: Daemon, count: int, cycle: Cycle = cycle) -> Holdings:
    """Run this many cycles; return what is held after the cache is purged too."""
    for number in range(count):
        await cycle(daemon, number)
    await idle(daemon)
    await asyncio.to_thread(daemon.run, "cache", "purge")
    return await settled(daemon)


async def check(
    daemon: Daemon, count: int, cycle: Cycle = cycle, warm_up: int = NUM_WARM_UP, max_growth_mib: float = MAX_GROWTH_MIB
) -> None:
    before = await cycles(daemon, warm_up, cycle)
    after = await cycles(daemon, count, cycle)
    assert before.num_cells_used == after.num_cells_used == 0
    assert after.daemon_mib <= before.daemon_mib + max_growth_mib
    assert after.worker_mib <= before.worker_mib + max_growth_mib
    # A file or connection that was still open at the first measurement is not a leak, nor is one that opens once, late,
    # nor a thread of asyncio's pool that starts when two calls meet: a leak grows again.
    if after.daemon_descriptors > before.daemon_descriptors or after.daemon_threads > before.daemon_threads:
        before, after = after, await cycles(daemon, count, cycle)
    assert after.daemon_descriptors <= before.daemon_descriptors
    kept = {"daemon_mib": 0.0, "worker_mib": 0.0, "daemon_descriptors": 0}
    assert replace(after, **kept) == replace(before, **kept)  # type: ignore[arg-type]


async def test_a_few_cycles_leave_nothing_behind(own_daemon: Daemon) -> None:
    await check(own_daemon, 2 * len(WAYS), warm_up=len(WAYS), max_growth_mib=2 * MAX_GROWTH_MIB)


@pytest.mark.slow(seconds=45)
async def test_twenty_cycles_leave_nothing_behind(own_daemon: Daemon) -> None:
    await check(own_daemon, 20)


@pytest.mark.slow(seconds=110)
async def test_two_hundred_cycles_leave_nothing_behind(own_daemon: Daemon) -> None:
    await check(own_daemon, 200)


@pytest.mark.slow(seconds=9)
async def test_memory_of_purged_prompts_goes_back_to_the_system(own_daemon: Daemon) -> None:
    await check(own_daemon, 32, request, warm_up=16, max_growth_mib=20.0)


@pytest.mark.slow(seconds=100)
@pytest.mark.timeout(900)
async def test_two_thousand_requests_of_all_kinds_leave_nothing_behind(own_daemon: Daemon) -> None:
    # What is kept on purpose has filled by then: compiled schemas, rendered prompts, counters by label.
    await check(own_daemon, 2000, request, warm_up=500, max_growth_mib=20.0)
