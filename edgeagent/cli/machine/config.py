"""`edgeagent config`: the effective settings and where each comes from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from edgeagent.cli.display import table
from edgeagent.cli.options import ConfigFile, with_declared_options
from edgeagent.config_sources import LoadedConfig, declared_options, json_values, load_config

config_app = typer.Typer(rich_markup_mode=None)


def show(
    loaded: LoadedConfig,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Print every option, its value and its source.

    Takes the flags of `serve`, to see what they would do.
    """
    values = json_values(loaded.config)
    tables = _tables(loaded)
    values, sources = values | tables, {**loaded.provenance, **dict.fromkeys(tables, f"file ({loaded.file})")}
    if as_json:
        rows = {name: {"value": values[name], "source": source} for name, source in sources.items()}
        typer.echo(json.dumps({"file": str(loaded.file), "options": rows}, indent=2))
        return
    lines = [(name, _text(values[name]), source) for name, source in sources.items()]
    typer.echo(table(("option", "value", "from"), lines, left_columns=3))
    state = "" if loaded.file.is_file() else " (does not exist)"
    typer.echo(f"\nConfig file: {loaded.file}{state}")


config_app.command("show")(with_declared_options(show))


@config_app.command("path")
def path(config: ConfigFile = None) -> None:
    """Print the path of the config file."""
    typer.echo(load_config(file=config).file)


@config_app.command("options")
def options() -> None:
    """Print a Markdown table of all options.

    Each row has the flag, the default and the meaning.
    """
    typer.echo(options_table())


def options_table() -> str:
    """Return all options as a Markdown table, the same on every machine."""
    lines = ["| option | flag | default | meaning |", "|---|---|---|---|"]
    for option in declared_options():
        match option.default:
            case None | ():
                default = ""
            case Path():
                default = "the platform's state folder"
            case value:
                default = f"`{_text(value)}`"
        bounds = f" ({option.bounds})" if option.bounds else f" ({', '.join(option.choices)})" if option.choices else ""
        flag = "MODEL" if option.name == "model" else option.flag
        lines.append(f"| `{option.name}` | `{flag}` | {default} | {option.help}{bounds} |")
    return "\n".join(lines)


def _tables(loaded: LoadedConfig) -> dict[str, Any]:
    """Return the options that the config file sets for single models, by full name: `models."MODEL".OPTION`."""
    models = loaded.config.models.items()
    return {name: value for model, own in models for name, value in json_values(own, f'models."{model}".').items()}


def _text(value: object) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "true" if value else "false"
        case list() | tuple():
            return ",".join(str(item) for item in value) or "-"
        case _:
            return str(value)
