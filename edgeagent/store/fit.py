"""What memory a model will take, told from its header alone, and what of it can be had. Pure: it reads no machine.

Measured on two cores with the defaults, a prompt of 900 tokens, six models: the sum is 0.94 to 1.06 of the worker's
resident memory, without what it keeps of prompts in host memory.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from edgeagent.config import EngineConfig

DEFAULT_MAX_CONTEXT = 8192
"""Tokens of context where none are asked for and the model was trained for more."""
# ggml's blocks: bytes for 32 numbers.
_BYTES_OF_32 = {"f32": 128, "f16": 64, "bf16": 64, "q8_0": 34, "q5_1": 24, "q5_0": 22, "q4_1": 20, "q4_0": 18}
_CONTEXT_STEP = 256
# The types whose matrices llama.cpp keeps a second time, in an order that suits the processor (repack.cpp).
_X86, _ARM = ("Q4_0", "Q4_K", "IQ4_NL"), ("Q4_0", "Q4_K", "IQ4_NL", "Q5_K", "Q6_K", "Q8_0")
_REPACKED = {"x86_64": _X86, "amd64": _X86, "arm64": _ARM, "aarch64": _ARM}
# Of a worker with its libraries, its tokenizer and the buffers that a model computes in.
_WORKER_BYTES = 110 << 20
# Rows of logits that a context has room for; see engine.llama.context.
_NUM_IDLE_SEQUENCES, _NUM_SCORED, _BYTES_A_LOGIT = 64, 32, 4
# For the driver's context, compute buffers and the growth of other programs.
_GPU_RESERVE_BYTES = 768 << 20
# What is left free for everything else on the machine.
_MARGIN_SHARE, _MAX_MARGIN_BYTES = 0.05, 1 << 30


class KvShape(Protocol):
    """Numbers kept for each token, in all layers; 0 if the file does not say."""

    @property
    def num_k_values(self) -> int: ...
    @property
    def num_v_values(self) -> int: ...


class Header(Protocol):
    """The fields of a file's header that tell what it takes."""

    @property
    def size_bytes(self) -> int: ...
    @property
    def num_layers(self) -> int | None: ...
    @property
    def num_vocab(self) -> int: ...
    @property
    def context_length(self) -> int | None: ...
    @property
    def kv_shape(self) -> KvShape: ...
    @property
    def matrix_bytes(self) -> Sequence[tuple[str, int]]: ...


@dataclass(frozen=True, slots=True)
class Need:
    """The memory that a model takes with its draft, by part.

    weights: the files, which are mapped. repacked: matrices that are kept a second time for the processor. kv: the
    cells of the context. outputs: rows of logits. worker: its process.
    """

    weights_bytes: int
    repacked_bytes: int
    kv_bytes: int
    outputs_bytes: int
    worker_bytes: int

    @property
    def total_bytes(self) -> int:
        """All of it."""
        return self.weights_bytes + self.repacked_bytes + self.kv_bytes + self.outputs_bytes + self.worker_bytes


@dataclass(frozen=True, slots=True)
class Plan:
    """How a model would run: the layers on the GPUs, a context, and what that takes of either memory.

    `num_gpu_layers` counts the output layer as one more; -1: all. `max_context` is the longest context that would fit
    with these KV types, 0: not even the shortest.
    """

    need: Need
    num_cells: int
    num_gpu_layers: int
    ram_bytes: int
    vram_bytes: int
    ram_room_bytes: int
    max_context: int

    @property
    def fits(self) -> bool:
        """Whether it fits beside what else is in memory."""
        return self.ram_bytes <= self.ram_room_bytes


def kv_bytes_per_token(headers: Sequence[Header], config: EngineConfig) -> float:
    """Return the bytes that a token of context takes in all these models together; 0 if unknown."""
    k, v = _BYTES_OF_32[config.kv_type_k] / 32, _BYTES_OF_32[config.kv_type_v] / 32
    return sum(k * header.kv_shape.num_k_values + v * header.kv_shape.num_v_values for header in headers)


def num_cells_wanted(header: Header, config: EngineConfig) -> int:
    """Return the tokens of context that the engine will make room for."""
    return config.ctx or min(header.context_length or DEFAULT_MAX_CONTEXT, DEFAULT_MAX_CONTEXT)


def margin_bytes(total_bytes: int) -> int:
    """Return what a load leaves free for everything else on a machine."""
    return min(_MAX_MARGIN_BYTES, int(_MARGIN_SHARE * total_bytes))


def predict(headers: Sequence[Header], config: EngineConfig, num_cells: int, machine: str | None = None) -> Need:
    """Return what a model, the first header, takes on a CPU with its draft, the others."""
    repacked = _REPACKED.get((platform.machine() if machine is None else machine).lower(), ())
    num_rows = max(config.parallel + _NUM_IDLE_SEQUENCES, config.parallel * (1 + config.draft_tokens)) + _NUM_SCORED
    return Need(
        weights_bytes=sum(header.size_bytes for header in headers),
        repacked_bytes=sum(
            num_bytes for header in headers for kind, num_bytes in header.matrix_bytes if kind in repacked
        ),
        kv_bytes=int(num_cells * kv_bytes_per_token(headers, config)),
        outputs_bytes=sum(
            min(num_rows, config.batch) * header.num_vocab * _BYTES_A_LOGIT
            for header in headers
            if header.kv_shape.num_k_values
        ),
        worker_bytes=_WORKER_BYTES,
    )


def plan(headers: Sequence[Header], config: EngineConfig, ram_bytes: int, vram_bytes: int = 0) -> Plan:
    """Return how a model would run with so much memory free. Layers go to the GPUs as far as they fit there.

    `config` has what was asked for: context, KV types, layers on the GPUs (-1: all that fit).
    """
    model = headers[0]
    num_cells = num_cells_wanted(model, config)
    need = predict(headers, config, num_cells)
    num_all = (model.num_layers or 0) + 1
    each = (need.weights_bytes + need.kv_bytes) / num_all
    fitting = int(max(0, vram_bytes - _GPU_RESERVE_BYTES) / each) if each else num_all
    num_there = min(num_all, fitting if config.gpu_layers < 0 else config.gpu_layers) if vram_bytes else 0
    taken = int(num_there * each)
    share = 1 - num_there / num_all
    # Weights on a GPU are not repacked, and their pages in memory are given back.
    here = int(share * (need.weights_bytes + need.repacked_bytes + need.kv_bytes))
    here += need.outputs_bytes + need.worker_bytes
    return Plan(
        need,
        num_cells,
        -1 if num_there == num_all else num_there,
        here,
        taken,
        ram_bytes,
        _max_context(headers, config, need, ram_bytes + max(0, vram_bytes - _GPU_RESERVE_BYTES)),
    )


def _max_context(headers: Sequence[Header], config: EngineConfig, need: Need, free_bytes: int) -> int:
    each = kv_bytes_per_token(headers, config)
    left = free_bytes - (need.total_bytes - need.kv_bytes)
    trained = headers[0].context_length or DEFAULT_MAX_CONTEXT
    if left < 0:
        return 0
    fitting = int(left / each) // _CONTEXT_STEP * _CONTEXT_STEP if each else trained
    return min(fitting, trained)
