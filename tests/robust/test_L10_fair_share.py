"""L10: a client with 64 requests does not delay a client with one request; two busy clients get equal shares."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from edgeagent.backends.local import LocalBackend
from edgeagent.config import Config, EngineConfig
from edgeagent.engine.cache.prefix_store import PrefixStore
from edgeagent.engine.engine import Engine
from edgeagent.engine.sequence import SequenceSpec
from edgeagent.store.gguf.header import validate_model
from edgeagent.types import CachePolicy, GenerateRequest, MemoryKind, SamplingParams, TokenPrompt
from edgeagent.worker.parent.pool.loading import ModelSource
from edgeagent.worker.parent.pool.pool import Pool
from tests.backends.reading import steps_of
from tests.conftest import TinyModel
from tests.engine.support import greedy
from tests.fakes import FakeRunner, warm_costs
from tests.worker.support import found_at

NUM_GREEDY = 64
PARALLEL = 4


@pytest.fixture
async def backend(tiny_model: TinyModel) -> AsyncIterator[LocalBackend]:
    config = Config(engine=EngineConfig(threads=1, parallel=PARALLEL))
    files = found_at(tiny_model(MemoryKind.FULL_ATTENTION))
    made = LocalBackend(Pool(config, ModelSource(lambda _: files, validate_model)))
    await made.start()
    yield made
    await made.stop()


async def ask(backend: LocalBackend, client: str, index: int, on_token: Callable[[], None], max_tokens: int) -> None:
    tokens = tuple(10 + (index * 31 + 7 * i * i) % 240 for i in range(100))
    request = GenerateRequest(
        id=f"{client} {index}",
        model="",
        prompt=TokenPrompt(tokens),
        sampling=SamplingParams(temperature=0.0, logit_bias=((0, -100.0), (2, -100.0))),
        max_tokens=max_tokens,
        cache=CachePolicy(partition=client),
    )
    async for step in steps_of(backend.generate, request):
        if step.tokens:
            on_token()


async def test_who_asks_once_waits_for_one_turn_of_who_asks_for_much(backend: LocalBackend) -> None:
    await ask(backend, "first", 0, lambda: None, 1)  # the model is loaded now
    num_begun: set[int] = set()
    begun = asyncio.Event()

    def note(index: int) -> None:
        num_begun.add(index)
        begun.set()

    # The answers are long: while this process waits for a busy machine's cores, the worker does not begin many of them.
    greedy_ones = [
        asyncio.create_task(ask(backend, "greedy", index, lambda index=index: note(index), 600))  # type: ignore[misc]
        for index in range(NUM_GREEDY)
    ]
    await begun.wait()
    num_before = len(num_begun)
    seen: list[int] = []
    await ask(backend, "polite", 0, lambda: seen.append(len(num_begun)), 1)
    # The running requests finished, and at most as many others started in their place.
    assert seen[0] - num_before <= 2 * PARALLEL
    assert sum(not task.done() for task in greedy_ones) > NUM_GREEDY / 2
    for task in greedy_ones:
        task.cancel()
    await asyncio.gather(*greedy_ones, return_exceptions=True)


def test_two_busy_clients_get_equal_shares() -> None:
    runner = FakeRunner(num_cells=4096, end_token=-1)
    engine = Engine(runner, max_running=PARALLEL, prefixes=PrefixStore(runner, costs=warm_costs(runner.max_batch)))
    for client, num_requests in (("greedy", NUM_GREEDY), ("busy", 10)):
        for index in range(num_requests):
            prompt = [1 + (index * 7 + i) % 40 for i in range(20)]
            engine.add(SequenceSpec(f"{client} {index}", prompt, greedy(), max_tokens=12, partition=client))
    num_tokens = {"greedy": 0, "busy": 0}
    num_left = 10
    while num_left:
        for output in engine.step():
            client = output.sequence.spec.partition
            num_tokens[client] += len(output.tokens)
            num_left -= client == "busy" and output.finish_reason is not None
    total = sum(num_tokens.values())
    assert total**2 / (2 * sum(num**2 for num in num_tokens.values())) >= 0.9, "Jain's index"
