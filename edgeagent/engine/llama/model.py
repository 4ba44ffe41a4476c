"""A loaded GGUF model: weights, vocabulary and metadata. The computation is done in contexts, not here."""

from __future__ import annotations

import contextlib
import ctypes
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from edgeagent.config import EngineConfig
from edgeagent.engine.llama.bindings import BufferOverride, cpu_buffer_type, devices, has_tensor, last_error, lib
from edgeagent.engine.sampling.params import is_in_range
from edgeagent.errors import InternalError, ModelDamaged, ModelLoadFailed, ModelOutOfMemory
from edgeagent.types import DeviceInfo, MemoryKind, SamplingParams

# llama.cpp's own defaults (common/common.h), used where the GGUF names none.
_DEFAULT_SAMPLING = SamplingParams(
    temperature=0.8,
    top_k=40,
    top_p=0.95,
    min_p=0.05,
    repeat_penalty=1.0,
    repeat_last_n=64,
    presence_penalty=0.0,
    frequency_penalty=0.0,
)
# GGUF key → field of SamplingParams (llama.h, llama_model_meta_key).
_SAMPLING_KEYS = {
    "general.sampling.temp": ("temperature", float),
    "general.sampling.top_k": ("top_k", int),
    "general.sampling.top_p": ("top_p", float),
    "general.sampling.min_p": ("min_p", float),
    "general.sampling.penalty_repeat": ("repeat_penalty", float),
    "general.sampling.penalty_last_n": ("repeat_last_n", int),
}
_MAX_METADATA_BYTES = 1 << 20
_EXACT_VOCABULARIES = (1, 2)  # llama_vocab_type: SPM, BPE; the text of their tokens is the text that was tokenized
_USER_DEFINED = 1 << 4  # llama_token_attr
_CELLS_STEP = 256  # llama.cpp rounds the size of a context up to a multiple of this
_LONG_FACTORS = "rope_factors_long.weight"
_MAX_DIGITS = 10  # a hostile file may have more digits than Python converts
# Words in llama.cpp's messages if the machine is at fault, not the file.
_MACHINE_WORDS = ("alloc", "memory", "mmap", "mlock", "failed to open", "device")
_MEMORY_WORDS = (
    "allocate",
    "allocation",
    "out of memory",
    "outofdevicememory",
    "outofhostmemory",
    "insufficient memory",
)
_GUESSED = 1 << 10  # in llama_ftype: the type was guessed from the tensors
_SPLIT_MODES = {"none": 0, "layer": 1, "row": 2}  # llama_split_mode


def split_parts(path: Path) -> list[Path]:
    """Return all files of a model, given its file or one of its parts (NAME-00001-of-0000N.gguf)."""
    match = re.fullmatch(r"(.+)-\d{5}-of-(\d{5})\.gguf", path.name)
    if match is None:
        return [path]
    stem, count = match.group(1), int(match.group(2))
    return [path.with_name(f"{stem}-{index:05}-of-{count:05}.gguf") for index in range(1, count + 1)]


def _load_failure(path: Path) -> ModelLoadFailed:
    """Return the error to raise for a file that llama.cpp cannot load.

    ModelDamaged if the file is at fault, ModelOutOfMemory if memory is short, else ModelLoadFailed.
    """
    why = last_error()
    is_of_file = "error loading model" in why and not any(word in why.lower() for word in _MACHINE_WORDS)
    kind = ModelDamaged if is_of_file else ModelOutOfMemory if is_short_of_memory(why) else ModelLoadFailed
    return kind(f"llama.cpp cannot load {path}: {why or 'it does not say why'}")


def is_short_of_memory(why: str) -> bool:
    return any(words in why.lower() for words in _MEMORY_WORDS)


def _expert_overrides(num_layers: int) -> ctypes.Array[Any] | None:
    """Return overrides for llama_model_params that keep the experts of the first `num_layers` layers in host memory.

    Return None if `num_layers` is 0.
    """
    if num_layers <= 0:
        return None
    overrides = (BufferOverride * (num_layers + 1))()  # an empty last one ends the array
    for layer in range(num_layers):
        overrides[layer].pattern = rf"blk\.{layer}\.ffn_.*_exps".encode()
        overrides[layer].buffer_type = cpu_buffer_type()
    return overrides


def _metadata(handle: object, key: str) -> str | None:
    """Return a metadata value as text; None if the file has no such key, or if the value takes 1 MiB or more."""
    size = 256
    for _ in range(2):
        buffer = ctypes.create_string_buffer(size)
        count = lib.llama_model_meta_val_str(handle, key.encode(), buffer, size)
        if count < 0 or count >= _MAX_METADATA_BYTES:
            return None
        if count < size:
            return buffer.raw[:count].decode("utf-8", errors="replace")
        size = count + 1
    return None


@dataclass(frozen=True, slots=True)
class InfillTokens:
    """The tokens that mark the text before a gap, the text after the gap, and where the model fills the gap.

    `repository`: begins a repository. `file`: begins each of its files. Each is negative if the model has none.
    """

    prefix: int
    suffix: int
    middle: int
    repository: int
    file: int


class Model:
    """Weights and vocabulary of one GGUF file. Implements text.vocabulary.Vocabulary.

    If there are GPUs, `config.gpu_layers` layers are put on them; -1 means all. `on_progress` gets the loaded share,
    0 to 1. Raises ModelLoadFailed if the file cannot be loaded or has no vocabulary. Close its contexts before `close`.
    """

    def __init__(self, path: Path, config: EngineConfig, on_progress: Callable[[float], None] | None = None) -> None:
        self.path = path
        self.devices: tuple[DeviceInfo, ...] = devices()
        self.num_gpu_layers = config.gpu_layers if any(device.kind == "gpu" for device in self.devices) else 0
        params = lib.llama_model_default_params()
        params.n_gpu_layers = self.num_gpu_layers
        is_divided = config.only_gpu < 0
        params.split_mode = _SPLIT_MODES[config.split_mode if is_divided else "none"]
        params.main_gpu = max(0, config.only_gpu)
        overrides = _expert_overrides(config.cpu_experts) if self.num_gpu_layers else None
        if overrides is not None:
            params.tensor_buft_overrides = ctypes.cast(overrides, ctypes.c_void_p)
        # Builds with AMX may end the process at the first matrix product (llama.cpp issue 20824).
        # llama.cpp uses AMX for repacked weights only.
        params.use_extra_bufts = b"AMX_INT8 = 1" not in lib.llama_print_system_info()
        params.load_mode = int(config.mmap) + 2 * int(config.mlock)  # llama_load_mode: 1 mmap, 2 mlock, 3 both
        if config.tensor_split:
            # llama.cpp reads llama_max_devices() floats; ctypes keeps the array alive through `params`.
            shares = (ctypes.c_float * lib.llama_max_devices())(*config.tensor_split)
            params.tensor_split = shares
        if on_progress is not None:
            # True continues the load.
            params.progress_callback = lib.llama_progress_callback(lambda share, _: on_progress(share) or True)
        self._handle = lib.llama_model_load_from_file(str(path).encode(), params)
        if not self._handle:
            raise _load_failure(path)
        self._vocab = lib.llama_model_get_vocab(self._handle)
        self.num_tokens: int = lib.llama_vocab_n_tokens(self._vocab)
        if self.num_tokens == 0:
            raise ModelLoadFailed(f"{path} has no vocabulary: it is not a language model")
        self._pieces: dict[int, bytes] = {}

    @property
    def handle(self) -> object:
        """llama.cpp's pointer to the model, for making contexts."""
        return self._handle

    def close(self) -> None:
        """Free the weights."""
        if self._handle:
            lib.llama_model_free(self._handle)
            self._handle = None

    # Vocabulary

    def tokenize(self, text: str, *, parse_special: bool, add_bos: bool = False) -> list[int]:
        """Return the token ids of a text.

        If `parse_special`, the text of a control token becomes that token. If `add_bos` and the model wants BOS,
        BOS comes first.
        """
        tokens = self._tokenize(text, parse_special=parse_special)
        bos = self.bos_token if add_bos else None
        return tokens if bos is None else [bos, *tokens]

    def _tokenize(self, text: str, *, parse_special: bool, frame: bool = False) -> list[int]:
        encoded = text.encode("utf-8", errors="replace")
        capacity = len(encoded) + 8
        for _ in range(2):
            buffer = (ctypes.c_int32 * capacity)()
            count = lib.llama_tokenize(self._vocab, encoded, len(encoded), buffer, capacity, frame, parse_special)
            if count >= 0:
                return list(buffer[:count])
            capacity = -count
        raise InternalError(f"llama.cpp could not tokenize a text of {len(encoded)} bytes")

    def piece(self, token: int) -> bytes:
        """Return the bytes of a token. For a control token, return its text, such as "<|im_start|>"."""
        piece = self._pieces.get(token)
        if piece is None:
            buffer = ctypes.create_string_buffer(64)
            count = lib.llama_token_to_piece(self._vocab, token, buffer, len(buffer), 0, True)
            if count < 0:
                buffer = ctypes.create_string_buffer(-count)
                count = lib.llama_token_to_piece(self._vocab, token, buffer, len(buffer), 0, True)
            piece = self._pieces[token] = buffer.raw[:count]
        return piece

    @cached_property
    def max_piece_bytes(self) -> int | None:
        """The most bytes of text that one token stands for. None if the tokenizer drops or rewrites text."""
        if lib.llama_vocab_type(self._vocab) not in _EXACT_VOCABULARIES:
            return None
        return max(4, max(len(self.piece(token)) for token in range(self.num_tokens)))  # an unknown character: 4

    def is_control(self, token: int) -> bool:
        """Whether a token is markup (BOS, <|im_start|> …) and not text."""
        return bool(lib.llama_vocab_is_control(self._vocab, token))

    def is_user_defined(self, token: int) -> bool:
        """Whether `tokenize` turns the token's text into this token even without `parse_special`."""
        return bool(lib.llama_vocab_get_attr(self._vocab, token) & _USER_DEFINED)

    def is_end(self, token: int) -> bool:
        return token in self._end_set

    @cached_property
    def end_tokens(self) -> tuple[int, ...]:
        return tuple(token for token in range(self.num_tokens) if lib.llama_vocab_is_eog(self._vocab, token))

    @cached_property
    def _end_set(self) -> frozenset[int]:
        return frozenset(self.end_tokens)

    @property
    def bos_token(self) -> int | None:
        """The token to begin a sequence with; None if the model wants none."""
        token = lib.llama_vocab_bos(self._vocab)
        return int(token) if token >= 0 and lib.llama_vocab_get_add_bos(self._vocab) else None

    @property
    def eos_token(self) -> int | None:
        """The token to end a text with, as some embedding models want; None if the model wants none."""
        token = lib.llama_vocab_eos(self._vocab)
        return int(token) if token >= 0 and lib.llama_vocab_get_add_eos(self._vocab) else None

    @property
    def separator_token(self) -> int | None:
        """The token between two texts that are read together; None if the model wants none."""
        token = lib.llama_vocab_sep(self._vocab)
        return int(token) if token >= 0 and lib.llama_vocab_get_add_sep(self._vocab) else None

    @cached_property
    def frame_tokens(self) -> tuple[list[int], list[int]]:
        """Two lists: the tokens that the tokenizer adds before a whole text, and those that it adds after the text."""
        body, framed = self._tokenize("a", parse_special=False), self._tokenize("a", parse_special=False, frame=True)
        for start in range(len(framed) - len(body) + 1):
            if framed[start : start + len(body)] == body:
                return framed[:start], framed[start + len(body) :]
        return [], []

    @cached_property
    def infill_tokens(self) -> InfillTokens | None:
        """The tokens that mark a gap to fill in a text; None if the model was not trained to fill gaps."""
        marks = InfillTokens(
            lib.llama_vocab_fim_pre(self._vocab),
            lib.llama_vocab_fim_suf(self._vocab),
            lib.llama_vocab_fim_mid(self._vocab),
            lib.llama_vocab_fim_rep(self._vocab),
            lib.llama_vocab_fim_sep(self._vocab),
        )
        return marks if min(marks.prefix, marks.suffix, marks.middle) >= 0 else None

    @property
    def bos_text(self) -> str:
        return self._special_text(lib.llama_vocab_bos(self._vocab))

    @property
    def eos_text(self) -> str:
        return self._special_text(lib.llama_vocab_eos(self._vocab))

    def _special_text(self, token: int) -> str:
        return self.piece(token).decode(errors="replace") if 0 <= token < self.num_tokens else ""

    # Metadata

    def metadata(self, key: str) -> str | None:
        """Return a metadata value as text; None if the file has no such key, or if the value takes 1 MiB or more."""
        return _metadata(self._handle, key)

    @property
    def ffn_width(self) -> int:
        """The width of a layer's feed-forward part; 0 if it has experts, or if the file gives no single number."""
        architecture = self.metadata("general.architecture") or ""
        value = self.metadata(f"{architecture}.feed_forward_length") or ""
        has_experts = self.metadata(f"{architecture}.expert_count") not in (None, "0")
        return int(value) if value.isdecimal() and len(value) < _MAX_DIGITS and not has_experts else 0

    @property
    def file_type(self) -> int | None:
        """How most of the weights are quantized, as a llama_ftype; None if the file does not say."""
        value = self.metadata("general.file_type") or ""
        return int(value) & ~_GUESSED if value.isdecimal() and len(value) < _MAX_DIGITS else None

    @cached_property
    def chat_template(self) -> str | None:
        """The Jinja chat template in the model's file; None if there is none."""
        return self.metadata("tokenizer.chat_template")

    @cached_property
    def memory_kind(self) -> MemoryKind:
        """The kind of the model's memory. It decides where a sequence can be cut."""
        if lib.llama_model_is_hybrid(self._handle):
            return MemoryKind.HYBRID
        if lib.llama_model_is_recurrent(self._handle):
            return MemoryKind.RECURRENT
        return MemoryKind.SLIDING_WINDOW if self.window > 0 else MemoryKind.FULL_ATTENTION

    @property
    def window(self) -> int:
        """Tokens of the sliding window; 0 if there is none."""
        return int(lib.llama_model_n_swa(self._handle))

    @property
    def context_length_trained(self) -> int:
        """The context length that the model was trained for, in tokens; 0 if unknown."""
        return int(lib.llama_model_n_ctx_train(self._handle))

    @property
    def max_short_context(self) -> int:
        """The size of a context, in tokens, beyond which llama.cpp uses RoPE factors for long texts, if there are any.

        If the file does not name it, this is the length that the model was trained for.
        """
        text = self._architecture_value("rope.scaling.original_context_length") or ""
        return int(text) if text.isdecimal() and len(text) <= _MAX_DIGITS else self.context_length_trained

    def rope_factors(self, num_cells: int) -> str:
        """Return which RoPE factors llama.cpp uses in a context of this size: "short" or "long".

        It is "short" for models with one kind of factors, which are all but those with LongRoPE.
        """
        is_long = -(-num_cells // _CELLS_STEP) * _CELLS_STEP > self.max_short_context
        return "long" if is_long and self._has_long_factors else "short"

    @cached_property
    def _has_long_factors(self) -> bool:
        return any(has_tensor(part, _LONG_FACTORS) for part in split_parts(self.path))

    @property
    def embedding_length(self) -> int:
        """Number of values in the vector that the model outputs for a token."""
        return int(lib.llama_model_n_embd_out(self._handle))

    @property
    def num_layers(self) -> int:
        return int(lib.llama_model_n_layer(self._handle))

    @property
    def num_params(self) -> int:
        return int(lib.llama_model_n_params(self._handle))

    @property
    def size_bytes(self) -> int:
        return int(lib.llama_model_size(self._handle))

    @property
    def description(self) -> str:
        """llama.cpp's short description, e.g. "llama 1B Q4_0"."""
        buffer = ctypes.create_string_buffer(256)
        lib.llama_model_desc(self._handle, buffer, len(buffer))
        return buffer.value.decode(errors="replace")

    @property
    def pooling(self) -> int:
        """How the vectors of a text's tokens become one vector, as a llama_pooling_type; 0 if the file does not say."""
        value = self._architecture_value("pooling_type") or ""
        return int(value) if value.isdecimal() and len(value) < _MAX_DIGITS else 0

    @property
    def is_causal(self) -> bool:
        """Whether tokens attend to earlier tokens only."""
        # The files of EmbeddingGemma do not say that it is not causal; llama.cpp decides by the architecture's name.
        is_known = self.metadata("general.architecture") == "gemma-embedding"
        return not is_known and self._architecture_value("attention.causal") != "false"

    def _architecture_value(self, name: str) -> str | None:
        return self.metadata(f"{self.metadata('general.architecture')}.{name}")

    @property
    def has_encoder(self) -> bool:
        """Whether the model reads its prompt with an encoder, like T5. edgeagent cannot generate with such a model."""
        return bool(lib.llama_model_has_encoder(self._handle))

    def default_sampling(self) -> SamplingParams:
        """Return the sampling parameters that the file recommends. Others have llama.cpp's defaults.

        An invalid value in the file is ignored. Otherwise clients would get an error for a value they did not send.
        """
        values: dict[str, float | int] = {}
        for key, (field, kind) in _SAMPLING_KEYS.items():
            text = self.metadata(key)
            if text is not None:
                with contextlib.suppress(ValueError, OverflowError):
                    value = kind(text)
                    if is_in_range(field, value):
                        values[field] = value
        merged = {field: getattr(_DEFAULT_SAMPLING, field) for field in _DEFAULT_SAMPLING.__struct_fields__}
        return SamplingParams(**(merged | values))
