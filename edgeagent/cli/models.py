"""`edgeagent pull` and `edgeagent list`: models brought to this machine, and which are here. Draws; the store acts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgeagent.cli.completion import catalog_names
from edgeagent.cli.display import size_text, table

if TYPE_CHECKING:
    from edgeagent.config import Config
    from edgeagent.store.resolve import LocalModel

COLUMNS = ("name", "architecture", "quant", "size", "context", "where")

ModelsDir = Annotated[
    Path | None,
    typer.Option("--models-dir", metavar="DIR", help="Folder of models: downloads, and .gguf files laid into it."),
]
StateDir = Annotated[Path | None, typer.Option("--state-dir", metavar="DIR", help="The daemon's state folder.")]
ConfigFile = Annotated[Path | None, typer.Option("--config", metavar="FILE", help="Read this config.toml instead.")]


def pull(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME",
            help="org/repo[:QUANT], org/repo/file.gguf, or a catalog name.",
            autocompletion=catalog_names,
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line, progress included.")] = False,
    models_dir: ModelsDir = None,
    state_dir: StateDir = None,
    config: ConfigFile = None,
) -> None:
    """Download models into the shared Hugging Face cache, unless they are there.

    Resumes what was interrupted; checks free disk space first and every file's sha256 afterwards. HF_TOKEN opens gated
    and private repositories; HF_ENDPOINT names another hub.
    """
    from edgeagent.cli.pull_display import pull_display
    from edgeagent.errors import EdgeAgentError
    from edgeagent.store.hub import Puller

    settings = _settings(models_dir, state_dir, config)
    puller = Puller(settings.store, settings.state_dir)
    num_failed = 0
    for name in names:
        with pull_display(name, as_json=as_json) as display:
            try:
                display.done(puller.pull(name, display.progress))
            except EdgeAgentError as error:
                num_failed += 1
                display.failed(error)
            except KeyboardInterrupt:
                display.interrupted()
                raise typer.Exit(130) from None
    if num_failed:
        raise typer.Exit(1)


def list_models(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON array.")] = False,
    models_dir: ModelsDir = None,
    state_dir: StateDir = None,
    config: ConfigFile = None,
) -> None:
    """List the models on this machine: the built-in one and those in the shared Hugging Face cache."""
    from edgeagent.store.resolve import Library

    settings = _settings(models_dir, state_dir, config)
    models = Library(settings.store, settings.state_dir).models()
    if as_json:
        typer.echo(json.dumps([_record(model) for model in models], indent=2))
        return
    if not models:
        typer.echo("No models here. `edgeagent pull org/repo` downloads one.")
        return
    typer.echo(table(COLUMNS, [_row(model) for model in models], left_columns=3, last_left=True))


def _settings(models_dir: Path | None, state_dir: Path | None, file: Path | None) -> Config:
    from edgeagent.config_sources import load_config

    flags = {"store.models_dir": models_dir, "state_dir": state_dir}
    return load_config({name: value for name, value in flags.items() if value is not None}, file).config


def _row(model: LocalModel) -> tuple[str, ...]:
    where = _tilde(model.paths[0].parent if len(model.paths) > 1 else model.paths[0])
    header = model.header
    if header is None:
        return (model.name, "-", "-", size_text(model.size_bytes), "-", f"{where} (unreadable: {model.problem})")
    context = f"{header.context_length:,}" if header.context_length else "-"
    return (model.name, header.architecture, header.quant, size_text(model.size_bytes), context, where)


def _record(model: LocalModel) -> dict[str, object]:
    header = model.header
    return {
        "name": model.name,
        "origin": model.origin,
        "size_bytes": model.size_bytes,
        "paths": [str(path) for path in model.paths],
        "architecture": header.architecture if header else None,
        "quant": header.quant if header else None,
        "context_length": header.context_length if header else None,
        "num_params": header.num_params if header else None,
        "problem": model.problem,
    }


def _tilde(path: Path) -> str:
    home = Path.home()
    return f"~/{path.relative_to(home).as_posix()}" if path.is_relative_to(home) else str(path)
