"""Reads the two tables of a GGUF header, metadata and tensors, within limits. header.py interprets the values.

The rules are those of llama.cpp's own reader (gguf.cpp).
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from dataclasses import dataclass

from edgeagent.store.gguf.byte_reader import ByteReader
from edgeagent.store.gguf.tensor_types import TENSOR_TYPES

MAX_KEYS = 8192
MAX_KEY_BYTES = 1024
MAX_TEXT_BYTES = 1 << 20
# llama.cpp compares each tensor's name with all earlier ones, so its time grows with the square of their number. It
# refuses a layer with too many tensors only after that. The largest known models have about 2,100 tensors, 34 a layer.
MAX_TENSORS = 1 << 14
MAX_TENSORS_PER_LAYER = 128
MAX_TENSORS_OUTSIDE_LAYERS = 1024
MAX_TENSOR_NAME_BYTES = 63
MAX_DIMS = 4

_INT64_MAX = (1 << 63) - 1
STRING = 8
ARRAY = 9
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
CHAT_TEMPLATE = "tokenizer.chat_template"
TEXTS = frozenset(
    {
        "general.architecture",
        "general.license",
        "general.name",
        "general.type",
        "tokenizer.ggml.model",
        "tokenizer.ggml.pre",
    }
)
# Ends of the keys of arrays whose elements are kept: one for each layer.
LAYER_ARRAYS = (".attention.head_count_kv", ".feed_forward_length")
_MAX_LAYER_ARRAY = 512
_WHOLE_NUMBERS = (4, 5, 10, 11)
_MAX_SHOWN_CHARS = 40

_TABLE = "token_embd.weight"  # the token embeddings
_OUTPUT = "output.weight"
_LAYER = re.compile(r"blk\.(\d{1,3})\.", re.ASCII)
_EXPERTS = "_exps."


@dataclass(frozen=True, slots=True)
class Array:
    """The type of an array's elements, their number, and the range of the file's bytes that holds them (`place`).

    If the key ends as in LAYER_ARRAYS and the elements are integers, they are in `values`, and `place` is empty.
    """

    element_type: int
    count: int
    values: tuple[int, ...] = ()
    place: range = range(0)


Metadata = dict[str, int | float | str | Array]


@dataclass(frozen=True, slots=True)
class Tensors:
    """Sums over all tensors of a file.

    `data_bytes` is the distance from the start of the tensor data to the end of the last tensor. `matrix_bytes` holds
    the bytes of matrices by tensor type. The token embeddings are not among them, because they are only looked up;
    `table_bytes` is their size. `layer_bytes` and `expert_bytes` hold the bytes of each layer and of its experts, by
    the layer's number.
    """

    num_params: int
    num_params_by_type: Counter[str]
    num_by_type: Counter[str]
    matrix_bytes: Counter[str]
    layer_bytes: Counter[int]
    expert_bytes: Counter[int]
    table_bytes: int
    output_bytes: int
    data_bytes: int


def read_metadata(reader: ByteReader, num_keys: int) -> Metadata:
    """Return the metadata: the value of each key.

    The texts of the keys in TEXTS are whole. Other texts are cut short. Of most arrays, only the type, the length and
    the place in the file are returned; see Array.
    """
    metadata: Metadata = {}
    for _ in range(num_keys):
        key = reader.string("a metadata key", MAX_KEY_BYTES)
        if not key or key in metadata:
            reader.fail(f"metadata key {shown(key)} is empty or appears twice")
        metadata[key] = _read_value(reader, key)
    return metadata


def _read_value(reader: ByteReader, key: str) -> int | float | str | Array:
    kind = reader.u32()
    if kind == STRING:
        if key in TEXTS:
            return reader.string(key, MAX_TEXT_BYTES)
        if key == CHAT_TEMPLATE:
            return reader.string_start(MAX_TEXT_BYTES)
        return reader.string_start(_MAX_SHOWN_CHARS + 1)
    if kind == ARRAY:
        return _skip_array(reader, key)
    layout = _SCALARS.get(kind)
    if layout is None:
        reader.fail(f"metadata key {shown(key)} has the unknown type {kind}")
    value: int | float = layout.unpack(reader.take(layout.size))[0]
    return value


def _skip_array(reader: ByteReader, key: str) -> Array:
    element_type, count = reader.u32(), reader.u64()
    start, layout = reader.offset, _SCALARS.get(element_type)
    if element_type == STRING:
        if count > reader.size_bytes // 8:
            reader.fail(f"array {shown(key)} declares {count} strings, more than the file can hold")
        reader.skip_strings(count)
    elif layout is not None and key.endswith(LAYER_ARRAYS) and element_type in _WHOLE_NUMBERS:
        if count > _MAX_LAYER_ARRAY:
            reader.fail(f"array {shown(key)} has {count} elements, more than there can be layers")
        return Array(element_type, count, tuple(layout.unpack(reader.take(layout.size))[0] for _ in range(count)))
    elif layout is not None:
        reader.skip(count * layout.size)
    else:
        reader.fail(f"array {shown(key)} has elements of the unknown type {element_type}")
    return Array(element_type, count, place=range(start, reader.offset))


def shown(value: object) -> str:
    """Return a value from a file as short text on one line, for a message. An array is described, not listed."""
    match value:
        case Array(element_type, count):
            kind = {STRING: "texts", 7: "truth values"}.get(element_type, "numbers")
            return f"an array of {count} {kind}"
        case bool():
            return "true" if value else "false"
        case str():
            return repr(value) if len(value) <= _MAX_SHOWN_CHARS else f"{value[:_MAX_SHOWN_CHARS]!r}…"
        case _:
            return str(value)


def read_alignment(reader: ByteReader, metadata: Metadata) -> int:
    """Return the alignment of the tensor data in bytes; raise ModelDamaged if it is not a power of two."""
    # bool is excluded although it is an int, because gguf.cpp requires a 32-bit unsigned integer here.
    alignment = metadata.get("general.alignment", 32)
    if type(alignment) is not int or alignment <= 0 or alignment & (alignment - 1) or alignment > 1 << 31:
        reader.fail(f"general.alignment is {shown(alignment)}, not a power of two")
    return alignment


def read_tensors(reader: ByteReader, num_tensors: int, alignment: int) -> Tensors:
    """Read the tensor table and return the sums over its tensors.

    Raise ModelDamaged if the table is invalid, or if the file ends before the tensors' data.
    """
    names: set[str] = set()
    sums = _Sums()
    offset, end = 0, 0
    for _ in range(num_tensors):
        name = reader.string("a tensor's name", MAX_TENSOR_NAME_BYTES)
        if name in names:
            reader.fail(f"tensor {name!r} appears twice")
        names.add(name)
        type_name, num_elements, num_bytes, is_matrix = _read_shape(reader, name)
        declared_offset = reader.u64()
        if declared_offset != offset:
            reader.fail(f"tensor {name!r} is declared at offset {declared_offset}, expected {offset}")
        end = offset + num_bytes
        offset = _padded(end, alignment)
        if offset > _INT64_MAX:
            reader.fail(f"tensor {name!r} ends past the largest possible offset")
        sums.add(name, type_name, num_elements, num_bytes, is_matrix=is_matrix)
    data_start = _padded(reader.offset, alignment)
    if num_tensors and data_start + end > reader.size_bytes:
        reader.fail(
            f"the file is truncated: its tensors need {data_start + end} bytes and it has {reader.size_bytes}; "
            "download it again"
        )
    return sums.total(end)


class _Sums:
    """Adds up the tensors of a file."""

    def __init__(self) -> None:
        self._num_params_by_type: Counter[str] = Counter()
        self._num_by_type: Counter[str] = Counter()
        self._matrix_bytes: Counter[str] = Counter()
        self._layer_bytes: Counter[int] = Counter()
        self._expert_bytes: Counter[int] = Counter()
        self._outside: Counter[str] = Counter()

    def add(self, name: str, type_name: str, num_elements: int, num_bytes: int, *, is_matrix: bool) -> None:
        """Add a tensor to the sums."""
        self._num_params_by_type[type_name] += num_elements
        self._num_by_type[type_name] += 1
        if is_matrix and name != _TABLE:
            self._matrix_bytes[type_name] += num_bytes
        layer = _LAYER.match(name)
        if layer is None:
            self._outside[name] += num_bytes
        else:
            self._layer_bytes[int(layer[1])] += num_bytes
            self._expert_bytes[int(layer[1])] += num_bytes if _EXPERTS in name else 0

    def total(self, data_bytes: int) -> Tensors:
        """Return the sums. `data_bytes` is the offset in the tensor data at which the last tensor ends."""
        return Tensors(
            self._num_params_by_type.total(),
            self._num_params_by_type,
            self._num_by_type,
            self._matrix_bytes,
            self._layer_bytes,
            self._expert_bytes,
            self._outside[_TABLE],
            self._outside[_OUTPUT],
            data_bytes,
        )


def _read_shape(reader: ByteReader, name: str) -> tuple[str, int, int, bool]:
    """Return a tensor's type name, number of elements, bytes, and whether it holds one or more matrices."""
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
    num_bytes = num_elements // kind.block_elements * kind.block_bytes
    return kind.name, num_elements, num_bytes, sum(dim > 1 for dim in dims) > 1


def _padded(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment
