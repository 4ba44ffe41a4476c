"""The sizes in a model's file that decide how much memory the model takes. The store reads them; `fit` uses them."""

from __future__ import annotations

from msgspec import Struct


class LayerShape(Struct, frozen=True, array_like=True):
    """One layer: the bytes of its tensors, and how many values it keeps in memory for a sequence.

    `num_bytes` includes `num_expert_bytes`, the bytes of its experts. The layer keeps `num_k_values` and `num_v_values`
    for each token. For each sequence it keeps `num_state_values` values of 32 bits.
    """

    num_bytes: int
    num_expert_bytes: int = 0
    num_k_values: int = 0
    num_v_values: int = 0
    num_state_values: int = 0


class FileShape(Struct, frozen=True):
    """A model's file, with all its parts together. Values that the header does not give are 0 or ().

    `num_bytes` is the size of the files. `width` is the length of a token's embedding. `table_bytes` is the size of the
    token embeddings, which are only looked up. `output_bytes` is the size of the output matrix; 0 if the token
    embeddings serve as that matrix too. `matrix_bytes` gives the bytes of all matrices except the token embeddings, by
    tensor type. `ffn_width` is the width of a layer's feed-forward part. `keeps_states`: the model is recurrent or
    hybrid, and llama.cpp can keep its earlier states.
    """

    num_bytes: int
    num_vocab: int = 0
    context_length: int = 0
    width: int = 0
    num_heads: int = 0
    ffn_width: int = 0
    table_bytes: int = 0
    output_bytes: int = 0
    matrix_bytes: tuple[tuple[str, int], ...] = ()
    layers: tuple[LayerShape, ...] = ()
    is_encoder: bool = False
    keeps_states: bool = False
