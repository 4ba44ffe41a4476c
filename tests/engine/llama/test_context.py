"""The llama.cpp runner and model alone: memory operations, vocabulary, refusals."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeagent.config import EngineConfig
from edgeagent.engine.choices import Choices, grow
from edgeagent.engine.costs.cost_model import FLASH_TILE
from edgeagent.engine.llama.bindings import lib
from edgeagent.engine.llama.context import LlamaRunner
from edgeagent.engine.llama.model import Model, split_parts
from edgeagent.engine.runner import DecodeCancelled, OutOfCells, Slice
from edgeagent.errors import ModelLoadFailed
from edgeagent.types import MemoryKind, replace
from tests.conftest import TinyModel
from tests.models import MEMORIES

CONFIG = EngineConfig(threads=1, batch=48, parallel=2, ctx=256, flash_attention="on")
TILED = replace(CONFIG, batch=128)
TOKENS = [20 + 7 * i % 200 for i in range(40)]
CUTTABLE = {MemoryKind.FULL_ATTENTION, MemoryKind.SLIDING_WINDOW}


@pytest.fixture(params=MEMORIES, ids=str)
def runner(request: pytest.FixtureRequest, tiny_model: TinyModel) -> Iterator[LlamaRunner]:
    model = Model(tiny_model(request.param), CONFIG)
    made = LlamaRunner(model, CONFIG)
    yield made
    made.close()
    model.close()


@pytest.fixture
def model(tiny_model: TinyModel) -> Iterator[Model]:
    made = Model(tiny_model(MemoryKind.FULL_ATTENTION), CONFIG)
    yield made
    made.close()


def feed(runner: LlamaRunner, seq_id: int, start: int, tokens: list[int]) -> np.ndarray:
    runner.decode([Slice(seq_id, start, tokens, 1)])
    return runner.logits(0).copy()


class TestMemory:
    def test_the_kind_is_told(self, runner: LlamaRunner, request: pytest.FixtureRequest) -> None:
        assert str(runner.memory_kind) in request.node.name

    def test_chunks_give_the_same_logits(self, runner: LlamaRunner) -> None:
        whole = feed(runner, 0, 0, TOKENS)
        feed(runner, 1, 0, TOKENS[:13])
        assert np.array_equal(whole, feed(runner, 1, 13, TOKENS[13:]))

    def test_a_whole_copy_goes_on_like_its_source(self, runner: LlamaRunner) -> None:
        expected = feed(runner, 0, 0, TOKENS)
        feed(runner, 1, 0, TOKENS[:20])
        assert runner.copy(1, 2, 20)
        assert np.array_equal(expected, feed(runner, 2, 20, TOKENS[20:]))
        # The source has not changed.
        assert runner.length(1) == 20
        assert np.array_equal(expected, feed(runner, 1, 20, TOKENS[20:]))

    def test_a_tree_is_computed_as_each_branch_alone(self, runner: LlamaRunner) -> None:
        """The sequence stays as it was, and so do its neighbour's numbers and those of the next tree."""
        choices = Choices(((11, 12, 13), (11, 14), (11, 14, 15), (16,)), (3,))
        alone = []
        for tokens in choices.tokens:
            runner.clear(0)
            feed(runner, 0, 0, TOKENS[:30])
            runner.decode([Slice(0, 30, [*TOKENS[30:32], *tokens], len(tokens) + 1)])
            alone.append([runner.logits(index).copy() for index in range(len(tokens) + 1)])
        runner.clear(0)
        expected = feed(runner, 0, 0, TOKENS)
        feed(runner, 1, 0, TOKENS[:30])
        num_done = 0
        while num_done < len(choices.tokens):
            limits = {"max_tokens": 40, "max_rows": 32, "max_branches": min(3, runner.max_branches)}
            tree = grow(choices, num_done, TOKENS[30:32], **limits)
            assert tree is not None
            neighbour = Slice(2, 0, TOKENS[5:8], 1)
            runner.decode([Slice(1, 30, tree.tokens, tree.num_rows, places=tree.places), neighbour])
            for number, path in zip(choices.order[num_done:], tree.paths, strict=False):
                for row, index in zip(alone[number], [0, *(index - 1 for index in path)], strict=True):
                    assert np.abs(row - runner.logits(index)).max() < 1e-4
            runner.clear(2)
            num_done += len(tree.paths)
        assert runner.length(1) == 30
        assert np.array_equal(expected, feed(runner, 1, 30, TOKENS[30:]))
        assert all(runner.length(branch) == 0 for branch in range(2, runner.params.n_seq_max))

    def test_a_cut_is_exact_or_refused(self, runner: LlamaRunner) -> None:
        expected = feed(runner, 0, 0, TOKENS)
        feed(runner, 1, 0, [*TOKENS[:30], 9, 9, 9])
        if runner.memory_kind in CUTTABLE:
            assert runner.trim(1, 30)
            assert np.array_equal(expected, feed(runner, 1, 30, TOKENS[30:]))
        else:
            assert not runner.can_trim(1, 30)
            assert not runner.trim(1, 30)
            assert runner.length(1) == 33

    def test_cells_are_moved_there_and_back_and_others_stay_as_they_are(self, runner: LlamaRunner) -> None:
        if runner.memory_kind is not MemoryKind.FULL_ATTENTION:
            assert "only full attention" in runner.allow_shift() and not runner.can_shift
            return
        assert runner.allow_shift() == "" and runner.can_shift
        feed(runner, 0, 0, TOKENS[:30])
        assert runner.copy(0, 3, 29)
        before = feed(runner, 3, 29, TOKENS[29:30])
        runner.clear(3)
        feed(runner, 1, 0, TOKENS[:5])
        assert runner.restore_shifted(1, runner.save(0, 0, 30), 30, range(10, 29), -5)
        runner.abort_flag.set()  # it must not leave some layers turned
        runner.apply_shift()
        runner.abort_flag.clear()
        assert runner.length(1) == 24
        feed(runner, 2, 0, TOKENS[:10])
        assert runner.restore_shifted(2, runner.save(1, 5, 24), 24, range(5, 24), 5)
        runner.apply_shift()
        assert np.allclose(feed(runner, 2, 29, TOKENS[29:30]), before, atol=0.02)
        assert runner.copy(0, 3, 29)
        assert np.array_equal(feed(runner, 3, 29, TOKENS[29:30]), before)

    def test_a_cleared_sequence_starts_anew(self, runner: LlamaRunner) -> None:
        expected = feed(runner, 0, 0, TOKENS)
        feed(runner, 1, 0, [9] * 20)
        runner.clear(1)
        assert runner.length(1) == 0
        assert np.array_equal(expected, feed(runner, 1, 0, TOKENS))

    def test_rows_are_in_the_order_of_the_batch(self, runner: LlamaRunner) -> None:
        expected = [feed(runner, 0, 0, TOKENS[:n]) for n in (10,)]
        runner.clear(0)
        runner.decode([Slice(0, 0, TOKENS[:5], 0), Slice(1, 0, TOKENS[:10], 2)])
        # A batch of another size may be multiplied in another order.
        assert np.allclose(runner.logits(1), expected[0], rtol=0, atol=1e-3)
        assert not runner.logits(0).flags.writeable
        together = runner.all_logits()
        assert np.array_equal(together, [runner.logits(0), runner.logits(1)])
        assert not together.flags.writeable

    def test_the_abort_flag_ends_a_decode_and_can_be_taken_back(
        self, runner: LlamaRunner, capsys: pytest.CaptureFixture[str]
    ) -> None:
        runner.request_abort()
        with pytest.raises(DecodeCancelled):
            feed(runner, 0, 0, TOKENS)
        assert capsys.readouterr().err == "", "an interruption is no error"
        runner.clear_abort()
        runner.clear(0)
        feed(runner, 0, 0, TOKENS)


class TestFilling:
    """Batches on a CPU are filled up with padding tokens, which change no result."""

    @pytest.fixture(autouse=True)
    def quantized(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Model, "file_type", 2)

    def test_three_sequences_are_computed_as_each_alone(self, model: Model) -> None:
        runner = LlamaRunner(model, CONFIG)
        for seq_id in range(6):
            feed(runner, seq_id, 0, TOKENS[: 8 + seq_id % 3])
        alone = [feed(runner, seq_id, 8 + seq_id, [30 + seq_id]) for seq_id in range(3)]
        runner.decode([Slice(3 + index, 8 + index, [30 + index], 1) for index in range(3)])
        for index in range(3):
            np.testing.assert_allclose(runner.logits(index), alone[index], atol=1e-4)
        assert [runner.length(seq_id) for seq_id in range(runner.num_sequences + 1)][3:7] == [9, 10, 11, 0]
        assert runner.length(runner.num_sequences) == 0, "the sequence of those tokens is empty again"
        runner.close()

    @pytest.fixture
    def counts(self, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        """Return the batch sizes that llama.cpp receives, in order."""
        found: list[int] = []
        decode = lib.llama_decode

        def noted(*args: Any) -> Any:
            found.append(args[1].n_tokens)
            return decode(*args)

        monkeypatch.setattr(lib, "llama_decode", noted)
        return found

    def test_only_where_another_sequence_changes_nothing(self, runner: LlamaRunner, counts: list[int]) -> None:
        feed(runner, 0, 0, TOKENS[:3])
        assert counts == [4 if runner.memory_kind is MemoryKind.FULL_ATTENTION else 3]

    def test_not_where_a_gpu_computes(self, model: Model, counts: list[int]) -> None:
        model.num_gpu_layers = 1
        runner = LlamaRunner(model, CONFIG)
        feed(runner, 0, 0, TOKENS[:3])
        assert counts == [3]
        runner.close()

    def test_a_batch_is_padded_to_a_tile_of_attention(self, model: Model, counts: list[int]) -> None:
        runner = LlamaRunner(model, TILED)
        assert runner.attention_tile == FLASH_TILE
        for seq_id in range(2):
            runner.decode([Slice(seq_id, 0, TOKENS[:30], 0)])
        runner.decode([Slice(0, 30, TOKENS[30:], 1)])
        expected = runner.logits(0).copy()
        runner.decode([Slice(1, 30, TOKENS[30:], 1)], FLASH_TILE)
        np.testing.assert_allclose(runner.logits(0), expected, atol=0.05)  # f32 instead of f16
        assert counts[-1] == FLASH_TILE
        assert [runner.length(seq_id) for seq_id in (0, 1, runner.num_sequences)] == [40, 40, 0]
        runner.close()

    def test_a_tile_for_which_cells_are_short_is_left_out(self, model: Model, counts: list[int]) -> None:
        runner = LlamaRunner(model, TILED)
        for at in range(0, 240, 40):
            runner.decode([Slice(0, at, TOKENS, 0)])
        runner.decode([Slice(0, 240, TOKENS[:8], 1)], FLASH_TILE)
        assert counts[-2:] == [FLASH_TILE, 8]
        assert runner.length(0) == 248
        runner.close()

    @pytest.mark.parametrize(
        "change",
        [{"flash_attention": "off"}, {"kv_type_k": "bf16", "kv_type_v": "bf16"}, {"kv_type_v": "f32"}],
        ids=["plain attention", "cells of another type", "cells of two types"],
    )
    def test_there_are_no_tiles_where_ggml_has_none(self, model: Model, change: dict[str, str]) -> None:
        runner = LlamaRunner(model, replace(TILED, **change))
        assert runner.attention_tile == 0
        runner.close()

    def test_the_last_cells_are_for_tokens_that_matter(self, model: Model) -> None:
        runner = LlamaRunner(model, CONFIG)
        at = 0
        while at < runner.num_cells:  # the last batch has three tokens, and there is no cell for a fourth
            tokens = TOKENS[: min(32, runner.num_cells - at - 3) or 3]
            feed(runner, 0, at, tokens)
            at += len(tokens)
        assert runner.length(0) == runner.num_cells
        with pytest.raises(OutOfCells):
            feed(runner, 1, 0, [5])
        runner.close()


class TestModel:
    def test_text_survives_the_vocabulary(self, model: Model) -> None:
        for text in ("hello there", "naïve ☂ 日本語 🎉", " leading", "a\n\tb", ""):
            tokens = model.tokenize(text, parse_special=False)
            assert b"".join(model.piece(token) for token in tokens).decode() == text

    def test_control_tokens_only_where_they_are_meant(self, model: Model) -> None:
        (token,) = model.tokenize("<|im_end|>", parse_special=True)
        assert model.is_control(token)
        assert model.is_end(token)
        assert token not in model.tokenize("<|im_end|>", parse_special=False)

    def test_the_file_s_sampling_completes_llama_cpp_s(self, model: Model) -> None:
        sampling = model.default_sampling()
        fields = {name: getattr(sampling, name) for name in sampling.__struct_fields__}
        assert [name for name, value in fields.items() if value is None] == ["seed"]

    def test_a_broken_file_is_refused_in_llama_cpp_s_words(self, tmp_path: Path) -> None:
        path = tmp_path / "broken.gguf"
        path.write_bytes(b"GGUF" + bytes(100))
        with pytest.raises(ModelLoadFailed, match=r"broken\.gguf: \w+"):
            Model(path, CONFIG)

    def test_progress_is_told(self, tiny_model: TinyModel) -> None:
        seen: list[float] = []
        Model(tiny_model(MemoryKind.FULL_ATTENTION), CONFIG, seen.append).close()
        assert seen[-1] == 1.0
        assert seen == sorted(seen)


def test_split_parts() -> None:
    assert split_parts(Path("a/model.gguf")) == [Path("a/model.gguf")]
    assert split_parts(Path("a/m-00001-of-00002.gguf")) == [
        Path("a/m-00001-of-00002.gguf"),
        Path("a/m-00002-of-00002.gguf"),
    ]


def test_steps_of_equal_size_share_a_graph(model: Model) -> None:
    """A graph is made again when a batch has another number of tokens or outputs."""
    made = LlamaRunner(model, CONFIG)
    for place, token in enumerate(TOKENS[:10]):
        made.decode([Slice(0, place, [token], 1)])
    assert made.num_decodes == 10
    in_a_row = made.num_graphs_reused
    assert in_a_row >= 8
    made.decode([Slice(0, 10, TOKENS[10:13], 1)])
    assert made.num_graphs_reused == in_a_row
    made.close()
