"""The models edgeagent knows by a short name: the bundled pair, and models/catalog.toml. No network."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from edgeagent.errors import ModelNotFound, StoreError
from edgeagent.store.names import CatalogName, HubName, is_file_name, is_repo_name

_PACKAGE = Path(__file__).resolve().parents[1]
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """A model on the hub under a short name. `draft` is another entry's name; sha256 and size pin a single file."""

    name: str
    repo: str
    license: str
    description: str = ""
    quant: str | None = None
    file: str | None = None
    draft: str | None = None
    sha256: str | None = None
    size_bytes: int | None = None

    def hub_name(self, quant: str | None = None) -> HubName:
        """Return the entry's place on the hub, with another quantization where one is asked for."""
        if quant is not None:
            return HubName(self.repo, quant=quant)
        return HubName(self.repo, file=self.file) if self.file else HubName(self.repo, quant=self.quant)


@dataclass(frozen=True, slots=True)
class BuiltinModel:
    """The bundled pair."""

    path: Path
    draft: Path | None


def builtin_model() -> BuiltinModel:
    """Return the bundled pair. Raise ModelNotFound where this installation lacks it."""
    path = _bundled("edgeagent-mini.gguf", "models/builtin")
    if path is None:
        raise ModelNotFound(
            "the builtin model is missing from this installation: install edgeagent again, or give a path to a .gguf",
            param="model",
        )
    return BuiltinModel(path, _bundled("edgeagent-mini-draft.gguf", "models/builtin"))


def load_catalog(path: Path | None = None) -> Mapping[str, CatalogEntry]:
    """Return the catalog by name; a missing one is empty. Raise StoreError where it is malformed."""
    path = path or _bundled("catalog.toml", "models")
    if path is None:
        return {}
    try:
        tables = tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise StoreError(f"{path} cannot be read: {error}") from None
    entries = {name: _entry(path, name, table) for name, table in tables.items()}
    for entry in entries.values():
        if entry.draft is not None and entry.draft not in entries:
            raise StoreError(f"{path}: the draft of {entry.name}, {entry.draft}, is no entry")
    return entries


def find_entry(name: CatalogName) -> CatalogEntry:
    """Return the entry of a name. Raise ModelNotFound with the known names."""
    entries = load_catalog()
    entry = entries.get(name.name)
    if entry is None:
        known = ", ".join(("builtin", *entries))
        raise ModelNotFound(
            f"no model is called {name}: give a path to a .gguf, org/repo[:QUANT], or one of {known}",
            param="model",
        )
    return entry


def _bundled(name: str, source_folder: str) -> Path | None:
    """Find a file that is inside the package once installed, and beside it in a source checkout."""
    for path in (_PACKAGE / "_builtin" / name, _PACKAGE.parent / source_folder / name):
        if path.is_file():
            return path
    return None


def _entry(path: Path, name: str, table: object) -> CatalogEntry:
    try:
        if not isinstance(table, dict):
            raise TypeError("it is not a table")
        entry = CatalogEntry(name=name, **table)
    except TypeError as error:
        raise StoreError(f"{path}: the entry {name} is malformed: {error}") from None
    texts = (entry.repo, entry.license, entry.description)
    if not all(isinstance(text, str) for text in texts) or not is_repo_name(entry.repo):
        raise StoreError(f"{path}: the entry {name} needs a repo (org/repo) and a license")
    if entry.file is not None and not is_file_name(entry.file):
        raise StoreError(f"{path}: the file of {name}, {entry.file!r}, is no file name")
    if entry.sha256 is not None and not _SHA256.fullmatch(entry.sha256):
        raise StoreError(f"{path}: the sha256 of {name} is not 64 lower-case hexadecimal digits")
    return entry
