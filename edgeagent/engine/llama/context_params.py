"""Makes the parameters of every llama.cpp context, and keeps those equal that decide its numbers."""

from __future__ import annotations

from typing import Any

from edgeagent.config import EngineConfig
from edgeagent.engine.llama.bindings import FLASH_ATTENTION, KV_TYPES, lib
from edgeagent.engine.llama.model import Model

# The fields of llama_context_params that change what a context computes from the same tokens, or how it stores it. They
# are equal in all contexts that exchange cells. `n_ctx` is such a field too, but only through the RoPE factors: see
# `num_cells_like`. The other fields set sizes, threads and callbacks, or choose which results are returned.
NUMBERS = (
    *("ctx_type", "ctx_other"),
    *("rope_scaling_type", "rope_freq_base", "rope_freq_scale"),
    *("yarn_ext_factor", "yarn_attn_factor", "yarn_beta_fast", "yarn_beta_slow", "yarn_orig_ctx"),
    *("attention_type", "flash_attn_type"),
    *("type_k", "type_v", "kv_unified", "swa_full"),
    *("offload_kqv", "op_offload"),  # devices round differently
)


def make_params(model: Model, config: EngineConfig, num_cells: int, flash: str, like: Any = None) -> Any:
    """Return the parameters of a context of `num_cells`; the caller sets batches, sequences, threads and results.

    `flash` is the form of attention, a key of FLASH_ATTENTION. `like`: the parameters of a context of the same model,
    which exchanges cells with this one. So the numbers are decided by `like` alone.
    """
    params = lib.llama_context_default_params()
    params.n_ctx = num_cells
    params.flash_attn_type = FLASH_ATTENTION[flash]
    params.type_k, params.type_v = KV_TYPES[config.kv_type_k], KV_TYPES[config.kv_type_v]
    params.kv_unified = True
    params.no_perf = True
    if like is not None:
        for name in NUMBERS:
            setattr(params, name, getattr(like, name))
        params.n_ctx = num_cells_like(model, like.n_ctx, num_cells)
    return params


def suits_text(model: Model, num_cells: int, num_tokens: int) -> bool:
    """Whether a context of this size has room for a text, and the RoPE factors for the text's own length.

    Use it for texts whose cells are not shared. So a text's numbers do not depend on the texts before it.
    """
    return num_tokens <= num_cells and model.rope_factors(num_cells) == model.rope_factors(num_tokens)


def num_cells_like(model: Model, other: int, least: int) -> int:
    """Return the size of a context whose numbers equal those of one with `other` cells: `least` cells, if possible.

    It is larger if `least` cells would get the RoPE factors for short texts, and never larger than the other context.
    """
    is_equal = model.rope_factors(least) == model.rope_factors(other)
    return min(least if is_equal else max(least, model.max_short_context + 1), other)
