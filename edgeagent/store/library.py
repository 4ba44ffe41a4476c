"""The models on this machine: finds the files that a name means, verifies them, and lists the models. No network."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from edgeagent.config import Config, StoreConfig
from edgeagent.errors import EdgeAgentError, InvalidRequest, ModelDamaged, ModelNotFound, StoreError
from edgeagent.state_files import until_changed
from edgeagent.store.file_records import VerifiedFiles
from edgeagent.store.gguf.header import ADAPTER, GgufHeader, read_header, validate_model
from edgeagent.store.hub.cache import HubCache, named_sha256
from edgeagent.store.names.catalog import builtin_model, draft_of, find_entry, load_catalog, match_entry, model_name
from edgeagent.store.names.own import Imported, OwnNames, OwnNamesFile
from edgeagent.store.names.parsing import (
    BuiltinName,
    CatalogName,
    HubName,
    LocalPath,
    choose,
    is_companion,
    is_file_name,
    is_path,
    parse_name,
    split_names,
    split_paths,
    split_stem,
    variants,
    without_latest,
)
from edgeagent.store.projectors import find_projector, media_of
from edgeagent.types import MediaKind

MAX_DEPTH = 4
MAX_FILES = 10_000


class ModelFolder:
    """The GGUF files of a folder, without those in the hub's layout.

    The name of each model is its file's name without part number and suffix.

    Subfolders are searched MAX_DEPTH levels deep. After MAX_FILES files the search ends. If `root` is None, there are
    no models.
    """

    def __init__(self, root: Path | None) -> None:
        self._root = root

    def models(self) -> dict[str, tuple[Path, ...]]:
        """Return the files of each complete model by its name.

        If two models have the same name, the one nearer to the root wins. Only regular files count, and links to
        regular files inside the folder.
        """
        found: dict[str, tuple[Path, ...]] = {}
        for folder, files in self._folders():
            for file in sorted(files):
                parts = split_names(file)
                stem = split_stem(file)
                if parts[0] == file and stem not in found and files.issuperset(parts):
                    found[stem] = tuple(folder / part for part in parts)
        return found

    def find(self, name: str) -> tuple[str, tuple[Path, ...]] | None:
        """Find a model by its name or its file's name, and return its name and files; None if there is none.

        If no name matches exactly, case is ignored.
        """
        if self._root is None:
            return None
        models = self.models()
        stem = split_stem(name)
        folded = {known.casefold(): known for known in reversed(models)}
        known = stem if stem in models else folded.get(stem.casefold())
        return None if known is None else (known, models[known])

    def _folders(self) -> Iterator[tuple[Path, set[str]]]:
        """Yield each folder that has model files, with their names. Folders nearer to the root come first."""
        if self._root is None or not self._root.is_dir():
            return
        root = self._root.resolve()
        folders, num_files = [(self._root, 0)], 0
        for folder, depth in folders:
            files, inner = _entries(folder, root)
            num_files += len(files)
            if num_files > MAX_FILES:
                return
            if files:
                yield folder, files
            if depth < MAX_DEPTH:
                folders += [(path, depth + 1) for path in inner]


def _entries(folder: Path, root: Path) -> tuple[set[str], list[Path]]:
    """Return the names of a folder's model files, and the paths of its subfolders except those of the hub's layout."""
    files, inner = set(), []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                name = entry.name
                if not is_file_name(name) or name.startswith(("models--", "datasets--", "spaces--")):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    inner.append(folder / name)
                elif name.lower().endswith(".gguf") and not is_companion(name) and _is_inside(entry, root):
                    files.add(name)
    except OSError:
        pass  # a folder that cannot be read holds no models
    return files, sorted(inner)


def _is_inside(entry: os.DirEntry[str], root: Path) -> bool:
    """Whether an entry is a regular file, or a link to a regular file inside `root`."""
    if not entry.is_file():
        return False
    return not entry.is_symlink() or Path(entry.path).resolve().is_relative_to(root)


Origin = Literal["builtin", "hub", "folder", "import", "alias", "path"]

DEFAULT_NAMES = ("", "default")
"""The names that mean the daemon's default model in a request."""


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model on this machine, as it is shown to the user. `problem` says why `header` is missing.

    `is_damaged`: `header` is missing because the file is damaged. `draft` is the catalog's name of the model's draft
    model; for the builtin model it is a file's name. `adapters` holds the names of the model's LoRA adapters.
    `projector` is the file with which it reads `media`; None if it reads only text.
    """

    name: str
    origin: Origin
    paths: tuple[Path, ...]
    size_bytes: int
    header: GgufHeader | None
    problem: str | None = None
    aliases: tuple[str, ...] = ()
    draft: str | None = None
    is_damaged: bool = False
    adapters: tuple[str, ...] = ()
    projector: Path | None = None
    media: tuple[MediaKind, ...] = ()


@dataclass(frozen=True, slots=True)
class Found:
    """A model's files. `sha256` is the hash of the first file if another program recorded it.

    `draft` is the catalog's name of the model's draft model. `name` is the model's canonical name on this machine. A
    model that was given by path is named after its file. A file that has only aliases is named by the first of them.
    `projector` is the file with which it reads images or sounds, if another program recorded it. A projector that is in
    the model's folder is found by `find_projector`.
    """

    name: str
    paths: tuple[Path, ...]
    origin: Origin = "path"
    draft: str | None = None
    sha256: str | None = None
    projector: Path | None = None

    @property
    def path(self) -> Path:
        """The file that llama.cpp gets. It finds the other parts of a split model beside it."""
        return self.paths[0]

    @property
    def size_bytes(self) -> int:
        """The bytes of the files that are there."""
        return sum(path.stat().st_size for path in self.paths if path.exists())


class Library:
    """The models on this machine. No other class decides what a model's name means.

    The constructor's `default` is the name of the model for requests that name none. Its `adapters` maps a model, by
    any of its names, to the names of its adapters.
    """

    def __init__(
        self,
        store: StoreConfig,
        state_dir: Path,
        default: str = "builtin",
        adapters: Mapping[str, Sequence[str]] = MappingProxyType({}),
    ) -> None:
        self._store = store
        self._default = default
        self._adapters = adapters
        self._verified = VerifiedFiles(state_dir)
        self._own = OwnNamesFile(state_dir)
        self._folder = ModelFolder(store.models_dir)

    @classmethod
    def of(cls, config: Config) -> Library:
        adapters = {name: tuple(own.adapters) for name, own in config.models.items() if own.adapters}
        return cls(config.store, config.state_dir, config.model, adapters)

    @cached_property
    def _cache(self) -> HubCache:
        # Created on first use: finding the shared cache imports huggingface_hub, which builtin and paths do not need.
        return HubCache.of(self._store)

    def resolve(self, name: str) -> Found:
        """Return a model's files, verified. "" and "default" mean the default model.

        Raise the errors of `find` and `verify`.
        """
        found = self.find(self._default if name in DEFAULT_NAMES else name)
        self.verify(found, name)
        return found

    def verify(self, found: Found, wanted: str) -> None:
        """Check files from the hub, and an imported file with a recorded sha256. Each is read in full on its first use.

        `wanted` is the model's name in the texts of errors. Raise ModelDamaged or StoreError.
        """
        if found.origin == "hub":
            projector = find_projector(found.path)
            for path in (*found.paths, *([] if projector is None else [projector])):
                self._verify(path, wanted)
        elif found.sha256 is not None and not self._verified.check(found.paths[0], found.sha256):
            raise ModelDamaged(
                f"{found.paths[0]} is damaged: its sha256 is not {found.sha256}; import {wanted} again", param="model"
            )

    def resolve_for_client(self, name: str) -> Found:
        """Resolve a name that a client sent. Paths are refused, except the name of the default model."""
        if name != self._default:
            self.refuse_path(name)
        return self.resolve(name)

    def refuse_path(self, name: str) -> None:
        """Raise ModelNotFound if a client's name is a path, even if a file exists there.

        A name that the owner gave to a model is allowed, even if it looks like a path.
        """
        if name not in DEFAULT_NAMES and is_path(name) and self._owned(name) is None:
            error = ModelNotFound(f"model {name[:256]!r} not found: clients name models, not paths", param="model")
            error.names_model = True
            raise error

    def holds(self, name: str) -> bool:
        """Whether this machine has a model, given as NAME or MODEL+ADAPTER. False for a path. No file is verified."""
        with suppress(EdgeAgentError, OSError):
            return self.find(name).origin != "path"
        base, _, adapter = name.rpartition("+")
        return bool(base) and self.has_adapter(base, adapter)

    def has_adapter(self, name: str, adapter: str) -> bool:
        """Whether a model of this name is on this machine and has this adapter."""
        with suppress(EdgeAgentError, OSError):
            found = self.find(self._default if name in DEFAULT_NAMES else name)
            return found.origin != "path" and adapter in self.adapters_of(found)
        return False

    def adapters_of(self, found: Found) -> tuple[str, ...]:
        """Return the names of a model's adapters."""
        for name, adapters in self._adapters.items():
            with suppress(EdgeAgentError):
                if self.find(name).paths == found.paths:
                    return tuple(adapters)
        return ()

    def means_a_model(self, name: str) -> bool:
        """Whether this is the name of a model that is on this machine or in the catalog."""
        try:
            meaning = parse_name(name)
        except (InvalidRequest, ModelNotFound):
            return self.holds(name)
        return self.holds(name) or (isinstance(meaning, CatalogName) and match_entry(meaning) is not None)

    def _names_here(self) -> set[str]:
        """Return all names of the models on this machine. Raise StoreError if the owner's names cannot be read."""
        return {*self._own.read().aliases, *(found.name for found in self.found())}

    def short_names(self) -> set[str]:
        """Return all known names, except those of models in the hub's cache.

        If models.json cannot be read, its names are left out.
        """
        try:
            own = self._own.read()
        except StoreError:
            own = OwnNames()
        return {"builtin", *own.aliases, *own.imports, *self._folder.models(), *load_catalog()}

    def models(self) -> tuple[LocalModel, ...]:
        """Return all models on this machine.

        These are the bundled model, imported models, models in the models folder, complete models in the hub's cache,
        and other files that have aliases. Raise StoreError if the owner's names cannot be read.
        """
        own = self._own.read()
        return tuple(self._listed(each, own) for each in self.found())

    def found(self) -> list[Found]:
        """Return the same models as `models`, without opening their files. Raise StoreError in the same case."""
        found: list[Found] = []
        with suppress(ModelNotFound):
            found.append(Found("builtin", (builtin_model().path,), "builtin"))
        own = self._own.read()
        for name, imported in own.imports.items():
            found.append(_imported(name, imported))
        for name, paths in self._folder.models().items():
            if name not in own.imports:
                found.append(Found(name, paths, "folder"))
        for repo in self._cache.repos():
            files = self._cache.files(repo)
            models = variants(files)
            draft = draft_of(repo) if models else None
            for model in models:
                paths = tuple(files[file] for file in model.files)
                found.append(Found(model_name(models, model, repo), paths, "hub", draft))
        known = {path.resolve() for each in found for path in each.paths}
        return found + [self._aliased(path, own) for path in own.named_paths if path.resolve() not in known]

    def local(self, name: str) -> LocalModel:
        """Return the model that a name means, with its header, unverified. Raise the errors of `find`."""
        return self._listed(self.find(name), self._own.read())

    def _listed(self, found: Found, own: OwnNames) -> LocalModel:
        """Return a model as it is shown to the user, with the other names of its name and its file."""
        aliases = (*own.aliases_of(found.name), *own.aliases_of(str(found.path.resolve())))
        own_draft = builtin_model().draft if found.origin == "builtin" else None
        model = LocalModel(
            found.name,
            found.origin,
            found.paths,
            found.size_bytes,
            None,
            aliases=tuple(alias for alias in dict.fromkeys(aliases) if alias != found.name),
            draft=found.draft if own_draft is None else own_draft.stem,
            adapters=self.adapters_of(found),
        )
        if (projector := found.projector or find_projector(found.path)) is not None:
            model = replace(model, projector=projector, media=media_of(projector))
        try:
            header = current_header(found.path)
        except EdgeAgentError as error:
            return replace(model, problem=error.message, is_damaged=isinstance(error, ModelDamaged))
        if header.kind == ADAPTER:
            return replace(model, problem="it is an adapter, not a model")
        return replace(model, header=header)

    def find(self, name: str) -> Found:
        """Return the model that a name means, unverified.

        A name is looked up among the owner's aliases and imported models, the files in the models folder, and then by
        `parse_name`. Raise ModelNotFound (with near names, or the command that pulls the model), InvalidRequest or
        StoreError.
        """
        owned = self._owned(name)
        if owned is not None:
            return owned
        match parse_name(name):
            case BuiltinName():
                return Found("builtin", (builtin_model().path,), "builtin")
            case LocalPath(path):
                return _local(path)
            case HubName() as hub_name:
                return self.find_on_hub(hub_name, wanted=name, draft=draft_of(hub_name.repo))
            case CatalogName() as short:
                match = match_entry(short) or find_entry(short, self._names_here())
                return self.find_on_hub(match.hub_name, wanted=name, draft=match.entry.draft)

    def _owned(self, name: str) -> Found | None:
        """Return the model to which the owner gave this name: as an alias, by an import, or in the models folder.

        Return None if there is none. Raise ModelNotFound if its file is gone, StoreError if the names cannot be read.
        """
        name = without_latest(name)
        if name == "builtin" or name.startswith(("/", ".", "~")):
            return None
        own = self._own.read()
        target = own.aliases.get(name)
        if target is not None:
            # An alias stands for a model, never for another alias.
            if Path(target).is_absolute():
                return self._present(name, self._aliased(Path(target), own))
            return self.find(target) if target not in own.aliases else None
        imported = own.imports.get(name)
        if imported is not None:
            return self._present(name, _imported(name, imported))
        loose = self._folder.find(name)
        return None if loose is None else Found(*loose, "folder")

    def _aliased(self, path: Path, own: OwnNames) -> Found:
        """Return the model of a file that has aliases but no other name. The file may no longer exist."""
        return Found(own.aliases_of(str(path))[0], split_paths(path), "alias")

    def _present(self, name: str, found: Found) -> Found:
        """Return `found` if its files exist; raise ModelNotFound if one is gone."""
        missing = next((path for path in found.paths if not path.is_file()), None)
        if missing is not None:
            what = "was imported from" if found.origin == "import" else "stands for"
            raise ModelNotFound(
                f"{name} {what} {missing}, which is gone: `edgeagent rm {name}` forgets it", param="model"
            )
        return found

    def find_on_hub(self, name: HubName, *, wanted: str, draft: str | None = None) -> Found:
        """Return a model in the hub's cache, unverified; raise ModelNotFound, which tells how to pull `wanted`."""
        files = self._cache.files(name.repo)
        models = variants(files)
        if not models:
            is_path = name.file is not None and wanted == str(name)
            place = "a file in the current folder, nor one of a repository " if is_path else ""
            message = f"{wanted} is not {place}on this machine: run `edgeagent pull {wanted}`"
            raise ModelNotFound(message, param="model")
        try:
            model = choose(models, name, "on this machine")
        except ModelNotFound as error:
            raise ModelNotFound(f"{error.message}; run `edgeagent pull {wanted}` for it", param="model") from None
        paths = tuple(files[file] for file in model.files)
        return Found(model_name(models, model, name.repo), paths, "hub", draft)

    def _verify(self, path: Path, wanted: str) -> None:
        """Check a file against the sha256 that it should have, unless it is unchanged since the last check.

        Raise ModelDamaged if the sha256 differs, StoreError if the expected sha256 is unknown.
        """
        promised = named_sha256(path) or self._verified.noted_sha256(path)
        if promised is None:
            raise StoreError(
                f"{path} cannot be verified: its sha256 is unknown on this machine; run `edgeagent pull {wanted}`",
                param="model",
            )
        if not self._verified.check(path, promised):
            raise ModelDamaged(
                f"{path} is damaged: its sha256 is not {promised}; run `edgeagent pull {wanted}` to download it again",
                param="model",
            )


def _imported(name: str, imported: Imported) -> Found:
    return Found(name, imported.paths, "import", sha256=imported.sha256, projector=imported.projector)


def _local(path: Path) -> Found:
    if not path.is_file():
        what = "is not a file" if path.exists() else "does not exist"
        raise ModelNotFound(f"{path} {what}: check the path", param="model")
    paths = split_paths(path)
    missing = [part.name for part in paths if not part.is_file()]
    if missing:
        raise ModelNotFound(f"{path} is one of {len(paths)} parts, and {', '.join(missing)} is missing", param="model")
    return Found(split_stem(path.name), paths)


@until_changed
def current_header(path: Path) -> GgufHeader:
    """Return a model's header. It is cached until the file changes, because reading a large vocabulary takes 0.2 s.

    If `path` is the first part of a split model, the header covers all parts. Raise ModelNotFound or ModelLoadFailed.
    """
    header = read_header(path)
    return header if header.split is None or header.split.count <= 1 else validate_model(path)
