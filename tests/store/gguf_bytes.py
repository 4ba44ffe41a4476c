"""Writes GGUF files byte by byte, valid or deliberately broken, for tests of the reader and the store."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
_FORMATS = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "?", U64: "Q", I64: "q", F64: "d"}


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def value(kind: int, content: object) -> bytes:
    if kind == STRING:
        assert isinstance(content, str | bytes)
        return string(content)
    return struct.pack("<" + _FORMATS[kind], content)


def key(name: str | bytes, kind: int, content: object) -> bytes:
    return string(name) + struct.pack("<I", kind) + value(kind, content)


def array(name: str, element_kind: int, elements: list[object], *, count: int | None = None) -> bytes:
    head = struct.pack("<IIQ", ARRAY, element_kind, len(elements) if count is None else count)
    return string(name) + head + b"".join(value(element_kind, element) for element in elements)


def tensor(name: str | bytes, dims: list[int], kind: int = 0, offset: int = 0, *, num_dims: int | None = None) -> bytes:
    shape = struct.pack("<I", len(dims) if num_dims is None else num_dims)
    return string(name) + shape + b"".join(struct.pack("<Q", dim) for dim in dims) + struct.pack("<IQ", kind, offset)


MODEL_KEYS = (
    key("general.architecture", STRING, "llama"),
    key("general.name", STRING, "small one"),
    key("general.file_type", U32, 7),
    key("llama.block_count", U32, 2),
    key("llama.context_length", U32, 512),
    key("tokenizer.ggml.model", STRING, "gpt2"),
    key("tokenizer.ggml.pre", STRING, "qwen2"),
    array("tokenizer.ggml.tokens", STRING, ["a", "b", "ab", "<|end|>"]),
    array("tokenizer.ggml.token_type", I32, [1, 1, 1, 3]),
    array("tokenizer.ggml.merges", STRING, ["a b"]),
    key("tokenizer.chat_template", STRING, "{{ messages }}"),
)
MODEL_TENSORS = (tensor("token_embd.weight", [32, 4], 8), tensor("output_norm.weight", [32], 0, offset=160))


@dataclass(frozen=True)
class GgufBytes:
    """A file to write; every count and byte can be chosen, right or wrong."""

    keys: tuple[bytes, ...] = MODEL_KEYS
    tensors: tuple[bytes, ...] = MODEL_TENSORS
    data: bytes = bytes(288)
    magic: bytes = b"GGUF"
    version: int = 3
    num_keys: int | None = None
    num_tensors: int | None = None
    alignment: int = 32

    def header(self) -> bytes:
        num_tensors = len(self.tensors) if self.num_tensors is None else self.num_tensors
        num_keys = len(self.keys) if self.num_keys is None else self.num_keys
        counts = struct.pack("<IQQ", self.version, num_tensors, num_keys)
        return self.magic + counts + b"".join(self.keys) + b"".join(self.tensors)

    def to_bytes(self) -> bytes:
        header = self.header()
        return header + bytes(-len(header) % self.alignment) + self.data

    def write(self, path: Path) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.to_bytes())
        return path


def small_model(seed: int = 0, num_bytes: int = 288) -> bytes:
    """Return a valid file whose data depends on the seed."""
    rows = max(1, (num_bytes - 128) // 34)
    first = rows * 34
    second = -(-first // 32) * 32
    data = (seed.to_bytes(4, "little") * (-(-(second + 128) // 4)))[: second + 128]
    tensors = (tensor("token_embd.weight", [32, rows], 8), tensor("output_norm.weight", [32], 0, offset=second))
    return GgufBytes(tensors=tensors, data=data).to_bytes()


def split_model(count: int, *, seed: int = 0, num_tensors: int | None = None) -> list[bytes]:
    """Return the parts of a valid split model; the first part holds the metadata."""
    parts = []
    for no in range(count):
        split = (
            key("split.no", U16, no),
            key("split.count", U16, count),
            key("split.tensors.count", I32, count if num_tensors is None else num_tensors),
        )
        keys = (*MODEL_KEYS, *split) if no == 0 else split
        data = bytes([seed % 256]) * 128
        parts.append(GgufBytes(keys=keys, tensors=(tensor(f"blk.{no}.weight", [32]),), data=data).to_bytes())
    return parts
