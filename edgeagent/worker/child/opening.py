"""Opens the model of a Load, with GPU layers, context length and KV types that make the model fit into memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil
from msgspec.structs import replace

from edgeagent.config import EngineConfig
from edgeagent.engine.llama.bindings import commit, devices, system_description
from edgeagent.engine.llama.fingerprint import machine_conditions
from edgeagent.engine.llama.model import Model
from edgeagent.errors import ModelLoadFailed
from edgeagent.fit.need import margin_bytes
from edgeagent.fit.placement import FreeMemory, gpus_of
from edgeagent.fit.plan import RunPlan, check_possible, describe, place_projector, plan_again, why_no_draft
from edgeagent.types import FileShape, MemoryKind, ModelInfo, SettingChoice
from edgeagent.types.choices import set_options
from edgeagent.usable import usable_memory
from edgeagent.worker.protocol import Load


@dataclass(frozen=True, slots=True)
class Opened:
    """An open model, the options chosen for it and for its draft, and the reasons for the choices."""

    model: Model
    config: EngineConfig
    draft_config: EngineConfig
    choices: tuple[SettingChoice, ...]
    num_gpu_bytes: int
    max_rewind: int = 0
    """How many refused draft tokens can be removed: the memory keeps this many earlier states of each sequence."""
    notes: tuple[str, ...] = ()
    """Lines for the daemon's log about options that have no effect on this machine."""
    is_tuned: bool = False
    """Whether the form of attention comes from a profile of `edgeagent tune`."""
    why_no_draft: str = ""
    """Why the draft model must be left out to save memory; "" if it may be loaded, or if there is none."""
    projector_gpu: str = ""
    """The GPU that the projector is loaded to; "" for RAM."""

    def describe(self, load: Load, sandbox: tuple[str, ...], context_length: int, load_ms: float) -> ModelInfo:
        """Return what is known of a model that only computes whole texts. A model that generates has more to add."""
        model = self.model
        return ModelInfo(
            name=load.name,
            path=load.path,
            architecture=model.metadata("general.architecture") or "unknown",
            description=model.description,
            size_bytes=model.size_bytes,
            num_params=model.num_params,
            num_vocab=model.num_tokens,
            context_length=context_length,
            context_length_trained=model.context_length_trained,
            max_sequences=1,
            memory_kind=MemoryKind.NONE,
            supports_tools=False,
            supports_reasoning=False,
            sampling=model.default_sampling(),
            devices=model.devices,
            num_gpu_layers=model.num_gpu_layers,
            num_gpu_bytes=self.num_gpu_bytes,
            num_layers=model.num_layers,
            llama_cpp_commit=commit(),
            system_description=system_description(),
            sandbox=sandbox,
            load_ms=load_ms,
            num_parallel=1,
        )


@dataclass(frozen=True, slots=True)
class _Planned:
    """The plan for a load, and the shapes of the files to open.

    `num_tries`: how many earlier loads of the same files ran out of memory. The other attributes: see Opened.
    """

    plan: RunPlan
    shapes: tuple[FileShape, ...]
    num_tries: int
    why_no_draft: str
    projector_gpu: str


def open_model(load: Load, on_progress: Callable[[float], None] = lambda _: None) -> Opened:
    """Open a load's model; raise ModelLoadFailed. `on_progress` gets the loaded fraction, 0 to 1."""
    own = load.engine_config
    load, profile = with_profile(load)
    config = load.engine_config
    free_memory = _free_memory(load, config)
    planned = _plan(load, config, free_memory, load.num_tries)
    plan, shapes = planned.plan, planned.shapes
    model = Model(Path(load.path), plan.config, on_progress)
    choices = (*profile, *describe(plan, config, len(shapes[0].layers), planned.num_tries))
    return Opened(
        model,
        plan.config,
        plan.draft_config,
        choices,
        sum(plan.memory_use.gpu_bytes),
        plan.layout.max_rewind,
        _notes(config, free_memory),
        why_no_draft=planned.why_no_draft,
        is_tuned=config.flash_attention != own.flash_attention,
        projector_gpu=planned.projector_gpu,
    )


def with_profile(load: Load) -> tuple[Load, tuple[SettingChoice, ...]]:
    """Return a load with the options of its profile, and the choice for the status; none without a profile.

    A profile that was measured under other conditions is not used. Nor is one that was measured while the user had set
    other values of these options.
    """
    profile = load.profile
    if profile is None:
        return load, ()
    conditions, own = machine_conditions(Path(load.path)), set_options(load.engine_config)
    changed = [name for name, value in conditions.items() if profile.conditions.get(name) != value]
    why, value = f"measured by `edgeagent tune` on {profile.at[:10]}", "none"
    if changed:
        why += f", and not used: {', '.join(changed)} changed; run `edgeagent tune` again"
    elif own != profile.own:
        why += f", and not used: you set {_words(own)} now, and {_words(profile.own)} then"
    else:
        load = replace(load, engine_config=replace(load.engine_config, **profile.options.given))
        value = _words(profile.options.given) if profile.options.given else "the defaults"
    return load, (SettingChoice("profile", value, "measurement", why),)


def _words(options: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in options.items()) or "nothing"


def _notes(config: EngineConfig, free_memory: FreeMemory) -> tuple[str, ...]:
    if config.main_gpu < 0 or free_memory.gpus:
        return ()
    return (f"--main-gpu {config.main_gpu} has no effect: llama.cpp sees no GPU, see `edgeagent doctor`",)


def can_take_less(load: Load) -> bool:
    """Whether a load that ran out of memory would use less memory at its next try."""
    load, _ = with_profile(load)
    config = load.engine_config
    try:
        free_memory = _free_memory(load, config)
    except ModelLoadFailed:  # even less memory is free now
        return False
    plans = (_plan(load, config, free_memory, num_tries) for num_tries in (load.num_tries, load.num_tries + 1))
    this, following = (
        (len(each.shapes), each.plan.config, each.plan.draft_config, each.plan.layout.max_rewind) for each in plans
    )
    return this != following


def _plan(load: Load, config: EngineConfig, free_memory: FreeMemory, num_tries: int) -> _Planned:
    """Return the plan for a load. If a load with a draft ran out of memory, the next one only leaves out the draft."""
    shapes = load.shapes or (FileShape(0),)
    projector, room = place_projector(shapes, config, free_memory, load.projector_bytes), free_memory
    free_memory = room.beside(projector)
    why = why_no_draft(shapes, config, free_memory)
    if not why and len(shapes) > 1 and num_tries:
        num_tries, why = num_tries - 1, "a load with it ran out of memory"
    shapes = shapes[:1] if why else shapes
    plan = plan_again(shapes, config, free_memory, num_tries)
    gpu = next((gpu.name for gpu, num in zip(room.gpus, projector.gpu_bytes, strict=True) if num), "")
    return _Planned(plan.with_projector(projector, room), shapes, num_tries, why, gpu)


def _free_memory(load: Load, config: EngineConfig) -> FreeMemory:
    """Return how much memory a load may use. Raise ModelLoadFailed if its options cannot work on this machine."""
    found = devices()
    if config.gpu_layers > 0 and not any(device.kind == "gpu" for device in found):
        raise ModelLoadFailed(
            f"--gpu-layers puts {config.gpu_layers} layers on a GPU, but this build of llama.cpp sees none "
            f"(it sees: {', '.join(device.description for device in found)}). "
            "Use --gpu-layers 0, or build llama.cpp for the GPU: `edgeagent doctor` shows how"
        )
    gpus = gpus_of(found, config.only_gpu)
    if config.main_gpu >= 0 and not gpus and gpus_of(found):
        count = len(gpus_of(found))
        raise ModelLoadFailed(
            f"--main-gpu names GPU {config.main_gpu}, but there {'is' if count == 1 else 'are'} {count}, counted from 0"
        )
    memory = usable_memory()
    if load.shapes:
        # Without memory for the draft, the model is loaded alone.
        check_possible(load.shapes[:1], config, FreeMemory(memory.available + psutil.swap_memory().free, gpus))
    free_bytes = max(0, memory.available - margin_bytes(memory.total))
    return FreeMemory(min(free_bytes, load.room_bytes or free_bytes), gpus)
