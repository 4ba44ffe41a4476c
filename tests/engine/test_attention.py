"""The choice of attention: plain on the CPU where its buffer is small, else flash or what llama.cpp decides."""

from __future__ import annotations

import pytest

from edgeagent.config import EngineConfig
from edgeagent.engine.attention import Attention, choose_attention


def choose(config: EngineConfig, *, num_cells: int = 8192, is_on_gpu: bool = False) -> Attention:
    return choose_attention(config, num_heads=14, num_cells=num_cells, is_on_gpu=is_on_gpu)


def test_the_cpu_computes_plain_attention_in_small_batches() -> None:
    assert choose(EngineConfig()) == Attention("off", 128)
    assert choose(EngineConfig(batch=48)) == Attention("off", 48)


def test_longer_contexts_get_smaller_batches_then_another_form() -> None:
    assert choose(EngineConfig(), num_cells=40_000) == Attention("off", 64)
    assert choose(EngineConfig(), num_cells=131_072) == Attention("auto", 512)


def test_a_gpu_and_quantized_cells_are_llama_cpps_to_decide() -> None:
    assert choose(EngineConfig(), is_on_gpu=True) == Attention("auto", 512)
    assert choose(EngineConfig(kv_type_v="q8_0")) == Attention("auto", 512)
    assert choose(EngineConfig(kv_type_k="q8_0")) == Attention("off", 128)


def test_many_streams_get_the_form_that_skips_each_others_cells() -> None:
    assert choose(EngineConfig(parallel=4)) == Attention("off", 128)
    assert choose(EngineConfig(parallel=5)) == Attention("auto", 512)
    assert choose(EngineConfig(parallel=8, flash_attention="off")) == Attention("off", 128)


def test_idle_prefixes_that_stay_in_the_cells_are_skipped() -> None:
    assert choose(EngineConfig(cache_memory_bytes=0)) == Attention("auto", 512)


@pytest.mark.parametrize("num_cells", [8192, 131_072])
def test_what_was_asked_for_is_kept(num_cells: int) -> None:
    assert choose(EngineConfig(flash_attention="on"), num_cells=num_cells) == Attention("on", 512)
    assert choose(EngineConfig(flash_attention="off"), num_cells=num_cells).flash == "off"
