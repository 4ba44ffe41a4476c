"""Lists the forms of attention and the sizes of micro-batches that a context may use.

With flash attention, each token reads only the cells that it attends to. Plain attention multiplies all tokens with the
used cells of all sequences. It takes two matrix products and a buffer of scores (cells x heads x tokens). Which form is
faster depends on the model, the machine and the work, so `tuning.choices` decides by measurements.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from edgeagent.config import UNQUANTIZED_KV_TYPES, EngineConfig

_MICRO_BATCHES = (64, 128, 512)
_MAX_SCORES_BYTES = 192 << 20


@dataclass(frozen=True, slots=True)
class Attention:
    """The form of attention of a context ("auto": llama.cpp decides), and its micro-batch in tokens."""

    flash: Literal["auto", "on", "off"]
    micro_batch: int


def possible_attention(
    config: EngineConfig, *, num_heads: int, num_cells: int, is_on_gpu: bool
) -> tuple[Attention, ...]:
    """Return the settings that a context of `num_cells` may use; at least one. The first is the default."""
    if config.flash_attention == "on":
        forms: tuple[Literal["auto", "on", "off"], ...] = ("on",)
    elif config.flash_attention == "off":
        forms = ("off",)
    elif is_on_gpu or config.kv_type_v not in UNQUANTIZED_KV_TYPES:
        # On a GPU llama.cpp chooses. Plain attention does not support a quantized V cache.
        return (Attention("auto", config.batch),)
    else:
        forms = ("on", "off")
    candidates: list[Attention] = []
    for form in forms:
        sizes = [size for size in _MICRO_BATCHES if size < config.batch]
        sizes += [config.batch] if config.batch <= _MICRO_BATCHES[-1] or form == "on" else []
        if form == "off":
            fitting = [size for size in sizes if 4 * num_heads * num_cells * size <= _MAX_SCORES_BYTES]
            sizes = fitting or (sizes[:1] if config.flash_attention == "off" else [])
        candidates += [Attention(form, size) for size in reversed(sizes)]
    # The probe, which stops a graph early, supports one backend only.
    return tuple(candidates[:1] if is_on_gpu else candidates)
