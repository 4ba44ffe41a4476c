"""Reads the values of options from the command line, the environment and config.toml.

The first source that sets an option wins, in this order: a flag, the variable EDGEAGENT_SECTION__OPTION, the file in
the platform's config folder. Unknown keys are errors.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import platformdirs
from pydantic import BaseModel, ValidationError
from pydantic_settings import EnvSettingsSource, TomlConfigSettingsSource

from edgeagent.config import ENV_PREFIX, NOT_AN_OPTION, Config, ModelConfig, ModelOptionError, Section
from edgeagent.errors import ConfigError
from edgeagent.home import with_home

TABLES = frozenset({"models"})
"""Options that only the file can set: tables whose keys the owner chooses."""
_WANTED_IN_TABLES = {
    "keep_alive": 'a number of seconds or a duration, as in "5m"',
    "draft": "auto, none, ngram or the name of a model",
    "preload": "true or false",
    "engine": "a table of options, as in { ctx = 4096 }",
    "adapters": 'a table of files, as in { support = "support.gguf" }',
    "prefixes": 'a list of files, as in ["assistant.txt"]',
}
CONFIG_FILE_VARIABLE = "EDGEAGENT_CONFIG"
# Options of the previous release, by name: what holds instead. Errors say so, until the next release.
_REMOVED = {
    "server.max_body_bytes": "a body may have 8 MiB",
    "server.max_frame_bytes": "a WebSocket message may have 16 MiB",
    "server.max_connections": "2000 connections may be open",
    "server.max_stored_responses": "server.max_stored_bytes and server.max_stored_days limit stored responses",
    "server.max_websocket_age_s": "a WebSocket stays open for as long as the client wants",
    "engine.draft_ngrams": "set draft to ngram, or to none",
    "engine.load_timeout_s": "a load fails after five minutes without progress",
    "cache.min_free_bytes": "store.min_free_bytes holds for the cache too",
    "cache.max_unused_days": "cached prefixes that are unused for seven days are deleted",
    "router.batch_first_token_s": "the target of batch requests is 120 s to the first token",
    "router.batch_token_s": "the target of batch requests is 5 s from one token to the next",
}


@dataclass(frozen=True, slots=True)
class Option:
    """One declared option, with what the command line, the environment and the documentation need to know."""

    name: str
    """Its dotted name: engine.ctx."""
    flag: str
    """Its command-line flag: --ctx."""
    variable: str
    """Its environment variable: EDGEAGENT_ENGINE__CTX."""
    help: str
    default: Any
    choices: tuple[str, ...] = ()
    is_switch: bool = False
    bounds: str = ""
    """The allowed range in words, e.g. "0 to 65535"."""
    group: str = ""
    """What the options of its section are about; empty if it is in no section."""

    @property
    def wanted(self) -> str:
        """A description of a valid value, e.g. "a whole number from 0 to 65535"."""
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        match self.default:
            case bool():
                return "true or false"
            case int() | float():
                number = "a whole number" if isinstance(self.default, int) else "a number"
                between = "from" if " to " in self.bounds else "of"
                return f"{number} {between} {self.bounds}" if self.bounds else number
            case tuple():
                return "a list, or texts with commas between them"
            case _:
                return "text"


def declared_options() -> Iterator[Option]:
    """Yield every option in the order of declaration, without the tables that only the file can set."""
    return _options_of(Config)


def _options_of(model: type[BaseModel], section: str = "", flag_prefix: str = "", group: str = "") -> Iterator[Option]:
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            kind = field.annotation
            yield from _options_of(kind, f"{name}.", kind.flag_prefix, (kind.__doc__ or "").partition(".")[0])
            continue
        if name in TABLES or NOT_AN_OPTION in field.metadata:
            continue
        limits = {type(limit).__name__: limit for limit in field.metadata}
        yield Option(
            name=f"{section}{name}",
            flag=_flag(flag_prefix, name),
            variable=_variable(f"{section}{name}"),
            help=field.description or "",
            default=field.default,
            choices=get_args(field.annotation) if get_origin(field.annotation) is Literal else (),
            is_switch=field.annotation is bool,
            bounds=_bounds(limits),
            group=group,
        )


def _flag(prefix: str, name: str) -> str:
    return f"--{prefix}{name}".replace("_", "-")


def _variable(name: str) -> str:
    return f"{ENV_PREFIX}{name}".replace(".", "__").upper()


def removed_flags() -> dict[str, str]:
    """Return the flags of the options that were removed in this release, with what holds instead."""
    flags = {}
    for name, instead in _REMOVED.items():
        section, _, key = name.rpartition(".")
        kind = Config.model_fields[section].annotation
        flags[_flag(kind.flag_prefix if isinstance(kind, type) and issubclass(kind, Section) else "", key)] = instead
    return flags


def _bounds(limits: Mapping[str, Any]) -> str:
    low = f"{limits['Ge'].ge}" if "Ge" in limits else f"more than {limits['Gt'].gt}" if "Gt" in limits else ""
    if "Le" in limits:
        return f"{low} to {limits['Le'].le}"
    return f"{low} or more" if "Ge" in limits else low


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """The effective settings. `provenance` maps each dotted option name to its source, or to "default"."""

    config: Config
    provenance: Mapping[str, str]
    file: Path
    """The path of the config file, which need not exist."""


def default_config_file() -> Path:
    """Return the path of config.toml that applies if neither --config nor EDGEAGENT_CONFIG names one."""
    return Path(platformdirs.user_config_dir("edgeagent", appauthor=False)) / "config.toml"


def load_config(overrides: Mapping[str, object] | None = None, file: Path | None = None) -> LoadedConfig:
    """Read all sources. `overrides` maps dotted option names to values from the command line.

    `file` is the config file to read. It must exist. If None, EDGEAGENT_CONFIG names the file; without that variable,
    the default file is read if it exists. Raise ConfigError for a wrong value, an unknown option or a file that cannot
    be read. The error names the flag, the variable, the line of the file or a model's table in it. For an unknown
    option it also suggests a similar name.
    """
    options = {option.name: option for option in declared_options()}
    path, must_exist = _config_file(file)
    flags = {name: (value, options[name].flag) for name, value in (overrides or {}).items()}
    layers = (flags, _from_environment(options), _from_file(path, options, must_exist=must_exist))
    chosen = {name: value for layer in reversed(layers) for name, value in layer.items()}
    sources = {name: source for name, (_, source) in chosen.items()}
    try:
        config = Config(**_nest({name: value for name, (value, _) in chosen.items()}))
    except ValidationError as error:
        raise ConfigError("; ".join(_complaints(error, sources, options, path))) from None
    return LoadedConfig(config, {name: sources.get(name, "default") for name in options}, path)


def _config_file(file: Path | None) -> tuple[Path, bool]:
    named = file or (Path(value) if (value := os.environ.get(CONFIG_FILE_VARIABLE)) else None)
    return (with_home(named), True) if named else (default_config_file(), False)


def _from_environment(options: Mapping[str, Option]) -> dict[str, tuple[object, str]]:
    variables = {option.variable: option.name for option in options.values()}
    for variable in os.environ:
        if variable.startswith(ENV_PREFIX) and variable not in variables and variable != CONFIG_FILE_VARIABLE:
            if instead := {_variable(name): instead for name, instead in _REMOVED.items()}.get(variable):
                raise ConfigError(f"environment variable {variable}: {_was_removed(instead)}")
            meant = _meant(variable.removeprefix(ENV_PREFIX).lower().replace("__", "."), options)
            hint = f"; did you mean {options[meant].variable}?" if meant else "; `edgeagent config show` lists them all"
            raise ConfigError(f"environment variable {variable}: there is no such option{hint}")
    values = dict(_flatten(EnvSettingsSource(Config)(), options))
    return {name: (value, f"environment ({options[name].variable})") for name, value in values.items()}


def _from_file(path: Path, options: Mapping[str, Option], *, must_exist: bool) -> dict[str, tuple[object, str]]:
    try:
        is_there = path.is_file()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None
    if not is_there:
        if must_exist:
            raise ConfigError(f"{path}: there is no such config file; check --config and {CONFIG_FILE_VARIABLE}")
        return {}
    try:
        text = path.read_text(encoding="utf-8")
        values = dict(_flatten(TomlConfigSettingsSource(Config, path)(), options))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None
    for name in values:
        if name not in options and name not in TABLES:
            where = f"{path}:{_line_of(name, text)}"
            if instead := _REMOVED.get(name):
                raise ConfigError(f"{where}: {name}: {_was_removed(instead)}")
            meant = _meant(name, options)
            hint = f"; did you mean {meant}?" if meant else "; `edgeagent config show` lists them all"
            raise ConfigError(f"{where}: there is no option {name!r}{hint}")
    return {name: (value, f"file ({path}:{_line_of(name, text)})") for name, value in values.items()}


def _was_removed(instead: str) -> str:
    return f"this option was removed: {instead}"


def _flatten(values: Mapping[str, Any], options: Mapping[str, Option], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and name not in options and name not in TABLES:
            yield from _flatten(value, options, f"{name}.")
        else:
            yield name, value


def _nest(values: Mapping[str, object]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for name, value in values.items():
        section, _, key = name.rpartition(".")
        (nested.setdefault(section, {}) if section else nested)[key] = value
    return nested


def _line_of(name: str, text: str) -> int:
    """Return the line of a TOML file that sets a dotted name, else the line that opens its table, else 1."""
    table, nearest = "", 1
    for number, line in enumerate(text.splitlines(), 1):
        key = line.partition("=")[0].strip()
        if key.startswith("["):
            table = f"{key.strip('[] ')}."
            nearest = number if name.startswith(table) else nearest
        elif key and f"{table}{key}" == name:
            return number
        elif key and name.startswith(f"{table}{key}."):
            nearest = number
    return nearest


def _meant(name: str, known: Mapping[str, object]) -> str | None:
    """Return the known dotted name that was probably meant; None if none is similar.

    Whole names are compared first, then only their last parts.
    """
    leaves = {candidate.rpartition(".")[2]: candidate for candidate in known}
    alike = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
    alike = alike or [leaves[leaf] for leaf in difflib.get_close_matches(name.rpartition(".")[2], leaves, n=1)]
    return alike[0] if alike else None


def _complaints(
    error: ValidationError, sources: Mapping[str, str], options: Mapping[str, Option], file: Path
) -> Iterator[str]:
    for problem in error.errors(include_url=False):
        if isinstance(own := problem.get("ctx", {}).get("error"), ModelOptionError):
            name = ".".join(("engine", *map(str, own.problem["loc"])))
            option = next((name for name in (name, name.rpartition(".")[0]) if name in options), name)
            if instead := _REMOVED.get(name):
                fault = _was_removed(instead)
            else:
                fault = _fault(own.problem, options.get(option), is_part=name != option)
            yield f'{file}: [models."{own.model}"] {name}: {fault}'
            continue
        if problem["loc"][0] in TABLES:
            yield f"{file}: {_complaint_of_table(problem)}"
            continue
        path = ".".join(str(part) for part in problem["loc"])
        name = next((option for option in options if path == option or path.startswith(f"{option}.")), path)
        where = _where(name, sources.get(name, ""))
        yield f"{where}: {_fault(problem, options.get(name), is_part=path != name)}"


def _fault(problem: Mapping[str, Any], option: Option | None, *, is_part: bool) -> str:
    """Return what is wrong with an option's value. If `is_part`, the option is a list and one of its items is wrong."""
    if problem["type"] == "value_error":  # raised by one of our own validators, whose message is complete
        return str(problem["msg"]).removeprefix("Value error, ")
    if problem["type"] == "extra_forbidden":
        return "there is no such option"
    if option is None:
        return str(problem["msg"])
    wanted = option.wanted
    if is_part:
        wanted = "text" if problem["type"] == "string_type" else "a number"
    elif problem["type"] == "finite_number":
        wanted = "a finite number"
    return f"{'each ' if is_part else ''}must be {wanted}, not {problem['input']!r:.80}"


def _complaint_of_table(problem: Mapping[str, Any]) -> str:
    """Return what is wrong with a model's table in the file."""
    where = problem["loc"]
    if len(where) < 3:
        return f'tables of models look like [models."NAME"], not {problem["input"]!r:.80}'
    key = ".".join(map(str, where[2:]))
    return f'[models."{where[1]}"] {key.removesuffix(".[key]")}: {_fault_in_table(problem, key)}'


def _fault_in_table(problem: Mapping[str, Any], key: str) -> str:
    if problem["type"] == "value_error":  # raised by one of our own validators, whose message is complete
        return str(problem["msg"]).removeprefix("Value error, ")
    if problem["type"] == "extra_forbidden":
        meant = difflib.get_close_matches(key, ModelConfig.model_fields, n=1)
        return f"there is no such option{f'; did you mean {meant[0]}?' if meant else ''}"
    wanted = "the path of a file" if "." in key else _WANTED_IN_TABLES[key]
    if problem["type"] == "string_pattern_mismatch":
        wanted = "a name of at most 64 letters, digits and . _ -"
    return f"must be {wanted}, not {problem['input']!r:.80}"


def _where(name: str, source: str) -> str:
    """Return where an option was set, for an error: its flag, its variable, or the line of the file and its name."""
    kind, _, place = source.removesuffix(")").partition(" (")
    return {"environment": place, "file": f"{place}: {name}"}.get(kind, source or name)
