"""`edgeagent policy`: the machine's policy as written in its file, and how it limits a user's options and remotes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from edgeagent.cli.display import table, wrapped
from edgeagent.cli.options import with_declared_options
from edgeagent.config_sources import LoadedConfig
from edgeagent.machine_policy import PolicyFile, described

policy_app = typer.Typer(rich_markup_mode=None)


def show(
    loaded: LoadedConfig,
    effective: Annotated[
        bool, typer.Option("--effective", help="Show what is in force: the strictest of policy, options and remotes.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Print the machine's policy and its path. Exits with 1 if the file cannot be trusted or read.

    Takes the flags of `serve`, to see what they would do.
    """
    file = PolicyFile()
    report: dict[str, Any] = {
        "file": str(file.path),
        "is_there": file.is_there,
        "trouble": file.trouble or None,
        "policy": described(file.policy),
    }
    if effective:
        report["effective"] = _effective(loaded)
    if as_json:
        typer.echo(json.dumps(report, indent=2))
    else:
        _print(report)
    if file.trouble:
        raise typer.Exit(1)


policy_app.command("show")(with_declared_options(show))


def _effective(loaded: LoadedConfig) -> dict[str, Any]:
    # Imported here, since it is slow to import and not needed to read the file.
    from edgeagent.router.remote_access import RemoteAccess

    remote_access = RemoteAccess(loaded.config)
    try:
        usable = {remote.name: remote for remote in remote_access.remotes}
        allowed = remote_access.policy.policy
        return {
            "route": remote_access.mode.value,
            "pulls": allowed.pulls,
            "model_sha256": allowed.model_sha256,
            "budget": described(allowed).get("budget"),
            "remotes_trouble": remote_access.file.trouble or None,
            "remotes": [
                {
                    "name": remote.name,
                    "trouble": remote_access.policy.why_not(remote) or None,
                    "ca_file": usable.get(remote.name, remote).tls.ca_file,
                    "proxy": usable.get(remote.name, remote).proxy,
                    "budget_trouble": remote_access.ledger.why_blocked(remote.name, ""),
                }
                for remote in remote_access.file.remotes
            ],
        }
    finally:
        remote_access.close()


def _print(report: Mapping[str, Any]) -> None:
    state = "" if report["is_there"] else " (does not exist: nothing is forbidden)"
    typer.echo(wrapped(f"Machine policy: {report['file']}{state}"))
    if report["trouble"]:
        typer.echo(wrapped(report["trouble"]))
    if report["policy"]:
        typer.echo("\n" + table(("field", "value"), _rows(report["policy"]), left_columns=2))
    if (effective := report.get("effective")) is None:
        return
    typer.echo("\n" + wrapped("In force, with the options and remotes of this user:"))
    remotes = effective.pop("remotes")
    typer.echo(table(("what", "value"), _rows(effective), left_columns=2))
    for remote in remotes:
        why = remote["trouble"] or remote["budget_trouble"] or "may be used"
        ways = [f"{name}: {remote[name]}" for name in ("ca_file", "proxy") if remote[name]]
        typer.echo(wrapped("; ".join([f"{remote['name']}: {why}", *ways])))


def _rows(fields: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(name, _text(value)) for name, value in fields.items() if value is not None]


def _text(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case list() | tuple():
            return ", ".join(map(str, value)) or "none"
        case dict():
            return ", ".join(f"{name}={each:g}" for name, each in value.items())
        case _:
            return str(value)
