"""The models with short names: the bundled model with its draft model, and those of models/catalog.toml. No network."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Literal, get_args, get_type_hints

from edgeagent.errors import ModelNotFound, StoreError
from edgeagent.store.names.parsing import (
    MAX_KNOWN,
    CatalogName,
    HubName,
    Variant,
    canonical_name,
    is_file_name,
    is_repo_name,
    is_short_name,
    near_names,
    quant_label,
)
from edgeagent.types import MediaKind

_PACKAGE = Path(__file__).resolve().parents[2]
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """A model on the hub under a short name.

    `draft` is the name of another entry, the draft model, with the same `tokenizer`. `quant` or `file` selects one
    model of the repository. `sha256` is the hash that its only file must have, `size_bytes` is that file's size. `also`
    holds other names of the model. `context` is the number of tokens that the model was trained for. `approximate_gb`
    is the approximate size of the model's files in units of 10^9 bytes. `sampling` holds recommended sampling
    parameters. `media` is what the model reads besides text, with a projector from its repository.
    """

    name: str
    repo: str
    license: str
    description: str = ""
    quant: str | None = None
    file: str | None = None
    draft: str | None = None
    sha256: str | None = None
    size_bytes: int | None = None
    kind: Literal["chat", "embedding", "rerank"] = "chat"
    also: Sequence[str] = ()
    tokenizer: str = ""
    context: int | None = None
    approximate_gb: float | None = None
    sampling: Mapping[str, float] = field(default_factory=dict)
    media: Sequence[MediaKind] = ()

    def hub_name(self, quant: str | None = None) -> HubName:
        """Return the entry's name on the hub. If `quant` is given, it replaces the entry's own quantization."""
        if quant is not None:
            return HubName(self.repo, quant=quant)
        return HubName(self.repo, file=self.file) if self.file else HubName(self.repo, quant=self.quant)


@dataclass(frozen=True, slots=True)
class BuiltinModel:
    """The files of the model and the draft model that come with edgeagent. `draft` is None if that file is missing."""

    path: Path
    draft: Path | None


def builtin_model() -> BuiltinModel:
    """Return the bundled model and its draft model. Raise ModelNotFound if this installation lacks the model."""
    path = _bundled("edgeagent-mini.gguf", "models/builtin")
    if path is None:
        raise ModelNotFound(
            "the builtin model is missing from this installation: install edgeagent again, or give a path to a .gguf",
            param="model",
        )
    return BuiltinModel(path, _bundled("edgeagent-mini-draft.gguf", "models/builtin"))


def load_catalog(path: Path | None = None) -> Mapping[str, CatalogEntry]:
    """Return the entries of the catalog by name; empty if there is no catalog file.

    `path` is the file (None: the bundled one). Raise StoreError if it cannot be read or is malformed.
    """
    path = path or _bundled("catalog.toml", "models")
    if path is None:
        return {}
    try:
        text = path.read_text("utf-8")
    except (OSError, ValueError) as error:
        raise StoreError(f"{path} cannot be read: {error}") from None
    return _parsed(path, text)


@lru_cache(maxsize=2)
def _parsed(path: Path, text: str) -> Mapping[str, CatalogEntry]:
    try:
        tables = tomllib.loads(text)
    except ValueError as error:
        raise StoreError(f"{path} cannot be read: {error}") from None
    entries = {name: _entry(path, name, table) for name, table in tables.items()}
    for entry in entries.values():
        if entry.draft is not None and entry.draft not in entries:
            raise StoreError(f"{path}: the draft of {entry.name}, {entry.draft}, is not an entry")
        if entry.draft is not None and entries[entry.draft].tokenizer != entry.tokenizer:
            raise StoreError(f"{path}: {entry.name} and its draft {entry.draft} have different tokenizers")
    return entries


@dataclass(frozen=True, slots=True)
class CatalogMatch:
    """A catalog entry, and the quantization in the name that was looked up; None if that name has none."""

    entry: CatalogEntry
    quant: str | None = None

    @property
    def name(self) -> str:
        own = self.entry.quant or ""
        return f"{self.entry.name}:{self.quant}" if self.quant and self.quant != own.upper() else self.entry.name

    @property
    def hub_name(self) -> HubName:
        return self.entry.hub_name(self.quant)


def match_entry(name: CatalogName) -> CatalogMatch | None:
    """Return the catalog's match for a name in edgeagent's spelling (qwen3-4b:Q8_0) or Ollama's (qwen3:4b-q8_0).

    Case does not matter. Return None if the catalog has no such name.
    """
    by_name = _by_name()
    entry = by_name.get(name.name.lower())
    if entry is not None and (name.quant is None or quant_label(f"-{name.quant}") == name.quant.upper()):
        return CatalogMatch(entry, name.quant and name.quant.upper())
    joined = str(name).lower().replace(":", "-").replace("-fp16", "-f16")
    for text in _spellings(joined):
        quant = quant_label(text)
        stem = text[: -len(quant) - 1] if quant else text
        for candidate, label in ((text, None), *((each, quant) for each in _spellings(stem))):
            if candidate in by_name:
                return CatalogMatch(by_name[candidate], label)
    # An unusual label (UD-Q4_K_XL) is accepted here; only the hub knows whether it exists.
    if entry is None or entry.name != name.name.lower():
        return None
    return CatalogMatch(entry, name.quant and name.quant.upper())


def find_entry(name: CatalogName, known: Collection[str] | None = None) -> CatalogMatch:
    """Return the result of `match_entry`, or raise ModelNotFound with similar names.

    `known` holds the names of the models on this machine, which the error suggests too, and lists. If
    None, the error mentions only the catalog.
    """
    match = match_entry(name)
    if match is not None:
        return match
    names = [*sorted(known or ()), "builtin", *sorted(load_catalog())]
    if known is None:
        raise ModelNotFound(f"no model of the catalog is called {name}; {near_names(str(name), names)}", param="model")
    here = sorted(known)
    near = near_names(str(name), names, "those of `edgeagent list --available`", listed=here)
    if near.startswith("near"):  # a near name of the catalog may not be on this machine
        near += f"; on this machine: {', '.join(here[:MAX_KNOWN])}"
    error = ModelNotFound(f"model '{name}' not found; {near}", param="model")
    error.names_model = True
    raise error


def draft_of(repo: str) -> str | None:
    """Return the catalog's name of the draft model for a repository's models; None if the catalog has none."""
    return next((entry.draft for entry in load_catalog().values() if entry.repo == repo), None)


def model_name(models: tuple[Variant, ...], model: Variant, repo: str) -> str:
    """Return the canonical name of a model of a repository: the catalog's name if there is one, else the hub's.

    `models` are all models of the repository.
    """
    place = canonical_name(models, model, repo)
    entry = next((entry for entry in load_catalog().values() if entry.repo == repo), None)
    if entry is None or (place.file is not None and place.file != entry.file):
        return str(place)
    return CatalogMatch(entry, place.quant).name


def _spellings(text: str) -> Iterator[str]:
    """Yield a name unchanged, then without each of "-instruct", "-it", "-chat", "-text". Ollama adds these to names."""
    yield text
    for ending in ("-instruct", "-it", "-chat", "-text"):
        yield text.removesuffix(ending)
        yield text.replace(f"{ending}-", "-", 1)


def _by_name() -> Mapping[str, CatalogEntry]:
    return {
        each.lower().replace(":", "-"): entry for entry in load_catalog().values() for each in (*entry.also, entry.name)
    }


def _bundled(name: str, source_folder: str) -> Path | None:
    """Return the path of a bundled file in the installed package or the source checkout; None if it is missing."""
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
        raise StoreError(f"{path}: the file of {name}, {entry.file!r}, is not a file name")
    if entry.kind not in get_args(get_type_hints(CatalogEntry)["kind"]):
        raise StoreError(f"{path}: the kind of {name}, {entry.kind!r}, is not chat, embedding or rerank")
    if not isinstance(entry.also, list | tuple) or not all(is_short_name(str(each)) for each in entry.also):
        raise StoreError(f"{path}: `also` of {name} is a list of names")
    if not isinstance(entry.media, list | tuple) or not {*entry.media} <= {*get_args(MediaKind)}:
        raise StoreError(f"{path}: `media` of {name} is a list of image and audio")
    if entry.sha256 is not None and not _SHA256.fullmatch(entry.sha256):
        raise StoreError(f"{path}: the sha256 of {name} is not 64 lower-case hexadecimal digits")
    return entry
