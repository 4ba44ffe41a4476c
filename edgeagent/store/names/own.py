"""The names that the owner gave: aliases, and models imported from the folders of other programs.

They are stored in models.json of the state folder. This module reads no model and uses no network.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from edgeagent.errors import ConfigError, StoreError
from edgeagent.runtime_file import read_private, write_private
from edgeagent.state_files import changing, file_stamp

NAMES_FILE = "models.json"
_LOCK_FILE = "models.lock"
_MAX_BYTES = 4 << 20
MAX_NAMES = 10_000


@dataclass(frozen=True, slots=True)
class Imported:
    """A model in another program's folder. `sha256` is the hash that the program records for its first file.

    `projector` is the file with which it reads images or sounds, if the program records one.
    """

    paths: tuple[Path, ...]
    source: str
    sha256: str | None = None
    projector: Path | None = None


@dataclass(frozen=True, slots=True)
class OwnNames:
    """The content of models.json: the model that each alias stands for, and the imported models by name."""

    aliases: Mapping[str, str] = field(default_factory=dict)
    imports: Mapping[str, Imported] = field(default_factory=dict)

    def aliases_of(self, name: str) -> tuple[str, ...]:
        """Return the aliases of a model. `name` is the target of the aliases: the model's name or its path."""
        return tuple(alias for alias, target in self.aliases.items() if target == name)

    @property
    def named_paths(self) -> tuple[Path, ...]:
        """The paths that aliases stand for, each listed once."""
        return tuple(Path(target) for target in dict.fromkeys(self.aliases.values()) if Path(target).is_absolute())

    def without(self, *names: str) -> OwnNames:
        """Return a copy without these names, and without the aliases that stand for them."""
        aliases = {alias: target for alias, target in self.aliases.items() if not {alias, target} & {*names}}
        return OwnNames(aliases, {name: value for name, value in self.imports.items() if name not in names})


class OwnNamesFile:
    """The file models.json. `read` reads it at each call. One process at a time changes it."""

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir
        self._path = state_dir / NAMES_FILE

    def read(self) -> OwnNames:
        """Return the names, empty if there is no file. Raise StoreError if it cannot be trusted, read or parsed."""
        try:
            content = read_private(self._path, _MAX_BYTES)
            return OwnNames() if content is None else _decoded(content)
        except ConfigError as error:
            raise StoreError(error.message, param="model") from None
        except (ValueError, TypeError, AttributeError, LookupError) as error:
            raise StoreError(
                f"{self._path} cannot be read ({type(error).__name__}): delete it, and name or import the models again",
                param="model",
            ) from None

    def stamp(self) -> object:
        """Return a value that differs after every change of the file; None if there is no file."""
        return file_stamp(self._path)

    def change(self, change: Callable[[OwnNames], OwnNames]) -> OwnNames:
        """Replace the names with `change(names)`, and return the new names.

        Raise StoreError if the file cannot be read or written, or if there are too many names.
        """
        try:
            self._state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            with changing(self._state_dir / _LOCK_FILE, "edgeagent cp, import or rm"):
                names = change(self.read())
                if len(names.aliases) + len(names.imports) > MAX_NAMES:
                    raise StoreError(f"{self._path} holds {MAX_NAMES} names already: remove some", param="model")
                write_private(self._path, _encoded(names))
        except ConfigError as error:
            raise StoreError(error.message, param="model") from None
        except OSError as error:
            raise StoreError(f"{self._path} cannot be written: {error.strerror}", param="model") from None
        return names


def with_alias(names: OwnNames, alias: str, target: str) -> OwnNames:
    return replace(names, aliases={**names.aliases, alias: target})


def with_import(names: OwnNames, name: str, model: Imported) -> OwnNames:
    return replace(names, imports={**names.imports, name: model})


def _decoded(content: bytes) -> OwnNames:
    document = json.loads(content)
    aliases = {str(alias): str(target) for alias, target in document["aliases"].items()}
    imports = {
        str(name): Imported(
            tuple(Path(str(path)) for path in entry["paths"]),
            str(entry["source"]),
            None if entry.get("sha256") is None else str(entry["sha256"]),
            None if entry.get("projector") is None else Path(str(entry["projector"])),
        )
        for name, entry in document["imports"].items()
        if entry["paths"]
    }
    return OwnNames(aliases, imports)


def _fields(model: Imported) -> dict[str, object]:
    projector = {"projector": str(model.projector)} if model.projector else {}
    paths = [str(path) for path in model.paths]
    return {"paths": paths, "source": model.source, "sha256": model.sha256, **projector}


def _encoded(names: OwnNames) -> bytes:
    imports = {name: _fields(model) for name, model in names.imports.items()}
    return json.dumps({"aliases": dict(names.aliases), "imports": imports}, indent=1).encode()
