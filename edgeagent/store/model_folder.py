"""Finds GGUF files that the user put into the models folder. Downloads there have the hub's layout instead."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from edgeagent.store.names.parsing import is_file_name
from edgeagent.store.names.split import split_names, split_stem
from edgeagent.store.names.variants import is_companion

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
