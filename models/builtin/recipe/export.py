"""Writes a trained model as a GGUF of the Llama architecture: Q8_0 matrices, F32 norms, tokenizer and chat template."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer
from torch import Tensor

from .chat import TEMPLATE
from .model import SHAPES, Llama, Shape
from .tokenizer import CONTROL, END, MARKS, PRE, STOP
from .train import load_average

NAMES = {
    "target": ("edgeagent mini", "edgeagent-mini.gguf"),
    "draft": ("edgeagent mini draft", "edgeagent-mini-draft.gguf"),
}
DESCRIPTION = "Bundled model of edgeagent: a household and kiosk assistant, trained on generated text alone."


def _interleave(weight: Tensor, heads: int) -> Tensor:
    """Reorder a query or key matrix for llama.cpp's rotary layout, which pairs neighbouring rows.

    PyTorch's model pairs a row of the first half of a head with one of the second half.
    """
    rows, columns = weight.shape
    return weight.view(heads, 2, rows // heads // 2, columns).transpose(1, 2).reshape(rows, columns)


def _write_shape(writer: gguf.GGUFWriter, shape: Shape) -> None:
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.hidden)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.heads)
    writer.add_rope_dimension_count(shape.head_width)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_layer_norm_rms_eps(shape.epsilon)
    writer.add_vocab_size(shape.vocab)


def _kind(token: str) -> gguf.TokenType:
    if token in CONTROL:
        return gguf.TokenType.CONTROL
    if token in MARKS:
        return gguf.TokenType.USER_DEFINED
    return gguf.TokenType.UNUSED if token.startswith("<|spare_") else gguf.TokenType.NORMAL


def _write_tokenizer(writer: gguf.GGUFWriter, tokenizer: Tokenizer) -> None:
    model = json.loads(tokenizer.to_str())["model"]
    size = tokenizer.get_vocab_size()
    tokens = [str(tokenizer.id_to_token(i)) for i in range(size)]
    ids = {token: i for i, token in enumerate(tokens)}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(PRE)
    writer.add_token_list(tokens)
    writer.add_token_types([_kind(token) for token in tokens])
    writer.add_token_merges([" ".join(merge) for merge in model["merges"]])
    writer.add_eos_token_id(ids[STOP])
    writer.add_eot_token_id(ids[STOP])
    writer.add_bos_token_id(ids[END])
    writer.add_pad_token_id(ids[END])
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)


def _add(writer: gguf.GGUFWriter, name: str, weight: Tensor) -> None:
    values: npt.NDArray[np.float32] = weight.detach().float().contiguous().numpy()
    if values.ndim == 1:
        writer.add_tensor(name, values)
        return
    packed = gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor(name, packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)


def _write_tensors(writer: gguf.GGUFWriter, model: Llama) -> None:
    for name, weight in model.state_dict().items():
        if name.endswith(("attn_q.weight", "attn_k.weight")):
            weight = _interleave(weight, model.shape.heads)
        _add(writer, name, weight)


def export(name: str, work: Path, out: Path) -> Path:
    """Write the model `name` (target or draft) into the folder `out`."""
    model = load_average(name, work)
    title, file_name = NAMES[name]
    path = out / file_name
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name(title)
    writer.add_description(DESCRIPTION)
    writer.add_author("the edgeagent project")
    writer.add_license("apache-2.0")
    writer.add_languages(["en"])
    writer.add_float32("general.sampling.temp", 0.0)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    _write_shape(writer, SHAPES[name])
    _write_tokenizer(writer, Tokenizer.from_file(str(work / "tokenizer.json")))
    _write_tensors(writer, model)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def main() -> None:
    """Export one or both models."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=sorted(SHAPES), help="target, draft or both")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parents[1])
    arguments = parser.parse_args()
    for name in arguments.models:
        path = export(name, arguments.work, arguments.out)
        print(json.dumps({"file": path.name, "bytes": path.stat().st_size}))


if __name__ == "__main__":
    main()
