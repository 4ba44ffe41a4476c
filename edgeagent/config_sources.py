"""Reads the values of options from the command line, the environment and config.toml.

The first source that sets an option wins, in this order: a flag, the variable EDGEAGENT_SECTION__OPTION, the file in
the platform's config folder. Unknown keys are errors.
"""

from __future__ import annotations

import difflib
import os
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import msgspec
import platformdirs
from msgspec.structs import fields

from edgeagent.config import (
    ENV_PREFIX,
    MAX_INT64,
    NOT_AN_OPTION,
    AdapterName,
    Config,
    ModelConfig,
    Rule,
    Section,
    TierConfig,
    TierName,
    UserPath,
    with_home,
)
from edgeagent.errors import ConfigError

TABLES: dict[str, type[Section]] = {"models": ModelConfig, "tiers": TierConfig}
"""Options that only the file can set: tables of tables, and what each inner table holds."""
_WANTED_IN_TABLES = {
    "keep_alive": 'a number of seconds or a duration, as in "5m"',
    "draft": "auto, none, ngram or the name of a model",
    "mmproj": "auto, none or the path of a file",
    "preload": "true or false",
    "engine": "a table of options, as in { ctx = 4096 }",
    "adapters": 'a table of files, as in { support = "support.gguf" }',
    "prefixes": 'a list of files, as in ["assistant.txt"]',
    "first_token_s": "a number of seconds of more than 0 to 3600",
    "token_s": "a number of seconds of more than 0 to 3600",
    "max_prompt_tokens": "a whole number of 1 or more",
    "max_output_tokens": "a whole number of 1 or more",
}
CONFIG_FILE_VARIABLE = "EDGEAGENT_CONFIG"
# Options of the previous release, by name: what holds instead. Errors say so, until the next release.
_REMOVED = {
    "server.max_body_bytes": "a body may have 16 MiB",
    "server.max_frame_bytes": "a WebSocket message may have 16 MiB",
    "server.max_connections": "2000 connections may be open",
    "server.max_stored_responses": "server.max_stored_bytes and server.max_stored_days limit stored responses",
    "server.max_websocket_age_s": "a WebSocket stays open for as long as the client wants",
    "engine.calibration_s": "nothing is measured when a model is loaded; `edgeagent tune` measures",
    "engine.side_prefill": "a long prompt beside streams has a context of its own if there is memory for it",
    "engine.draft_ngrams": "set draft to ngram, or to none",
    "engine.load_timeout_s": "a load fails after five minutes without progress",
    "cache.min_free_bytes": "store.min_free_bytes holds for the cache too",
    "cache.max_unused_days": "cached prefixes that are unused for seven days are deleted",
    "router.realtime_first_token_s": "set first_token_s in [tiers.realtime] of config.toml",
    "router.realtime_token_s": "set token_s in [tiers.realtime] of config.toml",
    "router.interactive_first_token_s": "set first_token_s in [tiers.interactive] of config.toml",
    "router.interactive_token_s": "set token_s in [tiers.interactive] of config.toml",
    "router.batch_first_token_s": "set first_token_s in [tiers.batch] of config.toml",
    "router.batch_token_s": "set token_s in [tiers.batch] of config.toml",
}


_WANTED_PATH = "must be the path of a file"
_TRUE, _FALSE = ("1", "true", "t", "yes", "y", "on"), ("0", "false", "f", "no", "n", "off")


class _Wrong(ValueError):
    """A value that cannot be used. `place` is the wrong part of a list or a table; "" for the whole value."""

    def __init__(self, problem: str, place: str = "") -> None:
        super().__init__(problem)
        self.place = place


@contextmanager
def _at(place: str) -> Iterator[None]:
    """Add a place before the one that an error names."""
    try:
        yield
    except ValueError as error:
        inside = error.place if isinstance(error, _Wrong) else ""
        raise _Wrong(str(error), f"{place}{'' if place.endswith(' ') else '.'}{inside}".removesuffix(".")) from None


@dataclass(frozen=True, slots=True)
class Option:
    """One declared option, with what the command line, the environment and the documentation need to know."""

    name: str
    """Its dotted name: engine.ctx."""
    section: type[Section]
    kind: Any
    """The annotation of its type, without None."""
    default: Any

    @property
    def flag(self) -> str:
        """Its command-line flag: --ctx."""
        return f"--{self.section.flag_prefix}{_last(self.name)}".replace("_", "-")

    @property
    def variable(self) -> str:
        """Its environment variable: EDGEAGENT_ENGINE__CTX."""
        return _variable(self.name)

    @property
    def help(self) -> str:
        """The text below its declaration."""
        return _texts(self.section)[_last(self.name)]

    @property
    def group(self) -> str:
        """What the options of its section are about."""
        return "More options" if self.section is Config else (self.section.__doc__ or "").partition(".")[0]

    @property
    def choices(self) -> tuple[str, ...]:
        return get_args(self.kind) if get_origin(self.kind) is Literal else ()

    @property
    def is_switch(self) -> bool:
        return self.kind is bool

    @property
    def bounds(self) -> str:
        """The allowed range in words, e.g. "0 to 65535"."""
        for limit in getattr(self.kind, "__metadata__", ()):
            if isinstance(limit, msgspec.Meta):
                low = f"more than {limit.gt}" if limit.ge is None else f"{limit.ge}"
                high = f" to {limit.le}" if limit.le is not None else "" if limit.ge is None else " or more"
                return low + high
        return ""

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

    def read(self, value: object) -> object:
        """Return a value as the option's type; raise ValueError, which says what is wrong.

        A text may stand for any type, since the environment has only texts.
        """
        each = "each must be text" if get_args(_base(self.kind))[:1] == (str,) else "each must be a number"
        return _read(value, self.kind, f"must be {self.wanted}", each)


def _read(value: object, kind: Any, wanted: str, each: str = "") -> object:
    """Return a value as the type `kind`; raise _Wrong, which says what is `wanted`, or is wanted of `each` item."""
    base = _base(kind)
    rules = [rule for rule in getattr(kind, "__metadata__", ()) if isinstance(rule, Rule)]
    for rule in rules:
        value = rule.prepare(value)
    if base is bool and isinstance(value, str):
        value = True if value.lower() in _TRUE else False if value.lower() in _FALSE else value
    elif base is bool and not isinstance(value, bool):
        raise _Wrong(f"must be true or false, not {value!r:.80}")
    elif base in (int, float) and isinstance(value, bool):
        raise _Wrong(f"must be a number, not {value}")
    elif get_origin(base) is tuple and isinstance(value, list | tuple):
        value = tuple(_read_at(str(place), item, get_args(base)[0], each) for place, item in enumerate(value))
    try:
        read: Any = msgspec.convert(value, kind, strict=False, dec_hook=_path)
    except msgspec.ValidationError:
        raise _Wrong(f"{wanted}, not {value!r:.80}") from None
    if isinstance(read, int) and read > MAX_INT64:
        raise _Wrong(f"must be at most {MAX_INT64}, not {value!r:.80}")
    for rule in rules:
        read = rule.check(read)
    return read


def _read_at(place: str, value: object, kind: Any, wanted: str) -> object:
    with _at(place):
        return _read(value, kind, wanted)


def _path(kind: Any, value: object) -> object:
    """Convert a value to a type that msgspec does not know, which is always a path."""
    if kind is Path and isinstance(value, str | Path):
        return Path(value)
    raise msgspec.ValidationError


def _base(kind: Any) -> Any:
    """Return a type without its annotations."""
    return kind.__origin__ if hasattr(kind, "__metadata__") else kind


def _last(name: str) -> str:
    return name.rpartition(".")[2]


_DECLARATION = re.compile(r'^    (\w+): [^\n]+\n    """(.+?)"""$', re.MULTILINE | re.DOTALL)


@cache
def _texts(section: type[Section]) -> dict[str, str]:
    """Return the texts below the declarations of a section, by option. They are in its source only."""
    # inspect and ast take a tenth of a second for all sections, and every command would pay it.
    source = Path(sys.modules[section.__module__].__file__ or "").read_text(encoding="utf-8")
    declarations = source.partition(f"\nclass {section.__name__}(")[2].partition("\nclass ")[0]
    return {name: " ".join(text.split()) for name, text in _DECLARATION.findall(declarations)}


SECTIONS: dict[str, type[Section]] = {
    field.name: field.type
    for field in fields(Config)
    if isinstance(field.type, type) and issubclass(field.type, Section)
}
"""The sections of the configuration by name."""


def declared_options() -> Iterator[Option]:
    """Yield every option in the order of declaration, without the tables that only the file can set."""
    sections: dict[str, type[Section]] = {"": Config, **{f"{name}.": section for name, section in SECTIONS.items()}}
    for prefix, section in sections.items():
        for field in fields(section):
            is_group = section is Config and (field.name in SECTIONS or field.name in TABLES)
            if not is_group and NOT_AN_OPTION not in getattr(field.type, "__metadata__", ()):
                yield Option(f"{prefix}{field.name}", section, _without_none(field.type), field.default)


def table_options(name: str) -> Iterator[Option]:
    """Yield the options of a table that only the file can set; `name` is a key of TABLES."""
    for field in fields(TABLES[name]):
        yield Option(f"{name}.NAME.{field.name}", TABLES[name], _without_none(field.type), field.default)


def _without_none(kind: Any) -> Any:
    """Return the type of the values that can be given: a kind without None, which is the default of some options."""
    members = [member for member in get_args(kind) if member is not type(None)]
    return members[0] if type(None) in get_args(kind) else kind


def json_values(section: Section, prefix: str = "") -> dict[str, Any]:
    """Return the values of a section's options as JSON has them, by their dotted names, which begin with `prefix`."""
    return dict(_flat(msgspec.to_builtins(section, enc_hook=str), prefix))


def _flat(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _variable(name: str) -> str:
    return f"{ENV_PREFIX}{name}".replace(".", "__").upper()


def removed_flags() -> dict[str, str]:
    """Return the flags of the options that were removed in this release, with what holds instead."""
    sections = {name: SECTIONS.get(name.partition(".")[0], Config) for name in _REMOVED}
    flags = {name: Option(name, sections[name], str, None).flag for name in _REMOVED}
    # The section `router`, which is removed, had a prefix.
    flags |= {name: flag.replace("--", "--target-") for name, flag in flags.items() if name.startswith("router.")}
    return {flags[name]: instead for name, instead in _REMOVED.items()}


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


def config_file(file: Path | None = None) -> Path:
    """Return the path of the config file: `file`, or what EDGEAGENT_CONFIG names, or the default one."""
    return _config_file(file)[0]


def option_named(name: str) -> Option:
    """Return the option of a dotted name. Raise ConfigError if there is none; the error suggests a similar name."""
    options = {option.name: option for option in declared_options()}
    if name not in options:
        raise ConfigError(f"there is no option {name!r}{_hint(name, options)}")
    return options[name]


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
    values: dict[str, object] = {}
    complaints = []
    for name in (name for name in (*options, *TABLES) if name in chosen):
        value, source = chosen[name]
        try:
            values[name] = _read_tables(name, value, options) if name in TABLES else options[name].read(value)
        except ValueError as error:
            where = _where(name, source) if name not in TABLES else f"{path}: {getattr(error, 'place', '')}"
            complaints.append(f"{where.removesuffix(': ')}: {error}")
    if complaints:
        raise ConfigError("; ".join(complaints))
    config = _config_of(values)
    if fault := config.engine.kv_fault:
        raise ConfigError(f"{_where('engine.kv_type_v', sources.get('engine.kv_type_v', ''))}: {fault}")
    for model in config.models:
        if fault := config.engine_of(model).kv_fault:
            raise ConfigError(f'{path}: [models."{model}"] engine.kv_type_v: {fault}')
    return LoadedConfig(config, {name: sources.get(name, "default") for name in options}, path)


def _config_of(values: Mapping[str, Any]) -> Config:
    """Return the configuration with these values of options, by dotted name. All others have their defaults."""
    top = {name: value for name, value in values.items() if "." not in name}
    for section, kind in SECTIONS.items():
        prefix = f"{section}."
        own = {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}
        top[section] = kind(**own)
    return Config(**top)


def _config_file(file: Path | None) -> tuple[Path, bool]:
    named = file or (Path(value) if (value := os.environ.get(CONFIG_FILE_VARIABLE)) else None)
    return (with_home(named), True) if named else (default_config_file(), False)


def _from_environment(options: Mapping[str, Option]) -> dict[str, tuple[object, str]]:
    known = {option.variable: option.name for option in options.values()}
    removed = {_variable(name): instead for name, instead in _REMOVED.items()}
    values: dict[str, tuple[object, str]] = {}
    for variable, value in os.environ.items():
        if not variable.startswith(ENV_PREFIX) or variable == CONFIG_FILE_VARIABLE:
            continue
        if variable in removed:
            raise ConfigError(f"environment variable {variable}: {_was_removed(removed[variable])}")
        if variable not in known:
            meant = _meant(variable.removeprefix(ENV_PREFIX).lower().replace("__", "."), options)
            hint = f"; did you mean {options[meant].variable}?" if meant else "; `edgeagent config show` lists them all"
            raise ConfigError(f"environment variable {variable}: there is no such option{hint}")
        if value:
            values[known[variable]] = value, f"environment ({variable})"
    return values


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
        values = dict(_flatten(tomllib.loads(text), options))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None
    for name in values:
        if name not in options and name not in TABLES:
            where = f"{path}:{_line_of(name, text)}"
            if instead := _REMOVED.get(name):
                raise ConfigError(f"{where}: {name}: {_was_removed(instead)}")
            raise ConfigError(f"{where}: there is no option {name!r}{_hint(name, options)}")
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


def toml_lines(lines: Iterable[str]) -> Iterator[tuple[int, str, str]]:
    """Yield (index, table, key) for each line that is neither blank nor a comment.

    The table ends with a dot, as "server."; it is "" before the first header. The key of a header is "".
    """
    table = ""
    for index, line in enumerate(lines):
        key = line.partition("=")[0].strip()
        if key.startswith("["):
            table = f"{key.partition(']')[0].strip('[ ')}."
            yield index, table, ""
        elif key and not key.startswith("#"):
            yield index, table, key


def _line_of(name: str, text: str) -> int:
    """Return the line of a TOML file that sets a dotted name, else the line that opens its table, else 1."""
    nearest = 0
    for index, table, key in toml_lines(text.splitlines()):
        if key and f"{table}{key}" == name:
            return index + 1
        if name.startswith(f"{table}{key}." if key else table):
            nearest = index
    return nearest + 1


def _hint(name: str, options: Mapping[str, Option]) -> str:
    if name.partition(".")[0] in TABLES:
        return "; a table is written with `edgeagent config edit`"
    meant = _meant(name, options)
    return f"; did you mean {meant}?" if meant else "; `edgeagent config show` lists them all"


def _meant(name: str, known: Mapping[str, object]) -> str | None:
    """Return the known dotted name that was probably meant; None if none is similar.

    Whole names are compared first, then only their last parts.
    """
    leaves = {candidate.rpartition(".")[2]: candidate for candidate in known}
    alike = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
    alike = alike or [leaves[leaf] for leaf in difflib.get_close_matches(name.rpartition(".")[2], leaves, n=1)]
    return alike[0] if alike else None


def _read_tables(name: str, tables: object, options: Mapping[str, Option]) -> dict[str, Section]:
    """Return the options in the tables [name.KEY] of the file, by key; raise _Wrong."""
    quote = '"' if name == "models" else ""
    for table in tables.values() if isinstance(tables, Mapping) else [tables]:
        if not isinstance(table, Mapping):
            raise _Wrong(f"tables of {name} look like [{name}.{quote}NAME{quote}], not {table!r:.80}")
    assert isinstance(tables, Mapping)
    if name == "tiers" and (unknown := tables.keys() - set(get_args(TierName))):
        raise _Wrong(f"there is no such tier; the tiers are {', '.join(get_args(TierName))}", f"[tiers.{min(unknown)}]")
    kind, read = TABLES[name], {}
    for key, table in tables.items():
        with _at(f"[{name}.{quote}{key}{quote}] "):
            read[key] = kind(**{own: _read_own(kind, own, value, options) for own, value in table.items()})
    return read


def _read_own(table: type[Section], key: str, value: object, options: Mapping[str, Option]) -> Any:
    """Return the value of an option in a table of the kind `table`; raise _Wrong."""
    kinds = {field.name: _without_none(field.type) for field in fields(table)}
    with _at(key):
        if key not in kinds:
            meant = difflib.get_close_matches(key, kinds, n=1)
            raise _Wrong(f"there is no such option{f'; did you mean {meant[0]}?' if meant else ''}")
        if key == "engine" and isinstance(value, Mapping):
            return {name: _read_engine_option(name, each, options) for name, each in value.items()}
        if key == "adapters" and isinstance(value, Mapping):
            for name in value:
                _read_at(name, name, AdapterName, "must be a name of at most 64 letters, digits and . _ -")
            return {name: _read_at(name, path, UserPath, _WANTED_PATH) for name, path in value.items()}
        return _read(value, kinds[key], f"must be {_WANTED_IN_TABLES[key]}", _WANTED_PATH)


def _read_engine_option(name: str, value: object, options: Mapping[str, Option]) -> object:
    with _at(name):
        if (option := options.get(f"engine.{name}")) is not None:
            return option.read(value)
        removed = _REMOVED.get(f"engine.{name}")
        raise _Wrong("there is no such option" if removed is None else _was_removed(removed))


def _where(name: str, source: str) -> str:
    """Return where an option was set, for an error: its flag, its variable, or the line of the file and its name."""
    kind, _, place = source.removesuffix(")").partition(" (")
    return {"environment": place, "file": f"{place}: {name}"}.get(kind, source or name)
