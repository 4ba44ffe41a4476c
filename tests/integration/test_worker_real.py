"""The local backend with the real worker and a tiny model: behaviour that a stub cannot show.

A killed, aborted or frozen process is reported and replaced, its requests end or continue, and the next answer is the
same as before.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from gguf import GGUFWriter
from msgspec import structs

from edgeagent.backends.local import LocalBackend
from edgeagent.config import Config, EngineConfig
from edgeagent.errors import ContextLengthExceeded, EdgeAgentError, ModelLoadFailed, RequestTimeout
from edgeagent.store.gguf.header import GgufHeader, validate_model
from edgeagent.types import (
    CachePolicy,
    Finished,
    FinishReason,
    GenerateRequest,
    JsonSchemaFormat,
    MemoryKind,
    SamplingParams,
    Started,
    Step,
    TextDelta,
    Tier,
    TokenPrompt,
    WorkerState,
)
from edgeagent.worker.parent.pool.loading import ModelSource
from edgeagent.worker.parent.pool.pool import Pool
from edgeagent.worker.parent.supervision.watchdog import SupervisionLimits
from tests.backends.reading import steps_of
from tests.conftest import TinyModel
from tests.models import make_tiny_model
from tests.worker.support import eventually, found_at

GREEDY = SamplingParams(temperature=0.0)
LIMITS = SupervisionLimits(ping_interval_s=0.1, pong_timeout_s=2.0, max_crashes=10)

Make = Callable[..., LocalBackend]


@pytest.fixture
async def make(tiny_model: TinyModel) -> AsyncIterator[Make]:
    made: list[LocalBackend] = []

    def make_one(
        path: Path | None = None,
        validate: Callable[[Path], GgufHeader | None] = validate_model,
        limits: SupervisionLimits = LIMITS,
        **engine: object,
    ) -> LocalBackend:
        files = found_at(path or tiny_model(MemoryKind.FULL_ATTENTION))
        # With plain attention, answers do not depend on the sizes of steps, which follow the machine's speed.
        config = Config(engine=EngineConfig(threads=1, flash_attention="off", **engine))  # type: ignore[arg-type]
        pool = Pool(config, ModelSource(lambda _: files, validate), limits=limits)
        made.append(LocalBackend(pool))
        return made[-1]

    yield make_one
    for backend in made:
        await backend.stop()


def ask(request_id: str = "r1", max_tokens: int | None = 12, num_prompt: int = 5, **fields: object) -> GenerateRequest:
    """Return a request; without max_tokens it runs for two thousand steps."""
    prompt = TokenPrompt(tuple(range(10, 10 + num_prompt)))
    return GenerateRequest(id=request_id, model="", prompt=prompt, sampling=GREEDY, max_tokens=max_tokens, **fields)  # type: ignore[arg-type]


async def tokens_of(backend: LocalBackend, request: GenerateRequest) -> list[int]:
    return [token async for step in steps_of(backend.generate, request) for token in step.tokens]


def pid_of(backend: LocalBackend) -> int:
    pid = backend.models.statuses()[0].pid
    assert pid is not None
    return pid


async def test_tokens_usage_and_timings_come_back(make: Make) -> None:
    backend = make()
    await backend.start()
    steps = [step async for step in steps_of(backend.generate, ask())]
    last = steps[-1].deltas[-1]
    assert isinstance(last, Finished)
    assert (last.reason, last.usage.num_prompt_tokens, last.usage.num_output_tokens) == (FinishReason.LENGTH, 5, 12)
    assert last.timings.load_ms > 0, "it waited for the model"
    assert sum(len(step.tokens) for step in steps) == 12
    (status,) = backend.models.statuses()
    assert status.state is WorkerState.READY and status.info is not None and status.info.num_layers == 4


async def test_a_batch_request_gives_its_place_to_a_realtime_one_and_goes_on(make: Make) -> None:
    backend = make(parallel=1)
    await backend.start()
    batch = ask("batch", max_tokens=None, tier=Tier.BATCH)
    urgent = ask("urgent", num_prompt=40, tier=Tier.REALTIME)
    tokens, answer, has_ended = list[int](), None, False
    async for step in steps_of(backend.generate, batch):
        tokens += step.tokens
        if tokens and answer is None:
            answer = asyncio.create_task(tokens_of(backend, urgent))
        if answer is not None and answer.done() and not has_ended:
            has_ended, num_before = True, len(tokens)
        if has_ended and len(tokens) >= num_before + 20:
            backend.cancel("batch")
    assert answer is not None and len(await answer) == 12
    assert has_ended and len(tokens) < 1000, "it did not wait for the batch request"
    again = structs.replace(batch, id="again", max_tokens=len(tokens))
    assert tokens == await tokens_of(backend, again)


async def test_cancel_and_close_stop_a_stream_and_leave_the_worker_well(make: Make) -> None:
    backend = make()
    await backend.start()
    before = await tokens_of(backend, ask())
    got: list[Step] = []
    async for step in steps_of(backend.generate, ask("polite", None)):
        got.append(step)
        backend.cancel("polite")
    last = got[-1].deltas[-1]
    assert isinstance(last, Finished) and last.reason is FinishReason.CANCELLED
    assert last.usage.num_output_tokens == sum(len(step.tokens) for step in got) < 1000
    closed = steps_of(backend.generate, ask("closed", None))
    await anext(closed)
    await closed.aclose()
    with pytest.raises(RequestTimeout):
        await tokens_of(backend, ask("late", None, timeout_s=0.05))
    await eventually(lambda: backend.estimate(ask()).num_live == 0)
    assert await tokens_of(backend, ask()) == before
    assert backend.models.statuses()[0].num_restarts == 0


async def test_the_workers_refusals_come_back_as_errors(make: Make) -> None:
    backend = make(ctx=256)
    await backend.start()
    with pytest.raises(ContextLengthExceeded, match="256"):
        await tokens_of(backend, ask(num_prompt=290))
    assert len(await tokens_of(backend, ask())) == 12


async def collect(backend: LocalBackend, request: GenerateRequest, kill_at: int = -1, number: int = 0) -> list[Step]:
    """Return an answer's steps; send the worker a signal once this many tokens have arrived, with their text."""
    steps: list[Step] = []
    num_tokens = 0
    async for step in steps_of(backend.generate, request):
        if num_tokens < kill_at <= num_tokens + step.num_delivered:
            os.kill(pid_of(backend), number)
        num_tokens += step.num_delivered
        steps.append(step)
    return steps


async def collect_over_a_death(
    backend: LocalBackend, request: GenerateRequest, kill_at: int, number: int
) -> list[Step]:
    """Return the steps of an answer whose worker died midway; repeat the request if it ended before the signal."""
    while True:
        killed = pid_of(backend)
        steps = await collect(backend, request, kill_at, number)
        if finished_of(steps).timings.handovers:
            return steps
        await eventually(lambda pid=killed: backend.models.statuses()[0].pid not in (None, pid))  # type: ignore[misc]


def finished_of(steps: list[Step]) -> Finished:
    finished = steps[-1].deltas[-1]
    assert isinstance(finished, Finished)
    return finished


def answer(steps: list[Step]) -> tuple[list[int], str]:
    text = "".join(delta.text for step in steps for delta in step.deltas if isinstance(delta, TextDelta))
    return [token for step in steps for token in step.tokens], text


SCHEMA = '{"type":"array","items":{"type":"string","maxLength":9},"minItems":60}'


@pytest.mark.parametrize(
    "fields",
    [
        {"sampling": GREEDY},
        pytest.param(
            {"sampling": SamplingParams(temperature=1.5, seed=11, repeat_penalty=1.1, top_p=1.0)},
            marks=pytest.mark.slow(seconds=4),
        ),
        {"sampling": SamplingParams(temperature=0.9, seed=12), "format": JsonSchemaFormat(SCHEMA)},
    ],
    ids=["greedy", "seeded", "grammar"],
)
async def test_a_stream_whose_worker_is_killed_ends_as_if_nothing_had_been(make: Make, fields: dict[str, Any]) -> None:
    backend = make()
    await backend.start()
    # An idle prefix, in the cells or already out of them, would change the order in which attention sums.
    request = structs.replace(ask(num_prompt=40, max_tokens=300), cache=CachePolicy(write=False), **fields)
    whole = await collect(backend, request)
    for kill_at, number in ((1, signal.SIGKILL), (17, signal.SIGSEGV)):
        killed = pid_of(backend)
        steps = await collect_over_a_death(backend, request, kill_at, number)
        assert answer(steps) == answer(whole)
        usage, undisturbed = finished_of(steps).usage, finished_of(whole).usage
        assert structs.replace(usage, num_cached_tokens=0) == structs.replace(undisturbed, num_cached_tokens=0)
        handover = finished_of(steps).timings.handovers[-1]
        reason = "worker_killed" if number is signal.SIGKILL else "worker_crashed"
        assert (handover.source, handover.target, handover.reason) == ("local", "local", reason)
        assert kill_at <= handover.num_tokens < 300
        assert number.name in (backend.models.statuses()[0].cause or "")
        assert pid_of(backend) != killed and not psutil.pid_exists(killed)
    assert sum(isinstance(delta, Started) for step in steps for delta in step.deltas) == 1


async def test_a_request_without_output_survives_the_kill(make: Make) -> None:
    backend = make()
    await backend.start()
    before = await tokens_of(backend, ask())
    os.kill(pid_of(backend), signal.SIGSTOP)
    waiting = asyncio.create_task(tokens_of(backend, ask("waiting")))
    await eventually(lambda: backend.estimate(ask()).num_live == 1)
    os.kill(pid_of(backend), signal.SIGKILL)
    assert await waiting == before


@pytest.mark.slow(seconds=3)
@pytest.mark.parametrize("num_streams", [pytest.param(1, marks=pytest.mark.slow(seconds=5)), 3])
async def test_three_kills_close_together_lose_no_stream(make: Make, num_streams: int) -> None:
    backend = make()
    await backend.start()
    request = ask(num_prompt=40, max_tokens=300)
    whole = await collect(backend, request)
    names = [f"r{index}" for index in range(num_streams)]
    streams = [asyncio.create_task(collect(backend, structs.replace(request, id=name))) for name in names]
    for _ in range(3):
        await eventually(lambda: backend.models.statuses()[0].state is WorkerState.READY)
        killed = pid_of(backend)
        os.kill(killed, signal.SIGKILL)
        await eventually(lambda pid=killed: backend.models.statuses()[0].pid not in (None, pid))  # type: ignore[misc]
    for stream in streams:
        steps = await stream
        finished = finished_of(steps)
        assert finished.reason in (FinishReason.STOP, FinishReason.LENGTH)
        assert finished.usage.num_output_tokens == len(answer(steps)[0])
        # Beside a changing number of other streams, results and so near ties may differ.
        assert num_streams > 1 or answer(steps) == answer(whole)
    assert backend.models.statuses()[0].num_restarts == 3


async def test_a_frozen_worker_is_noticed_and_replaced(make: Make) -> None:
    backend = make(limits=replace(LIMITS, pong_timeout_s=1.0))
    await backend.start()
    before = await tokens_of(backend, ask(max_tokens=300))
    frozen = pid_of(backend)
    steps = await collect_over_a_death(backend, ask(max_tokens=300), 1, signal.SIGSTOP)
    assert answer(steps)[0] == before
    assert "no sign of life" in (backend.models.statuses()[0].cause or "")
    assert not psutil.pid_exists(frozen)


async def test_a_file_that_cannot_be_loaded_is_the_workers_word(make: Make, tmp_path: Path) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF" + bytes(100))
    backend = make(path, lambda _: None)
    await backend.start()
    with pytest.raises(ModelLoadFailed):
        await tokens_of(backend, ask())
    (status,) = backend.models.statuses()
    assert status.state is WorkerState.FAILED and status.num_restarts == 0 and status.cause


async def test_a_file_that_the_validator_refuses_starts_no_worker(make: Make, tmp_path: Path) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF" + bytes(100))
    backend = make(path)
    await backend.start()
    with pytest.raises(EdgeAgentError):
        await tokens_of(backend, ask())
    assert backend.models.statuses()[0].pid is None


async def test_a_context_larger_than_memory_is_refused_before_the_model_is_loaded(make: Make) -> None:
    backend = make(ctx=2_000_000_000)
    await backend.start()
    with pytest.raises(ModelLoadFailed, match=r"context of 2000000000 tokens takes .* GiB .* --ctx \d+ would fit"):
        await tokens_of(backend, ask())
    assert backend.models.statuses()[0].progress == 0.0


async def test_stop_ends_streams_and_process(make: Make) -> None:
    backend = make()
    await backend.start()
    got: list[Step] = []
    stream = steps_of(backend.generate, ask("long", None))
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
from edgeagent.backends.local import LocalBackend
from edgeagent.config import Config, EngineConfig
from edgeagent.types import WorkerState
from edgeagent.worker.parent.pool.loading import ModelSource
from edgeagent.worker.parent.pool.pool import Pool
from tests.worker.support import found_at

async def main():
    config = Config(engine=EngineConfig(threads=1))
    pool = Pool(config, ModelSource(lambda _: found_at(Path(sys.argv[1])), lambda _: None))
    backend = LocalBackend(pool)
    await backend.start()
    while backend.models.statuses()[0].state is not WorkerState.READY:
        await asyncio.sleep(0.01)
    print(backend.models.statuses()[0].pid, flush=True)
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


async def test_a_tokenizer_that_ends_its_process_fails_the_load_by_name(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SentencePiece without tokens for single bytes: llama.cpp throws for a character that no piece contains."""
    name_it = GGUFWriter.add_tokenizer_model
    monkeypatch.setattr(GGUFWriter, "add_tokenizer_model", lambda self, _: name_it(self, "llama"))
    path = make_tiny_model(tmp_path / "thrower.gguf", MemoryKind.FULL_ATTENTION)
    backend = make(path)
    await backend.start()
    with pytest.raises(ModelLoadFailed, match=r"cannot be served: the tokenizer of \S*thrower\.gguf ended the process"):
        await tokens_of(backend, ask())
    (status,) = backend.models.statuses()
    assert (status.state, status.num_restarts) == (WorkerState.FAILED, 0)
