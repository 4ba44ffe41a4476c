"""The form of attention of a context.

With flash attention, each token reads only the cells that it attends to. Plain attention multiplies all tokens with the
used cells of all sequences. It takes two matrix products and a buffer of scores (cells x heads x tokens). Which form is
faster depends on the model, the processor and the work; `edgeagent tune` measures it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from edgeagent.config import EngineConfig
from edgeagent.types.choices import SettingChoice

# The micro-batch of plain attention, and a smaller one if its buffer of scores takes too much memory. Larger ones are
# slower, since the scores no longer fit into the processor's cache: with 128, SmolLM2-135M computed 1,400 tokens at 139
# tokens/s, with 512 at 126, and with flash attention at 144 (AMD EPYC, one thread).
_MICRO_BATCH, _SMALLER_MICRO_BATCH = 128, 64
_MAX_SCORES_BYTES = 192 << 20


@dataclass(frozen=True, slots=True)
class Attention:
    """The form of attention of a context ("auto": llama.cpp decides), and its micro-batch in tokens."""

    flash: Literal["auto", "on", "off"]
    micro_batch: int


def choose_attention(config: EngineConfig, *, num_heads: int, num_cells: int, is_on_gpu: bool) -> Attention:
    """Return the form of attention of a context of `num_cells`."""
    if config.flash_attention == "off":
        return Attention("off", _plain_micro_batch(config, num_heads * num_cells))
    # On a GPU llama.cpp chooses.
    is_chosen = config.flash_attention == "on" or not is_on_gpu
    return Attention("on" if is_chosen else "auto", config.batch)


def _plain_micro_batch(config: EngineConfig, num_scores: int) -> int:
    """Return the micro-batch of plain attention. `num_scores`: the scores of one token."""
    size = min(config.batch, _MICRO_BATCH)
    return size if 4 * num_scores * size <= _MAX_SCORES_BYTES else min(size, _SMALLER_MICRO_BATCH)


def describe_attention(attention: Attention, config: EngineConfig, *, is_tuned: bool) -> SettingChoice:
    """Return the form of attention for the status, with the reason. `is_tuned`: the option comes from a profile."""
    by, why = "default", "it computes a new prompt in less time on most processors; `edgeagent tune` measures both"
    if attention.flash == "auto":
        why = "llama.cpp decides on a GPU"
    elif is_tuned:
        by, why = "measurement", "`edgeagent tune` measured it"
    elif config.flash_attention != "auto":
        by, why = "option", f"--flash-attention {config.flash_attention} was asked for"
    return SettingChoice("flash attention", attention.flash, by, why)
