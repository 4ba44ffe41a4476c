"""Makes a random-weight GGUF of a real model's shape, for measuring speed where no real model can be fetched.

Run as `python tests/peer/random_model.py --preset 0.5b OUT`. The answers mean nothing; their cost is the real one.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from numpy.typing import NDArray

LOGIT_STD = 3.0
# Small beside what the layers add: tied embeddings would otherwise repeat the last token for ever.
EMBEDDING_STD = 0.1
ALPHABET = "abcdefghijklmnopqrstuvwxyz"
CONTROL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a Qwen2 model with tied embeddings."""

    num_layers: int
    width: int
    num_heads: int
    num_kv_heads: int
    num_ffn: int
    num_vocab: int
    context_length: int = 32_768


PRESETS = {
    "0.5b": Shape(24, 896, 14, 2, 4864, 151_936),
    # The KV cells of an 8B model (128 KiB a token), and little else to compute.
    "8b-kv": Shape(32, 1024, 8, 8, 1024, 32_000),
}


def make_random_model(path: Path, preset: str = "0.5b", *, seed: int = 0) -> Path:
    """Write a Q4_0 model and return its path. Embeddings are Q8_0, as llama-quantize leaves tied ones of this width."""
    shape = PRESETS[preset]
    random = np.random.default_rng(seed)
    writer = GGUFWriter(path, "qwen2")
    _add_metadata(writer, preset, shape)
    _add_vocabulary(writer, shape.num_vocab)
    kv_width = shape.width // shape.num_heads * shape.num_kv_heads
    embeddings = _q8_0(random, shape.num_vocab, shape.width, EMBEDDING_STD)
    writer.add_tensor("token_embd.weight", embeddings, raw_dtype=GGMLQuantizationType.Q8_0)
    output_gain = LOGIT_STD / EMBEDDING_STD * shape.width**-0.5
    writer.add_tensor("output_norm.weight", np.full(shape.width, output_gain, np.float32))
    for layer in range(shape.num_layers):
        prefix = f"blk.{layer}."
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"{prefix}{name}.weight", np.ones(shape.width, np.float32))
        # sharp attention and loud feed-forward layers, or every answer falls into repeating one token
        for name, rows, columns, gain in (
            ("attn_q", shape.width, shape.width, 2.0),
            ("attn_k", kv_width, shape.width, 2.0),
            ("attn_v", kv_width, shape.width, 1.0),
            ("attn_output", shape.width, shape.width, 1.0),
            ("ffn_gate", shape.num_ffn, shape.width, 1.0),
            ("ffn_up", shape.num_ffn, shape.width, 1.0),
            ("ffn_down", shape.width, shape.num_ffn, 4.0),
        ):
            matrix = _q4_0(random, rows, columns, gain * columns**-0.5)
            writer.add_tensor(f"{prefix}{name}.weight", matrix, raw_dtype=GGMLQuantizationType.Q4_0)
        for name, rows in (("attn_q", shape.width), ("attn_k", kv_width), ("attn_v", kv_width)):
            writer.add_tensor(f"{prefix}{name}.bias", np.zeros(rows, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def vocabulary(num_vocab: int) -> tuple[list[str], list[str]]:
    """Return `num_vocab` distinct pieces, and the merges that reach them: bytes, then words of 2, 3 and 4 letters."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    pieces = [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]
    merges = []
    space = pieces[ord(" ")]
    for start, end in _words(space):
        if len(pieces) == num_vocab - len(CONTROL_TOKENS):
            break
        pieces.append(start + end)
        merges.append(f"{start} {end}")
    return [*pieces, *CONTROL_TOKENS], merges


def _words(space: str) -> Iterator[tuple[str, str]]:
    """Yield words as (all but the last letter, last letter), shorter ones first, each with and without a space."""
    for letter in ALPHABET:
        yield space, letter
    for length in (2, 3, 4):
        for *start, end in product(ALPHABET, repeat=length):
            yield "".join(start), end
            if length < 4:
                yield space + "".join(start), end


def _add_metadata(writer: GGUFWriter, preset: str, shape: Shape) -> None:
    writer.add_name(f"random {preset}")
    writer.add_context_length(shape.context_length)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.num_layers)
    writer.add_feed_forward_length(shape.num_ffn)
    writer.add_head_count(shape.num_heads)
    writer.add_head_count_kv(shape.num_kv_heads)
    writer.add_rope_freq_base(1_000_000.0)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_0)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)


def _add_vocabulary(writer: GGUFWriter, num_vocab: int) -> None:
    pieces, merges = vocabulary(num_vocab)
    num_normal = num_vocab - len(CONTROL_TOKENS)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(pieces)
    writer.add_token_types([gguf.TokenType.NORMAL] * num_normal + [gguf.TokenType.CONTROL] * len(CONTROL_TOKENS))
    writer.add_token_merges(merges)
    writer.add_bos_token_id(pieces.index("<|endoftext|>"))
    writer.add_eos_token_id(pieces.index("<|im_end|>"))
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def _q4_0(random: np.random.Generator, rows: int, columns: int, std: float) -> NDArray[np.uint8]:
    """Return random Q4_0 rows. A block is a float16 scale, then 32 nibbles that stand for scale * (nibble - 8)."""
    nibbles = np.frombuffer(random.bytes(rows * columns // 2), np.uint8).reshape(-1, 16)
    spread = np.sqrt((16**2 - 1) / 12)  # of a nibble drawn evenly
    return _blocks(random, nibbles, std / spread, rows)


def _q8_0(random: np.random.Generator, rows: int, columns: int, std: float) -> NDArray[np.uint8]:
    """Return random Q8_0 rows. A block is a float16 scale, then 32 signed bytes."""
    values = np.frombuffer(random.bytes(rows * columns), np.uint8).reshape(-1, 32)
    spread = np.sqrt((256**2 - 1) / 12)
    return _blocks(random, values, std / spread, rows)


def _blocks(random: np.random.Generator, quants: NDArray[np.uint8], scale: float, rows: int) -> NDArray[np.uint8]:
    """Put scales before the quants. Their signs vary: the quants' mean of -1/2 would add up to one loud direction."""
    signs = random.integers(0, 2, len(quants)) * 2 - 1
    blocks = np.empty((len(quants), quants.shape[1] + 2), np.uint8)
    blocks[:, :2] = (signs * scale).astype("<f2").view(np.uint8).reshape(-1, 2)
    blocks[:, 2:] = quants
    return blocks.reshape(rows, -1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", choices=sorted(PRESETS), default="0.5b")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    path = make_random_model(arguments.out, arguments.preset, seed=arguments.seed)
    print(f"{path}: {path.stat().st_size / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
