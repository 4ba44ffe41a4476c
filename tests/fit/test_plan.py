"""How a model is made to fit: what is reduced first, what was requested, and what is refused before a load."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from msgspec import structs

from edgeagent.config import EngineConfig
from edgeagent.errors import ModelLoadFailed
from edgeagent.fit.need import predict
from edgeagent.fit.placement import FreeMemory, GpuDevice, Layout
from edgeagent.fit.plan import RunPlan, check_possible, describe, least_cells, longest_context, make_plan, plan_again
from edgeagent.types import FileShape, LayerShape
from tests.fit.shapes import GIB, MIB, shape

MODEL = shape()
ROOMY = FreeMemory(64 * GIB)
CONFIG = EngineConfig()


@pytest.fixture(autouse=True)
def flash_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plan for a processor on which each model gets flash attention; plain attention takes memory for scores."""
    monkeypatch.setattr("edgeagent.fit.need.prefers_plain", lambda *_, **__: False)


def free_memory_for(num_cells: int, config: EngineConfig = CONFIG) -> FreeMemory:
    """Return the free memory that this context needs without a GPU."""
    return FreeMemory(predict([MODEL], config, num_cells).total_bytes)


def card(num_bytes: int) -> FreeMemory:
    return FreeMemory(64 * GIB, (GpuDevice("card", num_bytes, num_bytes),))


def chosen(plan: RunPlan) -> tuple[int, str, str]:
    return plan.num_cells, plan.config.kv_type_k, plan.config.kv_type_v


def test_with_memory_everything_is_as_usual() -> None:
    plan = make_plan([MODEL], CONFIG, ROOMY)
    assert plan.fits
    assert chosen(plan) == (8192, "f16", "f16")
    assert plan.config == structs.replace(
        CONFIG, gpu_layers=0, cpu_experts=0, kv_type_k="f16", kv_type_v="f16", parallel=4
    )
    assert describe(plan, CONFIG, 8) == ()


def test_the_context_gives_way_then_the_kv_type() -> None:
    assert chosen(make_plan([MODEL], CONFIG, free_memory_for(6000))) == (5888, "f16", "f16")
    assert chosen(make_plan([MODEL], CONFIG, free_memory_for(4096))) == (4096, "f16", "f16")
    assert chosen(make_plan([MODEL], CONFIG, free_memory_for(4000))) == (7424, "q8_0", "q8_0")
    assert chosen(make_plan([MODEL], CONFIG, free_memory_for(1500)))[1] == "f16", (
        "1,024 are more than q8_0 makes worth it"
    )
    assert chosen(make_plan([MODEL], CONFIG, free_memory_for(600))) == (1024, "q8_0", "q8_0")
    assert chosen(make_plan([MODEL], CONFIG, free_memory_for(300))) == (256, "f16", "f16")


def test_what_was_asked_for_is_kept() -> None:
    asked = EngineConfig(ctx=8192)
    assert chosen(make_plan([MODEL], asked, free_memory_for(5000))) == (8192, "q8_0", "q8_0")
    assert not make_plan([MODEL], asked, free_memory_for(2000)).fits
    typed = EngineConfig(kv_type_k="f16", kv_type_v="f16")
    assert chosen(make_plan([MODEL], typed, free_memory_for(4000))) == (3840, "f16", "f16")
    plain = EngineConfig(flash_attention="off")
    assert chosen(make_plan([MODEL], plain, free_memory_for(4000)))[1] == "f16", "q8_0 needs flash attention"
    shifting = EngineConfig(cache_shift=True)
    assert chosen(make_plan([MODEL], shifting, free_memory_for(4000)))[1:] == ("f16", "f16")
    mixed = EngineConfig(kv_type_k="q4_0")
    assert chosen(make_plan([MODEL], mixed, ROOMY)) == (8192, "q4_0", "f16")


def test_layers_go_to_a_gpu_before_the_context_is_long() -> None:
    whole = make_plan([MODEL], CONFIG, card(8 * GIB))
    assert whole.layout == Layout(9)
    assert whole.config.gpu_layers == -1
    tight = make_plan([MODEL], CONFIG, card(1536 * MIB))
    assert tight.layout == Layout(9)
    assert 4096 <= tight.num_cells < 8192
    part = make_plan([MODEL], CONFIG, card(1 * GIB + 256 * MIB))
    assert 0 < part.layout.num_gpu_layers < 9
    assert part.config.gpu_layers == part.layout.num_gpu_layers
    assert part.num_cells >= 4096
    assert make_plan([MODEL], CONFIG, card(100 * MIB)).layout == Layout()


def test_a_draft_that_does_not_fit_beside_it_stays_in_memory() -> None:
    both = make_plan([MODEL, MODEL], CONFIG, card(16 * GIB))
    assert both.draft_config.gpu_layers == 9
    alone = make_plan([MODEL, MODEL], CONFIG, card(2 * GIB))
    assert alone.layout == Layout(9, 0)
    assert alone.draft_config.gpu_layers == 0


def test_experts_leave_a_gpu_first() -> None:
    mixture = shape(layer_bytes=1000 * MIB, expert_bytes=900 * MIB)
    plan = make_plan([mixture], CONFIG, card(6 * GIB))
    assert plan.layout.num_gpu_layers == 9
    assert 0 < plan.layout.num_cpu_experts < 8
    assert plan.config.cpu_experts == plan.layout.num_cpu_experts
    choice = describe(plan, CONFIG, 8)[0]
    assert choice.value == f"all, the experts of {plan.layout.num_cpu_experts} in memory"


def test_less_room_after_a_load_that_ran_out_of_memory() -> None:
    on_gpu = [plan_again([MODEL], CONFIG, card(8 * GIB), count) for count in range(4)]
    assert all(less.memory_use.gpu_bytes < more.memory_use.gpu_bytes for more, less in pairwise(on_gpu))
    here = [plan_again([MODEL], CONFIG, ROOMY, count) for count in range(4)]
    assert [plan.num_cells for plan in here] == [8192, 4096, 2048, 1024]
    assert plan_again([MODEL], EngineConfig(ctx=8192), ROOMY, 3).config == structs.replace(here[0].config, ctx=8192)
    assert plan_again([FileShape(0)], CONFIG, ROOMY, 2).num_cells == 2048


def test_fewer_requests_run_at_a_time_where_each_keeps_a_state() -> None:
    states = FileShape(
        num_bytes=GIB, width=1024, context_length=32768, layers=(LayerShape(GIB // 8, 0, 0, 0, 8 * MIB),) * 8
    )
    state_bytes = 8 * 8 * MIB * 4
    total_bytes = predict([states], CONFIG, 8192).total_bytes

    def plan_with(room_bytes: int, config: EngineConfig = CONFIG) -> RunPlan:
        return make_plan([states], config, FreeMemory(room_bytes))

    assert plan_with(total_bytes).config.parallel == 4
    short = plan_with(total_bytes - 1)
    assert (short.config.parallel, short.num_cells, short.fits) == (2, 8192, True)
    (choice,) = describe(short, CONFIG, 8)
    assert (choice.name, choice.value, choice.by) == ("parallel requests", "2", "memory")
    assert plan_with(total_bytes - 3 * state_bytes).config.parallel == 1
    assert not plan_with(total_bytes - 3 * state_bytes - 1).fits
    assert plan_with(total_bytes - 1, EngineConfig(parallel=4)).config.parallel == 4, "it was asked for"
    assert [plan_again([states], CONFIG, ROOMY, count).config.parallel for count in range(4)] == [4, 2, 1, 1]


def test_where_nothing_fits_it_is_tried_with_a_short_context() -> None:
    plan = make_plan([MODEL], CONFIG, FreeMemory(GIB // 2))
    assert not plan.fits
    assert plan.num_cells == 1024
    assert least_cells(MODEL, CONFIG) == 1024
    assert least_cells(MODEL, EngineConfig(ctx=3000)) == 3000


def test_a_file_that_could_not_be_read_is_loaded_as_asked() -> None:
    plan = make_plan([FileShape(0)], CONFIG, ROOMY)
    assert plan.fits
    assert plan.config.ctx == 0
    assert make_plan([FileShape(0)], CONFIG, card(GIB)).config.gpu_layers == -1


def test_the_longest_context() -> None:
    assert longest_context([MODEL], CONFIG, free_memory_for(6000)) == 5888
    assert longest_context([MODEL], CONFIG, ROOMY) == 32768, "no longer than it was trained for"
    assert longest_context([MODEL], CONFIG, FreeMemory(GIB // 2)) == 0
    quantized = EngineConfig(kv_type_k="q8_0", kv_type_v="q8_0")
    assert longest_context([MODEL], quantized, free_memory_for(6000)) > 10000
    encoder = shape(num_kv_values=0, context_length=512)
    assert longest_context([encoder], CONFIG, ROOMY) == 512


def test_a_context_that_no_memory_holds_is_refused_with_one_that_fits() -> None:
    with pytest.raises(ModelLoadFailed) as refused:
        check_possible([MODEL], EngineConfig(ctx=40_000_000), free_memory_for(6000))
    assert refused.value.message == (
        "a context of 40000000 tokens takes 1,220.7 GiB of memory for the KV cache, and 1.3 GiB are free; "
        "--ctx 5888 would fit"
    )
    with pytest.raises(ModelLoadFailed, match="no context would fit"):
        check_possible([MODEL], EngineConfig(ctx=8192), FreeMemory(MIB))
    check_possible([MODEL], EngineConfig(ctx=5888), free_memory_for(5888))
    check_possible([MODEL], EngineConfig(ctx=60_000), free_memory_for(5888))  # quantized cells fit
    with pytest.raises(ModelLoadFailed):
        check_possible([MODEL], EngineConfig(ctx=60_000, kv_type_k="f16", kv_type_v="f16"), free_memory_for(5888))
    check_possible([MODEL], EngineConfig(ctx=32768), card(8 * GIB))
    check_possible([MODEL], CONFIG, FreeMemory(GIB // 2))  # its file can be read again and again


def test_more_layers_than_a_gpu_can_hold_are_refused_with_how_many_fit() -> None:
    small = card(GIB)
    with pytest.raises(ModelLoadFailed, match=r"99 layers .* on card, which has 1.0 GiB; --gpu-layers \d would fit"):
        check_possible([MODEL], EngineConfig(gpu_layers=99), small)
    check_possible([MODEL], EngineConfig(gpu_layers=99), card(8 * GIB))
    busy = FreeMemory(64 * GIB, (replace(card(8 * GIB).gpus[0], free_bytes=GIB),))
    check_possible([MODEL], EngineConfig(gpu_layers=99), busy)  # other programs may free their memory


def test_of_configured_layers_that_do_not_fit_now_as_many_are_taken_as_fit() -> None:
    asked = EngineConfig(gpu_layers=8)
    busy = FreeMemory(64 * GIB, (replace(card(8 * GIB).gpus[0], free_bytes=GIB),))
    plan = make_plan([MODEL], asked, busy)
    assert 0 < plan.layout.num_gpu_layers < 8
    assert plan.layout == make_plan([MODEL], CONFIG, busy).layout and plan.fits
    layers = describe(plan, asked, 8)[0]
    assert (layers.value, layers.by) == (f"{plan.layout.num_gpu_layers} of 8", "memory")
    assert layers.why.endswith("; 8 layers do not fit beside what other programs hold")
    assert make_plan([MODEL], EngineConfig(gpu_layers=1), busy).layout.num_gpu_layers == 1


def test_the_reasons_are_told() -> None:
    plan = make_plan([MODEL], CONFIG, free_memory_for(4000))
    context, kv_type = describe(plan, CONFIG, 8)
    assert (context.name, context.value, context.by) == ("context", "7424", "memory")
    assert context.why == "8192 tokens do not fit beside the weights: 1.2 GiB of memory are free"
    assert (kv_type.name, kv_type.value) == ("KV type", "q8_0")
    (layers,) = describe(make_plan([MODEL], CONFIG, card(8 * GIB)), CONFIG, 8)
    assert (layers.name, layers.value, layers.by) == ("layers on the GPU", "all", "memory")
    assert "of 8.0 GiB free on card" in layers.why
    asked = EngineConfig(gpu_layers=4)
    (layers,) = describe(make_plan([MODEL], asked, card(8 * GIB)), asked, 8)
    assert (layers.value, layers.by) == ("4 of 8", "option")
