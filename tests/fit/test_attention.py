"""The form of attention of a context, the reason that the status shows, and the memory that it takes."""

from __future__ import annotations

import dataclasses
import platform
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from edgeagent.config import EngineConfig
from edgeagent.engine.llama.context import LlamaRunner
from edgeagent.engine.llama.model import Model
from edgeagent.engine.runner import Slice
from edgeagent.fit.attention import Attention, choose_attention, describe_attention, prefers_plain
from edgeagent.fit.need import compute_bytes
from edgeagent.store.gguf.header import read_header
from edgeagent.types import replace
from tests.peer.shelf import TWINS, make_model


def chosen(
    num_cells: int = 8192, *, ffn_width: int = 1536, num_heads: int = 16, is_on_gpu: bool = False, **options: Any
) -> Attention:
    config = replace(EngineConfig(batch=512), **options)
    return choose_attention(config, num_heads=num_heads, ffn_width=ffn_width, num_cells=num_cells, is_on_gpu=is_on_gpu)


@pytest.fixture(autouse=True)
def x86(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")


def test_the_form_follows_from_the_option_and_the_device() -> None:
    assert chosen() == chosen(1 << 20) == chosen(flash_attention="on") == Attention("on", 512)
    assert chosen(kv_type_v="q8_0") == Attention("on", 512)
    assert chosen(is_on_gpu=True) == Attention("auto", 512)
    assert chosen(is_on_gpu=True, flash_attention="on") == Attention("on", 512)


@pytest.mark.parametrize(
    ("name", "num_heads", "ffn_width", "form"),
    [
        ("qwen2.5-0.5b", 14, 4864, "off"),
        ("llama-3.2-1b", 32, 8192, "off"),
        ("SmolLM2-135M", 9, 1536, "on"),
        ("qwen3-0.6b", 16, 3072, "on"),
        ("8b-kv", 8, 1024, "on"),
        ("experts, windows or states", 16, 0, "on"),
    ],
)
def test_without_an_option_the_form_follows_from_the_model(
    name: str, num_heads: int, ffn_width: int, form: str
) -> None:
    assert chosen(num_heads=num_heads, ffn_width=ffn_width).flash == form, name


def test_plain_attention_is_chosen_only_where_it_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = partial(chosen, ffn_width=8192)
    assert wide() == Attention("off", 128)
    assert wide(parallel=16) == wide(kv_type_k="q8_0") == wide(1 << 20) == Attention("on", 512)
    assert wide(is_on_gpu=True) == Attention("auto", 512)
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    assert wide() == Attention("on", 512)


def test_plain_attention_has_micro_batches_whose_scores_fit() -> None:
    assert chosen(flash_attention="off") == Attention("off", 128)
    assert chosen(32768, flash_attention="off") == Attention("off", 64)
    assert chosen(1 << 20, flash_attention="off") == Attention("off", 64)
    assert chosen(flash_attention="off", batch=32) == Attention("off", 32)
    assert chosen(2048, flash_attention="off", batch=2048) == Attention("off", 128)


def test_the_reason_is_told() -> None:
    def by(
        is_tuned: bool = False, is_on_gpu: bool = False, ffn_width: int = 1536, **options: Any
    ) -> tuple[str, str, str]:
        config = replace(EngineConfig(), **options)
        attention = chosen(ffn_width=ffn_width, is_on_gpu=is_on_gpu, **options)
        choice = describe_attention(attention, config, is_tuned=is_tuned)
        return choice.value, choice.by, choice.why

    assert by()[:2] == ("on", "default")
    assert by(ffn_width=8192)[:2] == ("off", "model")
    assert by(is_on_gpu=True) == ("auto", "default", "llama.cpp decides on a GPU")
    assert by(flash_attention="off") == ("off", "option", "--flash-attention off was asked for")
    assert by(is_tuned=True, flash_attention="off")[:2] == ("off", "measurement")


@pytest.mark.parametrize(
    ("name", "num_ffn", "form"),
    [("llama-3.2-1b", 4096, "off"), ("llama-3.2-1b", 128, "on"), ("gemma-3-1b", 4096, "on"), ("lfm2-350m", 4096, "on")],
)
def test_a_wide_model_gets_plain_attention_and_the_memory_for_it(
    name: str, num_ffn: int, form: str, tmp_path: Path
) -> None:
    path = make_model(tmp_path / "m.gguf", dataclasses.replace(TWINS[name], num_ffn=num_ffn), "Q4_0")
    config = EngineConfig(threads=1, ctx=512, parallel=2, batch=64)
    model = Model(path, config)
    runner = LlamaRunner(model, config)
    runner.decode([Slice(0, 0, [3, 4, 5], 1)])
    assert runner.attention.flash == form
    shape = read_header(path).shape
    assert model.ffn_width == shape.ffn_width == num_ffn
    if form == "off":
        scores = 64 * shape.num_heads * 512 * 4
        flash = replace(config, flash_attention="on")
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
