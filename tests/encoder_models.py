"""Makes tiny embedding and ranking models with random weights, of architectures that read a whole text at once.

Their vectors have no meaning, but each token of a text changes them, at any position.
"""

from __future__ import annotations

import string
from pathlib import Path

import gguf
import numpy as np
from gguf import GGUFWriter
from numpy.typing import NDArray

WIDTH = 64
_NUM_LAYERS = {"gemma-embedding": 6}  # one layer in six attends to the whole text, and there must be one
_USUAL_LAYERS = 2
NUM_HEADS = 4
NUM_FFN = 128
CONTEXT_LENGTH = 512

PAD, UNKNOWN, CLS, SEP, MASK = range(5)
_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_WORDS = ("the", "cat", "dog", "sleeps", "runs", "in", "on", "sun", "moon", "rain", "and", "house", "is")
_CHARACTERS = string.ascii_lowercase + string.digits + string.punctuation
# A piece that starts a word has this mark (a GGUF's form of BERT's "##").
PIECES = [*_SPECIAL, *(f"▁{word}" for word in (*_WORDS, *_CHARACTERS)), *_CHARACTERS]

BERT, MODERN_BERT, NOMIC_BERT, GEMMA = "bert", "modern-bert", "nomic-bert", "gemma-embedding"
ARCHITECTURES = (BERT, MODERN_BERT, NOMIC_BERT, GEMMA)


def make_encoder(
    path: Path,
    architecture: str = BERT,
    *,
    pooling: gguf.PoolingType = gguf.PoolingType.MEAN,
    context_length: int = CONTEXT_LENGTH,
    seed: int = 0,
) -> Path:
    """Write a model to `path` and return it; with `PoolingType.RANK` it is a ranking model."""
    return _Encoder(path, architecture, pooling, context_length, seed).write()


class _Encoder:
    """One model being written."""

    def __init__(
        self, path: Path, architecture: str, pooling: gguf.PoolingType, context_length: int, seed: int
    ) -> None:
        self._path = path
        self._architecture = architecture
        self._pooling = pooling
        self._context_length = context_length
        self._num_layers = _NUM_LAYERS.get(architecture, _USUAL_LAYERS)
        self._random = np.random.default_rng(seed)
        self._writer = GGUFWriter(path, architecture)

    def write(self) -> Path:
        self._add_metadata()
        self._add_vocabulary()
        self._add_outer()
        for layer in range(self._num_layers):
            self._add_layer(f"blk.{layer}.", layer)
        self._writer.write_header_to_file()
        self._writer.write_kv_data_to_file()
        self._writer.write_tensors_to_file()
        self._writer.close()
        return self._path

    def _add_metadata(self) -> None:
        writer = self._writer
        writer.add_name(f"tiny {self._architecture}")
        writer.add_context_length(self._context_length)
        writer.add_embedding_length(WIDTH)
        writer.add_block_count(self._num_layers)
        writer.add_feed_forward_length(NUM_FFN)
        writer.add_head_count(NUM_HEADS)
        writer.add_layer_norm_eps(1e-12)
        writer.add_layer_norm_rms_eps(1e-6)
        writer.add_pooling_type(self._pooling)
        if self._architecture != GEMMA:  # real GEMMA files omit it too
            writer.add_causal_attention(False)
        if self._architecture != BERT:
            writer.add_rope_freq_base(10_000.0)
        if self._architecture in (MODERN_BERT, GEMMA):
            writer.add_sliding_window(16)

    def _add_vocabulary(self) -> None:
        writer = self._writer
        kinds = [gguf.TokenType.NORMAL] * len(PIECES)
        kinds[: len(_SPECIAL)] = [gguf.TokenType.CONTROL] * len(_SPECIAL)
        writer.add_tokenizer_model("bert")
        writer.add_tokenizer_pre("default")
        writer.add_token_list(PIECES)
        writer.add_token_types(kinds)
        writer.add_token_type_count(2)
        writer.add_bos_token_id(CLS)
        writer.add_eos_token_id(SEP)
        writer.add_unk_token_id(UNKNOWN)
        writer.add_sep_token_id(SEP)
        writer.add_pad_token_id(PAD)
        writer.add_mask_token_id(MASK)

    def _add_outer(self) -> None:
        self._add_matrix("token_embd.weight", len(PIECES), WIDTH, 1.0)
        if self._architecture == GEMMA:
            self._add_ones("output_norm.weight")
            return
        self._add_norm("token_embd_norm", has_bias=self._architecture != MODERN_BERT)
        if self._architecture == MODERN_BERT:
            self._add_ones("output_norm.weight")
        else:
            self._add_matrix("token_types.weight", 2, WIDTH, 0.1)
        if self._architecture == BERT:
            self._add_matrix("position_embd.weight", self._context_length, WIDTH, 0.5)
        if self._pooling is gguf.PoolingType.RANK:
            self._add_matrix("cls.weight", WIDTH, WIDTH, WIDTH**-0.5)
            self._add("cls.bias", np.zeros(WIDTH, np.float32))
            self._add_matrix("cls.output.weight", 1, WIDTH, 1.0)
            self._add("cls.output.bias", np.zeros(1, np.float32))

    def _add_layer(self, prefix: str, layer: int) -> None:
        match self._architecture:
            case "bert":
                self._add_bert_layer(prefix)
            case "nomic-bert":
                self._add_fused_attention(prefix)
                self._add_matrix(f"{prefix}ffn_gate.weight", NUM_FFN, WIDTH, WIDTH**-0.5)
                self._add_feed_forward(prefix)
                self._add_norm(f"{prefix}attn_output_norm")
                self._add_norm(f"{prefix}layer_output_norm")
            case "modern-bert":
                if layer:
                    self._add_ones(f"{prefix}attn_norm.weight")
                self._add_fused_attention(prefix)
                self._add_ones(f"{prefix}ffn_norm.weight")
                self._add_matrix(f"{prefix}ffn_up.weight", 2 * NUM_FFN, WIDTH, WIDTH**-0.5)
                self._add_matrix(f"{prefix}ffn_down.weight", WIDTH, NUM_FFN, NUM_FFN**-0.5)
            case _:
                self._add_gemma_layer(prefix)

    def _add_bert_layer(self, prefix: str) -> None:
        for part in ("q", "k", "v", "output"):
            self._add_matrix(f"{prefix}attn_{part}.weight", WIDTH, WIDTH, 2 * WIDTH**-0.5)
            self._add(f"{prefix}attn_{part}.bias", np.zeros(WIDTH, np.float32))
        self._add_feed_forward(prefix)
        self._add(f"{prefix}ffn_up.bias", np.zeros(NUM_FFN, np.float32))
        self._add(f"{prefix}ffn_down.bias", np.zeros(WIDTH, np.float32))
        self._add_norm(f"{prefix}attn_output_norm")
        self._add_norm(f"{prefix}layer_output_norm")

    def _add_gemma_layer(self, prefix: str) -> None:
        head_width = WIDTH // NUM_HEADS
        for part in ("q", "k", "v", "output"):
            self._add_matrix(f"{prefix}attn_{part}.weight", WIDTH, WIDTH, 2 * WIDTH**-0.5)
        for part in ("q", "k"):
            self._add(f"{prefix}attn_{part}_norm.weight", np.ones(head_width, np.float32))
        for norm in ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"):
            self._add_ones(f"{prefix}{norm}.weight")
        self._add_matrix(f"{prefix}ffn_gate.weight", NUM_FFN, WIDTH, WIDTH**-0.5)
        self._add_feed_forward(prefix)

    def _add_fused_attention(self, prefix: str) -> None:
        self._add_matrix(f"{prefix}attn_qkv.weight", 3 * WIDTH, WIDTH, 2 * WIDTH**-0.5)
        self._add_matrix(f"{prefix}attn_output.weight", WIDTH, WIDTH, 2 * WIDTH**-0.5)

    def _add_feed_forward(self, prefix: str) -> None:
        self._add_matrix(f"{prefix}ffn_up.weight", NUM_FFN, WIDTH, WIDTH**-0.5)
        self._add_matrix(f"{prefix}ffn_down.weight", WIDTH, NUM_FFN, NUM_FFN**-0.5)

    def _add_norm(self, name: str, *, has_bias: bool = True) -> None:
        self._add_ones(f"{name}.weight")
        if has_bias:
            self._add(f"{name}.bias", np.zeros(WIDTH, np.float32))

    def _add_ones(self, name: str) -> None:
        self._add(name, np.ones(WIDTH, np.float32))

    def _add_matrix(self, name: str, rows: int, columns: int, std: float) -> None:
        self._add(name, self._random.standard_normal((rows, columns), dtype=np.float32) * np.float32(std))

    def _add(self, name: str, values: NDArray[np.float32]) -> None:
        self._writer.add_tensor(name, values)
