"""Reads and checks GGUF headers, in bounded time and memory, before any worker opens the file.

It refuses what llama.cpp's own reader (gguf.cpp) refuses, headers over the limits of this package, and what would
crash the worker later: data missing at the end, or tensor types that ggml cannot compute with. It never reads tensor
data.
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path

from edgeagent.errors import ModelDamaged, ModelNotFound
from edgeagent.store.gguf.file_shape import memory_kind, merge_shapes, read_shape
from edgeagent.store.gguf.tables import (
    CHAT_TEMPLATE,
    FILE_TYPES,
    MAX_KEYS,
    MAX_TENSORS,
    MAX_TENSORS_OUTSIDE_LAYERS,
    MAX_TENSORS_PER_LAYER,
    STRING,
    Array,
    ByteReader,
    Metadata,
    Tensors,
    open_model_file,
    read_alignment,
    read_metadata,
    read_tensors,
    shown,
)
from edgeagent.store.names.parsing import MAX_SPLITS, split_paths
from edgeagent.types import FileShape

MAX_LAYERS = 512
TOKENS = "tokenizer.ggml.tokens"
ADAPTER = "adapter"
# llama_pooling_type of models that rank.
_RANKING = 4
# The keys, and their older names, of the tokens before, behind and in a gap.
_INFILL_KEYS = tuple(
    (f"tokenizer.ggml.fim_{short}_token_id", f"tokenizer.ggml.{word}_token_id")
    for short, word in (("pre", "prefix"), ("suf", "suffix"), ("mid", "middle"))
)

_ARCHITECTURE = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Split:
    """Which part of a split model a file is. `no` counts from 0.

    `num_tensors` counts the tensors of all parts; None if the file does not state it.
    """

    no: int
    count: int
    num_tensors: int | None


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """A model file's header. `quant` is the file's own label (Q4_K_M), or else the tensor type of most parameters.

    `kind` is "model", "adapter" or another value of `general.type`. `tensor_types` has the number of tensors of each
    type. `tokens_at` is the range of the file's bytes that holds the vocabulary's tokens; empty if there is no
    vocabulary. For `memory_kind` see the function of that name. `num_prediction_layers` counts the layers at the end
    that only predict further tokens (MTP, NextN).
    `is_embedding`: the model was made for embeddings or ranking, even if its memory is not that of an encoder.
    `is_ranking`: it was made for ranking. `has_infill_tokens`: the file names the tokens that mark a gap to fill.
    """

    path: Path
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
    tokens_at: range
    shape: FileShape
    memory_kind: str
    split: Split | None
    size_bytes: int
    kind: str = "model"
    license: str = ""
    num_prediction_layers: int = 0
    is_embedding: bool = False
    is_ranking: bool = False
    chat_template: str = ""
    has_infill_tokens: bool = False


def read_header(path: Path) -> GgufHeader:
    """Return one file's header.

    Raise ModelNotFound if there is no file, ModelDamaged if the header is bad, ModelLoadFailed if it cannot be read.
    """
    with open_model_file(path) as reader:
        if reader.size_bytes == 0:
            reader.fail("it is empty; download it again")
        magic = reader.take(min(4, reader.size_bytes))
        if magic != b"GGUF":
            reader.fail("it is not a GGUF file: those begin with the letters GGUF")
        version = reader.u32()
        if version not in (2, 3):
            why = "it is big-endian" if version & 0xFFFF == 0 else "versions 2 and 3 can be read"
            reader.fail(f"its GGUF version is {version}; {why}; convert it again")
        num_tensors, num_keys = reader.u64(), reader.u64()
        if num_tensors > MAX_TENSORS:
            reader.fail(f"it declares {num_tensors} tensors, more than {MAX_TENSORS}")
        if num_keys > MAX_KEYS:
            reader.fail(f"it declares {num_keys} metadata keys, more than {MAX_KEYS}")
        metadata = read_metadata(reader, num_keys)
        _check_num_tensors(reader, metadata, num_tensors)
        alignment = read_alignment(reader, metadata)
        tensors = read_tensors(reader, num_tensors, alignment)
        return _header(reader, path, metadata, tensors)


def validate_model(path: Path) -> GgufHeader:
    """Return the header of a whole model. All parts of a split model are checked and counted together.

    Call it before a worker is given the file. Raise ModelNotFound or ModelLoadFailed.
    """
    header = read_header(path)
    if header.kind == ADAPTER:
        raise ModelDamaged(
            f'{path} is an adapter, not a model: name it under [models."NAME".adapters] of config.toml', param="model"
        )
    if not header.architecture:
        raise ModelDamaged(
            f"{path} cannot be loaded: it has no general.architecture, so it is not a model", param="model"
        )
    if header.split is None or header.split.count <= 1:
        if header.num_tensors == 0:
            raise ModelDamaged(f"{path} cannot be loaded: it holds no tensors", param="model")
        return header
    return _validate_parts(header, header.split)


def validate_adapter(path: Path) -> GgufHeader:
    """Return the header of a LoRA adapter. Raise ModelNotFound or ModelLoadFailed."""
    header = read_header(path)
    if header.kind != ADAPTER:
        raise ModelDamaged(
            f"{path} is not an adapter: its general.type is {header.kind!r}, not {ADAPTER!r}", param="model"
        )
    return header


def _validate_parts(first: GgufHeader, split: Split) -> GgufHeader:
    paths = split_paths(first.path)
    if split.no != 0 or paths[0] != first.path:
        raise ModelDamaged(
            f"{first.path} is part {split.no + 1} of {split.count}: give the first part, {paths[0].name}", param="model"
        )
    if len(paths) != split.count:
        raise ModelDamaged(
            f"{first.path} says it is one of {split.count} parts, but its name does not end in "
            f"-00001-of-{split.count:05d}.gguf: give the files back their names",
            param="model",
        )
    headers = [first]
    for no, path in enumerate(paths[1:], start=1):
        try:
            part = read_header(path)
        except ModelNotFound:
            raise ModelDamaged(f"{path} is missing: part {no + 1} of {split.count}", param="model") from None
        if part.split is None or (part.split.no, part.split.count) != (no, split.count):
            raise ModelDamaged(f"{path} is not part {no + 1} of {split.count} of {first.path.name}", param="model")
        headers.append(part)
    return _merged(headers, split)


def _merged(headers: list[GgufHeader], split: Split) -> GgufHeader:
    num_tensors = sum(header.num_tensors for header in headers)
    if num_tensors == 0 or split.num_tensors not in (None, num_tensors):
        raise ModelDamaged(
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
        shape=merge_shapes([header.shape for header in headers]),
        size_bytes=sum(header.size_bytes for header in headers),
    )


def _header(reader: ByteReader, path: Path, metadata: Metadata, tensors: Tensors) -> GgufHeader:
    architecture = _text(reader, metadata, "general.architecture")
    if architecture and _ARCHITECTURE.fullmatch(architecture) is None:
        reader.fail(f"its architecture {shown(architecture)} is not a name")
    num_layers = _whole(reader, metadata, f"{architecture}.block_count")
    if num_layers is not None and num_layers > MAX_LAYERS:
        reader.fail(f"it declares {num_layers} layers, more than llama.cpp's {MAX_LAYERS}")
    num_vocab = _num_vocab(reader, metadata)
    shape = read_shape(metadata, architecture, tensors, num_bytes=reader.size_bytes, num_vocab=num_vocab)
    return GgufHeader(
        path=path,
        architecture=architecture,
        name=_printable(_text(reader, metadata, "general.name")),
        license=_printable(_text(reader, metadata, "general.license")),
        quant=_quant(reader, metadata, tensors),
        context_length=_whole(reader, metadata, f"{architecture}.context_length"),
        num_layers=num_layers,
        num_params=tensors.num_params.total(),
        num_tensors=tensors.num_by_type.total(),
        tensor_types=tuple(tensors.num_by_type.most_common()),
        tokenizer=_printable(_text(reader, metadata, "tokenizer.ggml.model")),
        pre_tokenizer=_printable(_text(reader, metadata, "tokenizer.ggml.pre")),
        num_vocab=num_vocab,
        tokens_at=tokens.place if isinstance(tokens := metadata.get(TOKENS), Array) else range(0),
        shape=shape,
        memory_kind=memory_kind(metadata, architecture),
        split=_split(reader, metadata),
        size_bytes=reader.size_bytes,
        kind=_printable(_text(reader, metadata, "general.type")) or "model",
        num_prediction_layers=_whole(reader, metadata, f"{architecture}.nextn_predict_layers") or 0,
        is_embedding=bool(pooling := _whole(reader, metadata, f"{architecture}.pooling_type")),
        is_ranking=pooling == _RANKING,
        chat_template=template if isinstance(template := metadata.get(CHAT_TEMPLATE), str) else "",
        has_infill_tokens=all(any(key in metadata for key in keys) for keys in _INFILL_KEYS),
    )


def _check_num_tensors(reader: ByteReader, metadata: Metadata, num_tensors: int) -> None:
    """Refuse more tensors than the layers can have. A file that does not state its number of layers is not checked."""
    num_layers = _whole(reader, metadata, f"{metadata.get('general.architecture', '')}.block_count")
    if num_layers is None:
        return
    most = MAX_TENSORS_OUTSIDE_LAYERS + MAX_TENSORS_PER_LAYER * num_layers
    if num_tensors > most:
        reader.fail(f"it declares {num_tensors} tensors, more than {most} for its {num_layers} layers")


def _num_vocab(reader: ByteReader, metadata: Metadata) -> int:
    """Return the number of tokens in the vocabulary; 0 if there is none.

    Refuse a file if its array of scores or of token types is shorter, because llama.cpp indexes them by token.
    """
    tokens = metadata.get(TOKENS)
    if tokens is None:
        return 0
    if not isinstance(tokens, Array) or tokens.element_type != STRING:
        reader.fail(f"{TOKENS} is not an array of strings")
    for name in ("tokenizer.ggml.scores", "tokenizer.ggml.token_type"):
        array = metadata.get(name)
        if array is None:
            continue
        if not isinstance(array, Array) or array.element_type not in (5, 6) or array.count < tokens.count:
            reader.fail(f"{name} does not hold a number for each of the {tokens.count} tokens")
    return tokens.count


def _split(reader: ByteReader, metadata: Metadata) -> Split | None:
    count = _whole(reader, metadata, "split.count")
    if count is None or count == 0:
        return None
    no = _whole(reader, metadata, "split.no")
    if no is None or no >= count or count > MAX_SPLITS:
        reader.fail(f"it says it is part {no} of {count} (parts count from 0, at most {MAX_SPLITS})")
    return Split(no, count, _whole(reader, metadata, "split.tensors.count"))


def _quant(reader: ByteReader, metadata: Metadata, tensors: Tensors) -> str:
    file_type = _whole(reader, metadata, "general.file_type")
    # llama.h adds 1024 to a type that was guessed.
    label = FILE_TYPES.get(file_type & ~1024) if file_type is not None else None
    if label is not None:
        return label
    commonest = tensors.num_params.most_common(1)
    return commonest[0][0] if commonest else ""


def _whole(reader: ByteReader, metadata: Metadata, key: str) -> int | None:
    value = metadata.get(key)
    if value is None:
        return None
    if type(value) is not int or not 0 <= value <= 0xFFFF_FFFF:
        reader.fail(f"{key} is {shown(value)}, not a whole number")
    return value


def _text(reader: ByteReader, metadata: Metadata, key: str) -> str:
    value = metadata.get(key, "")
    if not isinstance(value, str):
        reader.fail(f"{key} is not text")
    return value


def _printable(text: str) -> str:
    # The text comes from an untrusted file, and is written to terminals and logs.
    return "".join(char if char.isprintable() else " " for char in text[:200]).strip()


_LENGTH = struct.Struct("<Q")


def first_difference(model: GgufHeader, draft: GgufHeader) -> str | None:
    """Return a text with the first token that differs between two models; None if all tokens are the same.

    The result is also None if a file has no vocabulary. A file that was changed after its header was read is not
    detected. Raise OSError if a file cannot be read.
    """
    mine, theirs = (_tokens_of(header) for header in (model, draft))
    if mine == theirs or not mine or not theirs:
        return None
    for number, (one, other) in enumerate(zip_longest(_tokens(mine), _tokens(theirs))):
        if one != other:
            return f"token {number} is {_shown(one)} in {model.path} and {_shown(other)} in {draft.path}"
    return None


def _tokens_of(header: GgufHeader) -> bytes:
    """Return the bytes of the token array in the file."""
    place = header.tokens_at
    with header.path.open("rb") as file:
        file.seek(place.start)
        return file.read(len(place))


def _tokens(array: bytes) -> Iterator[bytes]:
    at = 0
    while at + _LENGTH.size <= len(array):
        (num_bytes,) = _LENGTH.unpack_from(array, at)
        at += _LENGTH.size
        yield array[at : at + num_bytes]
        at += num_bytes


def _shown(token: bytes | None) -> str:
    return "missing" if token is None else shown(token.decode("utf-8", "replace"))
