"""A model's first computation finds files that load but do not work; each is refused with its name and its fault."""

from __future__ import annotations

import math
from collections.abc import Iterator
from collections.abc import Sequence as Items
from pathlib import Path

import gguf
import numpy as np
import pytest

from edgeagent.config import EngineConfig
from edgeagent.engine.first_steps import allow_mix, can_rewind, try_out
from edgeagent.engine.llama.bindings import lib
from edgeagent.engine.llama.context import LlamaRunner
from edgeagent.engine.llama.model import Model
from edgeagent.engine.llama.token_rows import TokenRows
from edgeagent.engine.runner import CUTTABLE, Slice
from edgeagent.engine.sampling.params import resolve
from edgeagent.errors import ModelLoadFailed
from edgeagent.types import MemoryKind, SamplingParams
from tests.conftest import TinyModel
from tests.models import MEMORIES, make_tiny_model
from tests.peer.shelf import TWINS, Quant, Shape, make_model
from tests.peer.shelf.shapes import SEEING_TWIN

CONFIG = EngineConfig(threads=1, ctx=512)


def opened(path: Path) -> tuple[Model, LlamaRunner]:
    model = Model(path, CONFIG)
    return model, LlamaRunner(model, CONFIG)


def damage(path: Path, tensor: str, value: float) -> None:
    """Fill a tensor of 32-bit numbers with a value; a single wrong number may vanish where products are quantized."""
    reader = gguf.GGUFReader(path, "r+")
    found = next(each for each in reader.tensors if each.name == tensor)
    found.data[:] = value
    reader.data.flush()


@pytest.mark.parametrize("kind", MEMORIES)
def test_a_good_model_is_left_as_it_was(tiny_model: TinyModel, kind: MemoryKind) -> None:
    model, runner = opened(tiny_model(kind))
    tried: list[str] = []
    bytes_per_token = try_out(model, runner, tried.append)
    assert (bytes_per_token > 0) == (kind is not MemoryKind.RECURRENT)
    assert tried == [f"the tokenizer of {model.path}", f"the first tokens of {model.path}"]
    assert runner.length(0) == 0
    assert np.isfinite(runner.logits(0)).all()
    runner.close()


@pytest.mark.parametrize(
    ("tensor", "value", "word"),
    [
        ("output_norm.weight", math.nan, "NaN"),
        ("output_norm.weight", math.inf, "NaN|infinite"),
        ("blk.2.attn_norm.weight", math.nan, "NaN"),
        ("blk.0.ffn_norm.weight", math.inf, "NaN|infinite"),
    ],
)
def test_weights_that_are_no_numbers(tmp_path: Path, tensor: str, value: float, word: str) -> None:
    path = make_tiny_model(tmp_path / "damaged.gguf", MemoryKind.FULL_ATTENTION)
    damage(path, tensor, value)
    model, runner = opened(path)
    with pytest.raises(ModelLoadFailed, match=rf"damaged\.gguf cannot be served: .*first tokens are.*({word})"):
        try_out(model, runner, lambda _: None)
    runner.close()


@pytest.mark.parametrize("base", [math.nan, 0.0, -1.0])
def test_a_rope_base_that_makes_no_numbers(tmp_path: Path, base: float) -> None:
    path = make_tiny_model(tmp_path / "damaged.gguf", MemoryKind.FULL_ATTENTION)
    reader = gguf.GGUFReader(path, "r+")
    field = reader.get_field("llama.rope.freq_base")
    assert field is not None
    field.parts[field.data[0]][0] = base
    reader.data.flush()
    with pytest.raises(ModelLoadFailed, match="damaged"):
        try_out(*opened(path), lambda _: None)


def test_bad_recommendations_are_passed_over(tmp_path: Path) -> None:
    bad: dict[str, float] = {
        "general.sampling.top_k": -5,
        "general.sampling.temp": math.nan,
        "general.sampling.top_p": 7.0,
        "general.sampling.min_p": 0.25,
    }
    path = make_tiny_model(tmp_path / "advice.gguf", MemoryKind.FULL_ATTENTION, metadata=bad)
    defaults = Model(path, CONFIG).default_sampling()
    resolved = resolve(SamplingParams(), defaults)
    assert (resolved.top_k, resolved.temperature, resolved.top_p, resolved.min_p) == (40, 0.8, 0.95, 0.25)


class Stale(LlamaRunner):
    """Rewinds to states that the latest batch did not leave, as llama.cpp does if asked."""

    def decode(self, slices: Items[Slice], min_tokens: int = 0) -> None:
        rows = []
        for part in slices:
            for index, token in enumerate(part.tokens):
                super().decode([Slice(part.seq_id, part.start + index, [token], 1)])
            rows.append(self.logits(0).copy())
        self._outputs = [*rows]

    def rewind(self, seq_id: int, length: int) -> bool:
        was_cut = bool(lib.llama_memory_seq_rm(self._memory, seq_id, length, -1))
        assert was_cut
        return was_cut


class TestTakingBack:
    @pytest.fixture(params=["qwen3.5-0.8b", "lfm2-350m"])
    def model(self, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Model]:
        model = Model(make_model(tmp_path / "hybrid.gguf", TWINS[request.param], "Q8_0"), CONFIG)
        yield model
        model.close()

    @pytest.mark.parametrize("max_rewind", [1, 2, 16])
    def test_states_that_are_kept_are_right(self, model: Model, max_rewind: int) -> None:
        runner = LlamaRunner(model, CONFIG, max_rewind=max_rewind)
        assert runner.max_rewind == max_rewind
        assert can_rewind(runner)
        assert [runner.length(seq_id) for seq_id in range(2)] == [0, 0]
        runner.close()

    def test_states_that_are_not_the_earlier_ones_are_seen(self, model: Model) -> None:
        runner = Stale(model, CONFIG, max_rewind=8)
        assert not can_rewind(runner)
        runner.close()

    def test_none_are_kept_unless_asked_for(self, model: Model) -> None:
        runner = LlamaRunner(model, CONFIG)
        assert runner.max_rewind == 0
        assert not can_rewind(runner)
        runner.close()


@pytest.mark.parametrize("kind", MEMORIES)
def test_of_the_tiny_models_only_attention_takes_drafts_back(tiny_model: TinyModel, kind: MemoryKind) -> None:
    model = Model(tiny_model(kind), CONFIG)
    runner = LlamaRunner(model, CONFIG, max_rewind=4)
    assert can_rewind(runner) == (kind in CUTTABLE)
    runner.close()


@pytest.mark.parametrize("quant", ["F32", "F16", "Q8_0", "Q4_0"])
@pytest.mark.parametrize("shape", [SEEING_TWIN, TWINS["llama-3.2-1b"]], ids=lambda shape: shape.name)
def test_tokens_beside_embeddings_give_the_same_logits(tmp_path: Path, shape: Shape, quant: Quant) -> None:
    _, runner = opened(make_model(tmp_path / "m.gguf", shape, quant))
    allow_mix(runner)
    assert runner.can_mix
    assert runner.length(0) == runner.length(1) == 0
    runner.close()


def test_tokens_that_would_give_other_logits_are_not_mixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gemma multiplies the embeddings of tokens, and not those of media."""
    _, runner = opened(make_model(tmp_path / "m.gguf", SEEING_TWIN, "F32"))
    of = TokenRows.of
    monkeypatch.setattr(TokenRows, "of", lambda self, tokens: 8 * of(self, tokens))
    allow_mix(runner)
    assert not runner.can_mix
    runner.close()


def test_a_window_is_not_mixed(tiny_model: TinyModel) -> None:
    _, runner = opened(tiny_model(MemoryKind.SLIDING_WINDOW))
    allow_mix(runner)
    assert not runner.can_mix
    runner.close()
