"""What memory a model takes by its header, and what of it can be had."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from edgeagent.config import EngineConfig
from edgeagent.engine.llama import model
from edgeagent.store.fit import (
    DEFAULT_MAX_CONTEXT,
    kv_bytes_per_token,
    margin_bytes,
    num_cells_wanted,
    plan,
    predict,
)
from edgeagent.store.kv_shape import KvShape

GIB = 1 << 30
SHAPE = KvShape(512, 256)


@dataclass(frozen=True)
class FakeHeader:
    num_vocab: int = 1000
    context_length: int | None = None
    kv_shape: KvShape = SHAPE
    size_bytes: int = GIB
    num_layers: int | None = 7
    matrix_bytes: tuple[tuple[str, int], ...] = (("Q4_0", GIB // 2), ("F32", 1000))


def test_bytes_for_each_token_follow_the_types() -> None:
    headers = (FakeHeader(), FakeHeader(kv_shape=KvShape(32, 0)))
    assert kv_bytes_per_token(headers, EngineConfig()) == (512 + 256 + 32) * 2
    quantized = EngineConfig(kv_type_k="q8_0", kv_type_v="q4_0", flash_attention="on")
    assert kv_bytes_per_token(headers, quantized) == (512 + 32) * 34 / 32 + 256 * 18 / 32


def test_cells_are_those_that_the_engine_takes() -> None:
    assert DEFAULT_MAX_CONTEXT == model.DEFAULT_MAX_CONTEXT
    assert num_cells_wanted(FakeHeader(context_length=512), EngineConfig()) == 512
    assert num_cells_wanted(FakeHeader(context_length=1 << 20), EngineConfig()) == 8192
    assert num_cells_wanted(FakeHeader(), EngineConfig()) == 8192
    assert num_cells_wanted(FakeHeader(context_length=512), EngineConfig(ctx=1024)) == 1024


def test_a_model_takes_its_files_its_cells_and_what_is_rearranged() -> None:
    need = predict([FakeHeader()], EngineConfig(), 1000, machine="x86_64")
    assert need.weights_bytes == GIB
    assert need.repacked_bytes == GIB // 2
    assert need.kv_bytes == 1000 * (512 + 256) * 2
    assert need.outputs_bytes == 100 * 1000 * 4
    assert need.total_bytes == need.weights_bytes + need.repacked_bytes + need.kv_bytes + need.outputs_bytes + (
        need.worker_bytes
    )
    assert predict([FakeHeader()], EngineConfig(), 1000, machine="riscv64").repacked_bytes == 0
    with_draft = predict([FakeHeader(), FakeHeader(size_bytes=1000)], EngineConfig(), 1000, machine="x86_64")
    assert with_draft.weights_bytes == GIB + 1000
    assert with_draft.kv_bytes == 2 * need.kv_bytes


def test_a_model_that_keeps_nothing_needs_no_rows_of_logits() -> None:
    assert predict([FakeHeader(kv_shape=KvShape())], EngineConfig(), 512).outputs_bytes == 0


def test_what_fits_and_the_longest_context_that_would() -> None:
    header = FakeHeader(context_length=1 << 20)
    roomy = plan([header], EngineConfig(ctx=4096), 8 * GIB)
    assert roomy.fits
    assert (roomy.num_cells, roomy.num_gpu_layers, roomy.vram_bytes) == (4096, 0, 0)
    tight = plan([header], EngineConfig(ctx=1 << 20), 2 * GIB)
    assert not tight.fits
    assert tight.max_context % 256 == 0
    assert plan([header], EngineConfig(ctx=tight.max_context), 2 * GIB).fits
    assert not plan([header], EngineConfig(ctx=tight.max_context + 512), 2 * GIB).fits
    assert plan([header], EngineConfig(), GIB // 2).max_context == 0
    quantized = EngineConfig(ctx=4096, kv_type_k="q8_0", kv_type_v="q8_0", flash_attention="on")
    assert plan([header], quantized, 2 * GIB).max_context > tight.max_context


def test_no_context_is_longer_than_the_model_was_trained_for() -> None:
    assert plan([FakeHeader(context_length=512)], EngineConfig(), 64 * GIB).max_context == 512


@pytest.mark.parametrize(("vram", "layers"), [(0, 0), (GIB // 2, 0), (24 * GIB, -1)])
def test_layers_go_to_a_gpu_as_far_as_they_fit(vram: int, layers: int) -> None:
    assert plan([FakeHeader()], EngineConfig(), 8 * GIB, vram).num_gpu_layers == layers


def test_what_is_on_a_gpu_is_not_in_memory() -> None:
    here, there = (plan([FakeHeader()], EngineConfig(), 8 * GIB, vram) for vram in (0, 24 * GIB))
    assert there.ram_bytes < here.ram_bytes // 4
    half = plan([FakeHeader()], EngineConfig(gpu_layers=4), 8 * GIB, 24 * GIB)
    assert half.num_gpu_layers == 4
    assert there.ram_bytes < half.ram_bytes < here.ram_bytes
    assert half.vram_bytes == pytest.approx(there.vram_bytes / 2)


def test_the_margin_is_a_part_and_a_gibibyte_at_most() -> None:
    assert margin_bytes(GIB) == GIB // 20
    assert margin_bytes(512 * GIB) == GIB
