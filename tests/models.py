"""Makes tiny GGUF models with random weights, one for each kind of memory, for tests that run llama.cpp itself.

Their output has no meaning, but it is varied, depends on the whole context, and is the same on every run.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize
from numpy.typing import NDArray

from edgeagent.types import MemoryKind

WIDTH = 64
NUM_LAYERS = 4
NUM_HEADS = 4
NUM_FFN = 128
INNER = 2 * WIDTH  # llama.cpp accepts no other expansion of a state-space layer
STATE = 16
CONV = 4
DT_RANK = 8
WINDOW = 32
CONTEXT_LENGTH = 2048
LOGIT_STD = 3.0

CONTROL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
INFILL_TOKENS = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
FILE_TOKENS = (*INFILL_TOKENS, "<|repo_name|>", "<|file_sep|>")
MARKER_TOKENS = ("<tool_call>", "</tool_call>", "<think>", "</think>")
# Each merge is a pair of pieces; a piece must be merged before another merge can use it.
MERGES = [
    merge
    for line in (
        "h e|i n|e r|a n|o n|r e|Ġ t|Ġ a|t h|e n|a t|o r|Ġ s|Ġ w|o u|i s|Ġt he|in g|an d|Ġ and|e d|l l|Ġ o|Ġ f",
        "Ġ i|Ġ b|Ġ c|t o|l o|Ġ m|Ġ h|h a|u r|v er|Ġ y|Ġy ou|c h|s t|Ġ l|Ġ g|Ġ p|Ġ d|Ġ n|e s|l y|1 0|0 0",
    )
    for merge in line.split("|")
]

CHAT_TEMPLATE = """\
{%- if tools -%}
{{- '<|im_start|>system\\nTools:\\n' -}}
{%- for tool in tools -%}{{- (tool.function | tojson) + '\\n' -}}{%- endfor -%}
{{- '<|im_end|>\\n' -}}
{%- endif -%}
{%- for message in messages -%}
{{- '<|im_start|>' + message.role + '\\n' + (message.content or '') -}}
{%- for call in message.tool_calls or [] -%}
{{- '<tool_call>\\n{"name": ' + (call.function.name | tojson) + ', "arguments": ' -}}
{{- call.function.arguments if call.function.arguments is string else call.function.arguments | tojson -}}
{{- '}\\n</tool_call>' -}}
{%- endfor -%}
{{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}
"""

ARCHITECTURES = {
    MemoryKind.FULL_ATTENTION: "llama",
    MemoryKind.SLIDING_WINDOW: "gemma3",
    MemoryKind.RECURRENT: "mamba",
    MemoryKind.HYBRID: "jamba",
}
MEMORIES = tuple(ARCHITECTURES)
"""The kinds of memory of models that generate."""


def byte_alphabet() -> list[str]:
    """Return the character that stands for each byte in GPT-2's vocabulary files."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def make_tiny_model(
    path: Path,
    kind: MemoryKind,
    *,
    seed: int = 0,
    num_layers: int = NUM_LAYERS,
    matrix_type: GGMLQuantizationType = GGMLQuantizationType.F32,
    controls: tuple[str, ...] = (),
    num_heads: int = NUM_HEADS,
    metadata: Mapping[str, float] = {},
    max_short_context: int = 0,
) -> Path:
    """Write a model with this kind of memory to `path` and return it.

    Matrices are quantized only if `matrix_type` is a quantized type: llama.cpp rounds what it multiplies with a
    quantized matrix, and on some processors logits then change by a hundredth with the size of a step.

    All share one vocabulary, to which `controls` adds control tokens: INFILL_TOKENS, for example. Heads share the
    width; quantized KV cells need heads of width 32, so two at most. `metadata` is added to the file's.
    `max_short_context`: contexts of more tokens get the RoPE factors for long texts, as in Phi-3 and MiniCPM; 0 means
    that there are none.
    """
    model = _TinyModel(path, kind, seed, num_layers, matrix_type, controls=controls, num_heads=num_heads)
    return model.write(metadata, max_short_context)


def add_vocabulary(writer: GGUFWriter, pieces: list[str], merges: list[str], controls: int, markers: int) -> None:
    """Declare a byte-pair vocabulary whose last `controls + markers` pieces are control and user-defined tokens."""
    kinds = [gguf.TokenType.NORMAL] * len(pieces)
    first = len(pieces) - controls - markers
    kinds[first : first + controls] = [gguf.TokenType.CONTROL] * controls
    kinds[first + controls :] = [gguf.TokenType.USER_DEFINED] * markers
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(pieces)
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(pieces.index("<|endoftext|>"))
    writer.add_eos_token_id(pieces.index("<|im_end|>"))
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


class _TinyModel:
    """One model being written."""

    def __init__(
        self,
        path: Path,
        kind: MemoryKind,
        seed: int,
        num_layers: int,
        matrix_type: GGMLQuantizationType,
        *,
        controls: tuple[str, ...],
        num_heads: int,
    ) -> None:
        self._path = path
        self._kind = kind
        self._num_layers = num_layers
        self._matrix_type = matrix_type
        self._num_heads = num_heads
        self._num_kv_heads = max(1, num_heads // 2)
        self._head_width = WIDTH // num_heads
        self._random = np.random.default_rng(seed)
        self._writer = GGUFWriter(path, ARCHITECTURES[kind])
        self._controls = (*CONTROL_TOKENS, *controls)
        self._pieces = [
            *byte_alphabet(),
            *(merge.replace(" ", "") for merge in MERGES),
            *self._controls,
            *MARKER_TOKENS,
        ]

    def write(self, metadata: Mapping[str, float], max_short_context: int) -> Path:
        self._add_metadata()
        if max_short_context:
            self._add_long_rope(max_short_context)
        for key, value in metadata.items():
            if isinstance(value, int):
                self._writer.add_int32(key, value)
            else:
                self._writer.add_float32(key, value)
        add_vocabulary(self._writer, self._pieces, MERGES, len(self._controls), len(MARKER_TOKENS))
        self._add_embeddings()
        for layer in range(self._num_layers):
            self._add_layer(layer)
        self._writer.write_header_to_file()
        self._writer.write_kv_data_to_file()
        self._writer.write_tensors_to_file()
        self._writer.close()
        return self._path

    def _add_metadata(self) -> None:
        writer = self._writer
        writer.add_name(f"tiny {self._kind}")
        writer.add_context_length(CONTEXT_LENGTH)
        writer.add_embedding_length(WIDTH)
        writer.add_block_count(self._num_layers)
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_vocab_size(len(self._pieces))
        writer.add_feed_forward_length(0 if self._kind is MemoryKind.RECURRENT else NUM_FFN)
        if self._kind is MemoryKind.RECURRENT:
            writer.add_head_count(0)
        else:
            writer.add_head_count(self._num_heads)
            writer.add_head_count_kv([self._num_kv_heads if self._attends(i) else 0 for i in range(self._num_layers)])
            writer.add_rope_freq_base(10_000.0)
            writer.add_key_length(self._head_width)
            writer.add_value_length(self._head_width)
        if self._kind is MemoryKind.SLIDING_WINDOW:
            writer.add_sliding_window(WINDOW)
        if self._kind in (MemoryKind.RECURRENT, MemoryKind.HYBRID):
            writer.add_ssm_conv_kernel(CONV)
            writer.add_ssm_inner_size(INNER)
            writer.add_ssm_state_size(STATE)
            writer.add_ssm_time_step_rank(DT_RANK)

    def _add_long_rope(self, max_short_context: int) -> None:
        self._writer.add_rope_scaling_orig_ctx_len(max_short_context)
        self._writer.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE)
        num_factors = self._head_width // 2
        self._writer.add_tensor("rope_factors_short.weight", np.ones(num_factors, np.float32))
        self._writer.add_tensor("rope_factors_long.weight", np.linspace(1, 30, num_factors, dtype=np.float32))

    def _attends(self, layer: int) -> bool:
        return self._kind is not MemoryKind.RECURRENT and (self._kind is not MemoryKind.HYBRID or layer % 2 == 1)

    def _add_embeddings(self) -> None:
        num_vocab = len(self._pieces)
        # gemma multiplies the rows of this table by the root of the width
        std = WIDTH**-0.5 if self._kind is MemoryKind.SLIDING_WINDOW else 1.0
        self._add_matrix("token_embd.weight", num_vocab, WIDTH, std)
        self._add_ones("output_norm.weight", WIDTH)
        output = self._normal((num_vocab, WIDTH), LOGIT_STD * WIDTH**-0.5)
        # control tokens get a logit of 0, so they never end a greedy answer
        output[[self._pieces.index(piece) for piece in self._controls]] = 0.0
        self._add("output.weight", output, self._matrix_type)

    def _add_layer(self, layer: int) -> None:
        prefix = f"blk.{layer}."
        self._add_ones(f"{prefix}attn_norm.weight", WIDTH)
        if self._attends(layer):
            self._add_attention(prefix)
        else:
            self._add_state_space(prefix)
        if self._kind is not MemoryKind.RECURRENT:
            self._add_feed_forward(prefix)

    def _add_attention(self, prefix: str) -> None:
        gain = WIDTH**-0.5
        self._add_matrix(f"{prefix}attn_q.weight", self._num_heads * self._head_width, WIDTH, 2.0 * gain)
        self._add_matrix(f"{prefix}attn_k.weight", self._num_kv_heads * self._head_width, WIDTH, 2.0 * gain)
        self._add_matrix(f"{prefix}attn_v.weight", self._num_kv_heads * self._head_width, WIDTH, 2.0 * gain)
        self._add_matrix(f"{prefix}attn_output.weight", WIDTH, self._num_heads * self._head_width, 2.0 * gain)
        if self._kind is MemoryKind.SLIDING_WINDOW:
            self._add(f"{prefix}attn_q_norm.weight", np.full(self._head_width, 3.0, np.float32))
            self._add_ones(f"{prefix}attn_k_norm.weight", self._head_width)
            self._add(f"{prefix}post_attention_norm.weight", np.full(WIDTH, 2.0, np.float32))

    def _add_feed_forward(self, prefix: str) -> None:
        self._add_ones(f"{prefix}ffn_norm.weight", WIDTH)
        self._add_matrix(f"{prefix}ffn_gate.weight", NUM_FFN, WIDTH, WIDTH**-0.5)
        self._add_matrix(f"{prefix}ffn_up.weight", NUM_FFN, WIDTH, WIDTH**-0.5)
        self._add_matrix(f"{prefix}ffn_down.weight", WIDTH, NUM_FFN, 2.0 * NUM_FFN**-0.5)
        if self._kind is MemoryKind.SLIDING_WINDOW:
            self._add(f"{prefix}post_ffw_norm.weight", np.full(WIDTH, 2.0, np.float32))

    def _add_state_space(self, prefix: str) -> None:
        self._add_matrix(f"{prefix}ssm_in.weight", 2 * INNER, WIDTH, 2.0 * WIDTH**-0.5)
        self._add_matrix(f"{prefix}ssm_conv1d.weight", INNER, CONV, 0.5, GGMLQuantizationType.F32)
        self._add(f"{prefix}ssm_conv1d.bias", np.zeros(INNER, np.float32))
        self._add_matrix(f"{prefix}ssm_x.weight", DT_RANK + 2 * STATE, INNER, INNER**-0.5)
        self._add_matrix(f"{prefix}ssm_dt.weight", INNER, DT_RANK, DT_RANK**-0.5, GGMLQuantizationType.F32)
        # a step of about 0.1 lets the state remember some tens of tokens
        self._add(f"{prefix}ssm_dt.bias", np.full(INNER, -2.0, np.float32))
        decay = -np.tile(np.arange(1, STATE + 1, dtype=np.float32), (INNER, 1))
        self._add(f"{prefix}ssm_a", decay / np.float32(STATE))
        self._add_ones(f"{prefix}ssm_d", INNER)
        self._add_matrix(f"{prefix}ssm_out.weight", WIDTH, INNER, 2.0 * INNER**-0.5)
        if self._kind is MemoryKind.HYBRID:
            self._add_ones(f"{prefix}ssm_dt_norm.weight", DT_RANK)
            self._add_ones(f"{prefix}ssm_b_norm.weight", STATE)
            self._add_ones(f"{prefix}ssm_c_norm.weight", STATE)

    def _add_ones(self, name: str, length: int) -> None:
        self._add(name, np.ones(length, np.float32))

    def _add_matrix(
        self, name: str, rows: int, columns: int, std: float, matrix_type: GGMLQuantizationType | None = None
    ) -> None:
        self._add(name, self._normal((rows, columns), std), self._matrix_type if matrix_type is None else matrix_type)

    def _normal(self, shape: tuple[int, int], std: float) -> NDArray[np.float32]:
        return self._random.standard_normal(shape, dtype=np.float32) * np.float32(std)

    def _add(
        self, name: str, values: NDArray[np.float32], kind: GGMLQuantizationType = GGMLQuantizationType.F32
    ) -> None:
        self._writer.add_tensor(name, quantize(values, kind), raw_dtype=kind)
