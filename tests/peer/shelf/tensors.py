"""The tensors and the metadata of each architecture, as llama.cpp expects them, and each tensor's scale."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tests.peer.shelf.shapes import Shape
from tests.peer.shelf.vocabularies import Vocabulary

LOGIT_STD = 3.0
# Small compared with what the layers add; otherwise tied embeddings would repeat the last token forever.
EMBEDDING_STD = 0.1
# Control tokens' embeddings and so their logits are scaled by this, so that no answer ends by chance.
QUIET = 0.01
# Sharp attention and large feed-forward outputs; otherwise every answer repeats one token.
SHARP = 2.0
LOUD = 4.0


@dataclass(frozen=True, slots=True)
class Matrix:
    """Random weights: columns last, as in numpy. `quiet` are the rows of control tokens."""

    name: str
    shape: tuple[int, ...]
    std: float
    quiet: range = range(0)


@dataclass(frozen=True, slots=True)
class Vector:
    """Weights with fixed values."""

    name: str
    values: NDArray[np.float32]


Tensor = Matrix | Vector
Metadata = dict[str, int | float | list[int]]


def tensors(shape: Shape, vocabulary: Vocabulary) -> Iterator[Tensor]:
    """Yield all tensors of a model; its embeddings are also its output weights."""
    is_scaled = shape.architecture == "gemma3"  # it multiplies embeddings by the root of the width
    std = EMBEDDING_STD * (shape.width**-0.5 if is_scaled else 1.0)
    yield Matrix("token_embd.weight", (shape.num_vocab, shape.width), std, vocabulary.controls)
    output_norm = "token_embd_norm" if shape.architecture == "lfm2" else "output_norm"
    yield _constant(f"{output_norm}.weight", shape.width, LOGIT_STD / std * shape.width**-0.5)
    if shape.architecture == "llama":
        yield Vector("rope_freqs.weight", _llama3_rope_factors(shape))
    for layer in range(shape.num_layers):
        prefix = f"blk.{layer}."
        yield _constant(f"{prefix}attn_norm.weight", shape.width, 1.0)
        if shape.attends(layer):
            yield from _attention(shape, prefix)
        elif shape.num_state_heads:
            yield from _delta_net(shape, prefix)
        else:
            yield from _short_convolution(shape, prefix)
        ffn_norm = "post_attention_norm" if shape.architecture == "qwen35" else "ffn_norm"
        yield _constant(f"{prefix}{ffn_norm}.weight", shape.width, 1.0)
        yield from _experts(shape, prefix) if shape.num_experts else _feed_forward(shape, prefix)
        if shape.architecture == "gemma3":
            yield _constant(f"{prefix}post_attention_norm.weight", shape.width, 1.0)
            yield _constant(f"{prefix}post_ffw_norm.weight", shape.width, SHARP)


def metadata(shape: Shape) -> Metadata:
    """Return the metadata of the model's sizes, without the architecture's prefix in each key."""
    kv_heads = [shape.num_kv_heads if shape.attends(layer) else 0 for layer in range(shape.num_layers)]
    found: Metadata = {
        "context_length": shape.context_length,
        "embedding_length": shape.width,
        "block_count": shape.num_layers,
        "feed_forward_length": shape.num_ffn,
        "vocab_size": shape.num_vocab,
        "attention.head_count": shape.num_heads,
        "attention.head_count_kv": kv_heads if shape.architecture == "lfm2" else shape.num_kv_heads,
        "attention.key_length": shape.head_width,
        "attention.value_length": shape.head_width,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.freq_base": shape.rope_base,
    }
    if shape.window:
        found |= {"attention.sliding_window": shape.window, "rope.freq_base_swa": 10_000.0}
    if shape.num_experts:
        found |= {
            "expert_count": shape.num_experts,
            "expert_used_count": shape.num_used_experts,
            "expert_feed_forward_length": shape.num_ffn,
        }
    if shape.architecture == "llama":
        found["rope.dimension_count"] = shape.head_width
    if shape.architecture == "qwen2vl":
        half = shape.head_width // 2
        found["rope.dimension_sections"] = [half - 2 * (3 * half // 8), 3 * half // 8, 3 * half // 8, 0]
    if shape.architecture == "lfm2":
        found["shortconv.l_cache"] = shape.conv_width
    if shape.architecture == "qwen35":
        assert shape.attending is not None
        rotated = shape.head_width // 4
        half = rotated // 2
        found |= {
            "rope.dimension_count": rotated,
            "rope.dimension_sections": [half - 2 * (half // 3), half // 3, half // 3, 0],
            "full_attention_interval": shape.attending[0] + 1,
            "ssm.conv_kernel": shape.conv_width,
            "ssm.inner_size": shape.num_state_heads * shape.state_width,
            "ssm.state_size": shape.state_width,
            "ssm.time_step_rank": shape.num_state_heads,
            "ssm.group_count": shape.num_state_heads,
        }
    return found


def _attention(shape: Shape, prefix: str) -> Iterator[Tensor]:
    q_rows, kv_rows = shape.num_heads * shape.head_width, shape.num_kv_heads * shape.head_width
    has_norms = shape.architecture not in ("qwen2", "qwen2vl", "llama")
    sharp = 1.0 if has_norms else SHARP
    # Qwen3.5 gates the output of each head; the gate has the size of the head's query.
    parts = 2 if shape.architecture == "qwen35" else 1
    yield _matrix(f"{prefix}attn_q.weight", parts * q_rows, shape.width, sharp)
    yield _matrix(f"{prefix}attn_k.weight", kv_rows, shape.width, sharp)
    yield _matrix(f"{prefix}attn_v.weight", kv_rows, shape.width)
    yield _matrix(f"{prefix}attn_output.weight", shape.width, q_rows)
    if has_norms:
        yield _constant(f"{prefix}attn_q_norm.weight", shape.head_width, SHARP)
        yield _constant(f"{prefix}attn_k_norm.weight", shape.head_width, SHARP)
    if shape.architecture in ("qwen2", "qwen2vl"):
        for name, rows in (("attn_q", q_rows), ("attn_k", kv_rows), ("attn_v", kv_rows)):
            yield _constant(f"{prefix}{name}.bias", rows, 0.0)


def _delta_net(shape: Shape, prefix: str) -> Iterator[Tensor]:
    num_heads, inner = shape.num_state_heads, shape.num_state_heads * shape.state_width
    yield _matrix(f"{prefix}attn_qkv.weight", 3 * inner, shape.width)
    yield _matrix(f"{prefix}attn_gate.weight", inner, shape.width)
    yield Matrix(f"{prefix}ssm_conv1d.weight", (3 * inner, shape.conv_width), 1.0)
    # A head forgets 1 to 10 % of its state with each token.
    yield _constant(f"{prefix}ssm_dt.bias", num_heads, -2.0)
    yield Vector(f"{prefix}ssm_a", -np.linspace(0.1, 1.0, num_heads, dtype=np.float32))
    yield _matrix(f"{prefix}ssm_beta.weight", num_heads, shape.width)
    yield _matrix(f"{prefix}ssm_alpha.weight", num_heads, shape.width)
    yield _constant(f"{prefix}ssm_norm.weight", shape.state_width, 1.0)
    yield _matrix(f"{prefix}ssm_out.weight", shape.width, inner, SHARP)


def _short_convolution(shape: Shape, prefix: str) -> Iterator[Tensor]:
    yield Matrix(f"{prefix}shortconv.conv.weight", (shape.width, shape.conv_width), shape.conv_width**-0.5)
    yield _matrix(f"{prefix}shortconv.in_proj.weight", 3 * shape.width, shape.width)
    yield _matrix(f"{prefix}shortconv.out_proj.weight", shape.width, shape.width)


def _feed_forward(shape: Shape, prefix: str) -> Iterator[Tensor]:
    yield _matrix(f"{prefix}ffn_gate.weight", shape.num_ffn, shape.width)
    yield _matrix(f"{prefix}ffn_up.weight", shape.num_ffn, shape.width)
    yield _matrix(f"{prefix}ffn_down.weight", shape.width, shape.num_ffn, LOUD)


def _experts(shape: Shape, prefix: str) -> Iterator[Tensor]:
    inner, outer = (shape.num_experts, shape.num_ffn, shape.width), (shape.num_experts, shape.width, shape.num_ffn)
    # The mean of the chosen experts is smaller than each of them.
    loud = LOUD * shape.num_used_experts**0.5
    yield _matrix(f"{prefix}ffn_gate_inp.weight", shape.num_experts, shape.width)
    yield Matrix(f"{prefix}ffn_gate_exps.weight", inner, shape.width**-0.5)
    yield Matrix(f"{prefix}ffn_up_exps.weight", inner, shape.width**-0.5)
    yield Matrix(f"{prefix}ffn_down_exps.weight", outer, loud * shape.num_ffn**-0.5)


def _matrix(name: str, rows: int, columns: int, gain: float = 1.0) -> Matrix:
    """Return weights whose outputs are as large as their inputs, times `gain`."""
    return Matrix(name, (rows, columns), gain * columns**-0.5)


def _constant(name: str, length: int, value: float) -> Vector:
    return Vector(name, np.full(length, value, np.float32))


def _llama3_rope_factors(shape: Shape) -> NDArray[np.float32]:
    """Return the divisor of each frequency: 1 for waves within 2,048 tokens, 32 beyond 8,192, interpolated between."""
    factor, low, high, trained = 32.0, 1.0, 4.0, 8192.0
    exponents = np.arange(0, shape.head_width, 2) / shape.head_width
    waves = 2 * math.pi * shape.rope_base**exponents
    smooth = np.clip((trained / waves - low) / (high - low), 0.0, 1.0)
    return (1.0 / ((1 - smooth) / factor + smooth)).astype(np.float32)
