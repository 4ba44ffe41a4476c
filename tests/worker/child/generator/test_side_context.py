"""The second context on a real model: it computes the same cells, and only while it is allowed to."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs

from edgeagent.config import EngineConfig
from edgeagent.engine.llama.context import LlamaRunner
from edgeagent.engine.llama.model import Model
from edgeagent.engine.llama.token_rows import TokenRows
from edgeagent.engine.runner import Chunk, ChunkRows, Slice, Stretch
from edgeagent.errors import ModelLoadFailed
from edgeagent.fit.attention import Attention
from edgeagent.types import MemoryKind
from edgeagent.worker.child.generator.side_context import LlamaSideContext, NodeTimes
from tests.patience import patient
from tests.peer.shelf import make_model
from tests.peer.shelf.shapes import SEEING_TWIN

CHUNK = 32
TOKENS = [20 + index * 7 % 90 for index in range(200)]
CONFIG = EngineConfig(ctx=512, parallel=1, threads=1, batch=CHUNK)


@pytest.fixture(scope="module")
def model(tiny_model: Callable[[MemoryKind], Path]) -> Iterator[Model]:
    loaded = Model(tiny_model(MemoryKind.FULL_ATTENTION), CONFIG)
    yield loaded
    loaded.close()


@pytest.fixture
def runner(model: Model) -> Iterator[LlamaRunner]:
    opened = open_runner(model)
    yield opened
    opened.close()


def open_runner(model: Model, threads: int = 1) -> LlamaRunner:
    return LlamaRunner(model, structs.replace(CONFIG, threads=threads), attention=Attention("off", CHUNK))


def chunks_of(side: LlamaSideContext) -> list[Chunk]:
    """Let the context compute to its end; return all chunks."""
    side.resume()
    chunks: list[Chunk] = []
    while True:
        is_over = side.is_over
        chunks += side.take()
        if is_over:
            return chunks
        side.wait(patient(10))


# Two threads spin while they wait, which is many times slower beside other tests.
@pytest.mark.parametrize("threads", [1, pytest.param(2, marks=pytest.mark.slow(seconds=3))])
@pytest.mark.parametrize("num_tokens", [CHUNK, CHUNK + 1, 3 * CHUNK + 1, 200])
def test_its_chunks_are_what_the_runner_would_have_computed(
    model: Model, runner: LlamaRunner, num_tokens: int, threads: int
) -> None:
    side = LlamaSideContext(partial(open_runner, model, threads), TOKENS[:num_tokens], 0, CHUNK)
    at, other = 0, open_runner(model)  # cells at the same positions, since rounding depends on them
    for chunk in chunks_of(side):
        assert chunk.num_tokens == chunk.end - at > 1
        assert runner.restore(0, chunk.payload, chunk.end)
        other.decode([Slice(0, at, TOKENS[at : chunk.end], 0)])
        at = chunk.end
    side.close()
    assert at == num_tokens
    for each in (runner, other):
        each.decode([Slice(0, num_tokens, [40, 41], 1)])
    np.testing.assert_array_equal(runner.logits(0), other.logits(0))
    other.close()


def test_it_begins_with_the_cells_that_it_is_given(model: Model, runner: LlamaRunner) -> None:
    runner.decode([Slice(0, 0, TOKENS[:CHUNK], 0)])
    runner.decode([Slice(0, CHUNK, TOKENS[CHUNK : 2 * CHUNK], 0)])
    side = LlamaSideContext(partial(open_runner, model), TOKENS[:150], 2 * CHUNK, CHUNK)
    side.resume()
    for end in (CHUNK, 2 * CHUNK):
        side.give(Chunk(CHUNK, end, runner.save(0, end - CHUNK, end)))
    assert [chunk.end for chunk in chunks_of(side)] == [96, 128, 150]
    side.close()


def test_it_computes_nothing_while_it_is_paused(model: Model) -> None:
    side = LlamaSideContext(partial(open_runner, model), TOKENS, 0, CHUNK)
    side.pause()  # its initial state
    assert not side.take() and not side.is_over
    num_computed = 0
    for _ in range(1000):
        side.resume()
        time.sleep(0.001)
        side.pause()
        is_over = side.is_over
        num_computed += len(side.take())
        time.sleep(0.001)
        assert not side.take()
        if is_over:
            break
    assert num_computed == 7 and side.is_over
    side.close()


def test_it_pauses_before_a_node_that_would_end_too_late(model: Model) -> None:
    side = LlamaSideContext(partial(open_runner, model), TOKENS, 0, CHUNK)
    num_windows = 0
    while not side.is_over:
        side.resume(time.monotonic() - 1.0)  # nothing would end in time: one node in each window
        assert side.wait_paused(10)
        num_windows += 1
    assert num_windows > 100, "from the second chunk on, the times of the nodes are known"
    assert sum(chunk.num_tokens for chunk in side.take()) == len(TOKENS)
    side.close()


def test_a_node_is_expected_to_take_as_long_as_in_the_chunk_before() -> None:
    nodes = NodeTimes()
    nodes.begin(1.0)
    assert nodes.end(1.5) == 1.5, "nothing is known of the next node"
    assert nodes.end(3.5) == 3.5
    nodes.begin(10.0)
    assert nodes.end(10.25) == 12.25
    nodes.resume(20.0)  # after a pause, which is not part of the node
    assert nodes.end(23.0) == 23.0
    nodes.begin(30.0)
    assert nodes.end(30.25) == 33.25


@pytest.mark.parametrize("is_paused", [False, True])
def test_it_can_be_closed_at_any_time(model: Model, *, is_paused: bool) -> None:
    side = LlamaSideContext(partial(open_runner, model), TOKENS, 0, CHUNK)
    side.resume()
    if is_paused:
        side.pause()
    side.close()
    assert side.is_over and not side._thread.is_alive()


def test_a_pause_does_not_wait_for_the_context_to_be_made(model: Model) -> None:
    may_open = threading.Event()

    def open_slowly() -> LlamaRunner:
        assert may_open.wait(patient(10))  # a pause that waits for it fails here
        return open_runner(model)

    side = LlamaSideContext(open_slowly, TOKENS, 0, CHUNK)
    side.resume()
    side.pause()
    may_open.set()
    time.sleep(0.1)
    assert not side.take() and not side.is_over
    assert sum(chunk.num_tokens for chunk in chunks_of(side)) == len(TOKENS)
    side.close()


def test_its_memory_is_free_when_it_is_closed(model: Model) -> None:
    side = LlamaSideContext(partial(open_runner, model), TOKENS, 0, CHUNK)
    side.resume()
    side.wait(patient(10))
    side.close()
    there = weakref.ref(side)
    gc.disable()
    try:
        del side
        assert there() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("error", [ModelLoadFailed("llama.cpp could not make a context"), MemoryError()])
def test_a_context_that_cannot_be_made_is_over_without_a_chunk(error: Exception) -> None:
    def fail() -> LlamaRunner:
        raise error

    side = LlamaSideContext(fail, TOKENS, 0, CHUNK)
    assert chunks_of(side) == []
    side.close()


@pytest.mark.parametrize("form", ["full attention", "hybrid", "positions in several dimensions"])
def test_embeddings_are_what_the_runner_would_have_computed(
    tiny_model: Callable[[MemoryKind], Path], tmp_path: Path, form: str
) -> None:
    positions, stretches = None, list[Stretch]()
    if form == "positions in several dimensions":
        path = make_model(tmp_path / "seeing.gguf", SEEING_TWIN, "F32")
        stretches = [Stretch(20, 90, 10)]
        positions = np.array([[0] * 70, np.arange(70) // 10, np.arange(70) % 10], np.int32)
    else:
        path = tiny_model(MemoryKind.HYBRID if form == "hybrid" else MemoryKind.FULL_ATTENTION)
    loaded = Model(path, CONFIG)
    runner, other = open_runner(loaded), open_runner(loaded)
    for each in (runner, other):
        each.place_media(0, stretches)
        each.decode([Slice(0, 0, TOKENS[:20], 0)])
    rows = TokenRows(loaded).of(TOKENS[20:90])
    media = ChunkRows(rows, True, positions, stretches)
    side = LlamaSideContext(partial(open_runner, loaded), TOKENS[:90], 20, CHUNK, media=media)
    side.resume()
    side.give(Chunk(20, 20, runner.save(0, 0, 20)))
    ends = []
    for chunk in chunks_of(side):
        assert runner.restore(0, chunk.payload, chunk.end)
        ends.append(chunk.end)
    side.close()
    assert ends == ([90] if media.is_one else [52, 84, 90])
    for start, end in pairwise((20, 52, 84, 90)):
        part = Slice(0, 20 if media.is_one else start, TOKENS[start:end], 0, rows=rows[start - 20 : end - 20])
        of_part = None if positions is None else positions[:, start - 20 : end - 20]
        other.decode([part._replace(positions=of_part)])
    for each in (runner, other):
        assert each.length(0) == 90
        each.decode([Slice(0, 90, [40, 41], 1)])
    np.testing.assert_array_equal(runner.logits(0), other.logits(0))
    for opened in (runner, other, loaded):
        opened.close()
