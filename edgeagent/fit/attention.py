"""The form of attention of a context: plain or flash attention, and its micro-batch. `edgeagent tune` measures both.

llama.cpp fixes the form when a context is made. With flash attention, each token reads only the cells that it attends
to. But on a CPU, ggml then computes fewer than 64 tokens one by one, with numbers that it converts from and to 16 bits
at each cell. Plain attention takes two matrix products and a buffer of scores (cells x heads x tokens). But it
multiplies each token with the used cells of all sequences, and has more to do for each layer. So it loses where
attention is much of a step and texts are short, and where many streams run.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass
from typing import Literal

from edgeagent.config import EngineConfig
from edgeagent.types.choices import SettingChoice

PLAIN_MICRO_BATCH = 128
"""The micro-batch of plain attention. Larger ones are slower, since the scores no longer fit into the processor's
cache: with 128, SmolLM2-135M computed 1,400 tokens at 139 tokens/s, with 512 at 126 (AMD EPYC, one thread)."""
# The most memory for the scores of a micro-batch: 4 bytes for each token, head and cell.
_MAX_SCORES_BYTES = 192 << 20
_SMALLER_MICRO_BATCH = 64  # if the scores of plain attention would take too much memory
# The width of a layer's feed-forward part says how large the share of attention is: that part takes 3 x width x
# ffn_width multiplications for a token, and attention about 2 x width for each cell. Measured with the sizes of real
# layers (AMD EPYC, AVX2, one thread), plain attention takes, of flash attention's time:
#   ffn_width  a token behind 0, 400, 1,400 others   16 tokens behind 400, 1,400   4 streams of 64   8 streams of 200
#   4,864      1.06, 1.00, 0.67                      0.74, 0.45                    1.13              0.93
#   1,536      1.28, 0.96, 0.74                      0.60, 0.35                    1.29              1.17
#   1,024      1.56, 1.03, 0.77                      0.64, 0.41                    1.25              0.82
_WIDE_FFN = 4096
# Each stream is multiplied with the cells of all. With 8 streams of 400 tokens, plain attention takes 1.19 of the time.
_MAX_STREAMS = 8
_MEASURED = ("x86_64", "amd64")


@dataclass(frozen=True, slots=True)
class Attention:
    """The form of attention of a context ("auto": llama.cpp decides), and its micro-batch in tokens."""

    flash: Literal["auto", "on", "off"]
    micro_batch: int


def choose_attention(
    config: EngineConfig, *, num_heads: int, ffn_width: int, num_cells: int, is_on_gpu: bool
) -> Attention:
    """Return the form of attention of a context of `num_cells`.

    `ffn_width`: see `prefers_plain`; 0 if not all layers attend to the whole context.
    """
    is_plain = not is_on_gpu and prefers_plain(config, num_heads=num_heads, ffn_width=ffn_width, num_cells=num_cells)
    if config.flash_attention == "off" or is_plain:
        return Attention("off", _plain_micro_batch(config, num_heads * num_cells))
    # On a GPU llama.cpp chooses.
    is_chosen = config.flash_attention == "on" or not is_on_gpu
    return Attention("on" if is_chosen else "auto", config.batch)


def prefers_plain(
    config: EngineConfig, *, num_heads: int, ffn_width: int, num_cells: int, machine: str | None = None
) -> bool:
    """Whether a CPU gets plain attention for a model whose layers all attend to the whole context.

    `ffn_width` is that of a layer without experts; 0 if it has some, or if it is unknown. `machine` is the processor
    architecture (None: this machine's).
    """
    return (
        config.flash_attention == "auto"
        and (config.kv_type_k, config.kv_type_v) in (("f16", "f16"), ("auto", "auto"))
        and (machine or platform.machine()).lower() in _MEASURED
        and ffn_width >= _WIDE_FFN
        and config.num_parallel <= _MAX_STREAMS
        and 4 * num_heads * num_cells * min(config.batch, PLAIN_MICRO_BATCH) <= _MAX_SCORES_BYTES
    )


def _plain_micro_batch(config: EngineConfig, num_scores: int) -> int:
    """Return the micro-batch of plain attention. `num_scores`: the scores of one token."""
    size = min(config.batch, PLAIN_MICRO_BATCH)
    return size if 4 * num_scores * size <= _MAX_SCORES_BYTES else min(size, _SMALLER_MICRO_BATCH)


def describe_attention(attention: Attention, config: EngineConfig, *, is_tuned: bool) -> SettingChoice:
    """Return the form of attention for the status, with the reason. `is_tuned`: the option comes from a profile."""
    by, why = "default", "short texts and many streams take less time; `edgeagent tune` measures both"
    if attention.flash == "off":
        by, why = "model", "behind a long text, a token takes less time with this model; `edgeagent tune` measures both"
    if attention.flash == "auto":
        why = "llama.cpp decides on a GPU"
    elif is_tuned:
        by, why = "measurement", "`edgeagent tune` measured it"
    elif config.flash_attention != "auto":
        by, why = "option", f"--flash-attention {config.flash_attention} was asked for"
    return SettingChoice("flash attention", attention.flash, by, why)
