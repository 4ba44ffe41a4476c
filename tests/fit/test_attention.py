"""The form of attention of a CPU: what is read of a model's file and what llama.cpp reads lead to the same form."""

from __future__ import annotations

import platform
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from edgeagent.config import EngineConfig
from edgeagent.engine.llama.context import LlamaRunner
from edgeagent.engine.llama.model import Model
from edgeagent.engine.runner import Slice
from edgeagent.fit.attention import prefers_plain
from edgeagent.fit.need import compute_bytes
from edgeagent.store.gguf.header import read_header
from tests.peer.shelf import TWINS, make_model


@pytest.mark.parametrize(
    ("name", "num_ffn", "form"),
    [("llama-3.2-1b", 4096, "off"), ("llama-3.2-1b", 128, "on"), ("gemma-3-1b", 4096, "on"), ("lfm2-350m", 4096, "on")],
)
def test_a_wide_model_gets_plain_attention_and_the_memory_for_it(
    name: str, num_ffn: int, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    path = make_model(tmp_path / "m.gguf", replace(TWINS[name], num_ffn=num_ffn), "Q4_0")
    config = EngineConfig(threads=1, ctx=512, parallel=2, batch=64)
    model = Model(path, config)
    runner = LlamaRunner(model, config)
    runner.decode([Slice(0, 0, [3, 4, 5], 1)])
    assert runner.attention.flash == form
    shape = read_header(path).shape
    assert model.ffn_width == shape.ffn_width == num_ffn
    if form == "off":
        scores = 64 * shape.num_heads * 512 * 4
        flash = structs.replace(config, flash_attention="on")
        assert compute_bytes(shape, config, 512) - compute_bytes(shape, flash, 512) == scores
    runner.close()
    model.close()


def test_experts_are_not_counted_as_width(tmp_path: Path) -> None:
    path = make_model(tmp_path / "m.gguf", TWINS["qwen3moe-1b-a400m"], "Q4_0")
    model = Model(path, EngineConfig())
    assert model.ffn_width == 0
    model.close()


def test_an_option_is_not_overruled() -> None:
    for form in ("on", "off"):
        config = EngineConfig(flash_attention=form)
        assert not prefers_plain(config, num_heads=14, ffn_width=4864, num_cells=8192, machine="x86_64")
