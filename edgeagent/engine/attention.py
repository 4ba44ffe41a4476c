"""The form of attention of a context.

With flash attention, each token reads only the cells that it attends to. Plain attention multiplies all tokens with the
used cells of all sequences. It takes two matrix products and a buffer of scores (cells x heads x tokens). Which form is
faster depends on the model, the processor and the work. `fit.attention` has the rule; `edgeagent tune` measures it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from edgeagent.config import EngineConfig
from edgeagent.fit.attention import MAX_SCORES_BYTES, PLAIN_MICRO_BATCH, prefers_plain
from edgeagent.types.choices import SettingChoice

_SMALLER_MICRO_BATCH = 64  # if the scores of plain attention would take too much memory


@dataclass(frozen=True, slots=True)
class Attention:
    """The form of attention of a context ("auto": llama.cpp decides), and its micro-batch in tokens."""

    flash: Literal["auto", "on", "off"]
    micro_batch: int


def choose_attention(
    config: EngineConfig, *, num_heads: int, ffn_width: int, num_cells: int, is_on_gpu: bool
) -> Attention:
    """Return the form of attention of a context of `num_cells`.

    `ffn_width`: see `fit.attention.prefers_plain`; 0 if not all layers attend to the whole context.
    """
    is_plain = not is_on_gpu and prefers_plain(config, num_heads=num_heads, ffn_width=ffn_width, num_cells=num_cells)
    if config.flash_attention == "off" or is_plain:
        return Attention("off", _plain_micro_batch(config, num_heads * num_cells))
    # On a GPU llama.cpp chooses.
    is_chosen = config.flash_attention == "on" or not is_on_gpu
    return Attention("on" if is_chosen else "auto", config.batch)


def _plain_micro_batch(config: EngineConfig, num_scores: int) -> int:
    """Return the micro-batch of plain attention. `num_scores`: the scores of one token."""
    size = min(config.batch, PLAIN_MICRO_BATCH)
    return size if 4 * num_scores * size <= MAX_SCORES_BYTES else min(size, _SMALLER_MICRO_BATCH)


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
