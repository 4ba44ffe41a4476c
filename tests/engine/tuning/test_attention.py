"""The candidates: all forms and sizes that the options, the memory and the layers' placement allow."""

from __future__ import annotations

import pytest

from edgeagent.config import EngineConfig
from edgeagent.engine.tuning.attention import Attention, possible_attention


def possible(config: EngineConfig, *, num_cells: int = 8192, is_on_gpu: bool = False) -> list[tuple[str, int]]:
    found = possible_attention(config, num_heads=14, num_cells=num_cells, is_on_gpu=is_on_gpu)
    return [(each.flash, each.micro_batch) for each in found]


def test_both_forms_are_candidates_and_flash_is_the_default() -> None:
    assert possible(EngineConfig()) == [("on", 512), ("on", 128), ("on", 64), ("off", 128), ("off", 64)]
    assert possible(EngineConfig(batch=48)) == [("on", 48), ("off", 48)]
    assert possible(EngineConfig(batch=1024))[0] == ("on", 1024)


def test_a_buffer_of_scores_has_its_limit() -> None:
    assert possible(EngineConfig(), num_cells=40_000)[3:] == [("off", 64)]
    assert possible(EngineConfig(), num_cells=131_072) == [("on", 512), ("on", 128), ("on", 64)]


def test_what_was_asked_for_is_kept() -> None:
    for num_cells in (8192, 131_072):
        for form in ("on", "off"):
            found = possible(EngineConfig(flash_attention=form), num_cells=num_cells)
            assert {each[0] for each in found} == {form}


@pytest.mark.parametrize("form", ["auto", "on", "off"])
def test_a_gpu_has_one_candidate(form: str) -> None:
    config = EngineConfig(flash_attention=form)  # type: ignore[arg-type]
    assert [each[0] for each in possible(config, is_on_gpu=True)] == [form]


def test_quantized_values_are_llama_cpps_to_decide() -> None:
    assert possible_attention(EngineConfig(kv_type_v="q8_0"), num_heads=14, num_cells=8192, is_on_gpu=False) == (
        Attention("auto", 512),
    )
    assert len(possible(EngineConfig(kv_type_k="q8_0"))) > 1
