"""Plans how a model runs in the available memory: layers on GPUs, context, KV types.

Configured values are kept, with one exception: if the configured number of layers does not fit into the free GPU
memory, as many layers as fit are on the GPUs.

If memory is short, the plan first gives up what users notice least: a context above 4,096 tokens, then the exact KV
type, then the number of parallel requests, then layers on the GPUs, and last a context of 4,096 tokens. The number of
parallel requests is lowered only for models that keep a state for each request. Other models need no memory for it,
because all requests share the KV cells.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from edgeagent.config import DEFAULT_PARALLEL, EngineConfig
from edgeagent.errors import ModelLoadFailed
from edgeagent.fit.need import (
    CONTEXT_STEP,
    DEFAULT_MAX_CONTEXT,
    kv_bytes_per_token,
    num_cells_wanted,
    num_states,
    predict,
)
from edgeagent.fit.placement import FreeMemory, Layout, MemoryUse, layouts, predict_use
from edgeagent.types import FileShape, SettingChoice, replace
from edgeagent.units import memory_text

_STATE_BYTES = 4  # for each value
# Three limits on the memory of the states: a share of the free memory; a share of the model's size, or _LITTLE_BYTES if
# that is more; and _MAX_BYTES.
_FREE_MEMORY_SHARE, _WEIGHTS_SHARE, _LITTLE_BYTES, _MAX_BYTES = 1 / 8, 1 / 2, 64 << 20, 1 << 30


@dataclass(frozen=True, slots=True)
class DraftStates:
    """How many earlier states a model keeps: one for each of the last `num_tokens` tokens of every sequence.

    Each of these tokens takes `token_bytes`, for all sequences together.
    """

    num_tokens: int
    token_bytes: int


def draft_states(shapes: Sequence[FileShape], config: EngineConfig, free_memory: FreeMemory) -> DraftStates | None:
    """Return how many earlier states the model keeps; `num_tokens` is 0 if they would take too much memory.

    The first shape is the model, the others its draft model. Return None if drafts are off, if the model has no
    states, or if llama.cpp cannot keep its earlier states.
    """
    values = [layer.num_state_values for layer in shapes[0].layers]
    if not shapes[0].keeps_states or not any(values) or not config.draft_tokens:
        return None
    # A step also needs a buffer for the states of one layer.
    token_bytes = num_states(config) * (sum(values) + max(values)) * _STATE_BYTES
    on_gpus = sum(gpu.free_bytes for gpu in free_memory.gpus) if config.gpu_layers else 0
    most = float(_LITTLE_BYTES)
    # Without a draft model and without n-grams, only tokens that a grammar forces are drafted. Then the limit is
    # _LITTLE_BYTES.
    if config.draft_ngrams or len(shapes) > 1:
        most = min(max(most, _WEIGHTS_SHARE * shapes[0].num_bytes), _MAX_BYTES)
    most = min(most, _FREE_MEMORY_SHARE * (on_gpus or free_memory.ram_bytes))
    return DraftStates(min(config.draft_tokens, int(most // token_bytes)), token_bytes)


def describe_drafts(states: DraftStates, config: EngineConfig) -> SettingChoice:
    """Return how many tokens may be drafted and why, as the choice is shown to the user."""
    each = memory_text(states.token_bytes)
    if states.num_tokens == 0:
        why = f"the states needed to undo rejected drafts would take {each} for each token, which is too much"
        return SettingChoice("drafts", "none", "memory", why)
    by = "option" if states.num_tokens == config.draft_tokens else "memory"
    why = f"the states needed to undo rejected drafts take {each} for each token"
    return SettingChoice("drafts", f"up to {states.num_tokens}", by, why)


def why_no_draft(shapes: Sequence[FileShape], config: EngineConfig, free_memory: FreeMemory) -> str:
    """Return why a model is loaded without its draft model; "" if both fit, or if there is no draft model.

    The first shape is the model, the others its draft model. Both fit if there is memory for both, and if the model
    gets the same context, KV types, parallel requests and layers on GPUs as without the draft model. It must also keep
    at least as many earlier states.
    """
    if len(shapes) == 1:
        return ""
    pair, alone = make_plan(shapes, config, free_memory), make_plan(shapes[:1], config, free_memory)
    keeps_states = pair.layout.max_rewind >= alone.layout.max_rewind
    if pair.fits and keeps_states and pair.config == alone.config and _of_model(pair) == _of_model(alone):
        return ""
    needed = predict(shapes[1:], pair.config, pair.num_cells)
    return (
        f"it takes about {memory_text(needed.total_bytes - needed.worker_bytes)} of memory, which the model needs "
        "itself: there is too little for both"
    )


def _of_model(plan: RunPlan) -> Layout:
    return dataclasses.replace(plan.layout, num_draft_gpu_layers=0, max_rewind=0)


# Context lengths in tokens, tried in this order. To reach a length, the KV cache is quantized first. If that is not
# enough, fewer layers are put on the GPUs.
_CONTEXT_FLOORS = (4096, 1024, 256)
_QUANTIZED = "q8_0"
# Numbers of parallel requests that are tried for a model that keeps a state for each request.
_COUNTS = (DEFAULT_PARALLEL, 2, 1)
_GPU_SHARE_ON_RETRY = 0.8


@dataclass(frozen=True, slots=True)
class RunPlan:
    """How a model runs. `config` holds the options with all choices made.

    `num_cells`: the context in tokens. `num_wanted`: the context that the model would have with enough memory.
    `memory_use`: the predicted memory. `free_memory`: the memory that may be taken. `fits`: `memory_use` is within
    `free_memory`.
    `draft_states`: None if drafts need no earlier states, or if the model cannot keep them.
    """

    config: EngineConfig
    num_cells: int
    num_wanted: int
    layout: Layout
    memory_use: MemoryUse
    free_memory: FreeMemory
    fits: bool
    draft_states: DraftStates | None = None

    def with_projector(self, projector: MemoryUse, free_memory: FreeMemory) -> RunPlan:
        """Return the plan of a model with its projector. `free_memory`: what both may take."""
        return dataclasses.replace(self, memory_use=self.memory_use + projector, free_memory=free_memory)

    @property
    def draft_config(self) -> EngineConfig:
        return replace(self.config, gpu_layers=self.layout.num_draft_gpu_layers, cpu_experts=0)


def least_cells(shape: FileShape, config: EngineConfig) -> int:
    """Return the context, in tokens, with which a model runs if no context fits."""
    return num_cells_wanted(shape, config) if config.ctx else min(num_cells_wanted(shape, config), _CONTEXT_FLOORS[1])


def make_plan(
    shapes: Sequence[FileShape],
    config: EngineConfig,
    free_memory: FreeMemory,
    most_cells: int = 0,
    *,
    may_keep_states: bool = True,
) -> RunPlan:
    """Return how a model runs with its draft model. The first shape is the model, the others its draft model.

    A context that is not configured has at most `most_cells` tokens (0: the usual limit). If `may_keep_states`, memory
    is used for earlier states, which drafts need. But if this would change an option, the layers on GPUs or `fits`, no
    earlier states are kept.
    """
    plan = _plan(shapes, config, free_memory, most_cells)
    states = draft_states(shapes, plan.config, free_memory)
    if states is None:
        return plan
    if may_keep_states and states.num_tokens:
        keeping = _plan(shapes, config, free_memory, most_cells, states.num_tokens)
        is_same_layout = dataclasses.replace(keeping.layout, max_rewind=0) == plan.layout
        if is_same_layout and keeping.config == plan.config and keeping.fits == plan.fits:
            return dataclasses.replace(keeping, draft_states=states)
    return dataclasses.replace(plan, draft_states=dataclasses.replace(states, num_tokens=0))


def _plan(
    shapes: Sequence[FileShape], config: EngineConfig, free_memory: FreeMemory, most_cells: int = 0, max_rewind: int = 0
) -> RunPlan:
    plan = _plan_as_asked(shapes, config, free_memory, most_cells, max_rewind)
    if config.gpu_layers > 0 and free_memory.gpus and not plan.layout.num_gpu_layers:
        as_many_as_fit = replace(config, gpu_layers=-1)
        return _plan_as_asked(shapes, as_many_as_fit, free_memory, most_cells, max_rewind)
    return plan


def _plan_as_asked(
    shapes: Sequence[FileShape], config: EngineConfig, free_memory: FreeMemory, most_cells: int, max_rewind: int
) -> RunPlan:
    wanted = num_cells_wanted(shapes[0], config)
    most = min(wanted, most_cells) if most_cells and not config.ctx else wanted
    floors = [wanted] if config.ctx else [min(most, cells) for cells in _CONTEXT_FLOORS]
    for floor in dict.fromkeys(floors):
        for layout in layouts(shapes, config, free_memory, max_rewind):
            for typed in _variants(shapes, config):
                if predict_use(shapes, typed, floor, layout, free_memory.gpus).fits(free_memory):
                    cells = _longest(shapes, typed, layout, free_memory, floor, most)
                    return _planned(shapes, typed, cells, wanted, layout, free_memory)
    # Nothing fits. The model may still run slowly, with its file read again and again.
    least = replace(config, parallel=_parallel_counts(shapes, config)[-1])
    typed, cells = _typed(least)[0], min(most, least_cells(shapes[0], config))
    on_gpus = (
        layout
        for layout in layouts(shapes, config, free_memory, max_rewind)
        if predict_use(shapes, typed, cells, layout, free_memory.gpus).fits_gpus(free_memory)
    )
    return _planned(shapes, typed, cells, wanted, next(on_gpus, Layout(max_rewind=max_rewind)), free_memory)


def plan_again(shapes: Sequence[FileShape], config: EngineConfig, free_memory: FreeMemory, num_tries: int) -> RunPlan:
    """Return the plan after `num_tries` loads that ran out of memory. Each try takes less, if the options allow it.

    First the earlier states for drafts are dropped. After that, a model with layers on GPUs may take four fifths of the
    GPU memory that it took before. Other models get half of the context, and fewer parallel requests if each keeps a
    state. A configured context or number of requests does not change, so two tries may have the same plan.
    """
    plan = make_plan(shapes, config, free_memory)
    counts = _parallel_counts(shapes, config)
    for _ in range(num_tries):
        if plan.layout.max_rewind:
            plan = make_plan(shapes, config, free_memory, may_keep_states=False)
        elif plan.layout.num_gpu_layers:
            gpus = tuple(
                dataclasses.replace(gpu, free_bytes=int(_GPU_SHARE_ON_RETRY * min(gpu.free_bytes, taken)))
                for gpu, taken in zip(plan.free_memory.gpus, plan.memory_use.gpu_bytes, strict=True)
            )
            plan = make_plan(shapes, config, FreeMemory(free_memory.ram_bytes, gpus), may_keep_states=False)
        else:
            half = plan.num_cells // 2 // CONTEXT_STEP * CONTEXT_STEP
            fewer = next((count for count in counts if count < plan.config.parallel), counts[-1])
            config = replace(config, parallel=fewer)
            plan = make_plan(shapes, config, plan.free_memory, max(half, CONTEXT_STEP), may_keep_states=False)
    return plan


def longest_context(shapes: Sequence[FileShape], config: EngineConfig, free_memory: FreeMemory) -> int:
    """Return the longest context, in tokens, that fits with the configured KV types (auto: f16); 0 if none fits."""
    typed = _typed(config)[0]
    trained = shapes[0].context_length or DEFAULT_MAX_CONTEXT
    if not kv_bytes_per_token(shapes, typed):
        return trained if make_plan(shapes, config, free_memory).fits else 0

    def does_not_fit(cells: int) -> bool:
        return not make_plan(shapes, replace(typed, ctx=cells), free_memory).fits

    steps = range(CONTEXT_STEP, trained + CONTEXT_STEP, CONTEXT_STEP)
    count = bisect_right(steps, 0, key=does_not_fit)
    return min(trained, count * CONTEXT_STEP)


def place_projector(
    shapes: Sequence[FileShape], config: EngineConfig, free_memory: FreeMemory, num_bytes: int
) -> MemoryUse:
    """Return where the projector of a model takes its memory: on the first GPU that gets layers, or else in RAM.

    It is on the GPU if it fits there beside at least one layer of the model.
    """
    gpus, shares = free_memory.gpus, config.tensor_split
    first = next((index for index, share in enumerate(shares[: len(gpus)]) if share), 0)
    there = MemoryUse(0, tuple(num_bytes if index == first else 0 for index in range(len(gpus))))
    if gpus and make_plan(shapes[:1], config, free_memory.beside(there)).memory_use.gpu_bytes[first]:
        return there
    return MemoryUse(num_bytes, (0,) * len(gpus))


def check_possible(shapes: Sequence[FileShape], config: EngineConfig, free_memory: FreeMemory) -> None:
    """Raise ModelLoadFailed if the configured options need more than `free_memory`, all memory that could become free.

    It is also raised if a GPU cannot hold the configured layers. In RAM the weights do not count, because the file can
    be read again and again. Without this check the system would kill the worker, or llama.cpp would try for seconds.
    """
    _check_gpu_layers(shapes, config, free_memory)
    cells = num_cells_wanted(shapes[0], config) if config.ctx else min(_CONTEXT_FLOORS)
    need, smallest = (predict(shapes, _typed(config)[index], cells) for index in (0, -1))
    # The weights do not count, because the file can be read again and again.
    least = smallest.kv_bytes + smallest.outputs_bytes + smallest.worker_bytes
    free = free_memory.ram_bytes + sum(gpu.free_bytes for gpu in free_memory.gpus if not gpu.shares_memory)
    if least <= free:
        return
    longest = longest_context(shapes, config, FreeMemory(free))
    raise ModelLoadFailed(
        f"a context of {cells} tokens takes {memory_text(need.kv_bytes)} of memory for the KV cache, and "
        f"{memory_text(free)} are free; {f'--ctx {longest} would fit' if longest else 'no context would fit'}"
    )


def _check_gpu_layers(shapes: Sequence[FileShape], config: EngineConfig, free_memory: FreeMemory) -> None:
    """Raise ModelLoadFailed if a GPU could not hold the configured layers even if it were empty."""
    if config.gpu_layers <= 0 or not free_memory.gpus:
        return
    cells = num_cells_wanted(shapes[0], config)
    layout = next(layouts(shapes[:1], config, free_memory))
    use = predict_use(shapes[:1], _typed(config)[-1], cells, layout, free_memory.gpus, with_reserve=False)
    for gpu, num_bytes in zip(free_memory.gpus, use.gpu_bytes, strict=True):
        if num_bytes > gpu.total_bytes > 0:
            fitting = make_plan(shapes[:1], replace(config, gpu_layers=-1), free_memory).layout.num_gpu_layers
            raise ModelLoadFailed(
                f"{config.gpu_layers} layers with a context of {cells} tokens take {memory_text(num_bytes)} on "
                f"{gpu.name}, which has {memory_text(gpu.total_bytes)}; --gpu-layers {fitting} would fit"
            )


def describe(plan: RunPlan, config: EngineConfig, num_layers: int, num_tries: int = 0) -> tuple[SettingChoice, ...]:
    """Return what a plan chose because of memory, with the reasons, as it is shown to the user.

    The layers on GPUs and the drafts are included even if they are as configured.

    `config` holds the options before the choices. The model has `num_layers` layers. `num_tries` is the number of
    earlier loads that ran out of memory.
    """
    choices = []
    if plan.free_memory.gpus:
        choices.append(_describe_layers(plan, config, num_layers))
    free = memory_text(plan.free_memory.ram_bytes)
    if plan.num_cells < plan.num_wanted:
        why = f"{plan.num_wanted} tokens do not fit beside the weights: {free} of memory are free"
        if num_tries and not plan.layout.num_gpu_layers:
            why = "the load ran out of memory with a longer context"
        choices.append(SettingChoice("context", str(plan.num_cells), "memory", why))
    chosen = plan.config.kv_type_k
    if config.kv_type_k == "auto" and chosen != "f16":
        why = "with f16 the context would be shorter, or fewer layers would be on the GPU"
        choices.append(SettingChoice("KV type", chosen, "memory", why))
    if not config.parallel and plan.config.parallel < config.num_parallel:
        why = "each request keeps a state, and more requests would leave less memory for the context and the layers"
        choices.append(SettingChoice("parallel requests", str(plan.config.parallel), "memory", why))
    if plan.draft_states is not None:
        choices.append(describe_drafts(plan.draft_states, config))
    if num_tries:
        loads = "a load" if num_tries == 1 else f"{num_tries} loads"
        choices.append(
            SettingChoice("memory", "less than is free", "memory", f"{loads} before this one ran out of memory")
        )
    return tuple(choices)


def _describe_layers(plan: RunPlan, config: EngineConfig, num_layers: int) -> SettingChoice:
    layout = plan.layout
    parts = [
        f"{memory_text(taken)} of {memory_text(gpu.free_bytes)} free on {gpu.name}"
        for taken, gpu in zip(plan.memory_use.gpu_bytes, plan.free_memory.gpus, strict=True)
    ]
    value = "all" if layout.num_gpu_layers > num_layers else f"{layout.num_gpu_layers} of {num_layers}"
    if layout.num_cpu_experts and layout.num_gpu_layers:
        value += f", the experts of {layout.num_cpu_experts} in memory"
    why = f"takes {', '.join(parts)}"
    is_as_asked = 0 <= min(config.gpu_layers, num_layers + 1) <= layout.num_gpu_layers
    if config.gpu_layers > 0 and not is_as_asked:
        why += f"; {config.gpu_layers} layers do not fit beside what other programs hold"
    return SettingChoice("layers on the GPU", value, "option" if is_as_asked else "memory", why)


def _typed(config: EngineConfig) -> list[EngineConfig]:
    """Return one copy of the options for each KV type that may be used, the best one first."""
    asked = {"kv_type_k": config.kv_type_k, "kv_type_v": config.kv_type_v}
    needs_exact = config.flash_attention == "off" or config.cache_shift  # no quantized cells are moved
    types = ["f16"] if needs_exact else ["f16", _QUANTIZED]
    if "auto" not in asked.values():
        return [config]
    return [
        replace(config, **{name: kind if value == "auto" else value for name, value in asked.items()}) for kind in types
    ]


def _parallel_counts(shapes: Sequence[FileShape], config: EngineConfig) -> tuple[int, ...]:
    """Return the numbers of parallel requests that are tried for a model, the largest first."""
    has_states = any(layer.num_state_values for shape in shapes for layer in shape.layers)
    return _COUNTS if has_states and not config.parallel else (config.num_parallel,)


def _variants(shapes: Sequence[FileShape], config: EngineConfig) -> list[EngineConfig]:
    """Return one copy of the options for each pair of a number of parallel requests and a KV type, the best first."""
    counts = _parallel_counts(shapes, config)
    return [replace(typed, parallel=count) for count in counts for typed in _typed(config)]


def _longest(
    shapes: Sequence[FileShape], config: EngineConfig, layout: Layout, free_memory: FreeMemory, floor: int, wanted: int
) -> int:
    """Return the longest context in tokens, from `floor` to `wanted`, that fits in a layout. `floor` must fit."""
    steps = [*range(floor, wanted, CONTEXT_STEP), wanted]
    num_fitting = bisect_right(
        steps, 0, key=lambda cells: not predict_use(shapes, config, cells, layout, free_memory.gpus).fits(free_memory)
    )
    longest: int = steps[max(0, num_fitting - 1)]
    return longest


def _planned(
    shapes: Sequence[FileShape], config: EngineConfig, cells: int, wanted: int, layout: Layout, free_memory: FreeMemory
) -> RunPlan:
    use = predict_use(shapes, config, cells, layout, free_memory.gpus)
    is_whole = layout.num_gpu_layers > len(shapes[0].layers)
    chosen = replace(
        config,
        ctx=config.ctx if cells == wanted else cells,
        gpu_layers=-1 if is_whole else layout.num_gpu_layers,
        cpu_experts=layout.num_cpu_experts,
    )
    return RunPlan(chosen, cells, wanted, layout, use, free_memory, use.fits(free_memory))
