"""The declared options as command-line flags. Their names, help and choices come from edgeagent.config only."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from edgeagent.cli.completion import model_names
from edgeagent.cli.help import SHOWS_ALL
from edgeagent.config import Config
from edgeagent.config_sources import Option, declared_options, load_config

ConfigFile = Annotated[Path | None, typer.Option("--config", metavar="FILE", help="Read this config.toml instead.")]
StateDir = Annotated[Path | None, typer.Option("--state-dir", metavar="DIR", help="The daemon's state folder.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
AsJsonArray = Annotated[bool, typer.Option("--json", help="Print one JSON array.")]
AsJsonLines = Annotated[bool, typer.Option("--json", help="Print one JSON object a line, progress included.")]
ModelsDir = Annotated[
    Path | None,
    typer.Option("--models-dir", metavar="DIR", help="Folder of models: downloads, and .gguf files laid into it."),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def settings_of(state_dir: Path | None, file: Path | None, models_dir: Path | None = None) -> Config:
    """Return the configuration for a command.

    `file` is the config file; None is the default one. A folder that is not None overrides the configured one.
    """
    flags = {"store.models_dir": models_dir, "state_dir": state_dir}
    return load_config({name: value for name, value in flags.items() if value is not None}, file).config


# The options on the first page of the help, with their groups (see help.FIRST_PAGE): those that people change first.
# `--help-all` shows the others in the groups of their sections.
FIRST_PAGE = {
    **dict.fromkeys(
        ("engine.ctx", "engine.parallel", "engine.threads", "engine.gpu_layers", "load.keep_alive"), "Model"
    ),
    **dict.fromkeys(("server.host", "server.port", "server.token_required"), "Network"),
    **dict.fromkeys(("route", "forget"), "Privacy"),
    "state_dir": "Options",
}
# The placeholder of an option's value in the help, if the option's name does not make it clear.
METAVARS = {
    "draft": "MODEL",
    "load.keep_alive": "TIME",
    "log.file": "FILE",
    "server.unix": "PATH",
    "server.tls_certificate": "FILE",
    "server.tls_key": "FILE",
    "store.models_dir": "DIR",
    "trace.endpoint": "URL",
}


def _show_all(ctx: typer.Context, *, is_asked: bool) -> None:
    if is_asked:
        ctx.meta[SHOWS_ALL] = True
        typer.echo(ctx.get_help())
        raise typer.Exit


HelpAll = Annotated[
    bool, typer.Option("--help-all", is_eager=True, callback=_show_all, help="Show all options and exit.")
]


def with_declared_options(command: Callable[..., None], *, positional: str = "") -> Callable[..., None]:
    """Return a function for typer with a flag for every declared option. It calls `command(loaded, **own)`.

    `loaded` is the configuration with the given flags applied. `own` are the values of the command's other parameters,
    which become flags as their annotations declare. The option named `positional` becomes an argument, not a flag.
    """
    options = {_parameter_name(option): option for option in declared_options()}
    own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]

    def run(**values: Any) -> None:
        file = values.pop("config")
        del values["help_all"]
        flags = {options[name].name: values.pop(name) for name in list(values) if name in options}
        command(load_config({name: value for name, value in flags.items() if value is not None}, file), **values)

    parameters = [_parameter(option, is_positional=option.name == positional) for option in options.values()]
    config = inspect.Parameter("config", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=ConfigFile)
    help_all = inspect.Parameter("help_all", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=HelpAll)
    extra = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]
    run.__signature__ = inspect.Signature([*parameters, config, *extra, help_all])  # type: ignore[attr-defined]
    run.__annotations__ = {}
    run.__doc__ = command.__doc__
    return run


def with_help(text: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that sets the `--help` text of a command. Use it if the text is too long for a docstring."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        command.__doc__ = text
        return command

    return decorate


def _parameter_name(option: Option) -> str:
    return option.name.replace(".", "__")


def _parameter(option: Option, *, is_positional: bool) -> inspect.Parameter:
    # There is no default and no conversion here. A flag that is not given stays None, and the config checks the others.
    kind: Any = str | None
    names = [option.flag]
    if option.choices:
        kind = Literal[option.choices] | None
    elif option.is_switch:
        kind, names = bool | None, [f"{option.flag}/--no-{option.flag.removeprefix('--')}"]
    completion = model_names if option.name in ("model", "draft") else None
    if is_positional:
        metavar: str | None = option.name.upper()
        info = typer.Argument(help=_help(option), metavar=metavar, show_default=False, autocompletion=completion)
    else:
        metavar = None if option.choices or option.is_switch else _metavar(option)
        group = FIRST_PAGE.get(option.name) or option.group
        info = typer.Option(
            *names,
            help=_help(option),
            metavar=metavar,
            show_default=False,
            autocompletion=completion,
            rich_help_panel=group,
        )
    return inspect.Parameter(
        _parameter_name(option), inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, info]
    )


def _metavar(option: Option) -> str:
    match option.default:
        case int() | float():
            return "N"
        case tuple():
            return "A,B"
        case Path():
            return "DIR"
        case _:
            return METAVARS.get(option.name, option.name.rpartition(".")[2].upper())


def _help(option: Option) -> str:
    facts = [option.bounds] if option.bounds else []
    if option.default not in (None, ()):
        default = {True: "on", False: "off"}.get(option.default, option.default) if option.is_switch else option.default
        facts.append(f"default {default}")
    return f"{option.help} [{', '.join(facts)}]" if facts else option.help
