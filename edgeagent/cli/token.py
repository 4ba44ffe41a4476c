"""`edgeagent token`: replace the owner's token, and manage tokens of clients. A running daemon applies the changes."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from edgeagent.cli.display import table, tell
from edgeagent.cli.options import AsJson, AsJsonArray, ConfigFile, StateDir, settings_of
from edgeagent.credentials.keys import Client, Scope, add_client, clients, remove_client, rotate_token
from edgeagent.errors import ConfigError
from edgeagent.runtime_file import TOKEN_FILE
from edgeagent.types import RouteMode, Tier

token_app = typer.Typer(rich_markup_mode=None)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The client's name.")]
Scopes = Annotated[
    list[Scope],
    typer.Option(
        "--scope",
        metavar="infer|models|admin|kiosk",
        help="What the client may do; repeat it for several: infer, models (fetch, delete, name them), admin, kiosk.",
    ),
]
Route = Annotated[
    RouteMode | None,
    typer.Option(
        "--route",
        metavar="local_only|prefer_local|prefer_remote|remote_only",
        help="Where the client's requests may run. Only a route stricter than the daemon's has an effect.",
    ),
]
HighestTier = Annotated[
    Tier | None,
    typer.Option(
        "--tier",
        metavar="realtime|interactive|batch",
        help="The highest tier of the client's requests. A request that asks for a higher one is lowered to it.",
    ),
]
NoAnswers = Annotated[
    bool,
    typer.Option("--no-answers", help="Keep none of the client's answers, and give it no kept one."),
]


@token_app.command("rotate")
def rotate(as_json: AsJson = False, state_dir: StateDir = None, config: ConfigFile = None) -> None:
    """Replace the owner's token. The old one is refused at once, and its connections end. Clients keep theirs."""
    folder = _made(settings_of(state_dir, config).state_dir)
    rotate_token(folder)
    tell({"file": str(folder / TOKEN_FILE)}, f"The new token is in {folder / TOKEN_FILE}.", as_json=as_json)


@token_app.command("add")
def add(
    name: Name,
    scope: Scopes = [Scope.INFER],  # noqa: B006
    route: Route = None,
    tier: HighestTier = None,
    no_answers: NoAnswers = False,
    as_json: AsJson = False,
    state_dir: StateDir = None,
    config: ConfigFile = None,
) -> None:
    """Print a new token for a client; only its digest is kept. It replaces the token that the client had."""
    folder = _made(settings_of(state_dir, config).state_dir)
    is_known = any(client.label == name for client in clients(folder))
    token = add_client(folder, name, scope, route, tier, answers=not no_answers)
    if is_known and not as_json:
        typer.echo(f"{name} had a token, which is refused from now on; this one replaces it.", err=True)
    tell({"name": name, "token": token, "is_replaced": is_known}, token, as_json=as_json)


@token_app.command("list")
def list_clients(as_json: AsJsonArray = False, state_dir: StateDir = None, config: ConfigFile = None) -> None:
    """List the clients that have a token. It says what each allows, and until when: a browser's expires unused."""
    known = clients(settings_of(state_dir, config).state_dir)
    rows = [
        (
            client.label,
            ", ".join(sorted(client.scopes)),
            client.route or "as the daemon's",
            client.tier or "any",
            str(client.expires_on or "never"),
        )
        for client in known
    ]
    headings = ("client", "scopes", "route", "highest tier", "expires")
    text = table(headings, rows, left_columns=5) if rows else "No client has a token of its own."
    tell([*map(_row, known)], text, as_json=as_json)


@token_app.command("remove")
def remove(name: Name, as_json: AsJson = False, state_dir: StateDir = None, config: ConfigFile = None) -> None:
    """Remove a client's token. It is refused at once, and its connections end."""
    remove_client(settings_of(state_dir, config).state_dir, name)
    tell({"name": name}, f"Removed the token of {name}.", as_json=as_json)


def _row(client: Client) -> dict[str, Any]:
    row = {**asdict(client), "name": client.label, "scopes": sorted(client.scopes), "is_browser": bool(client.browser)}
    del row["browser"], row["used_on"]
    return {**row, "expires_on": None if client.expires_on is None else str(client.expires_on)}


def _made(folder: Path) -> Path:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"cannot create the state folder {folder}: {error.strerror}; choose another with --state-dir"
        ) from None
    return folder
