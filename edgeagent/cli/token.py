"""`edgeagent token`: the owner's token replaced, and tokens for clients that may do less. A running daemon follows."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated

import typer

from edgeagent.cli.options import ConfigFile
from edgeagent.cli.stages import aligned
from edgeagent.cli.status import StateDir
from edgeagent.config_sources import load_config
from edgeagent.credentials import Scope, add_client, clients, remove_client, rotate_token
from edgeagent.runtime_file import TOKEN_FILE

token_app = typer.Typer(rich_markup_mode=None)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The client's name.")]
Scopes = Annotated[
    list[Scope],
    typer.Option("--scope", help="What it may do, as often as needed: infer, models (fetch them), admin."),
]


@token_app.command("rotate")
def rotate(state_dir: StateDir = None, config: ConfigFile = None) -> None:
    """Replace the owner's token. The old one is refused from the next request on; clients' own stay."""
    folder = _made(_folder(state_dir, config))
    rotate_token(folder)
    typer.echo(f"The new token is in {folder / TOKEN_FILE}.")


@token_app.command("add")
def add(
    name: Name,
    scope: Scopes = [Scope.INFER],  # noqa: B006
    state_dir: StateDir = None,
    config: ConfigFile = None,
) -> None:
    """Print a new token for a client; only its digest is kept. A client that had one has this one instead."""
    typer.echo(add_client(_made(_folder(state_dir, config)), name, scope))


@token_app.command("list")
def list_clients(state_dir: StateDir = None, config: ConfigFile = None) -> None:
    """List the clients that have a token, and what it opens."""
    rows = [(client.name, ", ".join(sorted(client.scopes))) for client in clients(_folder(state_dir, config))]
    typer.echo(aligned([("client", "scopes"), *rows], left_columns=2))


@token_app.command("remove")
def remove(name: Name, state_dir: StateDir = None, config: ConfigFile = None) -> None:
    """End a client's token."""
    remove_client(_folder(state_dir, config), name)


def _folder(state_dir: Path | None, config: Path | None) -> Path:
    return load_config({"state_dir": state_dir} if state_dir else {}, config).config.state_dir


def _made(folder: Path) -> Path:
    # Where it cannot be made, the file in it cannot be written, and that error says so.
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder
