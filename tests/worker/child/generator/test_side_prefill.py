"""When a prompt may have its own context, and a whole worker's host that uses one on a real model."""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest

from edgeagent.config import EngineConfig
from edgeagent.engine import side_prefill
from edgeagent.engine.llama.context import LlamaRunner
from edgeagent.engine.llama.model import Model
from edgeagent.engine.runner import ChunkRows
from edgeagent.engine.sampling.params import resolve
from edgeagent.engine.sampling.sampler import Sampler
from edgeagent.engine.sequence import SequenceSpec
from edgeagent.fit.need import margin_bytes
from edgeagent.types import MemoryKind, SamplingParams, replace
from edgeagent.worker.child.generator.host import Host
from edgeagent.worker.child.generator.side_context import side_contexts
from edgeagent.worker.child.opening import open_model
from edgeagent.worker.protocol import Load
from tests.local_template import open_here

TOKENS = list(range(20, 60)) * 5
CONFIG = EngineConfig(ctx=2048, parallel=4, threads=1, sandbox=False, flash_attention="off")


def make_runner(path: Path) -> LlamaRunner:
    return LlamaRunner(Model(path, CONFIG), CONFIG)


@pytest.mark.parametrize("kind", [kind for kind in MemoryKind if kind is not MemoryKind.NONE])
def test_what_can_be_copied_depends_on_the_memory(tiny_model: Callable[[MemoryKind], Path], kind: MemoryKind) -> None:
    """A prompt, embeddings in parts, and embeddings that are one part."""
    runner = make_runner(tiny_model(kind))
    open_context = side_contexts(runner, CONFIG, 1024.0)
    rows = np.zeros((len(TOKENS), runner.model.embedding_length), np.float32)
    can_copy = []
    for media in (None, ChunkRows(rows, True, None, ()), ChunkRows(rows, False, None, ())):
        side = None if open_context is None else open_context(TOKENS, 0, 64, media)
        can_copy.append(side is not None)
        if side is not None:
            side.close()
    expected = {
        MemoryKind.FULL_ATTENTION: [True, True, True],
        MemoryKind.HYBRID: [False, True, True],
        MemoryKind.SLIDING_WINDOW: [False, False, True],
    }
    assert can_copy == expected.get(kind, [False, False, False])
    runner.close()


def test_threads_that_would_spin_are_not_paused(
    tiny_model: Callable[[MemoryKind], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    for threads, is_possible in ((2, False), (1, True)):
        config = replace(CONFIG, threads=threads)
        runner = LlamaRunner(Model(tiny_model(MemoryKind.FULL_ATTENTION), config), config)
        assert (side_contexts(runner, config, 1024.0) is not None) == is_possible
        runner.close()


def test_memory_must_be_there_for_the_cells_twice(tiny_model: Callable[[MemoryKind], Path]) -> None:
    runner = make_runner(tiny_model(MemoryKind.FULL_ATTENTION))
    needed = 2 * (len(TOKENS) + 256) * 1024 + (256 << 20)
    for free_bytes, is_made in ((needed - 1, False), (needed, True)):
        open_context = side_contexts(runner, CONFIG, 1024.0, lambda free=free_bytes: free)  # type: ignore[misc]
        assert open_context is not None
        side = open_context(TOKENS, 0, 64)
        assert (side is not None) == is_made
        if side is not None:
            side.close()
    runner.close()


def test_other_programs_keep_what_a_load_leaves_them(
    tiny_model: Callable[[MemoryKind], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = make_runner(tiny_model(MemoryKind.FULL_ATTENTION))
    open_context = side_contexts(runner, CONFIG, 1024.0)
    assert open_context is not None
    memory = psutil.virtual_memory()
    needed = 2 * (len(TOKENS) + 256) * 1024 + (256 << 20)
    for available, is_made in ((needed, False), (needed + margin_bytes(memory.total), True)):
        held = memory._replace(available=available)
        monkeypatch.setattr(psutil, "virtual_memory", lambda held=held: held)
        side = open_context(TOKENS, 0, 64)
        assert (side is not None) == is_made
        if side is not None:
            side.close()
    runner.close()


@pytest.mark.parametrize("num_cached", [pytest.param(0, marks=pytest.mark.slow(seconds=6)), 300])
def test_a_prompt_beside_streams_is_answered_as_without(
    tiny_model: Callable[[MemoryKind], Path], monkeypatch: pytest.MonkeyPatch, num_cached: int
) -> None:
    """On a real model; the thresholds are removed, since a tiny model's prompt is never worth a context."""
    monkeypatch.setattr(side_prefill, "MIN_GAIN", -1e9)  # whatever was measured
    monkeypatch.setattr(side_prefill, "MAX_STEP_S", math.inf)  # a disturbed first step makes all chunks seem slow
    chance = random.Random(1)
    prompt = [chance.randrange(20, 100) for _ in range(900)]
    answers = {}
    for is_aside in (True, False):
        monkeypatch.setattr(side_prefill, "MIN_ALONE_S", 0.0 if is_aside else math.inf)
        load = Load("tiny", str(tiny_model(MemoryKind.FULL_ATTENTION)), None, CONFIG)
        host = Host(load, open_model(load), open_here)
        engine, sampling = host.engine, host.model.default_sampling()

        def spec(
            name: str, tokens: list[int], num_output: int, host: Host = host, sampling: SamplingParams = sampling
        ) -> SequenceSpec:
            sampler = Sampler(resolve(SamplingParams(temperature=0.0), sampling), host.model.num_tokens)
            return SequenceSpec(name, tokens, sampler, num_output)

        if num_cached:
            engine.add(spec("first", prompt[:num_cached], 1))
            while engine.num_live:
                engine.step()
        stream = engine.add(spec("stream", [1, 2, 3], 1000))
        while stream.num_output < 3:
            engine.step()
        long, was_aside = engine.add(spec("long", prompt, 30)), False
        while engine.num_live and "long" in {*engine._running, *engine._waiting}:
            engine.step()
            engine.save_step()
            was_aside = was_aside or engine._side.sequence is long
        engine.cancel("stream")
        assert was_aside == is_aside and long.num_cached >= num_cached - 2
        answers[is_aside] = long.tokens[900:].tolist()
        host.close()
    assert answers[True] == answers[False] and len(answers[True]) == 30
