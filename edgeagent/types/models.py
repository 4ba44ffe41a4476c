"""What is known of a model and its worker."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from msgspec import Struct

from edgeagent.types.choices import Choice
from edgeagent.types.requests import SamplingParams


class MemoryKind(StrEnum):
    """What a model's memory can forget: see `engine.runner`."""

    FULL_ATTENTION = "full_attention"
    SLIDING_WINDOW = "sliding_window"
    RECURRENT = "recurrent"
    HYBRID = "hybrid"
    NONE = "none"


class DeviceInfo(Struct, frozen=True):
    """A compute device as llama.cpp names it. `id` is the hardware's, the same under each backend; "" if unknown."""

    name: str
    description: str
    kind: Literal["cpu", "gpu", "accelerator"]
    memory_total_bytes: int = 0
    memory_free_bytes: int = 0
    is_integrated: bool = False
    backend: str = ""
    id: str = ""


class ModelInfo(Struct, frozen=True):
    """A loaded model. `sampling` holds the model's defaults, complete but for the seed.

    `num_parallel` requests run at a time. `num_gpu_layers` are on GPUs, -1: all; `num_gpu_bytes` is about what it takes
    there. `sandbox` names what its process may not do, in words. `embedding_length`: numbers in a vector, 0 where it
    gives none. `can_generate`: it answers prompts; else it only embeds texts, or with `can_rank` only ranks documents.
    """

    name: str
    path: str
    architecture: str
    description: str
    size_bytes: int
    num_params: int
    num_vocab: int
    context_length: int
    context_length_trained: int
    max_sequences: int
    memory_kind: MemoryKind
    supports_tools: bool
    supports_reasoning: bool
    sampling: SamplingParams
    devices: tuple[DeviceInfo, ...] = ()
    num_gpu_layers: int = 0
    num_gpu_bytes: int = 0
    num_layers: int = 0
    draft: str | None = None
    llama_cpp_commit: str = ""
    system_description: str = ""
    sandbox: tuple[str, ...] = ()
    load_ms: float = 0.0
    chat_template: str = ""
    supports_infill: bool = False
    embedding_length: int = 0
    choices: tuple[Choice, ...] = ()
    num_parallel: int = 0
    can_generate: bool = True
    can_rank: bool = False


class CacheStatus(Struct, frozen=True):
    """What a tier of the prefix cache holds, and its counts since it began.

    `num_dropped` counts offers that were not taken; `read_bytes_per_s` is measured, 0: nothing was read; `trouble`: why
    nothing is kept at the moment.
    """

    num_blocks: int = 0
    num_bytes: int = 0
    max_bytes: int = 0
    num_hits: int = 0
    num_misses: int = 0
    num_offered: int = 0
    num_dropped: int = 0
    num_evicted: int = 0
    read_bytes_per_s: float = 0.0
    trouble: str | None = None


class DraftCounts(Struct, frozen=True):
    """What the drafts of one source have shown since the start.

    `num_chosen`: drafts by their length, from 0. `num_judged` and `num_stood`: tokens by position; those behind a
    refused one are not judged.
    """

    source: str
    num_chosen: tuple[int, ...] = ()
    num_judged: tuple[int, ...] = ()
    num_stood: tuple[int, ...] = ()


class WorkerStatus(Struct, frozen=True):
    """What a worker reports of itself with every pong.

    Times are time.monotonic; `step_started_at_s` is 0 between steps, `preparing_since_s` while no prompt is prepared.
    """

    num_steps: int = 0
    step_started_at_s: float = 0.0
    step_expected_s: float = 0.0
    """How long the running step should take; 0 where that is not known, or none runs."""
    preparing_since_s: float = 0.0
    preparing_id: str = ""
    """The request that is prepared since then."""
    num_running: int = 0
    num_waiting: int = 0
    num_cells_used: int = 0
    num_cells: int = 0
    num_cached_tokens: int = 0
    num_prompt_tokens_total: int = 0
    num_cached_tokens_total: int = 0
    num_tokens_from_memory_total: int = 0
    """Of the cached ones, those that came back from host memory; the others were in cells, or on disk."""
    num_tokens_from_disk_total: int = 0
    num_output_tokens_total: int = 0
    tokens_per_second: float = 0.0
    prefill_tokens_per_s: float = 0.0
    """Prompt tokens a second that one more request could have computed now, and"""
    token_s: float = 0.0
    """the time from one token of it to the next, by the steps measured so far; 0 where none were."""
    step_error_median: float = 0.0
    step_error_p95: float = 0.0
    """How far the predicted times of the latest steps were off, as a share of the measured; 0 where too few were."""
    drafts: tuple[DraftCounts, ...] = ()
    draft_gain: float = 0.0
    """How many times as quickly steps with drafts made their tokens as without; 0: there were none."""
    num_threads: int = 0
    rss_bytes: int = 0
    own_bytes: int = 0
    """Of these, what no file backs (not a mapped model's weights), without a long prompt's own context. 0 where the
    system does not tell."""
    num_side_bytes: int = 0
    """What a long prompt's own context may take."""
    memory_cache: CacheStatus | None = None
    disk_cache: CacheStatus | None = None


class WorkerState(StrEnum):
    """The states of a worker."""

    STOPPED = "stopped"
    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"
    FAILED = "failed"
    QUARANTINED = "quarantined"


UNUSABLE = (WorkerState.FAILED, WorkerState.QUARANTINED)


class ModelStatus(Struct, frozen=True):
    """A model the daemon serves: known, loading, ready, failed or quarantined, and why.

    Failed: it cannot be loaded. Quarantined: it killed its workers. After `retry_after_s` the next request tries again.
    `ready_in_s`: after how long one that is not loaded should be ready, by the last load or the size of its files; None
    where that is not known. `is_pinned`: it is never unloaded to make room. `unload_in_s`: when it is unloaded if
    no client uses it; None: never, or it is not loaded. `idle_s`: how long it has not been used. `adapters`: names of
    its LoRA adapters; a request names one behind a plus sign. `num_live`: requests that run or wait. `sha256`: that of
    its file (of a split model the first), where it is known; empty otherwise.
    """

    name: str
    state: WorkerState
    progress: float = 0.0
    info: ModelInfo | None = None
    worker: WorkerStatus | None = None
    pid: int | None = None
    num_restarts: int = 0
    cause: str | None = None
    retry_after_s: float | None = None
    ready_in_s: float | None = None
    is_pinned: bool = False
    unload_in_s: float | None = None
    idle_s: float = 0.0
    adapters: tuple[str, ...] = ()
    num_live: int = 0
    sha256: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """The model's name, and MODEL+ADAPTER for each adapter."""
        return (self.name, *(f"{self.name}+{adapter}" for adapter in self.adapters))
