"""Derives a model's memory from its GGUF header: the bytes of its tensors, and the values that each layer keeps.

The rules are those of llama.cpp's KV cache (llama-hparams.cpp). A missing key without a usual value counts as 0. The
memory is then underestimated, so no model that fits is refused as too large. Sliding windows save no memory, because
the engine keeps the whole context of windowed layers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from msgspec import structs

from edgeagent.store.gguf.tables import OUTPUT, TABLE, Array, Metadata, Tensors
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
        heads = number.of_layers("attention.head_count_kv", number("attention.head_count"), _MAX_LAYERS)
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
_MAX_LAYERS = 512


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
    num_layers = min(_MAX_LAYERS, max(number("block_count"), max(tensors.layer_bytes, default=-1) + 1))
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
