"""`edgeagent fit`: whether a model fits into the memory of this or another machine, and what would fit instead."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgeagent.cli.completion import model_names
from edgeagent.cli.display import aligned, wrapped
from edgeagent.cli.models.options import ConfigFile, ModelsDir, StateDir, settings_of
from edgeagent.sizes import memory_bytes, memory_text
from edgeagent.types import replace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edgeagent.config import Config, EngineConfig
    from edgeagent.fit.need import Need
    from edgeagent.fit.placement import FreeMemory
    from edgeagent.fit.plan import RunPlan
    from edgeagent.store.gguf.header import GgufHeader
    from edgeagent.types import SettingChoice

_NUM_SUGGESTIONS = 3


def fit(
    name: Annotated[str, typer.Argument(metavar="MODEL", help="The model.", autocompletion=model_names)],
    ram: Annotated[str | None, typer.Option("--ram", metavar="SIZE", help="Memory, e.g. 16G. [default: free]")] = None,
    vram: Annotated[
        str | None,
        typer.Option("--vram", metavar="SIZES", help="Memory of each GPU, e.g. 8G or 8G,6G; 0: none. [default: free]"),
    ] = None,
    ctx: Annotated[int, typer.Option("--ctx", metavar="N", min=0, help="Tokens of context. [default: as serve]")] = 0,
    draft: Annotated[bool, typer.Option(help="Count its draft model too, if it is on this machine.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    models_dir: ModelsDir = None,
    state_dir: StateDir = None,
    config: ConfigFile = None,
) -> None:
    """Show how much memory a model needs, part by part, and how it would run: context, KV type, layers on the GPUs.

    It reads only the header of the file, and asks llama.cpp for the GPUs. If the model does not fit, it shows the
    longest context that fits and the catalog's models that fit, and exits with 1.
    """
    from edgeagent.fit.need import predict
    from edgeagent.fit.plan import describe, longest_context, make_plan, why_no_draft
    from edgeagent.types import SettingChoice

    settings = settings_of(models_dir, state_dir, config)
    shapes = [header.shape for header in _headers(name, settings, with_draft=draft)]
    engine = replace(settings.engine_of(name), **{"ctx": ctx} if ctx else {})
    free_memory = _free_memory(ram, vram, engine)
    why = why_no_draft(shapes, engine, free_memory)
    shapes = shapes[:1] if why else shapes
    plan = make_plan(shapes, engine, free_memory)
    need = predict(shapes, plan.config, plan.num_cells, max_rewind=plan.layout.max_rewind)
    longest = longest_context(shapes, engine, plan.free_memory)
    choices = describe(plan, engine, len(shapes[0].layers))
    choices += (SettingChoice("draft", "none", "memory", why),) if why else ()
    if as_json:
        typer.echo(json.dumps(_record(name, plan, need, longest, choices), indent=2))
    else:
        _say(name, plan, need, longest, choices)
    if not plan.fits:
        raise typer.Exit(1)


def _free_memory(ram: str | None, vram: str | None, engine: EngineConfig) -> FreeMemory:
    """Return the free memory to plan with: the given sizes, or else what is free on this machine.

    If only `ram` is given, it describes another machine, whose GPUs are unknown. Then no GPU is assumed.
    """
    from edgeagent.doctor.native import ask_native
    from edgeagent.fit.need import margin_bytes
    from edgeagent.fit.placement import FreeMemory, GpuDevice, gpus_of
    from edgeagent.usable import usable_memory

    if vram is None:
        # If --ram describes another machine, its GPUs are not known.
        gpus = gpus_of(ask_native().devices, engine.main_gpu) if ram is None else ()
    else:
        sizes = [size for size in map(_size, vram.split(",")) if size]
        gpus = tuple(GpuDevice(f"GPU {index}", size, size) for index, size in enumerate(sizes))
    if ram is not None:
        size = _size(ram)
        return FreeMemory(size - margin_bytes(size), gpus)
    memory = usable_memory()
    return FreeMemory(max(0, memory.available - margin_bytes(memory.total)), gpus)


def _size(text: str) -> int:
    try:
        return memory_bytes(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def _headers(name: str, settings: Config, *, with_draft: bool) -> list[GgufHeader]:
    """Return the header of a model on this machine. If `with_draft`, add the header of its draft model if that is here.

    Raise ModelDamaged if the model's file cannot be read.
    """
    from edgeagent.errors import ModelDamaged
    from edgeagent.store.drafts import DraftFinder
    from edgeagent.store.gguf.header import validate_model
    from edgeagent.store.library import Library

    library = Library.of(settings)
    model = library.local(name)
    if model.header is None:
        raise ModelDamaged(model.problem or f"{name} cannot be read")
    header = validate_model(model.paths[0])
    if not with_draft:
        return [header]
    draft = DraftFinder(library).find(library.find(name), header).path
    return [header] if draft is None else [header, validate_model(draft)]


def _say(name: str, plan: RunPlan, need: Need, longest: int, choices: Sequence[SettingChoice]) -> None:
    parts = [
        ("files", need.weights_bytes),
        ("matrices, rearranged for the processor", need.repacked_bytes),
        (f"KV cells, {plan.num_cells:,} tokens in {_kv_types(plan.config)}", need.kv_bytes),
        ("reserved for blocks of KV cells", need.blocks_bytes),
        ("rows of logits", need.outputs_bytes),
        ("buffers", need.buffers_bytes),
        ("process", need.worker_bytes),
        ("total, without a GPU", need.total_bytes),
    ]
    typer.echo(aligned([(text, memory_text(num_bytes)) for text, num_bytes in parts if num_bytes]))
    for choice in choices:
        typer.echo(wrapped(f"{choice.name}: {choice.value} ({choice.why})"))
    need_text, free_text = memory_text(plan.memory_use.ram_bytes), memory_text(plan.free_memory.ram_bytes)
    memory = f"{need_text} of memory are needed and {free_text} are free"
    if plan.fits:
        typer.echo(wrapped(f"{name} fits: {memory}. The longest context that fits has {longest:,} tokens."))
        return
    typer.echo(wrapped(f"{name} does not fit: {memory}."))
    if longest:
        typer.echo(f"With --ctx {longest} it would.")
    others = _suggestions(plan)
    if others:
        typer.echo(wrapped(f"These catalog models fit: {', '.join(others)}. `edgeagent pull NAME` downloads one."))


def _kv_types(engine: EngineConfig) -> str:
    k, v = engine.kv_type_k, engine.kv_type_v
    return k if k == v else f"{k} and {v}"


def _suggestions(plan: RunPlan) -> list[str]:
    """Return the names of the catalog's largest chat models that would fit, judged by their approximate file sizes."""
    from edgeagent.store.names.catalog import load_catalog

    # Half of the memory is for KV cells and buffers.
    room_gb = (plan.free_memory.ram_bytes + sum(gpu.free_bytes for gpu in plan.free_memory.gpus)) / 1e9 / 2
    entries = [
        entry
        for entry in load_catalog().values()
        if entry.kind == "chat" and entry.approximate_gb and entry.approximate_gb <= room_gb
    ]
    largest = sorted(entries, key=lambda entry: entry.approximate_gb or 0.0, reverse=True)
    return [entry.name for entry in largest[:_NUM_SUGGESTIONS]]


def _record(name: str, plan: RunPlan, need: Need, longest: int, choices: Sequence[SettingChoice]) -> dict[str, Any]:
    return {
        "name": name,
        "fits": plan.fits,
        "context": plan.num_cells,
        "max_context": longest,
        "kv_type_k": plan.config.kv_type_k,
        "kv_type_v": plan.config.kv_type_v,
        "num_gpu_layers": plan.config.gpu_layers,
        "num_draft_gpu_layers": plan.layout.num_draft_gpu_layers,
        "num_cpu_experts": plan.layout.num_cpu_experts,
        "ram_bytes": plan.memory_use.ram_bytes,
        "ram_room_bytes": plan.free_memory.ram_bytes,
        "gpus": [
            {"name": gpu.name, "bytes": taken, "room_bytes": gpu.free_bytes}
            for gpu, taken in zip(plan.free_memory.gpus, plan.memory_use.gpu_bytes, strict=True)
        ],
        "parts": {
            "weights": need.weights_bytes,
            "repacked": need.repacked_bytes,
            "kv": need.kv_bytes,
            "blocks": need.blocks_bytes,
            "outputs": need.outputs_bytes,
            "buffers": need.buffers_bytes,
            "worker": need.worker_bytes,
        },
        "chosen": [{"name": choice.name, "value": choice.value, "why": choice.why} for choice in choices],
        "instead": [] if plan.fits else _suggestions(plan),
    }
