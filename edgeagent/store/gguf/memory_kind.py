"""Finds out from a GGUF header what kind of memory a model has, as a word. It computes no sizes."""

from __future__ import annotations

from edgeagent.store.gguf.tables import Array, Metadata

# Encoders whose files may lack the key `attention.causal`.
_ENCODERS = ("gemma-embedding", "t5encoder")
_STATES = ("ssm.", "wkv.", "rwkv.", "shortconv.", "kda.", "token_shift_count")


def memory_kind(metadata: Metadata, architecture: str) -> str:
    """Return the kind of memory that a model has.

    - "encoder": it keeps nothing.
    - "recurrent": all layers keep a state of fixed size.
    - "hybrid": it has such states and attention.
    - "latent": attention with compressed keys and values.
    - "sliding window": attention that covers only the latest tokens in some layers or in all.
    - "attention": full attention.
    """
    prefix = f"{architecture}."
    if is_encoder(metadata, architecture):
        return "encoder"
    heads = metadata.get(f"{prefix}attention.head_count_kv", metadata.get(f"{prefix}attention.head_count", 0))
    has_attention = any(heads.values) if isinstance(heads, Array) else bool(heads)
    if any(key.startswith(tuple(prefix + state for state in _STATES)) for key in metadata):
        return "hybrid" if has_attention else "recurrent"
    if f"{prefix}full_attention_interval" in metadata:
        return "hybrid"
    if metadata.get(f"{prefix}attention.kv_lora_rank"):
        return "latent"
    return "sliding window" if metadata.get(f"{prefix}attention.sliding_window") else "attention"


def is_encoder(metadata: Metadata, architecture: str) -> bool:
    """Whether a model is an encoder: it reads a whole text in one pass and keeps no KV cache."""
    return architecture in _ENCODERS or metadata.get(f"{architecture}.attention.causal") is False
