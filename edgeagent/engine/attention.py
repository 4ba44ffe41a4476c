"""Which form of attention a context computes, and how many tokens of a prompt at once.

On the CPU llama.cpp's flash attention goes through the cells one by one for each token and head, with a scalar exp;
plain attention is two matrix products. Measured on a 0.5 B model, two cores, f16 cells: 21 tokens behind 6,000 cells
take 122 ms plain and 307 ms flash, one token 22 and 29 ms. Its price is a buffer of scores (cells x heads x tokens),
and that every token is multiplied with all used cells, of whichever sequence they are: eight streams at once get 0.90
of llama-server's rate plain, 1.06 with flash. So a context with room for many streams gets flash attention.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from edgeagent.config import UNQUANTIZED_KV_TYPES, EngineConfig

# Plain attention's matrices should stay near the caches: 1,400 tokens in micro-batches of 128 took 0.91 of the time
# that 512 took, and 0.97 of flash attention's.
_MICRO_BATCH = 128
_MIN_MICRO_BATCH = 64
_MAX_SCORES_BYTES = 192 << 20
_MAX_PLAIN_PARALLEL = 4  # also in the help text of EngineConfig.parallel


@dataclass(frozen=True, slots=True)
class Attention:
    """A context's form of attention ("auto": llama.cpp decides) and the tokens it computes at once."""

    flash: Literal["auto", "on", "off"]
    micro_batch: int


def choose_attention(config: EngineConfig, *, num_heads: int, num_cells: int, is_on_gpu: bool) -> Attention:
    """Return what suits a context of `num_cells`; a form that was asked for is kept."""
    if config.flash_attention == "on":
        return Attention("on", config.batch)
    sizes = [size for size in (_MICRO_BATCH, _MIN_MICRO_BATCH) if 4 * num_heads * num_cells * size <= _MAX_SCORES_BYTES]
    if config.flash_attention == "off":
        return Attention("off", min(config.batch, sizes[0] if sizes else _MIN_MICRO_BATCH))
    is_plain_fit = (
        not is_on_gpu
        and config.parallel <= _MAX_PLAIN_PARALLEL
        and config.cache_memory_bytes != 0  # idle prefixes must have somewhere to go
        and config.kv_type_v in UNQUANTIZED_KV_TYPES  # llama.cpp cannot lay out a quantized V cache for it
    )
    return Attention("off", min(config.batch, sizes[0])) if sizes and is_plain_fit else Attention("auto", config.batch)
