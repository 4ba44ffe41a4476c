"""F18: a loaded model's file is replaced, deleted or truncated: the daemon survives, and reports what happened."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from edgeagent.backends.local import LocalBackend
from edgeagent.config import Config, EngineConfig
from edgeagent.errors import EdgeAgentError, ModelChanged, ModelLoadFailed
from edgeagent.store.gguf.header import validate_model
from edgeagent.types import GenerateRequest, MemoryKind, SamplingParams, TokenPrompt, WorkerState
from edgeagent.worker.parent.pool.loading import ModelSource
from edgeagent.worker.parent.pool.pool import Pool
from edgeagent.worker.parent.supervision.watchdog import SupervisionLimits
from tests.backends.reading import steps_of
from tests.conftest import TinyModel
from tests.models import make_tiny_model
from tests.worker.support import Record, eventually, found_at

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows does not let a mapped file be changed")
LIMITS = SupervisionLimits(ping_interval_s=0.1, load_retry_s=0.1)


class Loaded:
    """A model with its own file, and its worker."""

    def __init__(self, path: Path) -> None:
        self.path = path
        config = Config(engine=EngineConfig(threads=1))
        self.pool = Pool(config, ModelSource(lambda _: found_at(path), validate_model), limits=LIMITS)
        self.backend = LocalBackend(self.pool)

    @property
    def state(self) -> WorkerState:
        return self.pool.statuses()[0].state

    async def answer(self) -> list[int]:
        return [token async for step in steps_of(self.backend.generate, ask("r", 8)) for token in step.tokens]

    async def stream(self, request_id: str) -> Record:
        """Start an answer of thousands of tokens."""
        record = Record()
        self.pool.submit(ask(request_id, None), record)
        await record.until(lambda record: len(record.tokens) >= 2)
        return record


def ask(request_id: str, max_tokens: int | None) -> GenerateRequest:
    prompt = TokenPrompt((10, 11, 12, 13))
    return GenerateRequest(
        id=request_id, model="", prompt=prompt, sampling=SamplingParams(temperature=0.0), max_tokens=max_tokens
    )


@pytest.fixture
async def loaded(tiny_model: TinyModel, tmp_path: Path) -> AsyncIterator[Loaded]:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(tiny_model(MemoryKind.FULL_ATTENTION).read_bytes())
    model = Loaded(path)
    await model.backend.start()
    await eventually(lambda: model.state is WorkerState.READY)
    yield model
    await model.backend.stop()


async def test_a_file_that_is_deleted_or_replaced_is_still_the_one_that_runs(loaded: Loaded, tmp_path: Path) -> None:
    before = await loaded.answer()
    loaded.path.unlink()
    assert await loaded.answer() == before
    make_tiny_model(tmp_path / "other.gguf", MemoryKind.FULL_ATTENTION, seed=7).replace(loaded.path)
    assert await loaded.answer() == before
    assert loaded.pool.statuses()[0].num_restarts == 0


async def test_what_the_old_file_began_does_not_go_on_with_a_new_one(loaded: Loaded, tmp_path: Path) -> None:
    before = await loaded.answer()
    make_tiny_model(tmp_path / "other.gguf", MemoryKind.FULL_ATTENTION, seed=7).replace(loaded.path)
    stream = await loaded.stream("begun")
    loaded.pool.reload("")
    assert isinstance((await stream.end()).error, ModelChanged)
    assert stream.error is not None and stream.error.num_delivered_tokens == stream.num_delivered
    assert await loaded.answer() != before, "the new file answers now"


async def test_a_truncated_file_costs_its_requests_and_no_more(loaded: Loaded) -> None:
    before = await loaded.answer()
    whole = loaded.path.read_bytes()
    stream = await loaded.stream("begun")
    os.truncate(loaded.path, 4096)
    await stream.end()
    error: EdgeAgentError | None = stream.error
    assert isinstance(error, ModelChanged | ModelLoadFailed), error
    assert error.num_delivered_tokens == stream.num_delivered
    await eventually(lambda: loaded.state is WorkerState.FAILED)
    with pytest.raises(ModelLoadFailed) as refused:
        await loaded.answer()
    assert refused.value.retry_after_s is not None
    loaded.path.write_bytes(whole)
    await eventually(lambda: loaded.pool.statuses()[0].retry_after_s == 0.0)
    assert await loaded.answer() == before
