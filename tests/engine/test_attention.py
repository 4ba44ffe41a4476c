"""Which form of attention a context has, and the reason that the status shows."""

from __future__ import annotations

from edgeagent.config import EngineConfig
from edgeagent.engine.attention import Attention, choose_attention, describe_attention
from edgeagent.types import replace


def chosen(num_cells: int = 8192, *, is_on_gpu: bool = False, **options: object) -> Attention:
    config = replace(EngineConfig(batch=512), **options)
    return choose_attention(config, num_heads=16, num_cells=num_cells, is_on_gpu=is_on_gpu)


def test_the_form_follows_from_the_option_and_the_device() -> None:
    assert chosen() == chosen(1 << 20) == chosen(flash_attention="on") == Attention("on", 512)
    assert chosen(kv_type_v="q8_0") == Attention("on", 512)
    assert chosen(is_on_gpu=True) == Attention("auto", 512)
    assert chosen(is_on_gpu=True, flash_attention="on") == Attention("on", 512)


def test_plain_attention_has_micro_batches_whose_scores_fit() -> None:
    assert chosen(flash_attention="off") == Attention("off", 128)
    assert chosen(32768, flash_attention="off") == Attention("off", 64)
    assert chosen(1 << 20, flash_attention="off") == Attention("off", 64)
    assert chosen(flash_attention="off", batch=32) == Attention("off", 32)
    assert chosen(2048, flash_attention="off", batch=2048) == Attention("off", 128)


def test_the_reason_is_told() -> None:
    def by(is_tuned: bool = False, is_on_gpu: bool = False, **options: object) -> tuple[str, str, str]:
        config = replace(EngineConfig(), **options)
        attention = choose_attention(config, num_heads=16, num_cells=8192, is_on_gpu=is_on_gpu)
        choice = describe_attention(attention, config, is_tuned=is_tuned)
        return choice.value, choice.by, choice.why

    assert by()[:2] == ("on", "default")
    assert by(is_on_gpu=True) == ("auto", "default", "llama.cpp decides on a GPU")
    assert by(flash_attention="off") == ("off", "option", "--flash-attention off was asked for")
    assert by(is_tuned=True, flash_attention="off")[:2] == ("off", "measurement")
