"""Makes tiny LoRA adapters with random weights for tiny models, and models with those weights merged in."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
from gguf import GGUFReader, GGUFWriter
from numpy.typing import NDArray

RANK = 4
ALPHA = 8.0
CHANGED = ("attn_q.weight", "ffn_down.weight")


def make_adapter(
    path: Path, model: Path, *, seed: int = 0, std: float = 0.1, kind: str = "adapter", num_stacked: int = 0
) -> Path:
    """Write an adapter for a model to `path` and return it.

    `num_stacked` stacks each matrix this many times: llama.cpp loads such a file, and aborts when it computes with it.
    """
    writer = GGUFWriter(path, "llama")
    writer.add_type(kind)
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", ALPHA)
    for name, (a, b) in _matrices(model, seed, std).items():
        for part, matrix in (("lora_a", a), ("lora_b", b)):
            stacked = np.stack([matrix] * num_stacked) if num_stacked else matrix
            writer.add_tensor(f"{name}.{part}", stacked)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def merge_adapter(path: Path, model: Path, *, seed: int = 0, std: float = 0.1) -> Path:
    """Write a model of F32 weights, merged with an adapter's weights, to `path` and return it."""
    shutil.copyfile(model, path)
    matrices = _matrices(model, seed, std)
    reader = GGUFReader(path, "r+")
    for tensor in reader.tensors:
        if tensor.name in matrices:
            a, b = matrices[tensor.name]
            tensor.data[:] += (ALPHA / RANK) * (b @ a)
    reader.data.flush()
    return path


def _matrices(model: Path, seed: int, std: float) -> dict[str, tuple[NDArray[np.float32], NDArray[np.float32]]]:
    random = np.random.default_rng(seed)
    made = {}
    for tensor in GGUFReader(model).tensors:
        if tensor.name.endswith(CHANGED):
            width, height = map(int, tensor.shape)
            a, b = random.normal(0, std, (RANK, width)), random.normal(0, std, (height, RANK))
            made[tensor.name] = a.astype(np.float32), b.astype(np.float32)
    return made
