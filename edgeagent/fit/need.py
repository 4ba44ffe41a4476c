"""Predicts the memory that a model takes, part by part.

On ten models the predicted sum was 0.96 to 1.08 times the real memory of the worker: see docs/figures.md, "Memory".
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import astuple, dataclass

from edgeagent.config import EngineConfig
from edgeagent.fit.attention import PLAIN_MICRO_BATCH, prefers_plain
from edgeagent.types import FileShape, LayerShape

DEFAULT_MAX_CONTEXT = 8192
"""The context in tokens if none is configured and the model was trained for a longer or an unknown one."""
CONTEXT_STEP = 256
"""Contexts are chosen in multiples of this many tokens, because llama.cpp rounds to them."""
# Bytes that 32 values take in each type of ggml. Quantized types have blocks of 32.
_BYTES_OF_32 = {
    "auto": 64,
    "f32": 128,
    "f16": 64,
    "bf16": 64,
    "q8_0": 34,
    "q5_1": 24,
    "q5_0": 22,
    "q4_1": 20,
    "q4_0": 18,
}
_STATE_BYTES = 4
# The types whose matrices llama.cpp keeps a second time, reordered for the processor (repack.cpp).
_X86, _ARM = ("Q4_0", "Q4_K", "IQ4_NL"), ("Q4_0", "Q4_K", "IQ4_NL", "Q5_K", "Q6_K", "Q8_0")
_REPACKED = {"x86_64": _X86, "amd64": _X86, "arm64": _ARM, "aarch64": _ARM}
WORKER_BYTES = 96 << 20
"""Memory of a worker's process, with its libraries and its tokenizer."""
NUM_IDLE_SEQUENCES = 64
"""A context has room for this many rows of logits, in addition to those of the running requests."""
NUM_IDLE_STATES, NUM_IDLE_STATES_WITHOUT_HOST = 2, 8
"""The recurrent states of idle prefixes that a context has room for. More of them are there without a host cache."""
_NUM_SCORED, _BYTES_A_LOGIT = 32, 4
# For each token of a batch a layer computes this many rows of its width, and this many of its feed-forward width.
_NUM_WIDE, _NUM_FFN, _BYTES_A_NUMBER = 8, 3, 4
BLOCKS_DIVISOR, HOST_DIVISOR = 4, 8
"""Memory reserved for blocks: a quarter of the cells or an eighth of the host cache, whichever is less."""
MAX_HOST_BYTES = 2 << 30
"""The most bytes of a host cache whose size is not set."""
# Memory that stays free for everything else on the machine.
_MARGIN_SHARE, _MAX_MARGIN_BYTES = 0.05, 1 << 30


@dataclass(frozen=True, slots=True)
class Need:
    """The memory that a model and its draft model take on a CPU, by part.

    weights: the files, which are mapped. repacked: matrices that are kept a second time, reordered for the processor.
    kv: the KV cells of the context, and recurrent states. blocks: memory reserved for cache blocks that are copied out
    of the cells. outputs: rows of logits. buffers: memory in which a batch is computed. worker: the worker's process.
    """

    weights_bytes: int
    repacked_bytes: int
    kv_bytes: int
    blocks_bytes: int
    outputs_bytes: int
    buffers_bytes: int
    worker_bytes: int

    @property
    def total_bytes(self) -> int:
        return sum(astuple(self))


def num_cells_wanted(shape: FileShape, config: EngineConfig) -> int:
    """Return the context in tokens, one KV cell each, that a model gets if there is enough memory."""
    return config.ctx or min(shape.context_length or DEFAULT_MAX_CONTEXT, DEFAULT_MAX_CONTEXT)


def margin_bytes(total_bytes: int) -> int:
    """Return the bytes that a load leaves free for other programs on a machine with `total_bytes` of memory."""
    return min(_MAX_MARGIN_BYTES, int(_MARGIN_SHARE * total_bytes))


def num_states(config: EngineConfig) -> int:
    """Return the number of sequences whose states a recurrent or hybrid model can hold in memory."""
    num_idle = NUM_IDLE_STATES if config.cache_memory_bytes else NUM_IDLE_STATES_WITHOUT_HOST
    return config.num_parallel + num_idle + 1  # one is spare


def layer_kv_bytes(layer: LayerShape, config: EngineConfig, num_cells: int, max_rewind: int = 0) -> int:
    """Return the bytes of a layer's KV cells and recurrent states in a context of `num_cells` tokens.

    A layer with states keeps `max_rewind` earlier states of each sequence in addition to the present one.
    """
    k, v = _BYTES_OF_32[config.kv_type_k] / 32, _BYTES_OF_32[config.kv_type_v] / 32
    states = num_states(config) * (1 + max_rewind) * layer.num_state_values * _STATE_BYTES
    return int(num_cells * (k * layer.num_k_values + v * layer.num_v_values)) + states


def kv_bytes_per_token(shapes: Sequence[FileShape], config: EngineConfig) -> float:
    """Return the bytes that one more token of context takes in all these models together.

    The result is 0 if it is unknown, or if the models keep only recurrent states.
    """
    k, v = _BYTES_OF_32[config.kv_type_k] / 32, _BYTES_OF_32[config.kv_type_v] / 32
    return sum(k * layer.num_k_values + v * layer.num_v_values for shape in shapes for layer in shape.layers)


def outputs_bytes(shape: FileShape, config: EngineConfig) -> int:
    """Return the bytes of the rows of logits in a context; 0 for an encoder."""
    if shape.is_encoder:
        return 0
    num_rows = max(config.num_parallel + NUM_IDLE_SEQUENCES, config.num_parallel * (1 + config.draft_tokens))
    return min(num_rows + _NUM_SCORED, config.batch) * shape.num_vocab * _BYTES_A_LOGIT


def compute_bytes(
    shape: FileShape,
    config: EngineConfig,
    num_cells: int,
    max_rewind: int = 0,
    machine: str | None = None,
    *,
    is_on_gpu: bool = False,
) -> int:
    """Return the bytes of the buffers in which a batch is computed. Earlier states (`max_rewind`) make them larger.

    `is_on_gpu`: some layers are on a GPU. `machine`: see `predict`.
    """
    numbers = config.batch * (_NUM_WIDE * shape.width + _NUM_FFN * shape.ffn_width)
    if config.flash_attention == "off" or (not is_on_gpu and _is_plain(shape, config, num_cells, machine)):
        numbers += min(config.batch, PLAIN_MICRO_BATCH) * shape.num_heads * num_cells
    numbers += max_rewind * num_states(config) * max((layer.num_state_values for layer in shape.layers), default=0)
    return numbers * _BYTES_A_NUMBER


def _is_plain(shape: FileShape, config: EngineConfig, num_cells: int, machine: str | None) -> bool:
    """Whether a CPU probably gets plain attention. The header of a file does not say which layers have a window."""
    has_others = any(layer.num_state_values or layer.num_expert_bytes for layer in shape.layers)
    ffn_width = 0 if has_others else shape.ffn_width
    return prefers_plain(config, num_heads=shape.num_heads, ffn_width=ffn_width, num_cells=num_cells, machine=machine)


def blocks_bytes(shape: FileShape, config: EngineConfig, num_cells: int) -> int:
    """Return the bytes reserved for cache blocks that are copied out of the KV cells; 0 for a model with states."""
    if any(layer.num_state_values for layer in shape.layers):
        return 0
    host = MAX_HOST_BYTES if config.cache_memory_bytes < 0 else config.cache_memory_bytes
    cells = sum(layer_kv_bytes(layer, config, num_cells) for layer in shape.layers)
    return min(cells // BLOCKS_DIVISOR, host // HOST_DIVISOR)


def repacked_bytes(shape: FileShape, machine: str | None = None) -> int:
    """Return the bytes of the second copies of matrices that llama.cpp makes if all layers are on the CPU.

    `machine` is the processor architecture, such as "x86_64" (None: this machine's).
    """
    repacked = _REPACKED.get((platform.machine() if machine is None else machine).lower(), ())
    return sum(num_bytes for kind, num_bytes in shape.matrix_bytes if kind in repacked)


def predict(
    shapes: Sequence[FileShape],
    config: EngineConfig,
    num_cells: int,
    machine: str | None = None,
    *,
    max_rewind: int = 0,
) -> Need:
    """Return the memory that a model and its draft model take on a CPU, with a context of `num_cells` tokens.

    The first shape is the model, the others its draft model. `machine` is the processor architecture (None: this
    machine's). The model keeps `max_rewind` earlier states of each sequence; see `draft_states`.
    """
    max_rewinds = [max_rewind] + [0] * (len(shapes) - 1)
    return Need(
        weights_bytes=sum(shape.num_bytes for shape in shapes),
        repacked_bytes=sum(repacked_bytes(shape, machine) for shape in shapes),
        kv_bytes=sum(
            layer_kv_bytes(layer, config, num_cells, rewind)
            for shape, rewind in zip(shapes, max_rewinds, strict=True)
            for layer in shape.layers
        ),
        blocks_bytes=blocks_bytes(shapes[0], config, num_cells),
        outputs_bytes=sum(outputs_bytes(shape, config) for shape in shapes),
        # Only about half of the buffers is ever touched.
        buffers_bytes=sum(
            compute_bytes(shape, config, num_cells, rewind, machine)
            for shape, rewind in zip(shapes, max_rewinds, strict=True)
        )
        // 2,
        worker_bytes=WORKER_BYTES,
    )
