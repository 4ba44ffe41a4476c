"""`edgeagent ps`, `load` and `unload`: list the running daemon's loaded models, load one, or unload one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import urlencode

import typer

from edgeagent.cli.display import complain, duration, size_text, table
from edgeagent.cli.link import address_of, ask
from edgeagent.cli.options import AsJson, ConfigFile, StateDir
from edgeagent.client import Address
from edgeagent.config_sources import load_config
from edgeagent.load_stage import load_stage
from edgeagent.runtime_file import find_daemon, no_daemon

# Loading from a slow disk takes minutes. By default, the daemon gives up a load after 300 s without progress, or after
# 900 s if the load gets no CPU time.
LOAD_TIMEOUT_S = 900.0
COLUMNS = ("model", "state", "memory", "context", "unused for", "unloaded")

Model = Annotated[str, typer.Argument(metavar="MODEL", help="The model.")]
KeepAlive = Annotated[
    str, typer.Option("--keep-alive", metavar="TIME", help="How long it stays loaded without use: 5m, 1h; -1: forever.")
]


def ps(as_json: AsJson = False, state_dir: StateDir = None, config: ConfigFile = None) -> None:
    """List the models that are loaded or being loaded. Exits with 1 if no daemon runs."""
    report = ask(_daemon(state_dir, config), "/edgeagent/status")
    models = [model for model in report["models"] if model["pid"] is not None]
    if as_json:
        typer.echo(json.dumps({"models": [_entry(model) for model in models]}, indent=2))
    elif models:
        typer.echo(table(COLUMNS, [_row(model) for model in models], left_columns=2))
    else:
        typer.echo("No model is loaded; a request, or `edgeagent load MODEL`, loads one.")


def load(
    model: Model,
    keep_alive: KeepAlive = "",
    as_json: AsJson = False,
    state_dir: StateDir = None,
    config: ConfigFile = None,
) -> None:
    """Load a model into the running daemon, beside its other models. Returns when the model is ready."""
    query = {"model": model} | ({"keep_alive": keep_alive} if keep_alive else {})
    path = f"/edgeagent/load?{urlencode(query, errors='replace')}"
    try:
        answer = ask(_daemon(state_dir, config), path, "POST", timeout_s=LOAD_TIMEOUT_S)
    except KeyboardInterrupt:
        complain(f"interrupted; the daemon continues to load {model}; `edgeagent unload {model}` stops that")
        raise typer.Exit(130) from None
    typer.echo(json.dumps(answer) if as_json else f"{answer['model']} is loaded ({answer['took_s']:.1f} s).")


def unload(model: Model, as_json: AsJson = False, state_dir: StateDir = None, config: ConfigFile = None) -> None:
    """End a model's process, which frees its memory. Its next request loads it again."""
    path = f"/edgeagent/unload?{urlencode({'model': model}, errors='replace')}"
    answer = ask(_daemon(state_dir, config), path, "POST", accept=frozenset({200, 202}), timeout_s=LOAD_TIMEOUT_S)
    if as_json:
        typer.echo(json.dumps(answer))
    elif answer["status"] == "unloaded":
        typer.echo(f"{answer['model']} is not loaded any more.")
    else:
        typer.echo(f"{answer['model']} is unloaded once its requests have ended ({answer['num_live_requests']}).")


def _daemon(state_dir: StateDir, config: ConfigFile) -> Address:
    folder = load_config({"state_dir": state_dir} if state_dir else {}, config).config.state_dir
    found = find_daemon(folder)
    if found is None:
        raise no_daemon(folder)
    return address_of(found)


def _entry(model: Mapping[str, Any]) -> dict[str, Any]:
    worker, info = model["worker"] or {}, model["info"] or {}
    return {
        **{name: model[name] for name in ("name", "state", "pid", "is_pinned", "idle_s", "unload_in_s")},
        "memory_bytes": worker.get("rss_bytes"),
        "context_length": info.get("context_length"),
    }


def _row(model: Mapping[str, Any]) -> tuple[str, ...]:
    entry = _entry(model)
    is_loading = model["state"] == "starting"
    return (
        entry["name"],
        load_stage(model["progress"]) if is_loading else entry["state"],
        "-" if entry["memory_bytes"] is None else size_text(entry["memory_bytes"]),
        "-" if entry["context_length"] is None else str(entry["context_length"]),
        "-" if is_loading else duration(entry["idle_s"]),
        "-" if is_loading and not entry["is_pinned"] else _unloaded(entry),
    )


def _unloaded(entry: Mapping[str, Any]) -> str:
    if entry["is_pinned"]:
        return "never (pinned)"
    return "when there is no room" if entry["unload_in_s"] is None else f"in {duration(entry['unload_in_s'])}"
