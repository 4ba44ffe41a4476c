"""`edgeagent list` and `edgeagent show`: the models on this machine, facts about each, and the catalog."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgeagent.cli.completion import model_names
from edgeagent.cli.display import aligned, duration, size_text, table, wrapped
from edgeagent.cli.models.options import ConfigFile, ModelsDir, StateDir, settings_of

if TYPE_CHECKING:
    from edgeagent.config import Config, EngineConfig
    from edgeagent.store.gguf.header import GgufHeader
    from edgeagent.store.library import LocalModel
    from edgeagent.store.names.catalog import CatalogEntry

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
    """Whether a model file of about this size should fit into this machine's memory."""
    return _TIMES_FILE * num_bytes + _BESIDE_BYTES <= _machine_bytes()


def _machine_bytes() -> int:
    from edgeagent.fit.need import margin_bytes
    from edgeagent.usable import usable_memory

    total = usable_memory().total
    return total - margin_bytes(total)


COLUMNS = ("name", "architecture", "quant", "size", "context", "memory", "fits", "draft", "last loaded", "where")
CATALOG_COLUMNS = ("name", "kind", "size", "fits", "context", "draft", "license", "here", "what it is")


def list_models(
    is_available: Annotated[bool, typer.Option("--available", help="List the catalog of models to download.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON array.")] = False,
    models_dir: ModelsDir = None,
    state_dir: StateDir = None,
    config: ConfigFile = None,
) -> None:
    """List the models on this machine.

    It lists the bundled model, models in the shared Hugging Face cache, .gguf files in --models-dir, and imported ones.
    """
    settings = settings_of(models_dir, state_dir, config)
    if is_available:
        list_catalog(settings, as_json=as_json)
        return
    records = _records(settings)
    if as_json:
        typer.echo(json.dumps(records, indent=2))
    elif records:
        typer.echo(table(COLUMNS, [_row(record) for record in records], left_columns=3, last_left=True))
    else:
        typer.echo("No models here. `edgeagent pull org/repo` downloads one; `edgeagent list --available` shows some.")


def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A model's name, or a path.", autocompletion=model_names)],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    models_dir: ModelsDir = None,
    state_dir: StateDir = None,
    config: ConfigFile = None,
) -> None:
    """Show one model: its files, its architecture, its memory, and its entry in the catalog."""
    from edgeagent.errors import ModelNotFound
    from edgeagent.store.library import Library

    settings = settings_of(models_dir, state_dir, config)
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
    if as_json:
        typer.echo(json.dumps(record, indent=2))
        return
    typer.echo(wrapped(aligned(_lines(record), left_columns=2)))
    if not record["is_here"]:
        typer.echo(f"It is not on this machine: `edgeagent pull {name}` downloads it.")


def list_catalog(settings: Config, *, as_json: bool) -> None:
    """Print the catalog's models, and whether each is on this machine."""
    from edgeagent.store.library import Library
    from edgeagent.store.names.catalog import load_catalog

    here = {model.name.partition(":")[0] for model in Library.of(settings).models() if model.origin == "hub"}
    entries = load_catalog().values()
    if as_json:
        records = [{"name": entry.name, "is_here": entry.name in here, **_catalog_facts(entry)} for entry in entries]
        typer.echo(json.dumps(records, indent=2))
        return
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
    typer.echo(table(CATALOG_COLUMNS, rows, left_columns=2, last_left=True))
    typer.echo("`edgeagent pull NAME` downloads one; any org/repo[:QUANT] of the hub is a name too.")


def _records(settings: Config) -> list[dict[str, Any]]:
    from edgeagent.store.library import Library

    return [_record(model, settings) for model in Library.of(settings).models()]


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
        "license": header.license if header else None,
        "architecture": header.architecture if header else None,
        "quant": header.quant if header else None,
        "context_length": header.context_length if header else None,
        "num_params": header.num_params if header else None,
        "num_layers": header.num_layers if header else None,
        "num_prediction_layers": header.num_prediction_layers if header else None,
        "num_vocab": header.num_vocab if header else None,
        "tokenizer": (header.pre_tokenizer or header.tokenizer) if header else None,
        "memory": header.memory_kind if header else None,
        "fitting_context": fitting_context(header, settings.engine) if header else None,
        "draft": model.draft,
        "adapters": list(model.adapters),
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
    texts = {
        "name": record["name"],
        "also": ", ".join(record.get("aliases") or ()),
        "what it is": record.get("description"),
        "kind": record.get("kind"),
        "architecture": record.get("architecture"),
        "parameters": _count(record.get("num_params")),
        "quantization": record.get("quant"),
        "size": size_text(record["size_bytes"])
        if record.get("size_bytes")
        else _about(record.get("approximate_bytes", 0)),
        "context": _count(record.get("context_length") or record.get("context")),
        "memory": record.get("memory"),
        "fits here": _fitting(record, in_words=True),
        "layers": _count(record.get("num_layers")),
        "prediction layers": _prediction_layers(record),
        "vocabulary": _count(record.get("num_vocab")),
        "tokenizer": record.get("tokenizer"),
        "draft": record.get("draft"),
        "adapters": ", ".join(f"{record['name']}+{name}" for name in record.get("adapters") or ()),
        "license": record.get("license"),
        "recommended": ", ".join(f"{key} {value:g}" for key, value in (record.get("sampling") or {}).items()),
        "from": record.get("repo") or record.get("origin"),
        "last loaded": _ago(record.get("loaded_s_ago"), "") if record["is_here"] else "",
        "damaged" if record.get("is_damaged") else "unreadable": record.get("problem"),
        **{("files" if number == 0 else " " * number): path for number, path in enumerate(record.get("paths") or ())},
    }
    return [(heading, text) for heading, text in texts.items() if text]


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


def _about(num_bytes: int) -> str:
    return f"about {size_text(num_bytes)}" if num_bytes else ""


def _count(number: int | None) -> str:
    return f"{number:,}" if number else ""


def _ago(seconds: float | None, otherwise: str = "-") -> str:
    return otherwise if seconds is None else f"{duration(seconds)} ago"


def _tilde(path: Path) -> str:
    home = Path.home()
    return f"~/{path.relative_to(home).as_posix()}" if path.is_relative_to(home) else str(path)
