"""From a model's name to files on this machine, verified; and the list of models that are here. No network."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Literal

from edgeagent.config import Config, StoreConfig
from edgeagent.errors import EdgeAgentError, ModelNotFound, StoreError
from edgeagent.store.cache import HubCache, named_sha256
from edgeagent.store.catalog import builtin_model, find_entry, load_catalog
from edgeagent.store.gguf import GgufHeader, read_header
from edgeagent.store.names import BuiltinName, CatalogName, HubName, LocalPath, parse_name
from edgeagent.store.split import split_paths, split_stem
from edgeagent.store.variants import canonical_name, choose, variants
from edgeagent.store.verified import VerifiedFiles

Origin = Literal["builtin", "hub"]


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """Where a model is. llama.cpp is given `path` and finds the other parts of a split model beside it."""

    name: str
    paths: tuple[Path, ...]
    draft_path: Path | None = None

    @property
    def path(self) -> Path:
        return self.paths[0]


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model on this machine, for the user to see. `problem` says why `header` is missing."""

    name: str
    origin: Origin
    paths: tuple[Path, ...]
    size_bytes: int
    header: GgufHeader | None
    problem: str | None = None


class Library:
    """The models on this machine."""

    def __init__(self, store: StoreConfig, state_dir: Path) -> None:
        self._store = store
        self._verified = VerifiedFiles(state_dir)

    @cached_property
    def _cache(self) -> HubCache:
        # Only when asked for: finding the shared cache imports huggingface_hub, which builtin and paths do not need.
        return HubCache.of(self._store)

    def resolve(self, name: str) -> ResolvedModel:
        """Return a model's files. What came from the hub is verified: a file is read the first time it is asked for.

        Raise ModelNotFound (with the command that would bring it), StoreError or InvalidRequest.
        """
        match parse_name(name):
            case BuiltinName():
                builtin = builtin_model()
                return ResolvedModel("builtin", (builtin.path,), builtin.draft)
            case LocalPath(path):
                return _local(path)
            case HubName() as hub_name:
                return self._from_hub(hub_name, wanted=name)
            case CatalogName() as short:
                entry = find_entry(short)
                model = self._from_hub(entry.hub_name(short.quant), wanted=name)
                return ResolvedModel(name, model.paths, self._draft(entry.draft))

    def holds(self, name: str) -> bool:
        """Whether a model that is called by its name is here, unverified; False for a path."""
        try:
            match parse_name(name):
                case BuiltinName():
                    return bool(builtin_model())
                case LocalPath():
                    return False
                case HubName() as hub_name:
                    pass
                case CatalogName() as short:
                    hub_name = find_entry(short).hub_name(short.quant)
            return bool(choose(variants(self._cache.files(hub_name.repo)), hub_name, "on this machine"))
        except (EdgeAgentError, OSError):
            return False

    def models(self) -> tuple[LocalModel, ...]:
        """Return the bundled model and every complete model in the cache."""
        found = []
        try:
            builtin = builtin_model()
        except ModelNotFound:
            pass
        else:
            found.append(_listed("builtin", "builtin", (builtin.path,)))
        for repo in self._cache.repos():
            files = self._cache.files(repo)
            models = variants(files)
            for model in models:
                paths = tuple(files[file] for file in model.files)
                found.append(_listed(str(canonical_name(models, model, repo)), "hub", paths))
        return tuple(found)

    def _from_hub(self, name: HubName, *, wanted: str) -> ResolvedModel:
        files = self._cache.files(name.repo)
        models = variants(files)
        if not models:
            raise ModelNotFound(f"{wanted} is not on this machine: run `edgeagent pull {wanted}`", param="model")
        try:
            model = choose(models, name, "on this machine")
        except ModelNotFound as error:
            raise ModelNotFound(f"{error.message}; run `edgeagent pull {wanted}` for it", param="model") from None
        paths = tuple(files[file] for file in model.files)
        for path in paths:
            self._verify(path, wanted)
        return ResolvedModel(str(canonical_name(models, model, name.repo)), paths)

    def _verify(self, path: Path, wanted: str) -> None:
        """Check a file against the sha256 that it was published under, unless that was done since it last changed."""
        promised = named_sha256(path) or self._verified.noted_sha256(path)
        if promised is None:
            raise StoreError(
                f"{path} cannot be verified: nothing here tells its sha256; run `edgeagent pull {wanted}`",
                param="model",
            )
        if not self._verified.check(path, promised):
            raise StoreError(
                f"{path} is damaged: its sha256 is not {promised}; run `edgeagent pull {wanted}` to download it again",
                param="model",
            )

    def _draft(self, name: str | None) -> Path | None:
        """Return a draft partner's file if it is here; a model works without it."""
        if name is None:
            return None
        try:
            return self._from_hub(load_catalog()[name].hub_name(), wanted=name).path
        except EdgeAgentError:
            return None


def resolve(name: str, store: StoreConfig, state_dir: Path | None = None) -> ResolvedModel:
    """Return a model's files (see Library.resolve); `state_dir` defaults to the configured default's."""
    return Library(store, state_dir or default_state_dir()).resolve(name)


def default_state_dir() -> Path:
    """Return the state folder of an unconfigured edgeagent."""
    default = Config.model_fields["state_dir"].default
    assert isinstance(default, Path)
    return default


def _local(path: Path) -> ResolvedModel:
    if not path.is_file():
        what = "is not a file" if path.exists() else "does not exist"
        raise ModelNotFound(f"{path} {what}: check the path", param="model")
    paths = split_paths(path)
    missing = [part.name for part in paths if not part.is_file()]
    if missing:
        raise ModelNotFound(f"{path} is one of {len(paths)} parts, and {', '.join(missing)} is missing", param="model")
    return ResolvedModel(split_stem(path.name), paths)


def _listed(name: str, origin: Origin, paths: tuple[Path, ...]) -> LocalModel:
    size_bytes = sum(path.stat().st_size for path in paths if path.exists())
    try:
        return LocalModel(name, origin, paths, size_bytes, current_header(paths[0]))
    except EdgeAgentError as error:
        return LocalModel(name, origin, paths, size_bytes, None, error.message)


def current_header(path: Path) -> GgufHeader:
    """Return a file's header, read once for as long as the file stays as it is: a large vocabulary takes 0.2 s."""
    try:
        stamp = path.stat()
    except OSError:
        return read_header(path)
    return _header_at(path, stamp.st_size, stamp.st_mtime_ns)


@lru_cache(maxsize=256)
def _header_at(path: Path, _size: int, _mtime_ns: int) -> GgufHeader:
    return read_header(path)
