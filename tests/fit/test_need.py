"""The memory that a model needs on a CPU, by its file's shape."""

from __future__ import annotations

from dataclasses import fields

from msgspec import structs

from edgeagent.config import EngineConfig
from edgeagent.fit.need import kv_bytes_per_token, layer_kv_bytes, margin_bytes, num_cells_wanted, predict
from edgeagent.types import FileShape, LayerShape
from tests.fit.shapes import GIB, shape

PLAIN = shape()


def test_bytes_for_each_token_follow_the_types() -> None:
    shapes = (shape(2, num_kv_values=512), shape(1, num_kv_values=32))
    assert kv_bytes_per_token(shapes, EngineConfig()) == (2 * 2 * 512 + 2 * 32) * 2
    quantized = EngineConfig(kv_type_k="q8_0", kv_type_v="q4_0", flash_attention="on")
    assert kv_bytes_per_token(shapes, quantized) == (2 * 512 + 32) * (34 + 18) / 32


def test_cells_are_those_that_the_engine_takes() -> None:
    assert num_cells_wanted(shape(context_length=512), EngineConfig()) == 512
    assert num_cells_wanted(shape(context_length=1 << 20), EngineConfig()) == 8192
    assert num_cells_wanted(FileShape(0), EngineConfig()) == 8192
    assert num_cells_wanted(shape(context_length=512), EngineConfig(ctx=1024)) == 1024


def test_states_are_kept_for_each_sequence_and_not_for_tokens() -> None:
    layer = LayerShape(0, num_state_values=1000)
    assert layer_kv_bytes(layer, EngineConfig(parallel=5), 100) == layer_kv_bytes(layer, EngineConfig(parallel=5), 9999)
    assert layer_kv_bytes(layer, EngineConfig(parallel=5), 100) == (5 + 3) * 1000 * 4
    assert layer_kv_bytes(layer, EngineConfig(parallel=5, cache_memory_bytes=0), 100) == (5 + 9) * 1000 * 4


def test_earlier_states_are_kept_for_each_sequence_of_the_model_and_not_of_its_draft() -> None:
    with_states = structs.replace(PLAIN, layers=(LayerShape(0, num_state_values=1000),))
    without, with_two = (predict([with_states] * 2, EngineConfig(parallel=5), 100, max_rewind=back) for back in (0, 2))
    assert with_two.kv_bytes - without.kv_bytes == 2 * (5 + 3) * 1000 * 4
    assert with_two.buffers_bytes - without.buffers_bytes == 2 * (5 + 3) * 1000 * 4 // 2


def test_a_model_takes_its_files_its_cells_and_what_is_rearranged() -> None:
    quantized = structs.replace(PLAIN, matrix_bytes=(("Q4_0", GIB // 2), ("F32", 1000)))
    need = predict([quantized], EngineConfig(), 1000, machine="x86_64")
    assert need.weights_bytes == PLAIN.num_bytes
    assert need.repacked_bytes == GIB // 2
    assert need.kv_bytes == 1000 * 8 * 2 * 1024 * 2
    assert need.outputs_bytes == 100 * 1000 * 4
    assert need.blocks_bytes == need.kv_bytes // 4
    # This model gets plain attention, whose micro-batches of 128 tokens have a score for each head and cell.
    assert need.buffers_bytes == (512 * (8 * 1024 + 3 * 4096) + 128 * PLAIN.num_heads * 1000) * 4 // 2
    flash = predict([quantized], EngineConfig(flash_attention="on"), 1000, machine="x86_64")
    assert flash.buffers_bytes == 512 * (8 * 1024 + 3 * 4096) * 4 // 2
    assert need.total_bytes == sum(getattr(need, field.name) for field in fields(need))
    assert predict([quantized], EngineConfig(), 1000, machine="riscv64").repacked_bytes == 0
    with_draft = predict([quantized, quantized], EngineConfig(), 1000, machine="x86_64")
    assert with_draft.total_bytes == 2 * need.total_bytes - need.worker_bytes - need.blocks_bytes


def test_a_model_that_keeps_nothing_needs_no_rows_of_logits() -> None:
    assert predict([structs.replace(PLAIN, is_encoder=True)], EngineConfig(), 512).outputs_bytes == 0


def test_memory_ready_for_blocks_is_a_part_of_the_cells_and_of_what_the_host_may_keep() -> None:
    assert predict([PLAIN], EngineConfig(cache_memory_bytes=0), 8192).blocks_bytes == 0
    assert predict([PLAIN], EngineConfig(cache_memory_bytes=GIB // 4), 8192).blocks_bytes == GIB // 32
    with_states = structs.replace(PLAIN, layers=(*PLAIN.layers, LayerShape(0, num_state_values=1)))
    assert predict([with_states], EngineConfig(), 8192).blocks_bytes == 0


def test_the_margin_is_a_part_and_a_gibibyte_at_most() -> None:
    assert margin_bytes(GIB) == GIB // 20
    assert margin_bytes(512 * GIB) == GIB
