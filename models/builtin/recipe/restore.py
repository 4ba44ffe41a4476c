"""Makes a work folder from the shipped GGUF files, so that `train` can continue from their weights.

It is the inverse of `export`, up to the rounding of Q8_0. The optimizers start without momentum, and the count of steps
at zero.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import gguf
import torch
from tokenizers import Tokenizer
from torch import Tensor

from .export import NAMES
from .model import SHAPES, Shape
from .tokenizer import assemble
from .train import Run

SHIPPED = Path(__file__).resolve().parents[1]


def _separate(weight: Tensor, heads: int) -> Tensor:
    """Undo `export._interleave`: put the first halves of the rotary pairs before the second halves."""
    rows, columns = weight.shape
    return weight.view(heads, rows // heads // 2, 2, columns).transpose(1, 2).reshape(rows, columns)


def _weights(reader: gguf.GGUFReader, shape: Shape) -> dict[str, Tensor]:
    found = {}
    for tensor in reader.tensors:
        weight = torch.from_numpy(gguf.quants.dequantize(tensor.data, tensor.tensor_type).copy())
        if tensor.name.endswith(("attn_q.weight", "attn_k.weight")):
            weight = _separate(weight, shape.heads)
        found[tensor.name] = weight
    return found


def _tokenizer(reader: gguf.GGUFReader) -> Tokenizer:
    tokens, merges = (reader.fields[f"tokenizer.ggml.{name}"].contents() for name in ("tokens", "merges"))
    return assemble(tokens, [tuple(merge.split(" ")) for merge in merges])


def restore(name: str, work: Path, shipped: Path) -> None:
    """Write the tokenizer, and a checkpoint of the model `name` (target or draft), into a work folder."""
    reader = gguf.GGUFReader(shipped / NAMES[name][1])
    _tokenizer(reader).save(str(work / "tokenizer.json"))
    (work / f"{name}.pt").unlink(missing_ok=True)
    run = Run(name, work, rate=1.0)
    run.model.load_state_dict(_weights(reader, SHAPES[name]))
    run.average = {key: value.clone() for key, value in run.model.state_dict().items()}
    run.save()


def main() -> None:
    """Restore one or both models."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=sorted(SHAPES), help="target, draft or both")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--shipped", type=Path, default=SHIPPED, help="the folder of the GGUF files")
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    for name in arguments.models:
        restore(name, arguments.work, arguments.shipped)


if __name__ == "__main__":
    main()
