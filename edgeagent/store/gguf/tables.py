"""Reads the two tables of a GGUF header, metadata and tensors, within limits. header.py interprets the values.

The rules are those of llama.cpp's own reader (gguf.cpp). The types come from ggml.h, ggml-common.h (`type_traits`) and
llama.h (`enum llama_ftype`). The file is read into a buffer, the window, and not mapped: a file that shrinks while it
is mapped would kill the process with SIGBUS.
"""

from __future__ import annotations

import os
import re
import stat
import struct
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Never

from edgeagent.errors import ModelDamaged, ModelLoadFailed, ModelNotFound

MAX_HEADER_BYTES = 256 << 20
MAX_STRING_BYTES = 64 << 20
MAX_ARRAY_STRINGS = 1 << 22

_WINDOW_BYTES = 1 << 20
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


class ByteReader:
    """A cursor over the header of a file.

    If the header is cut off or exceeds a limit, the methods raise ModelDamaged, which names the file and the problem.
    """

    def __init__(self, file: BinaryIO, path: Path, size_bytes: int) -> None:
        self._file = file
        self._path = path
        self._window = b""
        self._window_offset = 0
        self._pos = 0
        self._num_array_strings = 0
        self.size_bytes = size_bytes

    @property
    def offset(self) -> int:
        return self._window_offset + self._pos

    def fail(self, what: str) -> Never:
        raise ModelDamaged(f"{self._path} cannot be loaded: {what}", param="model")

    def take(self, num_bytes: int) -> bytes:
        """Return the next `num_bytes` bytes."""
        if self._pos + num_bytes > len(self._window):
            self._refill(num_bytes)
        start = self._pos
        self._pos += num_bytes
        return self._window[start : self._pos]

    def skip(self, num_bytes: int) -> None:
        """Step over bytes without reading them."""
        if self._pos + num_bytes <= len(self._window):
            self._pos += num_bytes
            return
        self._check_room(num_bytes)
        self._window_offset = self.offset + num_bytes
        self._window, self._pos = b"", 0

    def u32(self) -> int:
        return int(_U32.unpack(self.take(4))[0])

    def u64(self) -> int:
        return int(_U64.unpack(self.take(8))[0])

    def string(self, what: str, max_bytes: int) -> str:
        """Return a length-prefixed string, with invalid UTF-8 replaced. `what` names the string in the error."""
        num_bytes = self.u64()
        if num_bytes > max_bytes:
            self.fail(f"{what} is {num_bytes} bytes long, more than {max_bytes}")
        return self.take(num_bytes).decode("utf-8", "replace")

    def string_start(self, max_bytes: int) -> str:
        """Return the first `max_bytes` bytes of a length-prefixed string as text, and step over the rest."""
        num_bytes = self.u64()
        if num_bytes > MAX_STRING_BYTES:
            self.fail(f"a string at byte {self.offset} is {num_bytes} bytes long, more than {MAX_STRING_BYTES}")
        start = self.take(min(num_bytes, max_bytes)).decode("utf-8", "replace")
        self.skip(max(0, num_bytes - max_bytes))
        return start

    def skip_string(self) -> None:
        """Step over a length-prefixed string."""
        num_bytes = self.u64()
        if num_bytes > MAX_STRING_BYTES:
            self.fail(f"a string at byte {self.offset} is {num_bytes} bytes long, more than {MAX_STRING_BYTES}")
        self.skip(num_bytes)

    def skip_strings(self, count: int) -> None:
        """Step over `count` length-prefixed strings, such as a vocabulary.

        Most of the time for a header is spent here, so the loop uses local variables.
        """
        self._num_array_strings += count
        if self._num_array_strings > MAX_ARRAY_STRINGS:
            self.fail(f"its arrays hold more than {MAX_ARRAY_STRINGS} strings")
        length_at = _U64.unpack_from
        window, pos = self._window, self._pos
        last = len(window) - 8
        for _ in range(count):
            if pos <= last:
                end = pos + 8 + length_at(window, pos)[0]
                if end <= last + 8:
                    pos = end
                    continue
            self._pos = pos
            self.skip_string()
            if self._pos == len(self._window) and self.offset < self.size_bytes:
                self._refill(0)
            window, pos = self._window, self._pos
            last = len(window) - 8
        self._pos = pos

    def _check_room(self, num_bytes: int) -> None:
        end = self.offset + num_bytes
        if end > self.size_bytes:
            self.fail(f"the file ends at byte {self.size_bytes}, inside its header (byte {end} is needed)")
        if end > MAX_HEADER_BYTES:
            self.fail(f"its header is larger than {MAX_HEADER_BYTES} bytes")

    def _refill(self, num_bytes: int) -> None:
        self._check_room(num_bytes)
        offset = self.offset
        self._file.seek(offset)
        self._window = self._file.read(max(num_bytes, _WINDOW_BYTES))
        self._window_offset, self._pos = offset, 0
        if len(self._window) < num_bytes:
            self.fail("the file became shorter while it was read")


@contextmanager
def open_model_file(path: Path) -> Iterator[ByteReader]:
    """Open a regular file for reading its header.

    The open does not block, so a FIFO or a device in place of the file cannot hang this process. The kind of file is
    read from the open descriptor, so the file cannot be exchanged after the check. Raise ModelNotFound or
    ModelLoadFailed.
    """
    flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
    try:
        descriptor = os.open(path, flags)
    except (FileNotFoundError, NotADirectoryError):
        raise ModelNotFound(f"there is no file {path}: check the path", param="model") from None
    except (OSError, ValueError) as error:
        raise ModelLoadFailed(f"{path} cannot be opened: {error}", param="model") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ModelLoadFailed(f"{path} is not a regular file: give the path of a .gguf file", param="model")
        with open(descriptor, "rb", buffering=0, closefd=False) as file:
            yield ByteReader(file, path, status.st_size)
    except OSError as error:
        raise ModelLoadFailed(f"{path} cannot be read: {error}", param="model") from None
    finally:
        os.close(descriptor)


@dataclass(frozen=True, slots=True)
class TensorType:
    """A ggml type: `block_elements` values are stored in `block_bytes` bytes.

    `usable` is False for types that load without an error but abort the process at the first decode, because ggml has
    neither a product nor a row lookup for them.
    """

    name: str
    block_elements: int
    block_bytes: int
    usable: bool = True


TENSOR_TYPES: dict[int, TensorType] = {
    0: TensorType("F32", 1, 4),
    1: TensorType("F16", 1, 2),
    2: TensorType("Q4_0", 32, 18),
    3: TensorType("Q4_1", 32, 20),
    6: TensorType("Q5_0", 32, 22),
    7: TensorType("Q5_1", 32, 24),
    8: TensorType("Q8_0", 32, 34),
    9: TensorType("Q8_1", 32, 36, usable=False),
    10: TensorType("Q2_K", 256, 84),
    11: TensorType("Q3_K", 256, 110),
    12: TensorType("Q4_K", 256, 144),
    13: TensorType("Q5_K", 256, 176),
    14: TensorType("Q6_K", 256, 210),
    15: TensorType("Q8_K", 256, 292, usable=False),
    16: TensorType("IQ2_XXS", 256, 66),
    17: TensorType("IQ2_XS", 256, 74),
    18: TensorType("IQ3_XXS", 256, 98),
    19: TensorType("IQ1_S", 256, 50),
    20: TensorType("IQ4_NL", 32, 18),
    21: TensorType("IQ3_S", 256, 110),
    22: TensorType("IQ2_S", 256, 82),
    23: TensorType("IQ4_XS", 256, 136),
    24: TensorType("I8", 1, 1, usable=False),
    25: TensorType("I16", 1, 2, usable=False),
    26: TensorType("I32", 1, 4),
    27: TensorType("I64", 1, 8, usable=False),
    28: TensorType("F64", 1, 8, usable=False),
    29: TensorType("IQ1_M", 256, 56),
    30: TensorType("BF16", 1, 2),
    34: TensorType("TQ1_0", 256, 54),
    35: TensorType("TQ2_0", 256, 66),
    39: TensorType("MXFP4", 32, 17),
    40: TensorType("NVFP4", 64, 36),
    41: TensorType("Q1_0", 128, 18),
    42: TensorType("Q2_0", 64, 18),
}

FILE_TYPES: dict[int, str] = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    7: "Q8_0",
    8: "Q5_0",
    9: "Q5_1",
    10: "Q2_K",
    11: "Q3_K_S",
    12: "Q3_K_M",
    13: "Q3_K_L",
    14: "Q4_K_S",
    15: "Q4_K_M",
    16: "Q5_K_S",
    17: "Q5_K_M",
    18: "Q6_K",
    19: "IQ2_XXS",
    20: "IQ2_XS",
    21: "Q2_K_S",
    22: "IQ3_XS",
    23: "IQ3_XXS",
    24: "IQ1_S",
    25: "IQ4_NL",
    26: "IQ3_S",
    27: "IQ3_M",
    28: "IQ2_S",
    29: "IQ2_M",
    30: "IQ4_XS",
    31: "IQ1_M",
    32: "BF16",
    36: "TQ1_0",
    37: "TQ2_0",
    38: "MXFP4_MOE",
    39: "NVFP4",
    40: "Q1_0",
    41: "Q2_0",
}


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

TABLE = "token_embd.weight"  # the token embeddings
OUTPUT = "output.weight"
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


@dataclass(slots=True)
class Tensors:
    """Sums over all tensors of a file, by type, by the layer's number, or by name (`outside_bytes`: those of no layer).

    The token embeddings are not in `matrix_bytes`, because they are only looked up. `expert_bytes` is the part of
    `layer_bytes` that experts take.
    """

    num_params: Counter[str] = field(default_factory=Counter)
    num_by_type: Counter[str] = field(default_factory=Counter)
    matrix_bytes: Counter[str] = field(default_factory=Counter)
    layer_bytes: Counter[int] = field(default_factory=Counter)
    expert_bytes: Counter[int] = field(default_factory=Counter)
    outside_bytes: Counter[str] = field(default_factory=Counter)

    def add(self, name: str, type_name: str, num_elements: int, num_bytes: int, *, is_matrix: bool) -> None:
        """Add a tensor to the sums."""
        self.num_params[type_name] += num_elements
        self.num_by_type[type_name] += 1
        if is_matrix and name != TABLE:
            self.matrix_bytes[type_name] += num_bytes
        layer = _LAYER.match(name)
        if layer is None:
            self.outside_bytes[name] += num_bytes
        else:
            self.layer_bytes[int(layer[1])] += num_bytes
            self.expert_bytes[int(layer[1])] += num_bytes if _EXPERTS in name else 0


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
    sums = Tensors()
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
    return sums


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
