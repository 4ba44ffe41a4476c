"""`edgeagent config` and `policy`: the effective settings with their sources, and the machine's policy.

A change of config.toml that would be an error is refused. Lines are replaced, added or removed in the text, so that
comments and the order stay.
"""

from __future__ import annotations

import copy
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Mapping
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any

import typer

from edgeagent.cli.display import complain, print_json, table, tell, wrapped
from edgeagent.cli.options import AsJson, ConfigFile, with_declared_options
from edgeagent.config import Section, UserPath
from edgeagent.config_sources import (
    TABLES,
    LoadedConfig,
    Option,
    config_file,
    declared_options,
    json_values,
    load_config,
    option_named,
    table_options,
    toml_lines,
)
from edgeagent.errors import ConfigError
from edgeagent.machine_policy import PolicyFile, described
from edgeagent.runtime_file import find_daemon

OptionName = Annotated[str, typer.Argument(metavar="OPTION", help="An option's name, e.g. server.port.")]
_EMPTY = "# Options of edgeagent; `edgeagent config options` lists them all. For example:\n# [server]\n# port = 9000\n"

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
@config_app.command("set", context_settings={"ignore_unknown_options": True})
def set_option(
    name: OptionName,
    value: Annotated[str, typer.Argument(metavar="VALUE", help="Its value; for a list, with commas between.")],
    config: ConfigFile = None,
) -> None:
    """Set an option in the config file."""
    option = option_named(name)
    try:
        read = option.read(value)
    except ValueError as error:
        raise ConfigError(f"{name}: {error}") from None
    literal = _literal(option, value, read)
    _change(config, lambda text: with_value(text, name, literal))
    loaded = load_config(file=config)
    typer.echo(wrapped(f"{name} = {literal} in {loaded.file}"))
    if not (source := loaded.provenance[name]).startswith("file"):
        typer.echo(wrapped(f"The {source} is another value, and wins."))
    _tell_daemon(loaded.config.state_dir)


@config_app.command("unset")
def unset(
    names: Annotated[list[str], typer.Argument(metavar="OPTION", help="Options' names.")], config: ConfigFile = None
) -> None:
    """Remove options from the config file."""
    for name in names:
        option_named(name)
    for name in names:
        _change(config, lambda text, name=name: without_value(text, name))  # type: ignore[misc]
    loaded = load_config(file=config)
    for name in names:
        typer.echo(wrapped(f"{name} is not set in {loaded.file}; its value is from: {loaded.provenance[name]}"))
    _tell_daemon(loaded.config.state_dir)


@config_app.command("check")
def check(as_json: AsJson = False, config: ConfigFile = None) -> None:
    """Check the config file and the environment variables. Exits with 2 if something is wrong."""
    loaded = load_config(file=config)
    num = sum(source.startswith("file") for source in loaded.provenance.values())
    is_there = loaded.file.is_file()
    tables = [f'{name}."{each}"' for name in TABLES for each in getattr(loaded.config, name)]
    further = f" and has the table{'s' * (len(tables) > 1)} {', '.join(tables)}" if tables else ""
    text = f"{loaded.file} is fine: it sets {num} option{'s' * (num != 1)}{further}."
    if not is_there:
        text = f"{loaded.file} does not exist: all options have their defaults."
    tell({"file": str(loaded.file), "is_there": is_there, "num_options": num}, wrapped(text), as_json=as_json)


@config_app.command("edit")
def edit(config: ConfigFile = None) -> None:
    """Edit the config file with $VISUAL or $EDITOR. It is replaced only if what you wrote is right."""
    path = config_file(config).resolve()
    before = _read(path)
    with tempfile.TemporaryDirectory(prefix="edgeagent-") as folder:
        draft = Path(folder, path.name)
        draft.write_text(before or _EMPTY, encoding="utf-8")
        while True:
            _run_editor(draft)
            after = draft.read_text(encoding="utf-8")
            if after in (before, _EMPTY):
                typer.echo("Nothing was changed.")
                return
            try:
                _replace(path, after)
            except ConfigError as error:
                complain(error.message)
                if sys.stdin.isatty() and typer.confirm("Edit again?", default=True, err=True):
                    continue
                raise ConfigError(f"{path} was not changed") from None
            break
    typer.echo(wrapped(f"{path} is changed."))
    _tell_daemon(load_config(file=config).config.state_dir)


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


def with_value(text: str, name: str, literal: str) -> str:
    """Return the text of a config file in which the option `name` has the value `literal`, in TOML's notation.

    Raise ConfigError if the text is written in a way that this function does not change, or is not TOML.
    """
    lines, (section, _, key) = text.splitlines(), name.rpartition(".")
    found = _line_of(lines, name)
    line = f"{key} = {literal}"
    if found is not None:
        written = lines[found]
        # A dotted key (`server.port = 1`) keeps its name, and the line its comment.
        lines[found] = f"{written.partition('=')[0].rstrip()} = {literal}{_comment(written)}"
    elif (last := _last_line(lines, section)) is not None:
        lines.insert(last + 1, line)
    else:
        lines += [*([""] if lines else []), f"[{section}]", line] if section else [line]
    return _checked(text, lines, name, tomllib.loads(f"x = {literal}")["x"])


def without_value(text: str, name: str) -> str:
    """Return the text of a config file without the option `name`. Raise ConfigError as `with_value` does."""
    lines = text.splitlines()
    if (found := _line_of(lines, name)) is not None:
        del lines[found]
        section = name.rpartition(".")[0]
        header = _last_line(lines, section) if section else None
        if header is not None and lines[header].strip() == f"[{section}]":
            rest = takewhile(lambda line: not line.strip().startswith("["), lines[header + 1 :])
            if not any(map(str.strip, rest)):  # nothing is left of the table, not even a comment
                del lines[header - bool(header and not lines[header - 1].strip()) : header + 1]
    return _checked(text, lines, name, None)


def _checked(before: str, lines: list[str], name: str, value: object) -> str:
    """Return the lines as text. Raise ConfigError unless it differs from the text before only in the option's value."""
    after = "".join(f"{line}\n" for line in lines)
    try:
        wanted, *sections = tomllib.loads(before), *name.split(".")[:-1]
        expected = copy.deepcopy(wanted)
        table: dict[str, Any] = expected
        for section in sections:
            table = table.setdefault(section, {})
        table[name.rpartition(".")[2]] = value
        if value is None:
            del table[name.rpartition(".")[2]]
        is_right = _without_empty(tomllib.loads(after)) == _without_empty(expected)
    except (tomllib.TOMLDecodeError, AttributeError, TypeError):
        is_right = False
    if not is_right:
        raise ConfigError(f"{name} cannot be changed in the file as it is written; use `edgeagent config edit`")
    return after


def _without_empty(tables: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in tables.items() if value != {}}


def _line_of(lines: list[str], name: str) -> int | None:
    """Return the index of the line that sets an option; None if there is none."""
    return next((index for index, table, key in toml_lines(lines) if key and f"{table}{key}" == name), None)


def _last_line(lines: list[str], section: str) -> int | None:
    """Return the index of the last line of a table, or of the header; None if there is no such table.

    The table "" is the part before the first header. Its last line is -1 if the part is empty.
    """
    places = [index for index, table, _ in toml_lines(lines) if table == (section and f"{section}.")]
    return places[-1] if places else None if section else -1


def _comment(line: str) -> str:
    """Return the comment at the end of a line that sets an option, with the blanks before it; "" if there is none."""
    for place in (place for place, character in enumerate(line) if character == "#"):
        try:
            tomllib.loads(line[:place])
        except tomllib.TOMLDecodeError:
            continue
        return line[len(line[:place].rstrip()) :]
    return ""


def _literal(option: Option, text: str, value: Any) -> str:
    """Return the value of an option in TOML's notation. `text` is how the user wrote it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, tuple):
        return f"[{', '.join(_quoted(item) if isinstance(item, str) else repr(item) for item in value)}]"
    # The daemon may run in another folder, so a path is written whole.
    return _quoted(str(value.absolute()) if option.kind == UserPath and not text.startswith("~") else text)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)  # a basic string of TOML has the escapes of JSON


def _change(file: Path | None, change: Callable[[str], str]) -> None:
    path = config_file(file).resolve()
    text = _read(path)
    if (changed := change(text)) != text:
        _replace(path, changed)


def _read(path: Path) -> str:
    """Return the text of the config file; "" if there is none."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None


def _replace(path: Path, text: str) -> None:
    """Replace the config file atomically by a text that is right. Raise ConfigError if it is not, or on failure."""
    draft: Path | None = None
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8", newline="\n") as file:
            draft = Path(file.name)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            shutil.copymode(path, draft)
        load_config(file=draft)
        draft.replace(path)
    except ConfigError as error:
        raise ConfigError(error.message.replace(str(draft), str(path))) from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}") from None
    finally:
        if draft is not None:
            draft.unlink(missing_ok=True)


def _run_editor(path: Path) -> None:
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or ("notepad" if os.name == "nt" else "vi")
    try:
        done = subprocess.run([*shlex.split(editor, posix=os.name != "nt"), str(path)])  # noqa: S603 the user's own
    except OSError as error:
        raise ConfigError(f"cannot start the editor {editor!r}: {error.strerror}; set EDITOR") from None
    if done.returncode:
        raise ConfigError(f"the editor {editor!r} ended with status {done.returncode}; nothing was changed")


def _tell_daemon(state_dir: Path) -> None:
    if (daemon := find_daemon(state_dir)) is not None:
        typer.echo(wrapped(f"The running daemon (process {daemon.pid}) uses this from its next start on."))


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
