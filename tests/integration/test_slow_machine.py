"""A slow, starved or suspended machine is not a hang: real workers load and answer, and none is replaced."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from edgeagent.backends.local import LocalBackend
from edgeagent.config import Config, EngineConfig
from edgeagent.store.gguf.header import validate_model
from edgeagent.types import CachePolicy, GenerateRequest, MemoryKind, SamplingParams, Tier, Tokenize, TokenPrompt
from edgeagent.worker.parent.pool.loading import ModelSource
from edgeagent.worker.parent.pool.pool import Pool
from edgeagent.worker.parent.supervision.supervisor import WORKER_COMMAND
from edgeagent.worker.parent.supervision.watchdog import SupervisionLimits
from tests.backends.reading import steps_of
from tests.conftest import TinyModel
from tests.slow_worker import slow_command
from tests.worker.support import found_at

# Scaled to a slow machine: the whole prompt takes three times as long as the limit for a first step.
SHORT_LIMITS = SupervisionLimits(ping_interval_s=0.02, pong_timeout_s=1.0, hang_timeout_s=1.0, load_timeout_s=20.0)


@asynccontextmanager
async def running(
    model: Path, command: tuple[str, ...], limits: SupervisionLimits = SHORT_LIMITS
) -> AsyncIterator[LocalBackend]:
    # With plain attention, answers do not depend on chunk sizes, which follow the machine's speed.
    config = Config(engine=EngineConfig(threads=1, flash_attention="off"))
    pool = Pool(config, ModelSource(lambda _: found_at(model), validate_model), command=command, limits=limits)
    backend = LocalBackend(pool)
    await backend.start()
    try:
        yield backend
    finally:
        await backend.stop()


def ask(name: str, num_prompt: int, max_tokens: int, tier: Tier = Tier.INTERACTIVE) -> GenerateRequest:
    prompt = TokenPrompt(tuple(10 + 7 * i * i % 240 for i in range(num_prompt)))
    sampling = SamplingParams(temperature=0.0)
    # An idle prefix, in the cells or already out of them, would change the order in which attention sums.
    cache = CachePolicy(write=False)
    return GenerateRequest(
        id=name, model="", prompt=prompt, sampling=sampling, max_tokens=max_tokens, tier=tier, cache=cache
    )


async def tokens_of(backend: LocalBackend, request: GenerateRequest) -> list[int]:
    return [token async for step in steps_of(backend.generate, request) for token in step.tokens]


async def test_a_long_prompt_on_a_slow_machine_is_no_hang(tiny_model: TinyModel) -> None:
    model = tiny_model(MemoryKind.FULL_ATTENTION)
    async with running(model, WORKER_COMMAND) as backend:
        expected = await tokens_of(backend, ask("quick", 400, 3))
    async with running(model, slow_command(tokens_per_s=130.0)) as backend:
        assert await tokens_of(backend, ask("slow", 400, 3)) == expected
        (status,) = backend.models.statuses()
        assert (status.num_restarts, status.cause) == (0, None)


async def test_a_realtime_request_is_answered_while_a_long_prompt_is_computed(tiny_model: TinyModel) -> None:
    async with running(tiny_model(MemoryKind.RECURRENT), slow_command(tokens_per_s=130.0)) as backend:
        await tokens_of(backend, ask("first", 5, 1))
        long = asyncio.create_task(tokens_of(backend, ask("long", 600, 1, Tier.BATCH)))
        await asyncio.sleep(0)
        assert len(await tokens_of(backend, ask("now", 6, 1, Tier.REALTIME))) == 1
        assert not long.done()
        assert len(await long) == 1


@pytest.mark.skipif(sys.platform == "win32", reason="SIGSTOP is POSIX's")
async def test_a_worker_that_is_stopped_again_and_again_is_no_hang(tiny_model: TinyModel) -> None:
    model = tiny_model(MemoryKind.FULL_ATTENTION)
    async with running(model, WORKER_COMMAND) as backend:
        expected = await tokens_of(backend, ask("undisturbed", 40, 60))
    # Slow, so that the answer does not end before the third stop.
    async with running(model, slow_command(tokens_per_s=50.0)) as backend:
        tokens: list[int] = []
        has_new = asyncio.Event()

        async def read() -> None:
            async for step in steps_of(backend.generate, ask("stopped", 40, 60)):
                tokens.extend(step.tokens)
                has_new.set()

        reader = asyncio.create_task(read())
        for _ in range(3):
            # Once a query is answered, everything sent before the stop has arrived, so the next token comes from a new
            # step.
            await backend.models.ask("", Tokenize("awake"))
            has_new.clear()
            await has_new.wait()
            (status,) = backend.models.statuses()
            assert status.pid is not None
            os.kill(status.pid, signal.SIGSTOP)
            await asyncio.sleep(1.5 * SHORT_LIMITS.pong_timeout_s)  # longer than a computing worker may be silent
            os.kill(status.pid, signal.SIGCONT)
        assert not reader.done()
        await reader
        assert tokens == expected
        assert backend.models.statuses()[0].num_restarts == 0
