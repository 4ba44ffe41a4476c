"""`edgeagent fit`: whether a model fits into this machine's memory, or another's, and what would fit instead."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgeagent.cli.completion import model_names
from edgeagent.cli.display import aligned
from edgeagent.cli.model_options import ConfigFile, ModelsDir, StateDir, settings_of
from edgeagent.sizes import memory_bytes, memory_text

if TYPE_CHECKING:
    from edgeagent.config import Config, EngineConfig
    from edgeagent.store.fit import Plan
    from edgeagent.store.gguf import GgufHeader

_NUM_SUGGESTIONS = 3


def _size(text: str | None) -> int | None:
    try:
        return None if text is None else memory_bytes(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def fit(
    name: Annotated[str, typer.Argument(metavar="MODEL", help="The model.", autocompletion=model_names)],
    ram: Annotated[str | None, typer.Option("--ram", metavar="SIZE", help="Memory, e.g. 16G. [default: free]")] = None,
    vram: Annotated[str | None, typer.Option("--vram", metavar="SIZE", help="Memory of the GPUs. [default: 0]")] = None,
    ctx: Annotated[int, typer.Option("--ctx", metavar="N", min=0, help="Tokens of context. [default: as serve]")] = 0,
    draft: Annotated[bool, typer.Option(help="Count the draft model that runs beside it, if it is here.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    models_dir: ModelsDir = None,
    state_dir: StateDir = None,
    config: ConfigFile = None,
) -> None:
    """Say what memory a model takes, part by part, and whether that is free.

    It reads the header of the file only. The exit status is 1 where the model does not fit; then it says which context
    would, and which models of the catalog.
    """
    import psutil

    from edgeagent.store.fit import margin_bytes, plan

    settings = settings_of(models_dir, state_dir, config)
    headers = _headers(name, settings, with_draft=draft)
    memory = psutil.virtual_memory()
    room = _size(ram)
    room = max(0, memory.available - margin_bytes(memory.total)) if room is None else room - margin_bytes(room)
    engine = settings.engine_with_drafts.model_copy(update={"ctx": ctx} if ctx else {})
    planned = plan(headers, engine, room, _size(vram) or 0)
    if as_json:
        typer.echo(json.dumps(_record(name, planned), indent=2))
    else:
        _say(name, planned, engine)
    if not planned.fits:
        raise typer.Exit(1)


def _headers(name: str, settings: Config, *, with_draft: bool) -> list[GgufHeader]:
    """Return the headers of a model that is here, and of its draft if that is here too."""
    from edgeagent.errors import ModelDamaged
    from edgeagent.store.gguf import validate_model
    from edgeagent.store.resolve import Library

    library = Library.of(settings)
    model = library.local(name)
    if model.header is None:
        raise ModelDamaged(model.problem or f"{name} cannot be read")
    headers = [validate_model(model.paths[0])]
    draft = library.find_draft(name) if with_draft else None
    return headers if draft is None else [*headers, validate_model(draft)]


def _say(name: str, planned: Plan, engine: EngineConfig) -> None:
    need = planned.need
    parts = [
        ("files", need.weights_bytes),
        ("matrices, rearranged for the processor", need.repacked_bytes),
        (f"KV cells, {planned.num_cells:,} tokens in {engine.kv_type_k}", need.kv_bytes),
        ("rows of logits", need.outputs_bytes),
        ("process and buffers", need.worker_bytes),
        ("together", need.total_bytes),
    ]
    typer.echo(aligned([(text, memory_text(num_bytes)) for text, num_bytes in parts if num_bytes]))
    if planned.vram_bytes:
        layers = "all layers" if planned.num_gpu_layers < 0 else f"{planned.num_gpu_layers} layers"
        typer.echo(f"{layers} on the GPU take {memory_text(planned.vram_bytes)} there.")
    room = f"{memory_text(planned.ram_bytes)} of memory are needed and {memory_text(planned.ram_room_bytes)} are free"
    if planned.fits:
        typer.echo(f"{name} fits: {room}. The longest context that fits has {planned.max_context:,} tokens.")
        return
    typer.echo(f"{name} does not fit: {room}.")
    if planned.max_context:
        typer.echo(f"With --ctx {planned.max_context} it would.")
    others = _suggestions(planned)
    if others:
        typer.echo(f"Of the catalog these fit: {', '.join(others)}. `edgeagent pull NAME` downloads one.")


def _suggestions(planned: Plan) -> list[str]:
    """Return the largest chat models of the catalog that would fit, by about what they weigh."""
    from edgeagent.store.catalog import load_catalog

    room_gb = (planned.ram_room_bytes + planned.vram_bytes) / 1e9 / 2  # the other half is for cells and buffers
    entries = [
        entry
        for entry in load_catalog().values()
        if entry.kind == "chat" and entry.approximate_gb and entry.approximate_gb <= room_gb
    ]
    largest = sorted(entries, key=lambda entry: entry.approximate_gb or 0.0, reverse=True)
    return [entry.name for entry in largest[:_NUM_SUGGESTIONS]]


def _record(name: str, planned: Plan) -> dict[str, Any]:
    need = planned.need
    return {
        "name": name,
        "fits": planned.fits,
        "context": planned.num_cells,
        "max_context": planned.max_context,
        "num_gpu_layers": planned.num_gpu_layers,
        "ram_bytes": planned.ram_bytes,
        "ram_room_bytes": planned.ram_room_bytes,
        "vram_bytes": planned.vram_bytes,
        "parts": {
            "weights": need.weights_bytes,
            "repacked": need.repacked_bytes,
            "kv": need.kv_bytes,
            "outputs": need.outputs_bytes,
            "worker": need.worker_bytes,
        },
        "instead": [] if planned.fits else _suggestions(planned),
    }
