"""Contexts that exchange cells compute the same numbers: each field of llama.cpp's parameters is walked."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgeagent
from edgeagent.config import EngineConfig
from edgeagent.engine.llama.bindings import lib
from edgeagent.engine.llama.context import LlamaRunner
from edgeagent.engine.llama.context_params import NUMBERS, make_params
from edgeagent.engine.llama.model import Model
from edgeagent.engine.runner import Slice
from edgeagent.types import MemoryKind, replace
from edgeagent.worker.child.generator.side_context import LlamaSideContext, side_contexts
from tests.conftest import TinyModel
from tests.models import make_tiny_model
from tests.patience import patient

LIMIT = 512
CONFIG = EngineConfig(ctx=1024, threads=1, parallel=4, batch=128, flash_attention="on")
FIELDS = [name for name, _ in lib.llama_context_params._fields_]
# They set sizes, threads and callbacks, or choose which results are returned.
FREE = {
    *("n_batch", "n_ubatch", "n_seq_max", "n_rs_seq", "n_outputs_max", "n_outputs_max_per_seq"),
    *("n_threads", "n_threads_batch", "no_perf", "defrag_thold"),
    *("cb_eval", "cb_eval_user_data", "abort_callback", "abort_callback_data"),
    *("embeddings", "pooling_type", "samplers", "n_samplers"),
}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that has other RoPE factors in contexts of more than LIMIT tokens."""
    folder = tmp_path_factory.mktemp("long")
    return make_tiny_model(folder / "long.gguf", MemoryKind.FULL_ATTENTION, max_short_context=LIMIT, num_heads=2)


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def open_runner(path: Path, config: EngineConfig, opened: ExitStack) -> LlamaRunner:
    model = Model(path, config)
    opened.callback(model.close)
    runner = LlamaRunner(model, config)
    opened.callback(runner.close)
    return runner


def open_side(runner: LlamaRunner, config: EngineConfig, tokens: list[int]) -> LlamaSideContext:
    open_context = side_contexts(runner, config, 1024.0, free_bytes=lambda: 1 << 40)
    assert open_context is not None
    side = open_context(tokens, 0, 64)
    assert isinstance(side, LlamaSideContext)
    return side


def test_every_field_is_known() -> None:
    """A new version of llama.cpp may have fields about which no decision was made."""
    assert {*NUMBERS, "n_ctx"} | FREE == set(FIELDS)
    assert not {*NUMBERS, "n_ctx"} & FREE


def test_every_context_has_the_parameters_that_are_walked_here() -> None:
    """`make_params` alone makes them, so no context can have others."""
    folder = Path(edgeagent.__path__[0])
    made = re.compile(r"llama_context_default_params|lib\.llama_context_params\(")
    assert [path.name for path in folder.rglob("*.py") if made.search(path.read_text(encoding="utf-8"))] == [
        "context_params.py"
    ]


@pytest.mark.parametrize("name", NUMBERS)
def test_a_field_that_decides_numbers_is_that_of_the_other_context(path: Path, name: str, opened: ExitStack) -> None:
    runner = open_runner(path, CONFIG, opened)
    params = make_params(runner.model, CONFIG, 512, "on")
    setattr(params, name, type(getattr(params, name))(1) if name != "ctx_other" else 1)
    other = replace(CONFIG, kv_type_k="q8_0", kv_type_v="q8_0")
    assert getattr(make_params(runner.model, other, 512, "off", params), name) == getattr(params, name)


def test_a_gpu_without_layers_computes_nothing(path: Path, opened: ExitStack) -> None:
    model = open_runner(path, CONFIG, opened).model
    assert not make_params(model, CONFIG, 512, "on").op_offload
    model.num_gpu_layers = 1
    assert make_params(model, CONFIG, 512, "on").op_offload


@pytest.mark.daily(6, seconds=0.2)
@pytest.mark.parametrize("flash", ["on", "off"])
@pytest.mark.parametrize("kv_type", ["f32", "f16", "q8_0"])
@pytest.mark.parametrize("num_cells", [LIMIT, LIMIT + 1, 2048])
def test_a_side_context_has_the_numbers_of_the_main_one(
    path: Path, num_cells: int, kv_type: str, flash: str, opened: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kv_type == "q8_0" and flash == "off":
        pytest.skip("llama.cpp does not support a quantized V cache with plain attention")
    update = {"ctx": num_cells, "kv_type_k": kv_type, "kv_type_v": kv_type, "flash_attention": flash}
    config = replace(CONFIG, **update)
    runner = open_runner(path, config, opened)
    made: list[Any] = []
    init: Callable[..., Any] = lib.llama_init_from_model

    def note(model: Any, params: Any) -> Any:
        made.append(params)
        return init(model, params)

    monkeypatch.setattr(lib, "llama_init_from_model", note)
    for length in (LIMIT - 300, LIMIT - 2, num_cells - 2):
        side = open_side(runner, config, [20] * length)
        side.resume()
        while not side.is_over:
            side.wait(patient(10))
            side.take()
        side.close()
        params = made.pop()
        for name in NUMBERS:
            assert getattr(params, name) == getattr(runner.params, name), name
        assert runner.model.rope_factors(params.n_ctx) == runner.model.rope_factors(runner.num_cells)
        assert length < params.n_ctx <= runner.num_cells


@pytest.mark.parametrize("num_cells", [LIMIT, 2048])
def test_a_prompt_in_a_side_context_gives_the_logits_of_the_main_one(
    path: Path, num_cells: int, opened: ExitStack
) -> None:
    config = replace(CONFIG, ctx=num_cells)
    runner = open_runner(path, config, opened)
    tokens = [20 + index * 7 % 90 for index in range(300)]
    for start in range(0, 300, 60):
        runner.decode([Slice(0, start, tokens[start : start + 60], 1)])
    expected = runner.logits(0).copy()
    runner.clear(0)
    side = open_side(runner, config, tokens[:240])
    side.resume()
    end = 0
    while end < 240:
        side.wait(patient(10))
        for chunk in side.take():
            assert runner.restore(0, chunk.payload, chunk.end)
            end = chunk.end
    side.close()
    runner.decode([Slice(0, 240, tokens[240:], 1)])
    # One chunk of 64 tokens or more is rounded in another way; other RoPE factors make a difference of 15.
    assert np.abs(runner.logits(0) - expected).max() < 0.05


def test_only_models_with_factors_for_long_texts_tell_contexts_apart(path: Path, tiny_model: TinyModel) -> None:
    model = Model(path, CONFIG)
    assert [model.rope_factors(cells) for cells in (1, LIMIT, LIMIT + 1, 4096)] == ["short", "short", "long", "long"]
    model.close()
    model = Model(tiny_model(MemoryKind.FULL_ATTENTION), CONFIG)
    assert model.rope_factors(2 * model.max_short_context) == "short"
    model.close()
