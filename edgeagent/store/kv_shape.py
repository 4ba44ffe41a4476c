"""How many numbers a model keeps for each token of context, told from its GGUF header. Knows no types and no memory.

The rules are those of llama.cpp's KV cache. Where a model's memory is not plain attention, or a key is missing, the
answer is 0 (none, or unknown): a caller that refuses what is too large must never refuse what would have fitted.
"""

from __future__ import annotations

from dataclasses import dataclass

from edgeagent.store.gguf_tables import Array, Metadata
from edgeagent.store.memory_kind import is_encoder

# Keys of models in which some layers, or all, keep a state of fixed size instead.
_STATE_KEYS = ("ssm.", "wkv.", "rwkv.", "shortconv.", "kda.", "full_attention_interval", "token_shift_count")
_MAX_WIDTH = 1 << 20


@dataclass(frozen=True, slots=True)
class KvShape:
    """Numbers in the K and in the V cache for each token, of all layers together; 0 where the header does not tell."""

    num_k_values: int = 0
    num_v_values: int = 0


def read_kv_shape(metadata: Metadata, architecture: str) -> KvShape:
    """Return the shape of a model's KV cache, from below."""
    if is_encoder(metadata, architecture):
        return KvShape()
    prefix = f"{architecture}."
    if any(key.startswith(tuple(f"{prefix}{state}" for state in _STATE_KEYS)) for key in metadata):
        return KvShape()

    def number(name: str, default: int = 0) -> int:
        value = metadata.get(prefix + name, default)
        return value if type(value) is int and 0 <= value <= _MAX_WIDTH else 0

    num_heads = number("attention.head_count")
    # Layers that share another's cache, and those that predict further tokens, keep nothing of their own.
    num_layers = number("block_count") - number("attention.shared_kv_layers") - number("nextn_predict_layers")
    if num_layers <= 0 or num_heads == 0:
        return KvShape()
    latent = number("attention.kv_lora_rank")
    if latent:  # multi-head latent attention: one compressed row for each layer
        return KvShape(num_layers * latent)
    width = number("embedding_length") // num_heads
    # Windowed layers may have narrower heads; which layers those are is not asked.
    k_width, v_width = (
        min(number(f"attention.{part}", width), number(f"attention.{part}_swa", _MAX_WIDTH))
        for part in ("key_length", "value_length")
    )
    num_kv_heads = _num_kv_heads(metadata.get(f"{prefix}attention.head_count_kv", num_heads), num_layers)
    return KvShape(num_kv_heads * k_width, num_kv_heads * v_width)


def _num_kv_heads(count: object, num_layers: int) -> int:
    """Return the KV heads of this number of layers together, from one number for all or from one for each."""
    if isinstance(count, Array):
        heads = count.values[:num_layers]
        return sum(heads) if all(0 <= each <= _MAX_WIDTH for each in heads) else 0
    return count * num_layers if type(count) is int and 0 <= count <= _MAX_WIDTH else 0
