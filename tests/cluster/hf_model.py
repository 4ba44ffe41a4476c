"""Writes a GGUF of the Llama architecture as the files that vLLM loads: the same weights, vocabulary and template.

Matrices are unpacked to 32-bit floats, which represent each of them exactly. So a cluster serves exactly this machine's
model, and an answer that began here can be compared with its continuation there.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

Weights = dict[str, npt.NDArray[np.float32]]
# How llama.cpp splits text for `tokenizer.ggml.pre = qwen2`, as a pattern of the tokenizers library.
SPLITS = {
    "qwen2": r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
    r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
}
NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
OUTER_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def write_hf_model(source: Path, folder: Path) -> None:
    """Write the model in `source` into `folder`. Raises ValueError if this code does not know its kind."""
    reader = gguf.GGUFReader(source)
    fields = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    if (fields["general.architecture"], fields["tokenizer.ggml.model"]) != ("llama", "gpt2"):
        raise ValueError(f"{source.name} is no Llama with a byte-level BPE")
    folder.mkdir(parents=True, exist_ok=True)
    weights = _weights(reader, fields)
    _write_json(folder / "config.json", _config(fields, tied="lm_head.weight" not in weights))
    _write_json(folder / "generation_config.json", {"eos_token_id": fields["tokenizer.ggml.eos_token_id"]})
    _write_json(folder / "tokenizer.json", _tokenizer(fields))
    _write_json(folder / "tokenizer_config.json", _tokenizer_config(fields))
    _write_safetensors(folder / "model.safetensors", weights)


def _weights(reader: gguf.GGUFReader, fields: dict[str, Any]) -> Weights:
    heads = {"attn_q": fields["llama.attention.head_count"], "attn_k": fields["llama.attention.head_count_kv"]}
    weights: Weights = {}
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        name, _, suffix = tensor.name.rpartition(".")
        kind = name.rpartition(".")[2]
        if kind in heads:
            values = _halves(values, heads[kind])
        weights[f"{_hf_name(name)}.{suffix}"] = values
    return weights


def _hf_name(name: str) -> str:
    if not name.startswith("blk."):
        return OUTER_NAMES[name]
    _, layer, kind = name.split(".")
    return f"model.layers.{layer}.{NAMES[kind]}"


def _halves(weight: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
    """Reorder a query or key matrix from pairs, llama.cpp's rotary layout, to the two halves of transformers."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def _config(fields: dict[str, Any], tied: bool) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": fields["llama.embedding_length"],
        "intermediate_size": fields["llama.feed_forward_length"],
        "num_hidden_layers": fields["llama.block_count"],
        "num_attention_heads": fields["llama.attention.head_count"],
        "num_key_value_heads": fields["llama.attention.head_count_kv"],
        "head_dim": fields["llama.rope.dimension_count"],
        "max_position_embeddings": fields["llama.context_length"],
        "rope_parameters": {"rope_type": "default", "rope_theta": fields["llama.rope.freq_base"]},
        "rms_norm_eps": fields["llama.attention.layer_norm_rms_epsilon"],
        "vocab_size": len(fields["tokenizer.ggml.tokens"]),
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": tied,
        "bos_token_id": fields["tokenizer.ggml.bos_token_id"],
        "eos_token_id": fields["tokenizer.ggml.eos_token_id"],
        "torch_dtype": "float32",
    }


def _tokenizer(fields: dict[str, Any]) -> dict[str, Any]:
    tokens, types = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    normal = {token: i for i, token in enumerate(tokens) if types[i] == gguf.TokenType.NORMAL}
    added = [
        _added_token(i, token, special=types[i] != gguf.TokenType.USER_DEFINED)
        for i, token in enumerate(tokens)
        if types[i] != gguf.TokenType.NORMAL
    ]
    split = {"Regex": SPLITS[fields["tokenizer.ggml.pre"]]}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    return {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": split, "behavior": "Isolated", "invert": False},
                byte_level,
            ],
        },
        "post_processor": None,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": normal, "merges": fields["tokenizer.ggml.merges"], "ignore_merges": False},
    }


def _added_token(index: int, content: str, special: bool) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": index, "content": content, **flags, "special": special}


def _tokenizer_config(fields: dict[str, Any]) -> dict[str, Any]:
    tokens = fields["tokenizer.ggml.tokens"]
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[fields["tokenizer.ggml.bos_token_id"]],
        "eos_token": tokens[fields["tokenizer.ggml.eos_token_id"]],
        "pad_token": tokens[fields["tokenizer.ggml.padding_token_id"]],
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": fields["llama.context_length"],
        "chat_template": fields["tokenizer.chat_template"],
    }


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def _write_safetensors(path: Path, weights: Weights) -> None:
    """Write the safetensors format: the length of a JSON header, the header with all tensors' offsets, the bytes."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, values in weights.items():
        header[name] = {
            "dtype": "F32",
            "shape": list(values.shape),
            "data_offsets": [offset, offset + values.nbytes],
        }
        offset += values.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for values in weights.values():
            file.write(np.ascontiguousarray(values).tobytes())
