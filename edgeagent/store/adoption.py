"""Finds models of other programs: in the folders of Ollama, LM Studio and llama.cpp, or at a path. Changes nothing."""

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

from edgeagent.store.names.parsing import MAX_NAME_CHARS
from edgeagent.store.names.variants import is_companion, split_paths, split_stem

MAX_MODELS = 2_000
_MAX_JSON_BYTES = 1 << 20
_MODEL_LAYER = "application/vnd.ollama.image.model"
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_ETAG = re.compile(r'(?:W/)?"?([0-9a-f]{64})"?')
_OLLAMA_HOST = "registry.ollama.ai"
_OLLAMA_SYSTEM_FOLDER = Path("/usr/share/ollama/.ollama/models")


@dataclass(frozen=True, slots=True)
class Adoptable:
    """A model of another program. `source` is the program's name in SOURCES, or "path".

    `sha256` is the hash of the first file as that program recorded it; None if it recorded none.
    """

    name: str
    source: str
    paths: tuple[Path, ...]
    sha256: str | None = None

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
            digest = _model_digest(manifest)
            if len(parts) != 4 or digest is None:
                continue
            host, *names, tag = parts
            name = "/".join(names if names[0] != "library" else names[1:])
            name = name if host == _OLLAMA_HOST else f"{host}/{name}"
            name = name if tag == "latest" else f"{name}:{tag}"
            yield Adoptable(name, "ollama", (root / "blobs" / f"sha256-{digest}",), digest)


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


def _model_digest(manifest: Path) -> str | None:
    """Return the sha256 of the model file that an Ollama manifest names.

    Return None if the manifest cannot be read, or does not name exactly one model file.
    """
    document = _json(manifest)
    layers = document.get("layers") if isinstance(document, dict) else None
    found = [
        match[1]
        for layer in (layers if isinstance(layers, list) else ())
        if isinstance(layer, dict) and layer.get("mediaType") == _MODEL_LAYER
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
