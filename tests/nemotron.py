"""Makes a tiny Nemotron-H with random weights: layers of Mamba 2, of attention, and of a feed-forward part alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from gguf import GGUFWriter

from tests.models import CONTROL_TOKENS, LOGIT_STD, MARKER_TOKENS, MERGES, add_vocabulary, byte_alphabet

WIDTH, NUM_FFN, NUM_HEADS, HEAD_WIDTH = 64, 128, 2, 32
INNER, STATE, CONV, NUM_STATE_HEADS, NUM_GROUPS = 128, 16, 4, 4, 2
LAYERS = ("state", "attention", "ffn", "state")


def make_nemotron(path: Path) -> Path:
    """Write the model to `path` and return it."""
    writer = GGUFWriter(path, "nemotron_h")
    pieces = [*byte_alphabet(), *(merge.replace(" ", "") for merge in MERGES), *CONTROL_TOKENS, *MARKER_TOKENS]
    _add_metadata(writer)
    writer.add_vocab_size(len(pieces))
    add_vocabulary(writer, pieces, MERGES, len(CONTROL_TOKENS), len(MARKER_TOKENS))
    tensors = _Tensors(writer)
    tensors.add("token_embd.weight", len(pieces), WIDTH, std=1.0)
    tensors.add("output_norm.weight", WIDTH, mean=1.0)
    controls = [pieces.index(piece) for piece in CONTROL_TOKENS]  # they never end a greedy answer
    tensors.add("output.weight", len(pieces), WIDTH, std=LOGIT_STD * WIDTH**-0.5, zero_rows=controls)
    for index, kind in enumerate(LAYERS):
        tensors.add(f"blk.{index}.attn_norm.weight", WIDTH, mean=1.0)
        tensors.add_layer(f"blk.{index}", kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_metadata(writer: GGUFWriter) -> None:
    writer.add_context_length(2048)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(len(LAYERS))
    writer.add_layer_norm_eps(1e-5)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_feed_forward_length([NUM_FFN * (kind == "ffn") for kind in LAYERS])
    writer.add_head_count(NUM_HEADS)
    writer.add_head_count_kv([int(kind == "attention") for kind in LAYERS])
    writer.add_key_length(HEAD_WIDTH)
    writer.add_value_length(HEAD_WIDTH)
    writer.add_ssm_conv_kernel(CONV)
    writer.add_ssm_inner_size(INNER)
    writer.add_ssm_state_size(STATE)
    writer.add_ssm_time_step_rank(NUM_STATE_HEADS)
    writer.add_ssm_group_count(NUM_GROUPS)


class _Tensors:
    def __init__(self, writer: GGUFWriter) -> None:
        self._writer, self._random = writer, np.random.default_rng(3)

    def add(self, name: str, *shape: int, std: float = 0.0, mean: float = 0.0, zero_rows: Sequence[int] = ()) -> None:
        values = self._random.normal(mean, std, shape).astype(np.float32)
        values[list(zero_rows)] = 0.0
        self._writer.add_tensor(name, values)

    def add_layer(self, layer: str, kind: str) -> None:
        gain = 2.0 * WIDTH**-0.5
        if kind == "state":
            convolved = INNER + 2 * NUM_GROUPS * STATE
            self.add(f"{layer}.ssm_in.weight", INNER + convolved + NUM_STATE_HEADS, WIDTH, std=gain)
            self.add(f"{layer}.ssm_conv1d.weight", convolved, CONV, std=0.5)
            self.add(f"{layer}.ssm_conv1d.bias", convolved)
            self.add(f"{layer}.ssm_dt.bias", NUM_STATE_HEADS, mean=-2.0)
            self.add(f"{layer}.ssm_a", NUM_STATE_HEADS, 1, mean=-0.5)
            self.add(f"{layer}.ssm_d", NUM_STATE_HEADS, 1, mean=1.0)
            self.add(f"{layer}.ssm_norm.weight", NUM_GROUPS, INNER // NUM_GROUPS, mean=1.0)
            self.add(f"{layer}.ssm_out.weight", WIDTH, INNER, std=2.0 * INNER**-0.5)
        elif kind == "attention":
            self.add(f"{layer}.attn_q.weight", NUM_HEADS * HEAD_WIDTH, WIDTH, std=gain)
            for part in "kv":
                self.add(f"{layer}.attn_{part}.weight", HEAD_WIDTH, WIDTH, std=gain)
            self.add(f"{layer}.attn_output.weight", WIDTH, NUM_HEADS * HEAD_WIDTH, std=gain)
        else:
            self.add(f"{layer}.ffn_up.weight", NUM_FFN, WIDTH, std=gain)
            self.add(f"{layer}.ffn_down.weight", WIDTH, NUM_FFN, std=gain)
