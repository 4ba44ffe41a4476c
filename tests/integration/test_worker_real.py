"""The local backend with the real worker and a tiny model: what a stub cannot show.

A killed, aborted or frozen process is named and replaced, its requests end or go on, and the next answer is the same
as before.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from edgeagent.backends.local import LocalBackend
from edgeagent.config import Config, EngineConfig
from edgeagent.errors import ContextLengthExceeded, EdgeAgentError, ModelLoadFailed, RequestTimeout, WorkerCrashed
from edgeagent.store.gguf import validate_model
from edgeagent.types import (
    Finished,
    FinishReason,
    GenerateRequest,
    MemoryKind,
    SamplingParams,
    Step,
    TokenPrompt,
    WorkerState,
)
from edgeagent.worker.pool import Pool
from edgeagent.worker.watchdog import Patience
from tests.conftest import TinyModel
from tests.worker.support import eventually

GREEDY = SamplingParams(temperature=0.0)
PATIENCE = Patience(ping_interval_s=0.1, pong_timeout_s=2.0, max_crashes=10)

Make = Callable[..., LocalBackend]


@dataclass(frozen=True, slots=True)
class Files:
    path: Path
    name: str = "tiny"
    draft_path: Path | None = None


@pytest.fixture
async def make(tiny_model: TinyModel) -> AsyncIterator[Make]:
    made: list[LocalBackend] = []

    def make_one(
        path: Path | None = None, validate: Callable[[Path], object] = validate_model, **engine: object
    ) -> LocalBackend:
        files = Files(path or tiny_model(MemoryKind.FULL_ATTENTION))
        config = Config(engine=EngineConfig(threads=1, **engine))  # type: ignore[arg-type]
        pool = Pool(config, lambda _: files, validate, patience=PATIENCE)
        made.append(LocalBackend(config.engine, pool))
        return made[-1]

    yield make_one
    for backend in made:
        await backend.stop()


def ask(request_id: str = "r1", max_tokens: int | None = 12, num_prompt: int = 5, **fields: object) -> GenerateRequest:
    """Return a request; without max_tokens it goes on for two thousand steps."""
    prompt = TokenPrompt(tuple(range(10, 10 + num_prompt)))
    return GenerateRequest(id=request_id, model="", prompt=prompt, sampling=GREEDY, max_tokens=max_tokens, **fields)  # type: ignore[arg-type]


async def tokens_of(backend: LocalBackend, request: GenerateRequest) -> list[int]:
    return [token async for step in backend.generate(request) for token in step.tokens]


def pid_of(backend: LocalBackend) -> int:
    pid = backend.models()[0].pid
    assert pid is not None
    return pid


async def test_tokens_usage_and_timings_come_back(make: Make) -> None:
    backend = make()
    await backend.start()
    steps = [step async for step in backend.generate(ask())]
    last = steps[-1].deltas[-1]
    assert isinstance(last, Finished)
    assert (last.reason, last.usage.num_prompt_tokens, last.usage.num_output_tokens) == (FinishReason.LENGTH, 5, 12)
    assert last.timings.load_ms > 0, "it waited for the model"
    assert sum(len(step.tokens) for step in steps) == 12
    (status,) = backend.models()
    assert status.state is WorkerState.READY and status.info is not None and status.info.num_layers == 4


async def test_cancel_and_close_stop_a_stream_and_leave_the_worker_well(make: Make) -> None:
    backend = make()
    await backend.start()
    before = await tokens_of(backend, ask())
    got: list[Step] = []
    async for step in backend.generate(ask("polite", None)):
        got.append(step)
        backend.cancel("polite")
    last = got[-1].deltas[-1]
    assert isinstance(last, Finished) and last.reason is FinishReason.CANCELLED
    assert last.usage.num_output_tokens == sum(len(step.tokens) for step in got) < 1000
    closed = backend.generate(ask("closed", None))
    await anext(closed)
    await closed.aclose()
    with pytest.raises(RequestTimeout):
        await tokens_of(backend, ask("late", None, timeout_s=0.05))
    await eventually(lambda: backend.estimate(ask()).num_live == 0)
    assert await tokens_of(backend, ask()) == before
    assert backend.models()[0].num_restarts == 0


async def test_the_workers_refusals_come_back_as_errors(make: Make) -> None:
    backend = make(ctx=256)
    await backend.start()
    with pytest.raises(ContextLengthExceeded, match="256"):
        await tokens_of(backend, ask(num_prompt=290))
    assert len(await tokens_of(backend, ask())) == 12


@pytest.mark.parametrize(("number", "name"), [(signal.SIGKILL, "SIGKILL"), (signal.SIGSEGV, "SIGSEGV")])
async def test_a_worker_killed_mid_stream_is_named_and_replaced(make: Make, number: signal.Signals, name: str) -> None:
    backend = make()
    await backend.start()
    before = await tokens_of(backend, ask())
    killed = pid_of(backend)
    delivered: list[int] = []
    with pytest.raises(WorkerCrashed, match=name) as caught:
        async for step in backend.generate(ask("long", None)):
            if len(delivered) < 3 <= len(delivered) + len(step.tokens):
                os.kill(killed, number)
            delivered += step.tokens
    assert caught.value.num_delivered_tokens == len(delivered)
    assert delivered[:12] == before[: len(delivered)]
    assert await tokens_of(backend, ask()) == before, "the next worker answers alike"
    assert pid_of(backend) != killed and not psutil.pid_exists(killed)


async def test_a_request_without_output_survives_the_kill(make: Make) -> None:
    backend = make()
    await backend.start()
    before = await tokens_of(backend, ask())
    os.kill(pid_of(backend), signal.SIGSTOP)
    waiting = asyncio.create_task(tokens_of(backend, ask("waiting")))
    await eventually(lambda: backend.estimate(ask()).num_live == 1)
    os.kill(pid_of(backend), signal.SIGKILL)
    assert await waiting == before


async def test_a_frozen_worker_is_noticed_and_replaced(make: Make) -> None:
    backend = make()
    await backend.start()
    before = await tokens_of(backend, ask())
    frozen = pid_of(backend)
    with pytest.raises(WorkerCrashed, match="no sign of life"):
        async for step in backend.generate(ask("long", None)):
            if step.tokens:
                os.kill(frozen, signal.SIGSTOP)
    assert await tokens_of(backend, ask()) == before
    assert not psutil.pid_exists(frozen)


async def test_a_file_that_cannot_be_loaded_is_the_workers_word(make: Make, tmp_path: Path) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF" + bytes(100))
    backend = make(path, lambda _: None)
    await backend.start()
    with pytest.raises(ModelLoadFailed):
        await tokens_of(backend, ask())
    (status,) = backend.models()
    assert status.state is WorkerState.FAILED and status.num_restarts == 0 and status.cause


async def test_a_file_that_the_validator_refuses_starts_no_worker(make: Make, tmp_path: Path) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF" + bytes(100))
    backend = make(path)
    await backend.start()
    with pytest.raises(EdgeAgentError):
        await tokens_of(backend, ask())
    assert backend.models()[0].pid is None


async def test_stop_ends_streams_and_process(make: Make) -> None:
    backend = make()
    await backend.start()
    got: list[Step] = []
    stream = backend.generate(ask("long", None))
    got.append(await anext(stream))
    pid = pid_of(backend)
    await backend.stop()
    got += [step async for step in stream]
    last = got[-1].deltas[-1]
    assert isinstance(last, Finished) and last.reason is FinishReason.CANCELLED
    assert last.usage.num_prompt_tokens == 5, "the worker's own words"
    assert not psutil.pid_exists(pid)


DAEMON = """
import asyncio, sys
from pathlib import Path
from tests.integration.test_worker_real import Files
from edgeagent.backends.local import LocalBackend
from edgeagent.config import Config, EngineConfig
from edgeagent.types import WorkerState
from edgeagent.worker.pool import Pool

async def main():
    config = Config(engine=EngineConfig(threads=1))
    pool = Pool(config, lambda _: Files(Path(sys.argv[1])), lambda _: None)
    backend = LocalBackend(config.engine, pool)
    await backend.start()
    while backend.models()[0].state is not WorkerState.READY:
        await asyncio.sleep(0.01)
    print(backend.models()[0].pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_a_killed_daemon_takes_its_worker_along(tiny_model: TinyModel) -> None:
    path = tiny_model(MemoryKind.FULL_ATTENTION)
    daemon = await asyncio.create_subprocess_exec(
        sys.executable, "-c", DAEMON, str(path), stdout=asyncio.subprocess.PIPE
    )
    assert daemon.stdout is not None
    worker = psutil.Process(int(await daemon.stdout.readline()))
    daemon.kill()
    await daemon.wait()
    await eventually(lambda: not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE)
