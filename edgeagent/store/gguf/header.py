"""Reads and checks GGUF headers, in bounded time and memory, before any worker opens the file.

It refuses what llama.cpp's own reader (gguf.cpp) refuses, headers over the limits of this package, and what would
crash the worker later: data missing at the end, or tensor types that ggml cannot compute with. It never reads tensor
data.
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path

from msgspec import structs

from edgeagent.errors import ModelDamaged, ModelNotFound
from edgeagent.store.gguf.tables import (
    CHAT_TEMPLATE,
    FILE_TYPES,
    MAX_KEYS,
    MAX_TENSORS,
    MAX_TENSORS_OUTSIDE_LAYERS,
    MAX_TENSORS_PER_LAYER,
    OUTPUT,
    STRING,
    TABLE,
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
from edgeagent.types import FileShape, LayerShape

# Encoders whose files may lack the key `attention.causal`.
_ENCODERS = ("gemma-embedding", "t5encoder")


def memory_kind(metadata: Metadata, architecture: str) -> str:
    """Return the kind of memory that a model has.

    - "encoder": it keeps nothing.
    - "recurrent": all layers keep a state of fixed size.
    - "hybrid": it has such states and attention.
    - "latent": attention with compressed keys and values.
    - "sliding window": attention that covers only the latest tokens in some layers or in all.
    - "attention": full attention.
    """
    number = _Numbers(metadata, architecture)
    if is_encoder(metadata, architecture):
        return "encoder"
    if number.has_any(*_STATE_KEYS):
        heads = number.of_layers("attention.head_count_kv", number("attention.head_count"), MAX_LAYERS)
        return "hybrid" if any(heads) else "recurrent"
    if number.has_any("full_attention_interval"):
        return "hybrid"
    if number("attention.kv_lora_rank"):
        return "latent"
    return "sliding window" if number("attention.sliding_window", most=_MAX_CONTEXT) else "attention"


def is_encoder(metadata: Metadata, architecture: str) -> bool:
    """Whether a model is an encoder: it reads a whole text in one pass and keeps no KV cache."""
    return architecture in _ENCODERS or metadata.get(f"{architecture}.attention.causal") is False


# Keys of models in which some layers, or all, keep a state of fixed size.
_STATE_KEYS = ("ssm.", "wkv.", "rwkv.", "shortconv.", "kda.", "token_shift_count")
_BOTH = ("falcon-h1",)  # each layer has attention and a state
_ONE_PART = ("nemotron_h", "nemotron_h_moe")  # each layer has attention, a state, or a feed-forward part
# For these architectures llama.cpp can keep earlier states (llm_arch_supports_rs_rollback). It names others too. One of
# them, qwen4exp, is known not to rewind exactly (llama.cpp issue 28019); the rest are too large for one machine.
_KEEPS_STATES = ("lfm2", "lfm2moe", "nemotron_h", "nemotron_h_moe", "qwen35", "qwen35moe")
_NOTHING = (0, 0, 0)
_MAX_WIDTH = 1 << 20
_MAX_CONTEXT = 1 << 31
MAX_LAYERS = 512


class _Numbers:
    """Reads a header's numbers for one architecture. A call returns the number of one key.

    `name` is the key without the architecture at its beginning. If the key is missing, the result is `default`. A value
    that is not an integer from 0 to `most` counts as 0.
    """

    def __init__(self, metadata: Metadata, architecture: str) -> None:
        self._metadata = metadata
        self._prefix = f"{architecture}."

    def __call__(self, name: str, default: int = 0, most: int = _MAX_WIDTH) -> int:
        value = self._metadata.get(self._prefix + name, default)
        return value if type(value) is int and 0 <= value <= most else 0

    def of_layers(self, name: str, default: int, num_layers: int) -> list[int]:
        """Return one number for each layer: from the key's array, or the key's only number for all layers.

        If the key is missing, each layer gets `default`. A layer beyond the array's end gets 0. If the array has a
        number that is out of range, all layers get 0.
        """
        value = self._metadata.get(self._prefix + name)
        if isinstance(value, Array):
            values = [*value.values[:num_layers]] + [0] * (num_layers - len(value.values))
            return values if all(0 <= each <= _MAX_WIDTH for each in values) else [0] * num_layers
        return [self(name, default)] * num_layers

    def has_any(self, *names: str) -> bool:
        return any(key.startswith(tuple(self._prefix + name for name in names)) for key in self._metadata)


def read_shape(metadata: Metadata, architecture: str, tensors: Tensors, *, num_bytes: int, num_vocab: int) -> FileShape:
    """Return the shape of one file. A later part of a split model has little metadata, so its shape is incomplete."""
    number = _Numbers(metadata, architecture)
    num_layers = min(MAX_LAYERS, max(number("block_count"), max(tensors.layer_bytes, default=-1) + 1))
    kept = _kept(metadata, architecture, num_layers)
    return FileShape(
        num_bytes=num_bytes,
        num_vocab=num_vocab,
        context_length=number("context_length", most=_MAX_CONTEXT),
        width=number("embedding_length"),
        num_heads=number("attention.head_count"),
        ffn_width=max(
            *number.of_layers("feed_forward_length", 0, max(1, num_layers)),
            number("expert_feed_forward_length") * number("expert_used_count"),
        ),
        table_bytes=tensors.outside_bytes[TABLE],
        output_bytes=tensors.outside_bytes[OUTPUT],
        matrix_bytes=tuple(tensors.matrix_bytes.most_common()),
        layers=tuple(
            LayerShape(tensors.layer_bytes[index], tensors.expert_bytes[index], *kept[index])
            for index in range(num_layers)
        ),
        is_encoder=is_encoder(metadata, architecture),
        keeps_states=architecture in _KEEPS_STATES and any(num_state_values for *_, num_state_values in kept),
    )


def merge_shapes(shapes: Sequence[FileShape]) -> FileShape:
    """Return the shape of a split model. The first part describes the model, and each part has some of the tensors."""
    matrix_bytes: Counter[str] = Counter()
    layers = [LayerShape(0)] * max(len(shape.layers) for shape in shapes)
    layers[: len(shapes[0].layers)] = [
        structs.replace(layer, num_bytes=0, num_expert_bytes=0) for layer in shapes[0].layers
    ]
    for shape in shapes:
        matrix_bytes.update(dict(shape.matrix_bytes))
        for index, layer in enumerate(shape.layers):
            layers[index] = structs.replace(
                layers[index],
                num_bytes=layers[index].num_bytes + layer.num_bytes,
                num_expert_bytes=layers[index].num_expert_bytes + layer.num_expert_bytes,
            )
    return structs.replace(
        shapes[0],
        num_bytes=sum(shape.num_bytes for shape in shapes),
        table_bytes=sum(shape.table_bytes for shape in shapes),
        output_bytes=sum(shape.output_bytes for shape in shapes),
        matrix_bytes=tuple(matrix_bytes.most_common()),
        layers=tuple(layers),
    )


def _kept(metadata: Metadata, architecture: str, num_layers: int) -> list[tuple[int, int, int]]:
    """Return what each layer keeps: the numbers of K and V values for a token, and of state values for a sequence."""
    number = _Numbers(metadata, architecture)
    # Layers that share another layer's cache, and layers that predict further tokens, keep nothing of their own.
    num_keeping = num_layers - number("attention.shared_kv_layers") - number("nextn_predict_layers")
    num_heads = number("attention.head_count")
    interval = number("full_attention_interval")
    has_states = bool(interval) or number.has_any(*_STATE_KEYS)
    if is_encoder(metadata, architecture) or num_keeping <= 0 or not (num_heads or has_states):
        return [_NOTHING] * num_layers
    state = _num_state_values(number) if has_states else 0
    widths = number.of_layers("feed_forward_length", 0, num_layers)
    kept = []
    for index, num_kv_heads in enumerate(number.of_layers("attention.head_count_kv", num_heads, num_layers)):
        is_attention = (index + 1) % interval == 0 if interval else num_kv_heads > 0
        k, v = _num_kv_values(number, num_heads, num_kv_heads) if is_attention else (0, 0)
        has_state = architecture in _BOTH or not (is_attention or (architecture in _ONE_PART and widths[index]))
        kept.append((k, v, state if has_state else 0))
    return kept[:num_keeping] + [_NOTHING] * (num_layers - num_keeping)


def _num_kv_values(number: _Numbers, num_heads: int, num_kv_heads: int) -> tuple[int, int]:
    """Return how many values a layer's attention keeps for each token, in K and in V."""
    latent = number("attention.kv_lora_rank")
    if latent:  # multi-head latent attention: one compressed row, with its rotated part if the file states it
        return max(latent, number("attention.key_length") if num_kv_heads == 1 else 0), 0
    width = number("embedding_length") // max(1, num_heads)
    # Windowed layers may have narrower heads. All layers count as narrow, because the windowed ones are not known here.
    k_width, v_width = (
        min(number(f"attention.{part}", width), number(f"attention.{part}_swa", _MAX_WIDTH))
        for part in ("key_length", "value_length")
    )
    return num_kv_heads * k_width, num_kv_heads * v_width


def _num_state_values(number: _Numbers) -> int:
    """Return how many values a layer's state has for each sequence (n_embd_r and n_embd_s of llama-hparams.cpp)."""
    width = number("embedding_length")
    if head := number("wkv.head_size"):
        return number("token_shift_count", 2) * width + width * head
    if length := number("shortconv.l_cache"):
        return width * (length - 1)
    num_conv = max(0, number("ssm.conv_kernel") - 1)
    if head := number("kda.head_dim"):
        inner = number("attention.head_count") * head
        return 3 * (num_conv or 3) * inner + head * inner
    inner, size = number("ssm.inner_size"), number("ssm.state_size")
    return num_conv * (inner + 2 * number("ssm.group_count") * size) + size * inner


TOKENS = "tokenizer.ggml.tokens"
ADAPTER = "adapter"
# llama_pooling_type of models that rank.
_RANKING = 4
_LENGTH = struct.Struct("<Q")  # of a string in an array
# The marks before, behind and in a gap to fill. The metadata names them, or llama.cpp takes tokens with these texts.
_INFILL_MARKS = {
    "prefix": ("<PRE>", "▁<PRE>", "<｜fim▁begin｜>", "<|code_prefix|>", "<|prefix|>"),
    "suffix": ("<SUF>", "▁<SUF>", "<｜fim▁hole｜>", "<|code_suffix|>", "<|suffix|>"),
    "middle": ("<MID>", "▁<MID>", "<｜fim▁end｜>", "<|code_middle|>", "<|middle|>"),
}
_MAX_SEARCHED_BYTES = 64 << 20

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
    `is_ranking`: it was made for ranking. `has_infill_tokens`: there are tokens that mark a gap to fill.
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
        metadata, num_tensors = _begin(reader)
        _check_num_tensors(reader, metadata, num_tensors)
        alignment = read_alignment(reader, metadata)
        tensors = read_tensors(reader, num_tensors, alignment)
        return _header(reader, path, metadata, tensors)


def read_facts(path: Path) -> Metadata:
    """Return the metadata of any GGUF file, such as a projector, without its tensors. The errors are read_header's."""
    with open_model_file(path) as reader:
        return _begin(reader)[0]


def _begin(reader: ByteReader) -> tuple[Metadata, int]:
    """Return the metadata, and the number of tensors that follow."""
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
    return read_metadata(reader, num_keys), num_tensors


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
        has_infill_tokens=_has_infill_tokens(metadata, path),
    )


def _has_infill_tokens(metadata: Metadata, path: Path) -> bool:
    tokens = metadata.get(TOKENS)
    content = _bytes_at(path, tokens.place[:_MAX_SEARCHED_BYTES]) if isinstance(tokens, Array) else b""

    def has(token: str) -> bool:
        return _LENGTH.pack(len(token.encode())) + token.encode() in content

    return all(
        any(f"tokenizer.ggml.{key}_token_id" in metadata for key in (f"fim_{word[:3]}", word))
        or any(map(has, (f"<|fim_{word}|>", f"<fim-{word}>", f"<fim_{word}>", *others)))
        for word, others in _INFILL_MARKS.items()
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
    return _bytes_at(header.path, header.tokens_at)


def _bytes_at(path: Path, place: range) -> bytes:
    with path.open("rb") as file:
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
