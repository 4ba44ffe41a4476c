"""`edgeagent config` and `policy`: the effective settings with their sources, and the machine's policy."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from edgeagent.cli import config_edit
from edgeagent.cli.display import print_json, table, tell, wrapped
from edgeagent.cli.options import AsJson, ConfigFile, with_declared_options
from edgeagent.config import Section
from edgeagent.config_sources import (
    TABLES,
    LoadedConfig,
    Option,
    declared_options,
    json_values,
    load_config,
    table_options,
)
from edgeagent.machine_policy import PolicyFile, described

config_app = typer.Typer(rich_markup_mode=None, invoke_without_command=True)


@config_app.callback()
def config(ctx: typer.Context) -> None:
    """Show the settings; the commands below show more, or change them."""
    if ctx.invoked_subcommand is None:
        show(load_config())


def show(
    loaded: LoadedConfig,
    as_json: AsJson = False,
) -> None:
    """Print every option, its value and its source.

    Takes the flags of `serve`, to see what they would do.
    """
    values = json_values(loaded.config)
    # The options in the file's tables, by full name: `models."MODEL".OPTION`, `tiers.TIER.OPTION`.
    owners: list[tuple[Section, str]] = [(own, f'models."{model}".') for model, own in loaded.config.models.items()]
    owners += [(own, f"tiers.{tier}.") for tier, own in loaded.config.tiers.items()]
    tables = {name: value for own, prefix in owners for name, value in json_values(own, prefix).items()}
    values, sources = values | tables, {**loaded.provenance, **dict.fromkeys(tables, f"file ({loaded.file})")}
    options = {name: {"value": values[name], "source": source} for name, source in sources.items()}
    rows = [(name, _text(values[name]), source) for name, source in sources.items()]
    state = "" if loaded.file.is_file() else " (does not exist)"
    tell(
        {"file": str(loaded.file), "options": options},
        table(("option", "value", "from"), rows, left_columns=3),
        f"\nConfig file: {loaded.file}{state}",
        as_json=as_json,
    )


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


# A value may begin with a minus sign, as that of engine.gpu_layers.
config_app.command("set", context_settings={"ignore_unknown_options": True})(config_edit.set_option)
config_app.command("unset")(config_edit.unset)
config_app.command("check")(config_edit.check)
config_app.command("edit")(config_edit.edit)


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
        flag = "MODEL" if option.name == "model" else option.flag
        lines.append(f"| `{option.name}` | `{flag}` | {default} | {_meaning(option)} |")
    lines += [
        "",
        "Only the file has these tables: `[models.NAME]` for a model, `[tiers.NAME]` for a tier of requests.",
        "",
    ]
    lines += ["| option | meaning |", "|---|---|"]
    lines += [f"| `{option.name}` | {_meaning(option)} |" for name in TABLES for option in table_options(name)]
    return "\n".join(lines)


def _meaning(option: Option) -> str:
    bounds = option.bounds or ", ".join(option.choices)
    return f"{option.help} ({bounds})" if bounds else option.help


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


policy_app = typer.Typer(rich_markup_mode=None)


def show_policy(
    loaded: LoadedConfig,
    effective: Annotated[
        bool, typer.Option("--effective", help="Show what is in force: the strictest of policy, options and remotes.")
    ] = False,
    as_json: AsJson = False,
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
        print_json(report)
    else:
        _print_policy(report)
    if file.trouble:
        raise typer.Exit(1)


policy_app.command("show")(with_declared_options(show_policy))


def _effective(loaded: LoadedConfig) -> dict[str, Any]:
    # Imported here, since it is slow to import and not needed to read the file.
    from edgeagent.router.remote_access import RemoteAccess

    remote_access = RemoteAccess(loaded.config)
    try:
        usable = {remote.name: remote for remote in remote_access.remotes}
        allowed, image_hosts = remote_access.policy.policy, loaded.config.server.image_hosts
        return {
            "route": remote_access.mode.value,
            "tier": allowed.tier,
            "pulls": allowed.pulls,
            "image_hosts": image_hosts if allowed.image_hosts is None or not image_hosts else allowed.image_hosts,
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


def _print_policy(report: Mapping[str, Any]) -> None:
    state = "" if report["is_there"] else " (does not exist: nothing is forbidden)"
    typer.echo(wrapped(f"Machine policy: {report['file']}{state}"))
    if report["trouble"]:
        typer.echo(wrapped(report["trouble"]))
    if report["policy"]:
        typer.echo("\n" + table(("field", "value"), _policy_rows(report["policy"]), left_columns=2))
    if (effective := report.get("effective")) is None:
        return
    typer.echo("\n" + wrapped("In force, with the options and remotes of this user:"))
    remotes = effective.pop("remotes")
    typer.echo(table(("what", "value"), _policy_rows(effective), left_columns=2))
    for remote in remotes:
        why = remote["trouble"] or remote["budget_trouble"] or "may be used"
        ways = [f"{name}: {remote[name]}" for name in ("ca_file", "proxy") if remote[name]]
        typer.echo(wrapped("; ".join([f"{remote['name']}: {why}", *ways])))


def _policy_rows(fields: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(name, _policy_text(value)) for name, value in fields.items() if value is not None]


def _policy_text(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case list() | tuple():
            return ", ".join(map(str, value)) or "none"
        case dict():
            return ", ".join(f"{name}={each:g}" for name, each in value.items())
        case _:
            return str(value)
