"""`edgeagent list`, `show` and `fit`: the models on this machine, the catalog, and whether a model fits into memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgeagent.cli.completion import model_names
from edgeagent.cli.display import aligned, duration, size_text, table, tell, wrapped
from edgeagent.cli.options import AsJson, AsJsonArray, ConfigFile, ModelsDir, StateDir, settings_of
from edgeagent.types import replace
from edgeagent.units import memory_bytes, memory_text

if TYPE_CHECKING:
    from edgeagent.config import Config, EngineConfig
    from edgeagent.fit.need import Need
    from edgeagent.fit.placement import FreeMemory, MemoryUse
    from edgeagent.fit.plan import RunPlan
    from edgeagent.store.gguf.header import GgufHeader
    from edgeagent.store.library import LocalModel
    from edgeagent.store.names.catalog import CatalogEntry
    from edgeagent.types import SettingChoice


# If only a file's size is known, its memory is estimated as twice this size, since its matrices may be kept twice, plus
# a fixed size for the KV cells, the buffers and the process.
_TIMES_FILE, _BESIDE_BYTES = 2, 1 << 30


def fitting_context(header: GgufHeader, engine: EngineConfig) -> int:
    """Return the context, in tokens, that a model can have on this machine without GPUs; 0 if it does not fit."""
    from edgeagent.fit.placement import FreeMemory
    from edgeagent.fit.plan import make_plan

    plan = make_plan([header.shape], engine, FreeMemory(_machine_bytes()))
    return plan.num_cells if plan.fits else 0


def file_fits(num_bytes: int) -> bool:
    return _TIMES_FILE * num_bytes + _BESIDE_BYTES <= _machine_bytes()


def _machine_bytes() -> int:
    from edgeagent.fit.need import margin_bytes
    from edgeagent.usable import usable_memory

    total = usable_memory().total
    return total - margin_bytes(total)


# The facts that `--json` has from a file's header; null without a header.
_FACTS = ("license", "architecture", "quant", "context_length", "num_params", "num_layers", "num_vocab")
COLUMNS = ("name", "architecture", "quant", "size", "context", "memory", "fits", "draft", "last loaded", "where")
CATALOG_COLUMNS = ("name", "kind", "size", "fits", "context", "draft", "license", "here", "what it is")


def list_models(
    is_available: Annotated[bool, typer.Option("--available", help="List the catalog of models to download.")] = False,
    as_json: AsJsonArray = False,
    models_dir: ModelsDir = None,
    state_dir: StateDir = None,
    config: ConfigFile = None,
) -> None:
    """List the models on this machine.

    It lists the bundled model, models in the shared Hugging Face cache, .gguf files in --models-dir, and imported ones.
    """
    from edgeagent.store.library import Library

    settings = settings_of(state_dir, config, models_dir)
    if is_available:
        list_catalog(settings, as_json=as_json)
        return
    records = [_record(model, settings) for model in Library.of(settings).models()]
    text = "No models here. `edgeagent pull org/repo` downloads one; `edgeagent list --available` shows some."
    if records:
        text = table(COLUMNS, [*map(_row, records)], left_columns=3, last_left=True)
    tell(records, text, as_json=as_json)


def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A model's name, or a path.", autocompletion=model_names)],
    as_json: AsJson = False,
    models_dir: ModelsDir = None,
    state_dir: StateDir = None,
    config: ConfigFile = None,
) -> None:
    """Show one model: its files, its architecture, its memory, and its entry in the catalog."""
    from edgeagent.errors import ModelNotFound
    from edgeagent.store.library import Library

    settings = settings_of(state_dir, config, models_dir)
    entry = _entry_of(name)
    try:
        model = Library.of(settings).local(name)
    except ModelNotFound:
        if entry is None:
            raise
        record = {"name": entry.name, "is_here": False, **_catalog_facts(entry)}
    else:
        # A file's name says nothing of its content: the catalog describes only what was pulled from its repository.
        entry = (entry or _entry_of(model.name)) if model.origin == "hub" else None
        record = {**_record(model, settings), "is_here": True, **(_catalog_facts(entry) if entry else {})}
    advice = "" if record["is_here"] else f"It is not on this machine: `edgeagent pull {name}` downloads it."
    tell(record, wrapped(aligned(_lines(record), left_columns=2)), advice, as_json=as_json)


def list_catalog(settings: Config, *, as_json: bool) -> None:
    """Print the catalog's models, and whether each is on this machine."""
    from edgeagent.store.library import Library
    from edgeagent.store.names.catalog import load_catalog

    here = {model.name.partition(":")[0] for model in Library.of(settings).models() if model.origin == "hub"}
    entries = load_catalog().values()
    records = [{"name": entry.name, "is_here": entry.name in here, **_catalog_facts(entry)} for entry in entries]
    rows = [
        (
            entry.name,
            entry.kind,
            size_text(_about_bytes(entry)) if _about_bytes(entry) else "-",
            _yes_or_no(_fits(entry)),
            f"{entry.context:,}" if entry.context else "-",
            entry.draft or "-",
            entry.license,
            "yes" if entry.name in here else "-",
            entry.description,
        )
        for entry in entries
    ]
    text = table(CATALOG_COLUMNS, rows, left_columns=2, last_left=True)
    advice = "`edgeagent pull NAME` downloads one; any org/repo[:QUANT] of the hub is a name too."
    tell(records, text, advice, as_json=as_json)


def _record(model: LocalModel, settings: Config) -> dict[str, Any]:
    from edgeagent.store.file_records import LastUse

    header = model.header
    return {
        "name": model.name,
        "aliases": list(model.aliases),
        "origin": model.origin,
        "size_bytes": model.size_bytes,
        "paths": [str(path) for path in model.paths],
        "description": header.name if header else None,
        **{fact: getattr(header, fact, None) for fact in _FACTS},
        "num_prediction_layers": header.num_prediction_layers if header else None,
        "tokenizer": (header.pre_tokenizer or header.tokenizer) if header else None,
        "memory": header.memory_kind if header else None,
        "fitting_context": fitting_context(header, settings.engine) if header else None,
        "draft": model.draft,
        "adapters": list(model.adapters),
        "media": list(model.media),
        "projector": str(model.projector) if model.projector else None,
        "projector_bytes": model.projector.stat().st_size if model.projector else 0,
        "loaded_s_ago": LastUse(settings.state_dir).age_s(model.paths[0]),
        "problem": model.problem,
        "is_damaged": model.is_damaged,
    }


def _row(record: dict[str, Any]) -> tuple[str, ...]:
    paths = [Path(path) for path in record["paths"]]
    where = _tilde(paths[0].parent if len(paths) > 1 else paths[0])
    if record["aliases"]:
        where += f" (also {', '.join(record['aliases'])})"
    if record["problem"]:
        where += f" ({'damaged' if record['is_damaged'] else 'unreadable'}: {record['problem']})"
    return (
        record["name"],
        record["architecture"] or "-",
        record["quant"] or "-",
        size_text(record["size_bytes"]),
        f"{record['context_length']:,}" if record["context_length"] else "-",
        record["memory"] or "-",
        _fitting(record),
        record["draft"] or "-",
        _ago(record["loaded_s_ago"]),
        where,
    )


def _lines(record: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the known facts about a model, each with its heading."""
    about = f"about {size_text(num_bytes)}" if (num_bytes := record.get("approximate_bytes")) else ""
    texts = {
        "name": record["name"],
        "also": ", ".join(record.get("aliases") or ()),
        "what it is": record.get("description"),
        "kind": record.get("kind"),
        "architecture": record.get("architecture"),
        "parameters": _count(record.get("num_params")),
        "quantization": record.get("quant"),
        "size": size_text(record["size_bytes"]) if record.get("size_bytes") else about,
        "context": _count(record.get("context_length") or record.get("context")),
        "memory": record.get("memory"),
        "fits here": _fitting(record, in_words=True),
        "layers": _count(record.get("num_layers")),
        "prediction layers": _prediction_layers(record),
        "vocabulary": _count(record.get("num_vocab")),
        "tokenizer": record.get("tokenizer"),
        "draft": record.get("draft"),
        "adapters": ", ".join(f"{record['name']}+{name}" for name in record.get("adapters") or ()),
        "reads": _reads(record),
        "license": record.get("license"),
        "recommended": ", ".join(f"{key} {value:g}" for key, value in (record.get("sampling") or {}).items()),
        "from": record.get("repo") or record.get("origin"),
        "last loaded": _ago(record.get("loaded_s_ago"), "") if record["is_here"] else "",
        "damaged" if record.get("is_damaged") else "unreadable": record.get("problem"),
        **{("files" if number == 0 else " " * number): path for number, path in enumerate(record.get("paths") or ())},
    }
    return [(heading, text) for heading, text in texts.items() if text]


_READS = {"image": "images", "audio": "sounds"}


def _reads(record: dict[str, Any]) -> str:
    """Return what a model reads besides text, and with which file."""
    if not record.get("media"):
        return ""
    words = " and ".join(["text", *(_READS[kind] for kind in record["media"])])
    if not record.get("projector"):
        return words
    return f"{words}, with {Path(record['projector']).name} ({size_text(record['projector_bytes'])})"


def _prediction_layers(record: dict[str, Any]) -> str:
    number = record.get("num_prediction_layers")
    if not number:
        return ""
    return f"{number:,} (MTP), not used: they need the target's hidden states; drafts come from a model or n-grams"


def _catalog_facts(entry: CatalogEntry) -> dict[str, Any]:
    return {
        "kind": entry.kind,
        "description": entry.description,
        "repo": str(entry.hub_name()),
        "license": entry.license,
        "draft": entry.draft,
        "context": entry.context,
        "media": list(entry.media),
        "approximate_bytes": _about_bytes(entry),
        "fits": _fits(entry),
        "sampling": dict(entry.sampling),
    }


def _entry_of(name: str) -> CatalogEntry | None:
    """Return the catalog entry that a name refers to, by short name or repository; None if there is none."""
    from edgeagent.errors import EdgeAgentError
    from edgeagent.store.names.catalog import load_catalog, match_entry
    from edgeagent.store.names.parsing import CatalogName, HubName, parse_name

    try:
        meaning = parse_name(name)
    except EdgeAgentError:
        return None
    if isinstance(meaning, CatalogName):
        match = match_entry(meaning)
        return match.entry if match else None
    if isinstance(meaning, HubName):
        return next((entry for entry in load_catalog().values() if entry.repo == meaning.repo), None)
    return None


def _about_bytes(entry: CatalogEntry) -> int:
    return entry.size_bytes or round((entry.approximate_gb or 0) * 1e9)


def _fits(entry: CatalogEntry) -> bool | None:
    num_bytes = _about_bytes(entry)
    return file_fits(num_bytes) if num_bytes else None


def _fitting(record: dict[str, Any], *, in_words: bool = False) -> str:
    """Return "yes" or "no" for whether a model fits, or "-" if unknown.

    If only a shorter context than the usual one fits, return its length in tokens. `in_words` makes that a phrase.
    """
    from edgeagent.fit.need import DEFAULT_MAX_CONTEXT

    cells = record.get("fitting_context")
    if cells is None:
        return _yes_or_no(record.get("fits"))
    if 0 < cells < min(record["context_length"] or DEFAULT_MAX_CONTEXT, DEFAULT_MAX_CONTEXT):
        return f"with a context of {cells:,} tokens" if in_words else f"{cells:,}"
    return _yes_or_no(cells > 0)


def _yes_or_no(answer: bool | None) -> str:
    return "-" if answer is None else "yes" if answer else "no"


def _count(number: int | None) -> str:
    return f"{number:,}" if number else ""


def _ago(seconds: float | None, otherwise: str = "-") -> str:
    return otherwise if seconds is None else f"{duration(seconds)} ago"


def _tilde(path: Path) -> str:
    home = Path.home()
    return f"~/{path.relative_to(home).as_posix()}" if path.is_relative_to(home) else str(path)


def fit(
    name: Annotated[str, typer.Argument(metavar="MODEL", help="The model.", autocompletion=model_names)],
    ram: Annotated[str | None, typer.Option("--ram", metavar="SIZE", help="Memory, e.g. 16G. [default: free]")] = None,
    vram: Annotated[
        str | None,
        typer.Option("--vram", metavar="SIZES", help="Memory of each GPU, e.g. 8G or 8G,6G; 0: none. [default: free]"),
    ] = None,
    ctx: Annotated[int, typer.Option("--ctx", metavar="N", min=0, help="Tokens of context. [default: as serve]")] = 0,
    draft: Annotated[bool, typer.Option(help="Count its draft model too, if it is on this machine.")] = True,
    as_json: AsJson = False,
    models_dir: ModelsDir = None,
    state_dir: StateDir = None,
    config: ConfigFile = None,
) -> None:
    """Show how much memory a model needs, part by part, and how it would run: context, KV type, layers on the GPUs.

    It reads only the header of the file, and asks llama.cpp for the GPUs. If the model does not fit, it shows the
    longest context that fits and the catalog's models that fit, and exits with 1.
    """
    from edgeagent.fit.need import predict
    from edgeagent.fit.plan import describe, longest_context, make_plan, place_projector, why_no_draft
    from edgeagent.types import SettingChoice

    settings = settings_of(state_dir, config, models_dir)
    shapes = [header.shape for header in _headers(name, settings, with_draft=draft)]
    engine = replace(settings.engine_of(name), **{"ctx": ctx} if ctx else {})
    room = _free_memory(ram, vram, engine)
    projector = place_projector(shapes, engine, room, _projector_bytes(name, settings))
    free_memory = room.beside(projector)
    why = why_no_draft(shapes, engine, free_memory)
    shapes = shapes[:1] if why else shapes
    plan = make_plan(shapes, engine, free_memory).with_projector(projector, room)
    need = predict(shapes, plan.config, plan.num_cells, max_rewind=plan.layout.max_rewind)
    longest = longest_context(shapes, engine, free_memory)
    choices = describe(plan, engine, len(shapes[0].layers))
    choices += (SettingChoice("draft", "none", "memory", why),) if why else ()
    record = _fit_record(name, plan, need, longest, choices, projector)
    tell(record, *_fit_lines(record), as_json=as_json)
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
        gpus = gpus_of(ask_native().devices, engine.only_gpu) if ram is None else ()
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


def _projector_bytes(name: str, settings: Config) -> int:
    """Return the memory for what reads images or sounds; 0 if the model reads only text."""
    from edgeagent.store.library import Library
    from edgeagent.store.projectors import memory_bytes

    projector = Library.of(settings).local(name).projector
    return 0 if projector is None else memory_bytes(projector)


# The parts of the memory that a model needs, in words.
_PARTS = {
    "weights": "files",
    "repacked": "matrices, rearranged for the processor",
    "kv": "KV cells, {tokens:,} tokens in {kv_types}",
    "blocks": "reserved for blocks of KV cells",
    "outputs": "rows of logits",
    "buffers": "buffers",
    "worker": "process",
    "projector": "projector, for images or sounds",
    "total": "total, without a GPU",
}


def _fit_lines(record: dict[str, Any]) -> Iterator[str]:
    parts = {**record["parts"], "total": sum(record["parts"].values())}
    kv_types = " and ".join(dict.fromkeys((record["kv_type_k"], record["kv_type_v"])))
    words = {part: text.format(tokens=record["context"], kv_types=kv_types) for part, text in _PARTS.items()}
    yield aligned([(words[part], memory_text(num_bytes)) for part, num_bytes in parts.items() if num_bytes])
    for choice in record["chosen"]:
        yield wrapped(f"{choice['name']}: {choice['value']} ({choice['why']})")
    needed, free = memory_text(record["ram_bytes"]), memory_text(record["ram_room_bytes"])
    memory, longest = f"{needed} of memory are needed and {free} are free", record["max_context"]
    if record["fits"]:
        yield wrapped(f"{record['name']} fits: {memory}. The longest context that fits has {longest:,} tokens.")
        return
    yield wrapped(f"{record['name']} does not fit: {memory}.")
    if longest:
        yield f"With --ctx {longest} it would."
    if others := ", ".join(record["instead"]):
        yield wrapped(f"These catalog models fit: {others}. `edgeagent pull NAME` downloads one.")


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
    return [entry.name for entry in largest[:3]]


def _fit_record(
    name: str, plan: RunPlan, need: Need, longest: int, choices: Sequence[SettingChoice], projector: MemoryUse
) -> dict[str, Any]:
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
            "projector": projector.ram_bytes + sum(projector.gpu_bytes),
        },
        "chosen": [{"name": choice.name, "value": choice.value, "why": choice.why} for choice in choices],
        "instead": [] if plan.fits else _suggestions(plan),
    }
