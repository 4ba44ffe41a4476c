"""Where layers are placed, and how much memory of the machine and of each GPU they use."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from msgspec import structs

from edgeagent.config import EngineConfig
from edgeagent.fit.need import predict
from edgeagent.fit.placement import FreeMemory, GpuDevice, Layout, MemoryUse, layouts, predict_use
from edgeagent.fit.plan import place_projector
from tests.fit.shapes import GIB, MIB, shape

CONFIG = EngineConfig()
MODEL, DRAFT = shape(), shape(2)
CARD = GpuDevice("card", 64 * GIB, 64 * GIB)


@pytest.fixture(autouse=True)
def flash_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plan for a processor on which each model gets flash attention; plain attention takes memory for scores."""
    monkeypatch.setattr("edgeagent.fit.need.prefers_plain", lambda *_, **__: False)


def test_without_a_gpu_it_takes_what_it_needs() -> None:
    assert predict_use([MODEL, DRAFT], CONFIG, 4096, Layout(), ()) == MemoryUse(
        predict([MODEL, DRAFT], CONFIG, 4096).total_bytes
    )


@pytest.mark.parametrize(
    ("options", "card_bytes", "used"),
    [
        ({}, 64 * GIB, (0, GIB, 0)),
        ({"gpu_layers": 0}, 64 * GIB, (GIB, 0, 0)),
        ({"tensor_split": (0.0, 1.0)}, 64 * GIB, (0, 0, GIB)),
        ({}, GIB + 256 * MIB, (GIB, 0, 0)),
    ],
)
def test_where_a_projector_is(options: dict[str, Any], card_bytes: int, used: tuple[int, int, int]) -> None:
    card = GpuDevice("card", card_bytes, card_bytes)
    use = place_projector([MODEL], EngineConfig(**options), FreeMemory(64 * GIB, (card, card)), GIB)
    assert (use.ram_bytes, *use.gpu_bytes) == used


def test_what_is_left_beside_a_projector() -> None:
    own, shared = GpuDevice("card", 8 * GIB, 8 * GIB), GpuDevice("part", 8 * GIB, 8 * GIB, shares_memory=True)
    left = FreeMemory(16 * GIB, (own, shared)).beside(MemoryUse(GIB, (2 * GIB, 3 * GIB)))
    assert (left.ram_bytes, *[gpu.free_bytes for gpu in left.gpus]) == (12 * GIB, 6 * GIB, 5 * GIB)


def test_what_is_on_a_gpu_is_not_in_memory() -> None:
    whole = predict([MODEL], CONFIG, 4096)
    there = predict_use([MODEL], CONFIG, 4096, Layout(9), [CARD])
    still_here = whole.outputs_bytes + whole.worker_bytes + whole.blocks_bytes + whole.buffers_bytes
    assert there.ram_bytes == still_here + MODEL.table_bytes
    assert there.gpu_bytes[0] > 900 * MIB + whole.kv_bytes
    half = predict_use([MODEL], CONFIG, 4096, Layout(5), [CARD])
    assert half.ram_bytes == there.ram_bytes + 4 * 100 * MIB + whole.kv_bytes // 2


def test_each_layer_more_on_a_gpu_takes_more_there_and_less_here() -> None:
    uses = [predict_use([MODEL], CONFIG, 4096, Layout(count), [CARD]) for count in range(10)]
    assert uses[0].gpu_bytes == (0,)
    assert all(less.gpu_bytes < more.gpu_bytes for less, more in pairwise(uses))
    assert all(less.ram_bytes > more.ram_bytes for less, more in pairwise(uses))


def test_a_table_that_is_the_output_too_is_copied() -> None:
    tied = structs.replace(MODEL, num_bytes=MODEL.num_bytes - MODEL.output_bytes, output_bytes=0)
    there, untied = (predict_use([each], CONFIG, 4096, Layout(9), [CARD]) for each in (tied, MODEL))
    assert there.gpu_bytes == untied.gpu_bytes
    assert there.ram_bytes == untied.ram_bytes


def test_matrices_on_a_gpu_are_not_kept_twice() -> None:
    quantized = structs.replace(MODEL, matrix_bytes=(("Q4_0", 900 * MIB),))
    extra = [
        predict_use([quantized], CONFIG, 4096, Layout(count), [CARD]).ram_bytes
        - predict_use([MODEL], CONFIG, 4096, Layout(count), [CARD]).ram_bytes
        for count in (0, 5, 9)
    ]
    assert extra[2] == 0
    assert extra[1] == pytest.approx(extra[0] * 4 / 9, abs=1)


def test_layers_are_spread_by_what_is_free_or_as_asked() -> None:
    gpus = [GpuDevice("small", 2 * GIB, 2 * GIB), GpuDevice("large", 6 * GIB, 6 * GIB)]
    small, large = predict_use([MODEL], CONFIG, 256, Layout(9), gpus).gpu_bytes
    assert large - small == pytest.approx(300 * MIB, abs=200 * MIB), "six layers and the output beside three"
    only = predict_use([MODEL], EngineConfig(tensor_split=(0.0, 1.0)), 256, Layout(9), gpus).gpu_bytes
    assert only[0] == 0


def test_rows_are_divided_in_each_layer_and_cells_by_layers() -> None:
    gpus = [GpuDevice("first", 8 * GIB, 8 * GIB), GpuDevice("second", 8 * GIB, 8 * GIB)]
    by_rows = EngineConfig(split_mode="row", tensor_split=(3.0, 1.0))
    (first, second), few = (predict_use([MODEL], by_rows, cells, Layout(9), gpus).gpu_bytes for cells in (4096, 256))
    matrices = sum(layer.num_bytes for layer in MODEL.layers) + MODEL.output_bytes
    assert few[0] - few[1] == pytest.approx(matrices / 2, rel=0.05)
    assert first - few[0] > 2 * (second - few[1]), "seven layers' cells beside two's"
    alone = predict_use([MODEL], EngineConfig(tensor_split=(1.0, 0.0)), 256, Layout(9), gpus).gpu_bytes
    rows_alone = EngineConfig(split_mode="row", tensor_split=(1.0, 0.0))
    assert predict_use([MODEL], rows_alone, 256, Layout(9), gpus).gpu_bytes == alone


def test_experts_in_memory_leave_room_on_the_gpu() -> None:
    mixture = shape(layer_bytes=500 * MIB, expert_bytes=450 * MIB)
    all_there, some_here = (predict_use([mixture], CONFIG, 4096, Layout(9, 0, count), [CARD]) for count in (0, 3))
    assert all_there.gpu_bytes[0] - some_here.gpu_bytes[0] == 3 * 450 * MIB
    assert some_here.ram_bytes - all_there.ram_bytes == 3 * 450 * MIB


def test_memory_that_a_gpu_shares_counts_in_both() -> None:
    use = MemoryUse(2 * GIB, (3 * GIB,))
    for shares_memory in (False, True):
        free_memory = FreeMemory(4 * GIB, (GpuDevice("gpu", 4 * GIB, 4 * GIB, shares_memory),))
        assert use.fits_gpus(free_memory)
        assert use.fits(free_memory) is not shares_memory
    assert not use.fits(FreeMemory(8 * GIB, (GpuDevice("gpu", 2 * GIB, 8 * GIB),)))


ON_GPU = FreeMemory(64 * GIB, (CARD,))


def test_without_gpus_or_with_none_asked_for_everything_is_here() -> None:
    assert list(layouts([MODEL, DRAFT], CONFIG, FreeMemory(GIB))) == [Layout()]
    assert list(layouts([MODEL, DRAFT], EngineConfig(gpu_layers=0), ON_GPU)) == [Layout()]


def test_the_draft_leaves_the_gpu_first_then_layers() -> None:
    found = list(layouts([MODEL, DRAFT], CONFIG, ON_GPU))
    assert found[:3] == [Layout(9, 3), Layout(9, 0), Layout(8, 0)]
    assert found[-1] == Layout(0, 0)
    assert list(layouts([MODEL, DRAFT], EngineConfig(gpu_layers=5), ON_GPU)) == [Layout(5, 3), Layout(5, 0)]


def test_experts_leave_the_gpu_before_layers() -> None:
    mixture = shape(layer_bytes=500 * MIB, expert_bytes=450 * MIB)
    found = list(layouts([mixture], CONFIG, ON_GPU))
    assert found[:3] == [Layout(9), Layout(9, 0, 1), Layout(9, 0, 2)]
    assert found[9] == Layout(8, 0, 8)
    asked = list(layouts([mixture], EngineConfig(cpu_experts=2), ON_GPU))
    assert asked[:2] == [Layout(9, 0, 2), Layout(8, 0, 2)]
