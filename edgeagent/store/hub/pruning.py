"""Deletes leftovers from the hub's cache: unfinished downloads, and blobs to which no file name links.

Downloads that are still running are not deleted.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from edgeagent.config import StoreConfig
from edgeagent.store.hub.cache import HubCache


@dataclass(frozen=True, slots=True)
class Leftover:
    """An unfinished download, or a blob to which no file name links. `why` says in words which of the two."""

    path: Path
    repo: str
    size_bytes: int
    why: str


class Pruner:
    """Finds and deletes leftover files in the cache."""

    def __init__(self, store: StoreConfig) -> None:
        self._cache = HubCache.of(store)

    def leftovers(self) -> tuple[Leftover, ...]:
        """Return the leftover files. One of them may be a download that is still running (see `delete`)."""
        found = []
        for path, repo in self._cache.unreferenced().items():
            why = "not finished" if path.suffix == ".incomplete" else "used by no name"
            with suppress(FileNotFoundError):  # the download has ended meanwhile
                found.append(Leftover(path, repo, path.stat().st_size, why))
        return tuple(found)

    def delete(self, leftover: Leftover) -> bool:
        """Delete a leftover, unless a process is downloading it or a file name links to it by now.

        Return whether it was deleted. No error is raised.
        """
        from huggingface_hub.utils import WeakFileLock  # type: ignore[attr-defined]

        lock = self._cache.lock(leftover.repo, leftover.path.name.removesuffix(".incomplete"))
        try:
            lock.parent.mkdir(parents=True, exist_ok=True)
            with WeakFileLock(lock, timeout=0.1):
                # Check again under the lock: a pull may have published the file since.
                if leftover.path in self._cache.unreferenced():
                    leftover.path.unlink(missing_ok=True)
                    return True
        except (TimeoutError, OSError):
            pass
        return False
