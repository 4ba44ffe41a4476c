"""Reads and checks GGUF headers, in bounded time and memory, before any worker opens the file.

It accepts what llama.cpp's own reader (gguf.cpp) accepts, and refuses what that reader refuses or what would bring the
worker down later: data missing at the end, tensor types ggml cannot compute with. It never touches tensor data.
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

from edgeagent.errors import ModelLoadFailed, ModelNotFound
from edgeagent.store.byte_reader import ByteReader, open_model_file
from edgeagent.store.split import MAX_SPLITS, split_paths
from edgeagent.store.tensor_types import FILE_TYPES, TENSOR_TYPES

MAX_KEYS = 8192
MAX_KEY_BYTES = 1024
MAX_TEXT_BYTES = 1 << 20
MAX_TENSORS = 1 << 16
MAX_TENSOR_NAME_BYTES = 63
MAX_DIMS = 4
MAX_LAYERS = 512

_INT64_MAX = (1 << 63) - 1
_STRING = 8
_ARRAY = 9
_SCALARS = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<?"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
_TEXTS = frozenset({"general.architecture", "general.name", "tokenizer.ggml.model", "tokenizer.ggml.pre"})
_ARCHITECTURE = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Split:
    """A file's place in a split model. `no` counts from 0; `num_tensors` is of the whole model."""

    no: int
    count: int
    num_tensors: int | None


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """What a model file says of itself. `quant` is the file's label (Q4_K_M), or its commonest tensor type."""

    path: Path
    version: int
    architecture: str
    name: str
    quant: str
    context_length: int | None
    num_layers: int | None
    num_params: int
    num_tensors: int
    tensor_types: tuple[tuple[str, int], ...]
    tokenizer: str
    pre_tokenizer: str
    num_vocab: int
    has_chat_template: bool
    split: Split | None
    size_bytes: int
    data_bytes: int


@dataclass(frozen=True, slots=True)
class _Array:
    element_type: int
    count: int


_Metadata = dict[str, int | float | str | _Array]


@dataclass(frozen=True, slots=True)
class _Tensors:
    num_params: int
    num_params_by_type: Counter[str]
    num_by_type: Counter[str]
    data_bytes: int


def read_header(path: Path) -> GgufHeader:
    """Return one file's header. Raise ModelNotFound, or ModelLoadFailed saying what is wrong with the file."""
    with open_model_file(path) as reader:
        magic = reader.take(min(4, reader.size_bytes))
        if magic != b"GGUF":
            reader.fail(f"it begins with {magic!r}, so it is not a GGUF file (those begin with b'GGUF')")
        version = reader.u32()
        if version not in (2, 3):
            why = "it is big-endian" if version & 0xFFFF == 0 else "versions 2 and 3 can be read"
            reader.fail(f"its GGUF version is {version}; {why}; convert it again")
        num_tensors, num_keys = reader.u64(), reader.u64()
        if num_tensors > MAX_TENSORS:
            reader.fail(f"it declares {num_tensors} tensors, more than {MAX_TENSORS}")
        if num_keys > MAX_KEYS:
            reader.fail(f"it declares {num_keys} metadata keys, more than {MAX_KEYS}")
        metadata = _read_metadata(reader, num_keys)
        alignment = _alignment(reader, metadata)
        tensors = _read_tensors(reader, num_tensors, alignment)
        return _header(reader, path, version, metadata, num_tensors, tensors)


def validate_model(path: Path) -> GgufHeader:
    """Return the header of a whole model: of a split one, all parts are checked and counted together.

    Call it before a worker is given the file. Raise ModelNotFound or ModelLoadFailed.
    """
    header = read_header(path)
    if not header.architecture:
        raise ModelLoadFailed(
            f"{path} cannot be loaded: it has no general.architecture, so it is no model", param="model"
        )
    if header.split is None or header.split.count <= 1:
        if header.num_tensors == 0:
            raise ModelLoadFailed(f"{path} cannot be loaded: it holds no tensors", param="model")
        return header
    return _validate_parts(header, header.split)


def _validate_parts(first: GgufHeader, split: Split) -> GgufHeader:
    paths = split_paths(first.path)
    if split.no != 0 or paths[0] != first.path:
        raise ModelLoadFailed(
            f"{first.path} is part {split.no + 1} of {split.count}: give the first part, {paths[0].name}", param="model"
        )
    if len(paths) != split.count:
        raise ModelLoadFailed(
            f"{first.path} says it is one of {split.count} parts, but its name does not end in "
            f"-00001-of-{split.count:05d}.gguf: give the files back their names",
            param="model",
        )
    headers = [first]
    for no, path in enumerate(paths[1:], start=1):
        try:
            part = read_header(path)
        except ModelNotFound:
            raise ModelLoadFailed(f"{path} is missing: part {no + 1} of {split.count}", param="model") from None
        if part.split is None or (part.split.no, part.split.count) != (no, split.count):
            raise ModelLoadFailed(f"{path} is not part {no + 1} of {split.count} of {first.path.name}", param="model")
        headers.append(part)
    return _merged(headers, split)


def _merged(headers: list[GgufHeader], split: Split) -> GgufHeader:
    num_tensors = sum(header.num_tensors for header in headers)
    if num_tensors == 0 or split.num_tensors not in (None, num_tensors):
        raise ModelLoadFailed(
            f"{headers[0].path} declares {split.num_tensors} tensors in {split.count} parts, which hold {num_tensors}",
            param="model",
        )
    counts: Counter[str] = Counter()
    for header in headers:
        counts.update(dict(header.tensor_types))
    return replace(
        headers[0],
        num_params=sum(header.num_params for header in headers),
        num_tensors=num_tensors,
        tensor_types=tuple(counts.most_common()),
        size_bytes=sum(header.size_bytes for header in headers),
        data_bytes=sum(header.data_bytes for header in headers),
    )


def _read_metadata(reader: ByteReader, num_keys: int) -> _Metadata:
    metadata: _Metadata = {}
    for _ in range(num_keys):
        key = reader.string("a metadata key", MAX_KEY_BYTES)
        if not key or key in metadata:
            reader.fail(f"metadata key {key!r} is empty or appears twice")
        metadata[key] = _read_value(reader, key)
    return metadata


def _read_value(reader: ByteReader, key: str) -> int | float | str | _Array:
    kind = reader.u32()
    if kind == _STRING:
        if key in _TEXTS:
            return reader.string(key, MAX_TEXT_BYTES)
        reader.skip_string()
        return ""
    if kind == _ARRAY:
        return _skip_array(reader, key)
    layout = _SCALARS.get(kind)
    if layout is None:
        reader.fail(f"metadata key {key!r} has the unknown type {kind}")
    value: int | float = layout.unpack(reader.take(layout.size))[0]
    return value


def _skip_array(reader: ByteReader, key: str) -> _Array:
    element_type, count = reader.u32(), reader.u64()
    layout = _SCALARS.get(element_type)
    if element_type == _STRING:
        if count > reader.size_bytes // 8:
            reader.fail(f"array {key!r} declares {count} strings, more than the file can hold")
        reader.skip_strings(count)
    elif layout is not None:
        reader.skip(count * layout.size)
    else:
        reader.fail(f"array {key!r} has elements of the unknown type {element_type}")
    return _Array(element_type, count)


def _alignment(reader: ByteReader, metadata: _Metadata) -> int:
    # bool is excluded although it is an int: gguf.cpp wants a 32-bit unsigned integer here.
    alignment = metadata.get("general.alignment", 32)
    if type(alignment) is not int or alignment <= 0 or alignment & (alignment - 1) or alignment > 1 << 31:
        reader.fail(f"general.alignment is {alignment!r}, not a power of two")
    return alignment


def _read_tensors(reader: ByteReader, num_tensors: int, alignment: int) -> _Tensors:
    names: set[str] = set()
    num_params, offset, end = 0, 0, 0
    num_params_by_type: Counter[str] = Counter()
    num_by_type: Counter[str] = Counter()
    for _ in range(num_tensors):
        name = reader.string("a tensor's name", MAX_TENSOR_NAME_BYTES)
        if name in names:
            reader.fail(f"tensor {name!r} appears twice")
        names.add(name)
        type_name, num_elements, num_bytes = _read_shape(reader, name)
        declared_offset = reader.u64()
        if declared_offset != offset:
            reader.fail(f"tensor {name!r} is declared at offset {declared_offset}, expected {offset}")
        end = offset + num_bytes
        offset = _padded(end, alignment)
        if offset > _INT64_MAX:
            reader.fail(f"tensor {name!r} ends past the largest possible offset")
        num_params += num_elements
        num_params_by_type[type_name] += num_elements
        num_by_type[type_name] += 1
    data_start = _padded(reader.offset, alignment)
    if num_tensors and data_start + end > reader.size_bytes:
        reader.fail(
            f"the file is truncated: its tensors need {data_start + end} bytes and it has {reader.size_bytes}; "
            "download it again"
        )
    return _Tensors(num_params, num_params_by_type, num_by_type, end)


def _read_shape(reader: ByteReader, name: str) -> tuple[str, int, int]:
    """Return a tensor's type name, its number of elements and its bytes."""
    num_dims = reader.u32()
    if num_dims > MAX_DIMS:
        reader.fail(f"tensor {name!r} has {num_dims} dimensions, more than {MAX_DIMS}")
    dims = [reader.u64() for _ in range(num_dims)]
    num_elements = 1
    for dim in dims:
        # Zeros count as ones here, so that no product of the other dimensions can overflow either.
        num_elements *= max(dim, 1)
        if num_elements > _INT64_MAX:
            reader.fail(f"tensor {name!r} has the shape {dims}, too large to be counted")
    if 0 in dims:
        num_elements = 0
    type_id = reader.u32()
    kind = TENSOR_TYPES.get(type_id)
    if kind is None:
        reader.fail(f"tensor {name!r} has the type {type_id}, which this llama.cpp does not know")
    if not kind.usable:
        reader.fail(f"tensor {name!r} has the type {kind.name}, which llama.cpp cannot compute with; convert it again")
    row = dims[0] if dims else 1
    if row % kind.block_elements:
        reader.fail(f"tensor {name!r} has rows of {row}, not a multiple of {kind.name}'s {kind.block_elements}")
    return kind.name, num_elements, num_elements // kind.block_elements * kind.block_bytes


def _padded(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment


def _header(
    reader: ByteReader, path: Path, version: int, metadata: _Metadata, num_tensors: int, tensors: _Tensors
) -> GgufHeader:
    architecture = _text(reader, metadata, "general.architecture")
    if architecture and _ARCHITECTURE.fullmatch(architecture) is None:
        reader.fail(f"its architecture {architecture[:64]!r} is not a name")
    num_layers = _whole(reader, metadata, f"{architecture}.block_count")
    if num_layers is not None and num_layers > MAX_LAYERS:
        reader.fail(f"it declares {num_layers} layers, more than llama.cpp's {MAX_LAYERS}")
    return GgufHeader(
        path=path,
        version=version,
        architecture=architecture,
        name=_printable(_text(reader, metadata, "general.name")),
        quant=_quant(reader, metadata, tensors),
        context_length=_whole(reader, metadata, f"{architecture}.context_length"),
        num_layers=num_layers,
        num_params=tensors.num_params,
        num_tensors=num_tensors,
        tensor_types=tuple(tensors.num_by_type.most_common()),
        tokenizer=_printable(_text(reader, metadata, "tokenizer.ggml.model")),
        pre_tokenizer=_printable(_text(reader, metadata, "tokenizer.ggml.pre")),
        num_vocab=_num_vocab(reader, metadata),
        has_chat_template=any(key.startswith("tokenizer.chat_template") for key in metadata),
        split=_split(reader, metadata),
        size_bytes=reader.size_bytes,
        data_bytes=tensors.data_bytes,
    )


def _num_vocab(reader: ByteReader, metadata: _Metadata) -> int:
    """Return the number of tokens; the arrays beside the tokens must not be shorter (llama.cpp indexes them alike)."""
    key = "tokenizer.ggml.tokens"
    tokens = metadata.get(key)
    if tokens is None:
        return 0
    if not isinstance(tokens, _Array) or tokens.element_type != _STRING:
        reader.fail(f"{key} is not an array of strings")
    for name in ("tokenizer.ggml.scores", "tokenizer.ggml.token_type"):
        array = metadata.get(name)
        if array is None:
            continue
        if not isinstance(array, _Array) or array.element_type not in (5, 6) or array.count < tokens.count:
            reader.fail(f"{name} does not hold a number for each of the {tokens.count} tokens")
    return tokens.count


def _split(reader: ByteReader, metadata: _Metadata) -> Split | None:
    count = _whole(reader, metadata, "split.count")
    if count is None or count == 0:
        return None
    no = _whole(reader, metadata, "split.no")
    if no is None or no >= count or count > MAX_SPLITS:
        reader.fail(f"it says it is part {no} of {count} (parts count from 0, at most {MAX_SPLITS})")
    return Split(no, count, _whole(reader, metadata, "split.tensors.count"))


def _quant(reader: ByteReader, metadata: _Metadata, tensors: _Tensors) -> str:
    file_type = _whole(reader, metadata, "general.file_type")
    # llama.h: 1024 marks a guess, added to the type.
    label = FILE_TYPES.get(file_type & ~1024) if file_type is not None else None
    if label is not None:
        return label
    commonest = tensors.num_params_by_type.most_common(1)
    return commonest[0][0] if commonest else ""


def _whole(reader: ByteReader, metadata: _Metadata, key: str) -> int | None:
    value = metadata.get(key)
    if value is None:
        return None
    if type(value) is not int or not 0 <= value <= 0xFFFF_FFFF:
        reader.fail(f"{key} is {value!r}, not a whole number")
    return value


def _text(reader: ByteReader, metadata: _Metadata, key: str) -> str:
    value = metadata.get(key, "")
    if not isinstance(value, str):
        reader.fail(f"{key} is not text")
    return value


def _printable(text: str) -> str:
    # The text comes from a stranger's file and is written to terminals and logs.
    return "".join(char if char.isprintable() else " " for char in text[:200]).strip()
