"""Adapters on llama.cpp itself: an answer equals that of the model with merged weights, whatever else runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
import pytest

from edgeagent.config import EngineConfig
from edgeagent.engine.cache.block import Keyring
from edgeagent.engine.cache.block_table import BlockTable
from edgeagent.engine.cache.prefix_store import PrefixStore
from edgeagent.engine.engine import Engine
from edgeagent.engine.llama.context import Adapter, LlamaRunner
from edgeagent.engine.llama.model import Model
from edgeagent.engine.runner import Slice
from edgeagent.engine.sequence import SequenceSpec
from edgeagent.errors import ModelDamaged
from edgeagent.types import MemoryKind
from tests.adapters import make_adapter, merge_adapter
from tests.engine.support import greedy, run
from tests.models import make_tiny_model

F32 = gguf.GGMLQuantizationType.F32
CONFIG = EngineConfig(gpu_layers=0, threads=1, ctx=512, parallel=4, batch=128)
PROMPT = list(range(40, 72))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapters")
    base = make_tiny_model(folder / "base.gguf", MemoryKind.FULL_ATTENTION, num_layers=2, matrix_type=F32)
    for seed in (1, 2):
        make_adapter(folder / f"a{seed}.gguf", base, seed=seed)
        merge_adapter(folder / f"merged{seed}.gguf", base, seed=seed)
    return folder


@pytest.fixture
def runner(files: Path) -> Iterator[LlamaRunner]:
    model = Model(files / "base.gguf", CONFIG)
    runner = LlamaRunner(model, CONFIG)
    for seed in (1, 2):
        runner.add_adapter(Adapter(model, files / f"a{seed}.gguf"))
    yield runner
    runner.close()
    model.close()


def ids(runner: LlamaRunner) -> tuple[str, ...]:
    return tuple(runner._adapters)


def logits(runner: LlamaRunner) -> np.ndarray:
    runner.clear(0)
    runner.decode([Slice(0, 0, PROMPT, 1)])
    return runner.logits(0).copy()


def logits_of(path: Path) -> np.ndarray:
    model = Model(path, CONFIG)
    runner = LlamaRunner(model, CONFIG)
    try:
        return logits(runner)
    finally:
        runner.close()
        model.close()


def test_it_computes_what_the_merged_model_computes(runner: LlamaRunner, files: Path) -> None:
    plain = logits(runner)
    for seed, adapter in zip((1, 2), ids(runner), strict=True):
        runner.use_adapter(adapter)
        changed = logits(runner)
        merged = logits_of(files / f"merged{seed}.gguf")
        assert np.abs(changed - plain).max() > 0.1
        # K and V are rounded to F16, and sums have another order: on some processors the difference is a thousandth.
        assert np.allclose(changed, merged, atol=5e-3)
    runner.use_adapter("")
    assert np.array_equal(logits(runner), plain)


def naive(runner: LlamaRunner, adapter: str, prompt: list[int], num_tokens: int) -> list[int]:
    """Return what a separate engine would generate for one sequence alone."""
    return run_all(runner, [(adapter, prompt)], num_tokens)[0]


def run_all(runner: LlamaRunner, asked: list[tuple[str, list[int]]], num_tokens: int) -> list[list[int]]:
    blocks = BlockTable(Keyring(b"real", b"s" * 32), 1 << 24, None, can_cut=True)
    engine = Engine(runner, max_running=4, prefixes=PrefixStore(runner, blocks), adapters=ids(runner))
    num_vocab = runner.num_vocab
    for number, (adapter, prompt) in enumerate(asked):
        spec = SequenceSpec(f"s{number}", prompt, greedy(num_vocab), max_tokens=num_tokens, adapter=adapter)
        engine.add(spec)
    outputs = run(engine, check=False)
    engine.close()
    runner.use_adapter("")
    for seq_id in range(runner.num_sequences):
        runner.clear(seq_id)
    return [outputs[f"s{number}"][0] for number in range(len(asked))]


def test_the_engine_mixes_no_adapters_in_batches_or_caches(runner: LlamaRunner) -> None:
    adapters = ("", *ids(runner))
    alone = {adapter: naive(runner, adapter, PROMPT, 12) for adapter in adapters}
    assert len({tuple(tokens) for tokens in alone.values()}) == 3
    asked = [(adapter, PROMPT) for adapter in (*adapters, *reversed(adapters), *adapters)]
    assert run_all(runner, asked, 12) == [alone[adapter] for adapter, _ in asked]


def test_what_is_not_an_adapter_of_the_model_is_refused(files: Path, tmp_path: Path) -> None:
    model = Model(files / "base.gguf", CONFIG)
    other = make_tiny_model(tmp_path / "other.gguf", MemoryKind.FULL_ATTENTION, num_layers=3, matrix_type=F32)
    with pytest.raises(ModelDamaged, match=r"the adapter \S*foreign\.gguf does not suit \S*base\.gguf: "):
        Adapter(model, make_adapter(tmp_path / "foreign.gguf", other))
    with pytest.raises(ModelDamaged, match="does not suit"):
        Adapter(model, files / "base.gguf")
    model.close()


def test_its_identity_follows_its_content(files: Path, tmp_path: Path, runner: LlamaRunner) -> None:
    first, second = ids(runner)
    assert first != second and len(first) == 32
    changed = tmp_path / "a1.gguf"
    changed.write_bytes((files / "a1.gguf").read_bytes()[:-4] + b"\0\0\0\1")
    assert Adapter(runner.model, changed).id not in (first, second)
