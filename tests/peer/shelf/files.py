"""Writes a model of the shelf as a GGUF file, or finds the file of an earlier run."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quant_shape_to_byte_shape
from numpy.typing import NDArray

from tests.peer.shelf.blocks import random_rows
from tests.peer.shelf.mixture import FILE_TYPES, Quant, choose_types
from tests.peer.shelf.shapes import Shape
from tests.peer.shelf.tensors import QUIET, Tensor, Vector, metadata, tensors
from tests.peer.shelf.vocabularies import vocabulary


def make_model(
    path: Path, shape: Shape, quant: Quant = "Q4_0", *, seed: int = 0, change: Callable[[Tensor], Tensor] | None = None
) -> Path:
    """Write a model and return its path. Only one tensor at a time is in memory. `change` is applied to each."""
    writer, all_tensors, types = _begin(path, shape, quant)
    random = np.random.default_rng(seed)
    for tensor in all_tensors:
        kind = types[tensor.name]
        writer.write_tensor_data(_data(random, tensor if change is None else change(tensor), kind))
    writer.close()
    return path


def make_hollow_model(path: Path, shape: Shape, quant: Quant) -> Path:
    """Write a model's header, and zeros as its weights: a sparse file, made at once."""
    writer, all_tensors, types = _begin(path, shape, quant)
    assert writer.fout is not None
    end = writer.fout[0].tell()
    for tensor in all_tensors:
        end += writer.ggml_pad(end, writer.data_alignment) - end
        end += int(np.prod(_byte_shape(tensor, types[tensor.name])))
    writer.fout[0].truncate(end + writer.data_alignment)
    writer.close()
    return path


def cached_model(folder: Path, shape: Shape, quant: Quant = "Q4_0", *, seed: int = 0) -> Path:
    """Return the path of a model in a folder; the model is written unless the current code wrote it before."""
    made = hashlib.sha256(f"{shape} {_source_digest()}".encode()).hexdigest()[:8]
    path = folder / f"{shape.name}-{quant}-{seed}-{made}.gguf"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}.part")
        make_model(partial, shape, quant, seed=seed).replace(path)
    return path


def _begin(path: Path, shape: Shape, quant: Quant) -> tuple[GGUFWriter, list[Tensor], dict[str, GGMLQuantizationType]]:
    """Write everything that precedes the weights."""
    words = vocabulary(shape.vocabulary, shape.num_vocab)
    all_tensors = list(tensors(shape, words))
    types = choose_types(all_tensors, quant, shape.num_layers)
    writer = GGUFWriter(path, shape.architecture)
    writer.add_name(f"random {shape.name}")
    writer.add_file_type(FILE_TYPES[quant])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    for key, value in metadata(shape).items():
        add = {int: writer.add_uint32, float: writer.add_float32, list: writer.add_array}[type(value)]
        add(f"{shape.architecture}.{key}", value)  # type: ignore[operator]
    words.write(writer)
    for tensor in all_tensors:
        kind = types[tensor.name]
        stored = _byte_shape(tensor, kind)
        writer.add_tensor_info(tensor.name, stored, np.dtype(np.uint8), int(np.prod(stored)), kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    return writer, all_tensors, types


def _byte_shape(tensor: Tensor, kind: GGMLQuantizationType) -> tuple[int, ...]:
    shape = tensor.values.shape if isinstance(tensor, Vector) else tensor.shape
    return tuple(quant_shape_to_byte_shape(shape, kind))


def _data(random: np.random.Generator, tensor: Tensor, kind: GGMLQuantizationType) -> NDArray[np.uint8]:
    if isinstance(tensor, Vector):
        return tensor.values.astype("<f4").view(np.uint8)
    *outer, columns = tensor.shape
    rows = int(np.prod(outer))
    data = random_rows(random, kind, rows, columns, tensor.std)
    if tensor.quiet:
        data[tensor.quiet.start : tensor.quiet.stop] = random_rows(
            random, kind, len(tensor.quiet), columns, tensor.std * QUIET
        )
    return data


@cache
def _source_digest() -> str:
    """Return a digest of this package, so that changed code writes to other file names."""
    sources = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()
