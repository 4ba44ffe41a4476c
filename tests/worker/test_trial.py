"""Models whose first computation ends the process: the load fails once, and names the file and the cause."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path

import gguf
import pytest
from gguf import GGUFWriter

from edgeagent.config import Config, EngineConfig
from edgeagent.errors import EdgeAgentError, ModelLoadFailed, TemplateTooSlow
from edgeagent.store.gguf.header import validate_model
from edgeagent.types import ChatPrompt, GenerateRequest, MemoryKind, Message, WorkerState
from edgeagent.worker.parent.pool.loading import ModelSource
from edgeagent.worker.parent.pool.pool import Pool
from edgeagent.worker.parent.supervision import watchdog
from tests import models
from tests.worker.support import Record, found_at, request

# Work in C, which no thread of the same process could end.
BUSY = (
    "{%- set ns = namespace(a=[1], b=[1]) -%}{%- for _ in range(60) -%}{%- set ns.a = [ns.a, ns.a] -%}"
    "{%- set ns.b = [ns.b, ns.b] -%}{%- endfor -%}{{ ns.a == ns.b }}"
)
HURRIED = """
import os
from edgeagent.worker.child import process
from edgeagent.worker.render import renderer
renderer.OPEN_CPU_S, renderer.REQUEST_CPU_S = 0.5, 0.3
os._exit(process.main())
"""


@pytest.fixture(autouse=True)
def _elapsed_time_is_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit templates by their CPU time alone: a busy machine exceeds three times of it."""
    monkeypatch.setattr(watchdog, "_IDLE_FACTOR", 100.0)


def make_pool(path: Path) -> Pool:
    """Return a pool for one model; its chat template has less time than usual."""
    config = Config(engine=EngineConfig(threads=1))
    return Pool(
        config, ModelSource(lambda _: found_at(path), validate_model), command=(sys.executable, "-P", "-c", HURRIED)
    )


def without_bytes(writer: GGUFWriter, pieces: list[str], *_: object) -> None:
    """Write a vocabulary of the kind that spells unknown text in bytes, but without the byte tokens."""
    kinds = [gguf.TokenType.UNKNOWN, *[gguf.TokenType.NORMAL] * (len(pieces) - 1)]
    writer.add_tokenizer_model("llama")
    writer.add_token_list([f"piece{index}" for index in range(len(pieces))])
    writer.add_token_scores([0.0] * len(pieces))
    writer.add_token_types(kinds)


def with_a_tokenizer_that_throws(path: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(models, "add_vocabulary", without_bytes)
    models.make_tiny_model(path, MemoryKind.FULL_ATTENTION)


def with_an_epsilon_that_is_no_number(path: Path, patch: pytest.MonkeyPatch) -> None:
    models.make_tiny_model(path, MemoryKind.FULL_ATTENTION)
    reader = gguf.GGUFReader(path, "r+")
    field = reader.get_field("llama.attention.layer_norm_rms_epsilon")
    assert field is not None
    field.parts[field.data[0]][0] = math.nan
    reader.data.flush()


@pytest.mark.parametrize(
    ("make", "what"),
    [(with_a_tokenizer_that_throws, "the tokenizer"), (with_an_epsilon_that_is_no_number, "the first tokens")],
)
async def test_the_file_is_to_blame(
    make: Callable[[Path, pytest.MonkeyPatch], None], what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "damaged.gguf"
    make(path, monkeypatch)
    pool = Pool(Config(engine=EngineConfig(threads=1)), ModelSource(lambda _: found_at(path), validate_model))
    try:
        record = Record()
        with pytest.raises(ModelLoadFailed) as caught:
            await pool.start()
            pool.submit(request("hi"), record)
            await record.end()
            assert isinstance(record.error, EdgeAgentError)
            raise record.error
        assert f"{what} of {path} ended the process (SIGABRT" in caught.value.message
        (status,) = pool.statuses()
        assert (status.state, status.num_restarts) == (WorkerState.FAILED, 0)
    finally:
        await pool.stop()


async def test_a_chat_template_that_cannot_be_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "CHAT_TEMPLATE", BUSY)
    path = models.make_tiny_model(tmp_path / "busy.gguf", MemoryKind.FULL_ATTENTION)
    pool = make_pool(path)
    try:
        await pool.start()
        record = Record()
        pool.submit(request("hi"), record)
        await record.end()
        assert isinstance(record.error, ModelLoadFailed)
        assert str(path) in record.error.message
        assert "tokenizer.chat_template" in record.error.message and "CPU time" in record.error.message
        assert pool.statuses()[0].num_restarts == 0
    finally:
        await pool.stop()


@pytest.mark.slow(seconds=4)
async def test_a_chat_template_that_is_ended_costs_no_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = "{%- if messages[-1].content == 'work' -%}" + BUSY + "{%- endif -%}{{ messages[-1].content }}"
    monkeypatch.setattr(models, "CHAT_TEMPLATE", source)
    pool = make_pool(models.make_tiny_model(tmp_path / "tiny.gguf", MemoryKind.FULL_ATTENTION))
    try:
        await pool.start()
        stream, guilty, next_one = Record(), Record(), Record()
        pool.submit(request("a long answer", "stream", max_tokens=1500), stream)
        await stream.until(lambda record: len(record.tokens) > 0)
        for text, record in (("work", guilty), ("hello", next_one)):
            prompt = ChatPrompt((Message("user", text),))
            pool.submit(GenerateRequest(id=text, model="", prompt=prompt, max_tokens=2), record)
        await guilty.end()
        assert isinstance(guilty.error, TemplateTooSlow), guilty.error
        await next_one.end()
        assert next_one.error is None
        await stream.end()
        assert len(stream.tokens) == 1500 and stream.finished.timings.handovers == ()
        assert pool.statuses()[0].num_restarts == 0
    finally:
        await pool.stop()
