"""Changes the models on this machine: removes a model, gives it a second name, or adopts another program's model.

To adopt a model is to give it a name here and use its file where it is. Models are found in the folders of Ollama, LM
Studio and llama.cpp, or at a path. Files of other programs are never changed. Removing an adopted model removes only
its name.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from edgeagent.config import Config
from edgeagent.errors import InvalidRequest, ModelDamaged, ModelNotFound, StoreError
from edgeagent.store.file_records import LastUse, VerifiedFiles
from edgeagent.store.gguf.header import validate_model
from edgeagent.store.hub.cache import HubCache
from edgeagent.store.library import DEFAULT_NAMES, Found, Library
from edgeagent.store.names.catalog import match_entry
from edgeagent.store.names.own import Imported, OwnNamesFile, with_alias, with_import
from edgeagent.store.names.parsing import (
    MAX_NAME_CHARS,
    CatalogName,
    is_companion,
    is_short_name,
    near_names,
    parse_name,
    split_paths,
    split_stem,
    without_latest,
)
from edgeagent.store.projectors import find_projector

MAX_MODELS = 2_000
_MAX_JSON_BYTES = 1 << 20
_MODEL_LAYER = "application/vnd.ollama.image.model"
_PROJECTOR_LAYER = "application/vnd.ollama.image.projector"
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_ETAG = re.compile(r'(?:W/)?"?([0-9a-f]{64})"?')
_OLLAMA_HOST = "registry.ollama.ai"
_OLLAMA_SYSTEM_FOLDER = Path("/usr/share/ollama/.ollama/models")


@dataclass(frozen=True, slots=True)
class Adoptable:
    """A model of another program. `source` is the program's name in SOURCES, or "path".

    `sha256` is the hash of the first file as that program recorded it; None if it recorded none. `projector` is the
    file with which the model reads images or sounds, if the program recorded one.
    """

    name: str
    source: str
    paths: tuple[Path, ...]
    sha256: str | None = None
    projector: Path | None = None

    @property
    def size_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.paths if path.is_file())


def adoptable(source: str, environment: Mapping[str, str] | None = None) -> tuple[Adoptable, ...]:
    """Return the models of a source, MAX_MODELS at most.

    `source` is a name in SOURCES, or the path of a folder or a file. A model with a missing file or an invalid name is
    left out. If two models have the same name, only the first one is returned.
    `environment` holds the environment variables (None: those of this process).
    """
    environment = os.environ if environment is None else environment
    find = SOURCES.get(source)
    models = _of_path(Path(source)) if find is None else find(environment)
    by_name: dict[str, Adoptable] = {}
    for model in islice(models, MAX_MODELS):
        if _is_name(model.name) and all(path.is_file() for path in model.paths):
            by_name.setdefault(model.name, model)
    return tuple(by_name.values())


def _of_ollama(environment: Mapping[str, str]) -> Iterator[Adoptable]:
    home = _home(environment)
    roots = [Path(environment["OLLAMA_MODELS"])] if environment.get("OLLAMA_MODELS") else []
    roots += [home / ".ollama" / "models", _OLLAMA_SYSTEM_FOLDER]
    for root in roots:
        for manifest in _files(root / "manifests", "*"):
            parts = manifest.relative_to(root / "manifests").parts
            digest = _layer_digest(manifest, _MODEL_LAYER)
            if len(parts) != 4 or digest is None:
                continue
            host, *names, tag = parts
            name = "/".join(names if names[0] != "library" else names[1:])
            name = name if host == _OLLAMA_HOST else f"{host}/{name}"
            name = name if tag == "latest" else f"{name}:{tag}"
            seen = _layer_digest(manifest, _PROJECTOR_LAYER)
            projector = None if seen is None else root / "blobs" / f"sha256-{seen}"
            projector = projector if projector is not None and projector.is_file() else None
            yield Adoptable(name, "ollama", (root / "blobs" / f"sha256-{digest}",), digest, projector)


def _of_lm_studio(environment: Mapping[str, str]) -> Iterator[Adoptable]:
    home = _home(environment)
    for root in (home / ".lmstudio" / "models", home / ".cache" / "lm-studio" / "models"):
        yield from _of_folder(root, "lmstudio")


def _of_llama_cpp(environment: Mapping[str, str]) -> Iterator[Adoptable]:
    home = _home(environment)
    caches = home / ("Library/Caches" if sys.platform == "darwin" else ".cache")
    caches = Path(environment["XDG_CACHE_HOME"]) if environment.get("XDG_CACHE_HOME") else caches
    root = Path(environment["LLAMA_CACHE"]) if environment.get("LLAMA_CACHE") else caches / "llama.cpp"
    yield from _of_folder(root, "llama.cpp")


SOURCES: Mapping[str, Callable[[Mapping[str, str]], Iterator[Adoptable]]] = {
    "ollama": _of_ollama,
    "lmstudio": _of_lm_studio,
    "llama.cpp": _of_llama_cpp,
}


def _of_path(path: Path) -> Iterator[Adoptable]:
    if path.is_dir():
        yield from _of_folder(path.absolute(), "path")
    elif path.is_file():
        yield Adoptable(split_stem(path.name), "path", split_paths(path.absolute()))


def _of_folder(root: Path, source: str) -> Iterator[Adoptable]:
    """Yield a folder's models, named after their files. If a name is taken, use the file's path in the folder."""
    seen: set[str] = set()
    for path in _files(root, "*.gguf"):
        paths = split_paths(path)
        if paths[0] != path or is_companion(path.name):
            continue
        stem = split_stem(path.name)
        name = stem if stem not in seen else path.relative_to(root).as_posix()
        seen.add(stem)
        yield Adoptable(name, source, paths, _etag_sha256(path) if len(paths) == 1 else None)


def _files(root: Path, pattern: str) -> Iterator[Path]:
    """Yield the regular files below a folder with names that match `pattern`, without hidden files.

    At most 10 * MAX_MODELS matches are examined. If the folder cannot be read, there are none.
    """
    with suppress(OSError):
        for path in sorted(islice(root.rglob(pattern), 10 * MAX_MODELS)):
            if path.is_file() and not path.name.startswith("."):
                yield path


def _layer_digest(manifest: Path, media_type: str) -> str | None:
    """Return the sha256 of the file of this type that an Ollama manifest names.

    Return None if the manifest cannot be read, or does not name exactly one such file.
    """
    document = _json(manifest)
    layers = document.get("layers") if isinstance(document, dict) else None
    found = [
        match[1]
        for layer in (layers if isinstance(layers, list) else ())
        if isinstance(layer, dict) and layer.get("mediaType") == media_type
        if (match := _DIGEST.fullmatch(str(layer.get("digest"))))
    ]
    return found[0] if len(found) == 1 else None


def _etag_sha256(path: Path) -> str | None:
    """Return the sha256 of a file that llama.cpp downloaded; None if there is no valid record of it.

    llama.cpp stores the hub's ETag in a file beside the download. For model files, the ETag is the sha256.
    """
    noted: object = None
    document = _json(path.with_name(f"{path.name}.json"))
    if isinstance(document, dict):
        noted = document.get("etag")
    with suppress(OSError, ValueError):
        noted = noted or path.with_name(f"{path.name}.etag").read_text("ascii")[:100].strip()
    match = _ETAG.fullmatch(str(noted))
    return None if match is None else match[1]


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes()) if path.stat().st_size <= _MAX_JSON_BYTES else None
    except (OSError, ValueError, RecursionError):
        return None


def _is_name(name: str) -> bool:
    return 0 < len(name) <= MAX_NAME_CHARS and name.isprintable() and name not in ("builtin", "default", "none")


def _home(environment: Mapping[str, str]) -> Path:
    return Path(environment.get("HOME") or Path.home())


@dataclass(frozen=True, slots=True)
class Removal:
    """The effect of removing a name: the files that are deleted, the bytes freed, and the aliases removed with it.

    `found` is the removed model. It is None if no file is deleted, since the name is an alias or that of
    another program's model.
    """

    name: str
    found: Found | None
    files: tuple[Path, ...] = ()
    freed_bytes: int = 0
    aliases: tuple[str, ...] = ()


class LibraryEditor:
    """The models of a configuration, with methods that change them."""

    def __init__(self, config: Config) -> None:
        self._library = Library.of(config)
        self._own = OwnNamesFile(config.state_dir)
        self._uses = LastUse(config.state_dir)
        self._verified = VerifiedFiles(config.state_dir)
        self._store = config.store

    def plan(self, name: str) -> Removal:
        """Return the effect of removing a name. Nothing is removed yet.

        Raise ModelNotFound if no model has the name, InvalidRequest if the name cannot be removed, or StoreError if the
        owner's names cannot be read.
        """
        own, name = self._own.read(), without_latest(name)
        if name in own.aliases:
            return Removal(name, None)
        if name in DEFAULT_NAMES:
            raise InvalidRequest("name the model to remove", param="model")
        if name in own.imports:
            return Removal(name, None, aliases=own.aliases_of(name))
        found = self._find(name)
        if found.origin == "builtin":
            raise InvalidRequest("builtin comes with edgeagent and cannot be removed", param="model")
        if found.origin == "path":
            raise InvalidRequest(f"{name} is a path: delete the file itself", param="model")
        names = (found.name, name, str(found.paths[0].resolve()))
        aliases = tuple(dict.fromkeys(alias for each in names for alias in own.aliases_of(each)))
        files = found.paths if found.origin == "folder" else self._cache().removable(self._of_hub(found))
        return Removal(found.name, found, files, sum(map(_size, files)), aliases)

    def _of_hub(self, found: Found) -> tuple[Path, ...]:
        """Return the files of a model in the hub's cache, with its projector unless another model there may use it."""
        projector = find_projector(found.path)
        others = (each.path for each in self._library.found() if each.origin == "hub" and each.path != found.path)
        if projector is None or projector in map(find_projector, others):
            return found.paths
        return (*found.paths, projector)

    def _find(self, name: str) -> Found:
        """Return a model of this machine. Raise ModelNotFound with the names of those that are here."""
        try:
            return self._library.find(name)
        except ModelNotFound:
            here = {model.name for model in self._library.models()}
            near = near_names(name, here, "their aliases")
            raise ModelNotFound(f"{name[:80]} is not on this machine; {near}", param="model") from None

    def remove(self, removal: Removal) -> None:
        """Carry out a planned removal. Raise StoreError if a file cannot be deleted, or the names cannot be changed."""
        for path in removal.files:
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise StoreError(f"{path} cannot be deleted: {error.strerror}", param="model") from None
        if removal.found is not None:
            self._uses.forget(removal.found.paths[0])
            if removal.found.origin == "hub":
                self._cache().drop_empty(removal.found.paths)
        ended = (removal.name, *removal.aliases)
        if self._own.read().without(*ended) != self._own.read():
            self._own.change(lambda names: names.without(*ended))

    def remaining_file(self, removal: Removal) -> Path | None:
        """Return the file of the model that has the removed name now; None if no model has it.

        After a removal, a name may mean another model, for example one with the same name in the hub's cache.
        """
        with suppress(ModelNotFound, InvalidRequest, StoreError):
            return self._library.find(removal.name).paths[0]
        return None

    def copy(self, source: str, alias: str) -> str:
        """Give a model an alias. Return the name or the path that the alias stands for. No file is copied.

        `source` is any name of the model. Raise ModelNotFound if there is no such model, InvalidRequest if the alias is
        taken or not allowed, or StoreError if the names cannot be read or written.
        """
        alias = without_latest(alias)
        if alias and alias in (*DEFAULT_NAMES, "builtin", "none"):
            raise InvalidRequest(f"{alias!r} has a meaning of its own; choose another name")
        if not is_short_name(alias):
            raise InvalidRequest(f"{alias[:80]!r} cannot be a model's name here: use letters, digits and . _ - :")
        found = self._find(source)
        target = str(found.paths[0].resolve()) if found.origin in ("alias", "path") else found.name
        if alias == target:
            raise InvalidRequest(f"{alias} is that model's name already")
        own = self._own.read()
        if alias not in own.aliases and (taken := self._taken_by(alias)):
            raise InvalidRequest(f"{alias} is {taken}; choose another name")
        self._own.change(lambda names: with_alias(names, alias, target))
        return target

    def adopt(self, model: Adoptable, on_bytes: Callable[[int], None] | None = None) -> bool:
        """Adopt another program's model without copying it. Return False if it was adopted before.

        If the other program records the file's sha256, the file is checked, and `on_bytes` gets the number of bytes
        read so far. Raise ModelNotFound if the file is gone, ModelLoadFailed if the model cannot be used,
        InvalidRequest if its name is taken, or StoreError if a file cannot be read or written.
        """
        own = self._own.read()
        before = own.imports.get(model.name)
        if before is not None and before.paths == model.paths and before.projector == model.projector:
            return False
        is_other = before is not None and before.paths != model.paths and before.paths[0].is_file()
        if model.name in own.aliases or is_other:
            raise InvalidRequest(f"the name {model.name} is taken; `edgeagent rm {model.name}` frees it")
        validate_model(model.paths[0])
        if model.sha256 is not None and not self._verified.check(model.paths[0], model.sha256, on_bytes):
            raise ModelDamaged(f"{model.paths[0]} is damaged: its sha256 is not {model.sha256}", param="model")
        imported = Imported(model.paths, model.source, model.sha256, model.projector)
        self._own.change(lambda names: with_import(names, model.name, imported))
        return True

    def _taken_by(self, alias: str) -> str | None:
        """Return in words what already has this name; None if the name is free."""
        with suppress(ModelNotFound, InvalidRequest):
            meaning = parse_name(alias)
            if isinstance(meaning, CatalogName) and match_entry(meaning) is not None:
                return "a name of the catalog"
        return "a model's name already" if self._library.holds(alias) else None

    def _cache(self) -> HubCache:
        return HubCache.of(self._store)


def _size(path: Path) -> int:
    try:
        return 0 if path.is_symlink() else path.stat().st_size
    except OSError:
        return 0
