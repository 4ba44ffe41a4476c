"""What a header tells of the size of the KV cache: exact for plain attention, nothing where it cannot be told."""

from __future__ import annotations

import pytest

from edgeagent.store.gguf_tables import Array, Metadata
from edgeagent.store.kv_shape import KvShape, read_kv_shape

PLAIN: Metadata = {"m.block_count": 4, "m.embedding_length": 256, "m.attention.head_count": 8}
U32 = 4


@pytest.mark.parametrize(
    ("more", "shape"),
    [
        ({}, KvShape(4 * 8 * 32, 4 * 8 * 32)),
        ({"m.attention.head_count_kv": 2}, KvShape(4 * 2 * 32, 4 * 2 * 32)),
        ({"m.attention.head_count_kv": Array(U32, 4, (2, 0, 1, 1))}, KvShape(4 * 32, 4 * 32)),
        ({"m.attention.key_length": 16, "m.attention.value_length": 64}, KvShape(4 * 8 * 16, 4 * 8 * 64)),
        ({"m.attention.key_length": 16, "m.attention.key_length_swa": 8}, KvShape(4 * 8 * 8, 4 * 8 * 32)),
        ({"m.attention.shared_kv_layers": 1}, KvShape(3 * 8 * 32, 3 * 8 * 32)),
        ({"m.nextn_predict_layers": 1}, KvShape(3 * 8 * 32, 3 * 8 * 32)),
        ({"m.attention.kv_lora_rank": 512, "m.attention.head_count_kv": 1}, KvShape(4 * 512)),
    ],
)
def test_attention_keeps_k_and_v_of_each_layer(more: Metadata, shape: KvShape) -> None:
    assert read_kv_shape(PLAIN | more, "m") == shape


@pytest.mark.parametrize(
    "more",
    [
        {"m.ssm.state_size": 16},
        {"m.full_attention_interval": 4},
        {"m.wkv.head_size": 64},
        {"m.attention.head_count": 0},
        {"m.block_count": "four"},
        {"m.block_count": 1 << 40},
        {"m.nextn_predict_layers": 4},
        {"m.attention.head_count_kv": -1},
        {"m.attention.head_count_kv": Array(U32, 4, (-1, -1, -1, -1))},
        {"m.attention.head_count_kv": True},
    ],
)
def test_what_cannot_be_told_is_nothing(more: Metadata) -> None:
    assert read_kv_shape(PLAIN | more, "m") == KvShape()
