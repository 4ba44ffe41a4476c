"""Opens the model of a Load, with GPU layers, context length and KV types that make the model fit into memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from edgeagent.config import EngineConfig
from edgeagent.engine.llama.bindings import devices
from edgeagent.engine.llama.model import Model
from edgeagent.errors import ModelLoadFailed
from edgeagent.fit.gpus import gpus_of
from edgeagent.fit.need import kv_bytes_per_token, margin_bytes
from edgeagent.fit.placement import Room
from edgeagent.fit.plan import Plan, check_possible, describe, plan_again
from edgeagent.types import Choice, FileShape
from edgeagent.types.file_shape import LayerShape
from edgeagent.worker.protocol import Load


@dataclass(frozen=True, slots=True)
class Opened:
    """An open model, the options chosen for it and for its draft, and the reasons for the choices."""

    model: Model
    config: EngineConfig
    draft_config: EngineConfig
    choices: tuple[Choice, ...]
    num_gpu_bytes: int
    kv_bytes_per_token: float
    num_back: int = 0
    """How many earlier states the memory keeps of each sequence."""
    layers: tuple[LayerShape, ...] = ()
    """The layers in the file's header; empty if they are not known."""
    notes: tuple[str, ...] = ()
    """Options without the expected effect, for the daemon's log."""


def open_model(load: Load, on_progress: Callable[[float], None] = lambda _: None) -> Opened:
    """Open a load's model; `on_progress` gets the loaded fraction, 0 to 1. Raise ModelLoadFailed."""
    config = EngineConfig.model_validate_json(load.engine_config)
    shapes = load.shapes or (FileShape(0),)
    room = _room(load, config)
    plan = _plan(load, config, room, load.num_tries)
    model = Model(Path(load.path), plan.config, on_progress)
    choices = describe(plan, config, len(shapes[0].layers), load.num_tries)
    return Opened(
        model,
        plan.config,
        plan.draft_config,
        choices,
        sum(plan.taken.gpu_bytes),
        kv_bytes_per_token(shapes, plan.config),
        plan.layout.num_back,
        shapes[0].layers,
        _notes(config, room),
    )


def _notes(config: EngineConfig, room: Room) -> tuple[str, ...]:
    if config.main_gpu < 0 or room.gpus:
        return ()
    return (f"--main-gpu {config.main_gpu} has no effect: llama.cpp sees no GPU, see `edgeagent doctor`",)


def can_take_less(load: Load) -> bool:
    """Whether the next try of a load that ran out of memory would use less memory than this one."""
    config = EngineConfig.model_validate_json(load.engine_config)
    try:
        room = _room(load, config)
    except ModelLoadFailed:  # even less memory is free now
        return False
    plans = (_plan(load, config, room, num_tries) for num_tries in (load.num_tries, load.num_tries + 1))
    this, following = ((plan.config, plan.draft_config, plan.layout.num_back) for plan in plans)
    return this != following


def _plan(load: Load, config: EngineConfig, room: Room, num_tries: int) -> Plan:
    return plan_again(load.shapes or (FileShape(0),), config, room, num_tries)


def _room(load: Load, config: EngineConfig) -> Room:
    """Return how much memory a model may use. Raise ModelLoadFailed if its options cannot work on this machine."""
    found = devices()
    if config.gpu_layers > 0 and not any(device.kind == "gpu" for device in found):
        raise ModelLoadFailed(
            f"--gpu-layers puts {config.gpu_layers} layers on a GPU, but this build of llama.cpp sees none "
            f"(it sees: {', '.join(device.description for device in found)}). "
            "Use --gpu-layers 0, or rebuild with CMAKE_ARGS=-DGGML_CUDA=on make setup"
        )
    gpus = gpus_of(found, config.main_gpu)
    if config.main_gpu >= 0 and not gpus and gpus_of(found):
        count = len(gpus_of(found))
        raise ModelLoadFailed(
            f"--main-gpu names GPU {config.main_gpu}, but there {'is' if count == 1 else 'are'} {count}, counted from 0"
        )
    memory = psutil.virtual_memory()
    if load.shapes:
        check_possible(load.shapes, config, Room(memory.available + psutil.swap_memory().free, gpus))
    free_bytes = max(0, memory.available - margin_bytes(memory.total))
    return Room(min(free_bytes, load.room_bytes or free_bytes), gpus)
