"""Computes how many layers fit on the GPUs, from numbers of llama.cpp and the file; it loads nothing."""

from __future__ import annotations

from dataclasses import dataclass

# For compute buffers, the driver's context and the growth of other programs.
RESERVE_BYTES = 768 << 20


@dataclass(frozen=True, slots=True)
class Footprint:
    """A model's size: all tensors, the KV cache of the whole context, and the layers they are spread over."""

    weights_bytes: int
    kv_cache_bytes: int
    num_layers: int


def kv_cache_bytes(num_layers: int, num_cells: int, num_kv_values: int, bytes_per_value: float) -> int:
    """Return the bytes of a KV cache: K and V for each layer and cell, `num_kv_values` numbers each."""
    return int(2 * num_layers * num_cells * num_kv_values * bytes_per_value)


def num_layers_that_fit(footprint: Footprint, free_bytes: int) -> int:
    """Return how many layers, with their share of the KV cache, fit next to the reserve; -1 for all and the output."""
    room = free_bytes - RESERVE_BYTES
    # llama.cpp counts the output layer as one more than the model's layers.
    each = (footprint.weights_bytes + footprint.kv_cache_bytes) / (footprint.num_layers + 1)
    fitting = int(max(0, room) / each) if each > 0 else footprint.num_layers + 1
    return -1 if fitting >= footprint.num_layers + 1 else fitting
