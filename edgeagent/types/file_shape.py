"""What of a model's file tells the memory that it takes. The store reads it from the header; `fit` counts with it."""

from __future__ import annotations

from msgspec import Struct


class LayerShape(Struct, frozen=True, array_like=True):
    """One layer: the bytes of its tensors, and how many numbers it keeps of a text.

    `num_expert_bytes` are those of its experts, among `num_bytes`. `num_k_values` and `num_v_values` are kept for each
    token, `num_state_values`, of 32 bits, for each sequence.
    """

    num_bytes: int
    num_expert_bytes: int = 0
    num_k_values: int = 0
    num_v_values: int = 0
    num_state_values: int = 0


class FileShape(Struct, frozen=True):
    """A model's file, all its parts together; 0 or () is what the header does not tell.

    `num_bytes` are the files'. The table of tokens (`table_bytes`) is looked up; the output matrix multiplies
    (`output_bytes`; 0: the table does that too). `matrix_bytes` are the matrices' but for the table's, by type.
    `ffn_width` is the width of a layer's feed-forward part. `keeps_states`: its memory has states, and llama.cpp can
    keep earlier ones too.
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
