"""The forms of attention that a context may compute, and in what parts a batch is computed.

With flash attention each token goes through the cells that it sees. Plain attention is two matrix products of all
tokens with all used cells, of whichever sequence they are, in a buffer of scores (cells x heads x tokens). Which one is
quicker depends on the model, the machine and the work, so `engine.choices` decides by measurements.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from edgeagent.config import UNQUANTIZED_KV_TYPES, EngineConfig

_MICRO_BATCHES = (64, 128, 512)
_MAX_SCORES_BYTES = 192 << 20


@dataclass(frozen=True, slots=True)
class Attention:
    """A context's form of attention ("auto": llama.cpp decides) and the tokens it computes at once."""

    flash: Literal["auto", "on", "off"]
    micro_batch: int


def possible_attention(
    config: EngineConfig, *, num_heads: int, num_cells: int, is_on_gpu: bool
) -> tuple[Attention, ...]:
    """Return the candidates for a context of `num_cells`, first the one to take where nothing is measured."""
    if config.flash_attention == "on":
        forms: tuple[Literal["auto", "on", "off"], ...] = ("on",)
    elif config.flash_attention == "off":
        forms = ("off",)
    elif is_on_gpu or config.kv_type_v not in UNQUANTIZED_KV_TYPES:
        # Elsewhere than on the CPU llama.cpp knows what a backend can do. It cannot lay out a quantized V cache for
        # plain attention.
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
    # The probe, which cuts a graph off, knows one backend only.
    return tuple(candidates[:1] if is_on_gpu else candidates)
