"""Which form of attention a context has, and the reason that the status shows.

The rule for a CPU is in `fit.attention`, with its measurements.
"""

from __future__ import annotations

import platform
from functools import partial
from typing import Any

import pytest

from edgeagent.config import EngineConfig
from edgeagent.engine.attention import Attention, choose_attention, describe_attention
from edgeagent.types import replace


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
