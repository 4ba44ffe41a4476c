"""What a header reveals of a model's memory: exact for attention and states, nothing if it cannot be known."""

from __future__ import annotations

from collections import Counter

import pytest

from edgeagent.store.gguf.header import merge_shapes, read_shape
from edgeagent.store.gguf.tables import Array, Metadata, Tensors
from edgeagent.types import FileShape

PLAIN: Metadata = {"m.block_count": 4, "m.embedding_length": 256, "m.attention.head_count": 8}
U32 = 4


def tensors(**layers: int) -> Tensors:
    """Return tensors with these bytes for each layer ("blk_0"), a token table and an output matrix."""
    by_layer = Counter({int(name.removeprefix("blk_")): num_bytes for name, num_bytes in layers.items()})
    matrices = Counter({"Q4_0": sum(layers.values())})
    outside = Counter({"token_embd.weight": 100, "output.weight": 50})
    return Tensors(matrix_bytes=matrices, layer_bytes=by_layer, expert_bytes=Counter({0: 7}), outside_bytes=outside)


def shape_of(metadata: Metadata, found: Tensors | None = None) -> FileShape:
    return read_shape(metadata, "m", found or tensors(), num_bytes=2000, num_vocab=10)


def kept(metadata: Metadata) -> tuple[int, int, int]:
    """Return the total K, V and state values of all layers."""
    layers = shape_of(metadata).layers
    return (
        sum(layer.num_k_values for layer in layers),
        sum(layer.num_v_values for layer in layers),
        sum(layer.num_state_values for layer in layers),
    )


@pytest.mark.parametrize(
    ("more", "values"),
    [
        ({}, (4 * 8 * 32, 4 * 8 * 32)),
        ({"m.attention.head_count_kv": 2}, (4 * 2 * 32, 4 * 2 * 32)),
        ({"m.attention.head_count_kv": Array(U32, 4, (2, 0, 1, 1))}, (4 * 32, 4 * 32)),
        ({"m.attention.key_length": 16, "m.attention.value_length": 64}, (4 * 8 * 16, 4 * 8 * 64)),
        ({"m.attention.key_length": 16, "m.attention.key_length_swa": 8}, (4 * 8 * 8, 4 * 8 * 32)),
        ({"m.attention.shared_kv_layers": 1}, (3 * 8 * 32, 3 * 8 * 32)),
        ({"m.nextn_predict_layers": 1}, (3 * 8 * 32, 3 * 8 * 32)),
        ({"m.attention.kv_lora_rank": 512, "m.attention.head_count_kv": 1}, (4 * 512, 0)),
    ],
)
def test_attention_keeps_k_and_v_of_each_layer(more: Metadata, values: tuple[int, int]) -> None:
    assert kept(PLAIN | more) == (*values, 0)


@pytest.mark.parametrize(
    ("more", "values"),
    [
        # Mamba: in each layer, the state of a convolution and the layer's own.
        (
            {
                "m.attention.head_count": 0,
                "m.ssm.conv_kernel": 4,
                "m.ssm.inner_size": 512,
                "m.ssm.state_size": 16,
            },
            (0, 0, 4 * (3 * 512 + 16 * 512)),
        ),
        # Every second layer has attention; the others keep a state.
        (
            {
                "m.full_attention_interval": 2,
                "m.attention.head_count_kv": 2,
                "m.ssm.conv_kernel": 4,
                "m.ssm.inner_size": 512,
                "m.ssm.state_size": 16,
                "m.ssm.group_count": 1,
            },
            (2 * 2 * 32, 2 * 2 * 32, 2 * (3 * (512 + 32) + 16 * 512)),
        ),
        # LFM2: layers without KV heads keep the inputs of a short convolution.
        (
            {"m.attention.head_count_kv": Array(U32, 4, (0, 0, 4, 0)), "m.shortconv.l_cache": 3},
            (4 * 32, 4 * 32, 3 * 256 * 2),
        ),
        # RWKV
        ({"m.attention.head_count": 0, "m.wkv.head_size": 64}, (0, 0, 4 * (2 * 256 + 64 * 256))),
    ],
)
def test_layers_with_a_state_keep_it_for_each_sequence(more: Metadata, values: tuple[int, int, int]) -> None:
    assert kept(PLAIN | more) == values


@pytest.mark.parametrize(
    "more",
    [
        {"m.attention.head_count": 0},
        {"m.block_count": "four"},
        {"m.block_count": 1 << 40},
        {"m.nextn_predict_layers": 4},
        {"m.attention.head_count_kv": -1},
        {"m.attention.head_count_kv": Array(U32, 4, (-1, -1, -1, -1))},
        {"m.attention.head_count_kv": True},
        {"m.attention.causal": False},
    ],
)
def test_what_cannot_be_told_is_nothing(more: Metadata) -> None:
    assert kept(PLAIN | more) == (0, 0, 0)


def test_a_context_may_be_longer_than_any_width() -> None:
    assert shape_of(PLAIN | {"m.context_length": 10 << 20}).context_length == 10 << 20
    assert shape_of(PLAIN | {"m.context_length": 1 << 40}).context_length == 0


def test_both_a_state_and_attention() -> None:
    metadata = {key.replace("m.", "falcon-h1."): value for key, value in PLAIN.items()} | {
        "falcon-h1.ssm.inner_size": 512,
        "falcon-h1.ssm.state_size": 16,
    }
    shape = read_shape(metadata, "falcon-h1", tensors(), num_bytes=1, num_vocab=1)
    assert all(layer.num_k_values and layer.num_state_values == 16 * 512 for layer in shape.layers)


def test_a_layer_that_is_a_feed_forward_part_alone_keeps_nothing() -> None:
    metadata = {key.replace("m.", "nemotron_h."): value for key, value in PLAIN.items()} | {
        "nemotron_h.attention.head_count_kv": Array(U32, 4, (0, 2, 0, 0)),
        "nemotron_h.feed_forward_length": Array(U32, 4, (0, 0, 512, 0)),
        "nemotron_h.ssm.inner_size": 512,
        "nemotron_h.ssm.state_size": 16,
    }
    shape = read_shape(metadata, "nemotron_h", tensors(), num_bytes=1, num_vocab=1)
    assert [bool(layer.num_state_values) for layer in shape.layers] == [True, False, False, True]
    assert [bool(layer.num_k_values) for layer in shape.layers] == [False, True, False, False]


def test_earlier_states_are_kept_where_llama_cpp_can_and_there_are_states() -> None:
    def keeps(architecture: str, **more: int) -> bool:
        metadata = {key.replace("m.", f"{architecture}."): value for key, value in PLAIN.items()}
        metadata |= {f"{architecture}.{key}": value for key, value in more.items()}
        return read_shape(metadata, architecture, tensors(), num_bytes=1, num_vocab=1).keeps_states

    states = {"ssm.inner_size": 512, "ssm.state_size": 16, "full_attention_interval": 4}
    assert keeps("qwen35", **states)
    assert not keeps("qwen3next", **states)
    assert not keeps("qwen35", full_attention_interval=1)


def test_a_file_is_told_by_layer() -> None:
    shape = shape_of(PLAIN | {"m.context_length": 512, "m.feed_forward_length": 1024}, tensors(blk_0=10, blk_3=30))
    assert [layer.num_bytes for layer in shape.layers] == [10, 0, 0, 30]
    assert shape.layers[0].num_expert_bytes == 7
    assert (shape.table_bytes, shape.output_bytes, shape.num_bytes, shape.num_vocab) == (100, 50, 2000, 10)
    assert (shape.width, shape.num_heads, shape.ffn_width, shape.context_length) == (256, 8, 1024, 512)
    assert not shape.is_encoder
    assert shape_of(PLAIN | {"m.attention.causal": False}).is_encoder


def test_the_parts_of_a_split_model_are_one_shape() -> None:
    first, second = shape_of(PLAIN, tensors(blk_0=10, blk_1=5)), shape_of({}, tensors(blk_1=6, blk_3=30))
    merged = merge_shapes([first, second])
    assert [layer.num_bytes for layer in merged.layers] == [10, 11, 0, 30]
    assert merged.layers[0].num_expert_bytes == 14
    assert merged.layers[3].num_k_values == 8 * 32
    assert (merged.num_bytes, merged.table_bytes, merged.output_bytes) == (4000, 200, 100)
    assert dict(merged.matrix_bytes) == {"Q4_0": 51}
    assert merged.width == 256
