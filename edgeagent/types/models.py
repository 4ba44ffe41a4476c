"""Descriptions of models and of their files, and the status of their workers and caches."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from msgspec import Struct

from edgeagent.types.choices import SettingChoice
from edgeagent.types.requests import MediaKind, SamplingParams


class MemoryKind(StrEnum):
    """The kinds of model memory. They differ in whether the last tokens can be removed; see `engine.runner`."""

    FULL_ATTENTION = "full_attention"
    SLIDING_WINDOW = "sliding_window"
    RECURRENT = "recurrent"
    HYBRID = "hybrid"
    NONE = "none"


class DeviceInfo(Struct, frozen=True):
    """A compute device of llama.cpp, with llama.cpp's names.

    `id` identifies the hardware: it is the same in every llama.cpp backend that lists the device. "" if unknown.
    """

    name: str
    description: str
    kind: Literal["cpu", "gpu", "accelerator"]
    memory_total_bytes: int = 0
    memory_free_bytes: int = 0
    is_integrated: bool = False
    backend: str = ""
    id: str = ""


class ModelInfo(Struct, frozen=True):
    """A loaded model. `sampling` holds all of the model's defaults except the seed.

    `num_parallel`: how many requests run at a time. `max_sequences`: how many sequences the KV cache can hold, running
    and idle. `num_gpu_layers`: how many layers are on GPUs (-1: all). `num_gpu_bytes`: about how much GPU memory the
    model takes. `sandbox`: in words, what the worker's process may not do. `embedding_length`: the number of values in
    an embedding; 0 if the model gives none. `can_generate`: the model answers prompts. Otherwise it only ranks
    documents (`can_rank`) or only embeds texts. `draft`: the file of the draft model, "ngram" if only n-grams of the
    text give drafts, or None. `draft_why`: the reason for the value of `draft`. `conditions`: what measured times
    depend on, by name: the model's file, llama.cpp's build, the processor and the devices. `media`: what it reads
    besides text. `projector`: the file with which it reads that; None if it reads only text.
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
    draft_why: str = ""
    llama_cpp_commit: str = ""
    conditions: dict[str, str] = {}
    system_description: str = ""
    sandbox: tuple[str, ...] = ()
    load_ms: float = 0.0
    chat_template: str = ""
    supports_infill: bool = False
    embedding_length: int = 0
    choices: tuple[SettingChoice, ...] = ()
    num_parallel: int = 0
    can_generate: bool = True
    can_rank: bool = False
    media: tuple[MediaKind, ...] = ()
    projector: str | None = None


class CacheStatus(Struct, frozen=True):
    """The contents of one tier of the prefix cache, and its counts since it was started.

    `num_offered` counts the blocks that were given to the tier, and `num_dropped` those of them that it did not store.
    `read_bytes_per_s` is measured; 0 if nothing was read. `trouble` says why the tier stores nothing at the moment.
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


class ShiftStatus(Struct, frozen=True):
    """What `--cache-shift` has moved since the start, and how far answers behind moved cells are from exact ones.

    `num_prompts` used `num_tokens` at other positions. Of `num_measured` prompts that were also computed as a whole,
    `num_same` have the same likeliest first token. `median_distance` and `most_distance`: the Kullback-Leibler
    divergence of the first token's probabilities, in nats.
    """

    num_prompts: int = 0
    num_tokens: int = 0
    num_measured: int = 0
    num_same: int = 0
    median_distance: float = 0.0
    most_distance: float = 0.0


class DraftCounts(Struct, frozen=True):
    """Counts of the drafts of one source since the start. A draft is the draft tokens that it proposes for one step.

    `num_chosen[n]`: how many drafts of n tokens were made; with n = 0, how often the source was considered but drafted
    nothing. `num_verified[i]` and `num_accepted[i]`: how many draft tokens at position i were verified, and accepted.
    Tokens after a rejected one, or after the end of the answer, count as not verified.
    """

    source: str
    num_chosen: tuple[int, ...] = ()
    num_verified: tuple[int, ...] = ()
    num_accepted: tuple[int, ...] = ()


class WorkerStatus(Struct, frozen=True):
    """The status that a worker sends in its answer to each ping.

    Points in time are those of time.monotonic. `step_started_at_s` is 0 between steps. `step_expected_s`: the predicted
    seconds of the running step; 0 if there is no prediction, or if no step runs. `preparing_id`: the id of the request
    whose prompt is being prepared since `preparing_since_s`, which is 0 while no prompt is being prepared.
    `num_tokens_from_memory_total` and `num_tokens_from_disk_total`: the cached tokens that were restored from there;
    the others were in KV cells. `prefill_tokens_per_s`: the predicted prompt tokens a second while no sequence decodes;
    `prefill_tokens_per_s_beside`: beside the sequences that run now, or beside one if none runs. `token_s`: the
    predicted seconds between two tokens of one more request now. The three are 0 if no steps were measured yet.
    `step_error_median` and `step_error_p95`: the median and the 95th percentile of the recent errors of predicted step
    times. An error is a fraction of the measured time. 0 if too few steps were measured. `draft_step_error_median` and
    `draft_step_error_p95`: the same for the steps of the draft model; 0 without a draft model. `draft_gain`: the factor
    by which drafts raised the tokens per second. It covers the steps that had drafts, or during which the draft model
    computed; 0 if there was no such step. `held_back`: why the worker may use fewer threads than usual, such as heat;
    "" if it may use all. `max_threads`: fewer threads than this compute while other programs use the CPUs. `shift`:
    None without `--cache-shift`. `num_decodes`: how many batches llama.cpp was asked to compute; `num_graphs_reused`:
    for how many of them it kept the graph of the batch before.
    """

    num_steps: int = 0
    num_decodes: int = 0
    num_graphs_reused: int = 0
    step_started_at_s: float = 0.0
    step_expected_s: float = 0.0
    preparing_since_s: float = 0.0
    preparing_id: str = ""
    num_running: int = 0
    num_waiting: int = 0
    num_cells_used: int = 0
    num_cells: int = 0
    num_prompt_tokens_total: int = 0
    num_cached_tokens_total: int = 0
    num_tokens_from_memory_total: int = 0
    num_tokens_from_disk_total: int = 0
    num_output_tokens_total: int = 0
    tokens_per_second: float = 0.0
    prefill_tokens_per_s: float = 0.0
    prefill_tokens_per_s_beside: float = 0.0
    token_s: float = 0.0
    step_error_median: float = 0.0
    step_error_p95: float = 0.0
    draft_step_error_median: float = 0.0
    draft_step_error_p95: float = 0.0
    drafts: tuple[DraftCounts, ...] = ()
    draft_gain: float = 0.0
    num_threads: int = 0
    max_threads: int = 0
    rss_bytes: int = 0
    shift: ShiftStatus | None = None
    held_back: str = ""
    memory_cache: CacheStatus | None = None
    disk_cache: CacheStatus | None = None


class WorkerState(StrEnum):
    """The states of a model's worker. ModelStatus explains them."""

    STOPPED = "stopped"
    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"
    FAILED = "failed"
    QUARANTINED = "quarantined"


UNUSABLE = (WorkerState.FAILED, WorkerState.QUARANTINED)


class ModelFile(Struct, frozen=True):
    """A file that a model is loaded from. `loaded`: its identity when it was loaded last; "" if it never was."""

    path: str
    loaded: str = ""


class ModelStatus(Struct, frozen=True):
    """A model that the daemon serves, and the state of its worker.

    state: stopped: the next request loads the model; failed: the model cannot be loaded; quarantined: its workers
    crashed or hung too often.
    progress: the loaded fraction of the model, 0 to 1.
    cause: why the last worker ended, or why it could not load the model; None if no worker failed.
    error_code: the code of the error that made a model failed or quarantined; None otherwise.
    retry_after_s: seconds until a request may load a failed or quarantined model again; None otherwise.
    ready_in_s: seconds until a model that is not loaded should be ready, estimated from its last load or from the size
    of its files; None if unknown.
    is_pinned: the model is never unloaded to make room.
    unload_in_s: seconds until the model is unloaded if no client uses it; None if never, or if it is not loaded.
    idle_s: seconds since the model's last use.
    adapters: names of its LoRA adapters; a request selects one as MODEL+ADAPTER.
    num_live: how many requests run or wait.
    sha256: the hash of the model's file, or of a split model's first file; None if unknown.
    is_remote: a remote runs the model, so it has no worker here.
    files: the model's own file, by the name "", and those of its adapters, by their names.
    """

    name: str
    state: WorkerState
    progress: float = 0.0
    info: ModelInfo | None = None
    worker: WorkerStatus | None = None
    pid: int | None = None
    num_restarts: int = 0
    cause: str | None = None
    error_code: str | None = None
    retry_after_s: float | None = None
    ready_in_s: float | None = None
    is_pinned: bool = False
    unload_in_s: float | None = None
    idle_s: float = 0.0
    adapters: tuple[str, ...] = ()
    num_live: int = 0
    sha256: str | None = None
    is_remote: bool = False
    files: dict[str, ModelFile] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The model's name, and MODEL+ADAPTER for each adapter."""
        return (self.name, *(f"{self.name}+{adapter}" for adapter in self.adapters))


class LayerShape(Struct, frozen=True, array_like=True):
    """One layer: the bytes of its tensors, and how many values it keeps in memory for a sequence.

    `num_bytes` includes `num_expert_bytes`, the bytes of its experts. The layer keeps `num_k_values` and `num_v_values`
    for each token. For each sequence it keeps `num_state_values` values of 32 bits.
    """

    num_bytes: int
    num_expert_bytes: int = 0
    num_k_values: int = 0
    num_v_values: int = 0
    num_state_values: int = 0


class FileShape(Struct, frozen=True):
    """A model's file, with all its parts together. Values that the header does not give are 0 or ().

    `num_bytes` is the size of the files. `width` is the length of a token's embedding. `table_bytes` is the size of the
    token embeddings, which are only looked up. `output_bytes` is the size of the output matrix; 0 if the token
    embeddings serve as that matrix too. `matrix_bytes` gives the bytes of all matrices except the token embeddings, by
    tensor type. `ffn_width` is the width of a layer's feed-forward part. `keeps_states`: the model is recurrent or
    hybrid, and llama.cpp can keep its earlier states.
    """

    num_bytes: int
    num_vocab: int = 0
    context_length: int = 0
    width: int = 0
    num_heads: int = 0
    ffn_width: int = 0
    table_bytes: int = 0
    output_bytes: int = 0
    matrix_bytes: tuple[tuple[str, int], ...] = ()
    layers: tuple[LayerShape, ...] = ()
    is_encoder: bool = False
    keeps_states: bool = False
