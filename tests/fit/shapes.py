"""Shapes of model files for the tests of `fit`."""

from __future__ import annotations

from edgeagent.types import FileShape, LayerShape

GIB = 1 << 30
MIB = 1 << 20


def shape(
    num_layers: int = 8,
    *,
    layer_bytes: int = 100 * MIB,
    expert_bytes: int = 0,
    num_kv_values: int = 1024,
    context_length: int = 32768,
    table_bytes: int = 100 * MIB,
    output_bytes: int = 100 * MIB,
) -> FileShape:
    """Return a model with these layers; with 1,024 numbers in K and in V, a layer keeps 4 KiB per token."""
    layer = LayerShape(layer_bytes, expert_bytes, num_kv_values, num_kv_values)
    return FileShape(
        num_bytes=num_layers * layer_bytes + table_bytes + output_bytes,
        num_vocab=1000,
        context_length=context_length,
        width=1024,
        num_heads=8,
        ffn_width=4096,
        table_bytes=table_bytes,
        output_bytes=output_bytes,
        layers=(layer,) * num_layers,
    )
