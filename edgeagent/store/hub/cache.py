"""The hub's shared cache on disk: the paths of a repository's files, and how a finished download gets its name there.

No network. The layout is huggingface_hub's, so that edgeagent and other programs find each other's downloads. In the
folder models--org--repo, blobs/<sha256> has the content of a file, and snapshots/<commit>/<file> is a link to it, or a
copy. Creating this link or copy is called publishing. refs/main holds the commit of the latest complete pull. A
download in progress is blobs/<sha256>.incomplete.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from edgeagent.config import StoreConfig
from edgeagent.store.names.parsing import is_file_name, is_repo_name


@dataclass(frozen=True, slots=True)
class Leftover:
    """An unfinished download, or a blob to which no file name links. `why` says in words which of the two."""

    path: Path
    repo: str
    size_bytes: int
    why: str


SHA256 = re.compile(r"[0-9a-f]{64}")
COMMIT = re.compile(r"[0-9a-f]{40}")


class HubCache:
    """A cache folder. It may not exist yet."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @classmethod
    def of(cls, store: StoreConfig) -> HubCache:
        """Return the cache in `models_dir`; if that is not set, the one of HF_HUB_CACHE, HF_HOME or the platform."""
        if store.models_dir is not None:
            return cls(store.models_dir)
        from huggingface_hub import constants

        return cls(Path(constants.HF_HUB_CACHE))

    def repo_dir(self, repo: str) -> Path:
        return self.root / f"models--{repo.replace('/', '--')}"

    def blob(self, repo: str, sha256: str) -> Path:
        return self.repo_dir(repo) / "blobs" / sha256

    def partial(self, repo: str, sha256: str) -> Path:
        return self.repo_dir(repo) / "blobs" / f"{sha256}.incomplete"

    def lock(self, repo: str, sha256: str) -> Path:
        """Return the path of the lock for a download. huggingface_hub uses the same path."""
        return self.root / ".locks" / self.repo_dir(repo).name / f"{sha256}.lock"

    def pointer(self, repo: str, commit: str, file: str) -> Path:
        """Return the path at which a downloaded file is, or will be, published: snapshots/<commit>/<file>."""
        return self.repo_dir(repo) / "snapshots" / commit / file

    def repos(self) -> tuple[str, ...]:
        names = (path.name.removeprefix("models--").replace("--", "/") for path in self.root.glob("models--*"))
        return tuple(sorted(name for name in names if is_repo_name(name)))

    def files(self, repo: str) -> dict[str, Path]:
        """Return the published GGUF files of a repository by name.

        Each is from the snapshot of refs/main or, if that lacks the file, from the newest snapshot that has it.
        """
        found: dict[str, Path] = {}
        root = self.root.resolve()
        for snapshot in self._snapshots(repo):
            for path in snapshot.rglob("*"):
                name = path.relative_to(snapshot).as_posix()
                if name in found or not name.lower().endswith(".gguf") or not is_file_name(name):
                    continue
                # A link that leads out of the cache, or to nothing, is not a download.
                with suppress(OSError, RuntimeError):
                    target = path.resolve()
                    if target.is_file() and target.is_relative_to(root):
                        found[name] = path
        return found

    def removable(self, paths: Iterable[Path]) -> tuple[Path, ...]:
        """Return all paths that must be deleted to remove these published files.

        These are the paths of the same files in all snapshots, and their blobs. A blob to which another published file
        links is left out.
        """
        names: list[Path] = []
        for path in paths:
            snapshots, file = self._place(path)
            names += [other for snapshot in snapshots.glob("*") if _exists(other := snapshot / file)]
        blobs: set[Path] = set()
        for repo in {self._place(path)[0].parent for path in paths}:
            pointers = set(_pointers(repo))
            blobs |= _blobs_of(pointers.intersection(names), repo) - _blobs_of(pointers.difference(names), repo)
        return (*names, *sorted(blobs))

    def drop_empty(self, paths: Iterable[Path]) -> None:
        """Delete the empty folders of repositories, and the whole folder of a repository that has no files left.

        `paths` are published files that were removed from these repositories.
        """
        for repo in {self._place(path)[0].parent for path in paths}:
            for folder in sorted(repo.rglob("*"), reverse=True):
                if folder.is_dir() and not folder.is_symlink():
                    with suppress(OSError):
                        folder.rmdir()
            if not (repo / "snapshots").exists() and not (repo / "blobs").exists():
                shutil.rmtree(repo, ignore_errors=True)

    def leftovers(self) -> tuple[Leftover, ...]:
        """Return the unfinished downloads, and the blobs to which no file name links.

        One of them may be a download that is still running (see `delete`). Other programs keep their files in this
        cache too. Therefore a file is returned only if it is empty or begins with "GGUF".
        """
        found = []
        for repo in self.repos():
            folder = self.repo_dir(repo)
            used = _blobs_of(_pointers(folder), folder)
            for blob in sorted(folder.glob("blobs/*")):
                is_partial = blob.name.endswith(".incomplete")
                if (is_partial or (SHA256.fullmatch(blob.name) and blob not in used)) and _is_gguf(blob):
                    with suppress(FileNotFoundError):  # the download has ended meanwhile
                        why = "not finished" if is_partial else "used by no name"
                        found.append(Leftover(blob, repo, blob.stat().st_size, why))
        return tuple(found)

    def delete(self, leftover: Leftover) -> bool:
        """Delete a leftover, unless a process is downloading it or a file name links to it by now.

        Return whether it was deleted. No error is raised.
        """
        from huggingface_hub.utils import WeakFileLock  # type: ignore[attr-defined]

        lock = self.lock(leftover.repo, leftover.path.name.removesuffix(".incomplete"))
        try:
            lock.parent.mkdir(parents=True, exist_ok=True)
            with WeakFileLock(lock, timeout=0.1):
                # Check again under the lock: a pull may have published the file since.
                if any(each.path == leftover.path for each in self.leftovers()):
                    leftover.path.unlink(missing_ok=True)
                    return True
        except (TimeoutError, OSError):
            pass
        return False

    def _place(self, path: Path) -> tuple[Path, Path]:
        """Split a published file's path: return its repository's `snapshots` folder, and the path in a snapshot."""
        parts = path.relative_to(self.root).parts
        return self.root / parts[0] / parts[1], Path(*parts[3:])

    def publish(self, repo: str, commit: str, file: str, sha256: str) -> Path:
        """Publish a finished blob under its file name, as a link if the platform allows one, else as a copy.

        Return the published path.
        """
        pointer = self.pointer(repo, commit, file)
        pointer.parent.mkdir(parents=True, exist_ok=True)
        blob = self.blob(repo, sha256)
        pointer.unlink(missing_ok=True)
        try:
            pointer.symlink_to(os.path.relpath(blob, pointer.parent))
        except OSError:
            try:
                pointer.hardlink_to(blob)
            except OSError:
                shutil.copyfile(blob, pointer)
        return pointer

    def set_main(self, repo: str, commit: str) -> None:
        """Record in refs/main that this commit is the one of the latest complete pull."""
        ref = self.repo_dir(repo) / "refs" / "main"
        # Compare first, so that a complete model in a read-only cache can be pulled again.
        if ref.is_file() and ref.read_bytes() == commit.encode():
            return
        ref.parent.mkdir(parents=True, exist_ok=True)
        temporary = ref.with_name(f"main.{os.getpid()}.tmp")
        temporary.write_text(commit, "ascii")
        temporary.replace(ref)

    def _snapshots(self, repo: str) -> Iterator[Path]:
        folder = self.repo_dir(repo)
        main = None
        with suppress(OSError, ValueError):
            commit = (folder / "refs" / "main").read_text("ascii").strip()
            if COMMIT.fullmatch(commit):
                main = folder / "snapshots" / commit
                yield main
        others = [path for path in folder.glob("snapshots/*") if path != main and COMMIT.fullmatch(path.name)]
        yield from sorted(others, key=lambda path: path.stat().st_mtime_ns, reverse=True)


def _pointers(repo: Path) -> Iterator[Path]:
    """Yield every published file of a repository, not only GGUF files."""
    for path in repo.glob("snapshots/*/**/*"):
        if path.is_symlink() or path.is_file():
            yield path


def _blobs_of(pointers: Iterable[Path], repo: Path) -> set[Path]:
    """Return the blobs of a repository to which these published files link.

    The folders are compared as real paths, since a link or the cache's own path may contain `..` or other links.
    """
    folder = repo / "blobs"
    real = folder.resolve()
    targets = (pointer.parent / pointer.readlink() for pointer in pointers if pointer.is_symlink())
    return {folder / target.name for target in targets if target.parent.resolve() == real}


def _exists(path: Path) -> bool:
    return path.is_symlink() or path.is_file()


def _is_gguf(path: Path) -> bool:
    try:
        if path.is_symlink() or not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(4) in (b"", b"GGUF")
    except OSError:
        return False


def named_sha256(pointer: Path) -> str | None:
    """Return the sha256 in the name of the blob that a published file links to; None if there is no such link.

    Only the first link is followed, because a blob may itself be a link into a store that uses another hash.
    """
    if not pointer.is_symlink():
        return None
    name = pointer.readlink().name
    return name if SHA256.fullmatch(name) else None
