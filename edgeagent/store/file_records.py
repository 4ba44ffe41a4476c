"""What the state folder records about model files: which have the right sha256, and when each was last loaded.

A verified file is recorded on disk, so that it is hashed only once. Other hashes are not stored there, where they could
be forged. No network.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from edgeagent.errors import ConfigError, StoreError
from edgeagent.runtime_file import write_private
from edgeagent.state_files import until_changed
from edgeagent.store.names.own import NAMES_FILE

# A file up to this size is read to compute its sha256, which takes about 40 ms.
_SMALL_BYTES = 64 << 20


@until_changed
def sha256_of(path: Path) -> str:
    """Return a file's sha256. This process reads the file again only after it has changed.

    Raise StoreError if the file cannot be read.
    """
    return file_sha256(path)


def known_sha256(path: Path, verified: VerifiedFiles) -> str:
    """Return a file's sha256 if it is quick to get; "" if it is not, or if the file cannot be read.

    It is quick to get if the file was verified before and has not changed, or if the file is small.
    """
    noted = verified.noted_sha256(path)
    if noted is not None and verified.knows(path, noted):
        return noted
    try:
        return sha256_of(path) if path.stat().st_size <= _SMALL_BYTES else ""
    except (OSError, StoreError):
        return ""


def lend_records(owner: Path, borrower: Path) -> None:
    """Copy the user's names of models and the record of verified files to another state folder.

    They are copied from the state folder `owner` to the state folder `borrower`. With them, a daemon that uses
    `borrower` need not hash verified files again. What cannot be copied is left out. Nothing is copied back later.
    """
    borrower.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in (NAMES_FILE, VERIFIED_FILE):
        with suppress(OSError):
            shutil.copy2(owner / name, borrower / name)


VERIFIED_FILE = "verified.json"
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class _Stamp:
    """The state of a file when its content was read. If the file's present stamp differs, it must be read again."""

    size: int
    mtime_ns: int
    inode: int
    sha256: str


class VerifiedFiles:
    """The record of files whose hash was verified, kept in the state folder."""

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / VERIFIED_FILE

    def knows(self, path: Path, sha256: str) -> bool:
        """Whether this file was verified to have this sha256 and has not changed since."""
        stamp = self._load().get(_key(path))
        return stamp is not None and stamp == _stamp(path, sha256)

    def noted_sha256(self, path: Path) -> str | None:
        """Return the sha256 with which this path was last verified; None if it never was."""
        stamp = self._load().get(_key(path))
        return stamp.sha256 if stamp is not None else None

    def check(self, path: Path, sha256: str, on_bytes: Callable[[int], None] | None = None) -> bool:
        """Return whether a file has this sha256. Read the file, unless it was verified before and has not changed.

        A match is recorded. `on_bytes` is called with the number of bytes read so far. Raise StoreError if the file
        cannot be read.
        """
        if self.knows(path, sha256):
            return True
        before = _stamp(path, sha256)
        if file_sha256(path, on_bytes) != sha256:
            return False
        # Do not record a file that was written while it was read, because its content may have changed.
        if before is not None and _stamp(path, sha256) == before:
            self._remember(_key(path), before)
        return True

    def note(self, path: Path, sha256: str) -> None:
        """Record that a file has this sha256. Call it after the same content was verified at another path."""
        stamp = _stamp(path, sha256)
        if stamp is not None:
            self._remember(_key(path), stamp)

    def _remember(self, key: str, stamp: _Stamp) -> None:
        files = {known: noted for known, noted in self._load().items() if Path(known).exists()}
        files[key] = stamp
        content = {known: [noted.size, noted.mtime_ns, noted.inode, noted.sha256] for known, noted in files.items()}
        # Without a writable state folder nothing is recorded, and files are read again. That is slower, not less safe.
        with suppress(OSError, ConfigError):
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_private(self._path, json.dumps(content).encode())

    def _load(self) -> dict[str, _Stamp]:
        try:
            content = json.loads(self._path.read_text("utf-8"))
            return {
                str(key): _Stamp(int(size), int(mtime_ns), int(inode), str(sha256))
                for key, (size, mtime_ns, inode, sha256) in content.items()
            }
        except (OSError, ValueError, TypeError, AttributeError, LookupError):
            # If the record is missing or damaged, files are just read again.
            return {}


def file_sha256(path: Path, on_bytes: Callable[[int], None] | None = None) -> str:
    """Return a file's sha256 in hexadecimal. Raise StoreError if the file cannot be read.

    `on_bytes` is called with the number of bytes read so far.
    """
    digest = hashlib.sha256()
    done = 0
    try:
        with path.open("rb", buffering=0) as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
                done += len(chunk)
                if on_bytes is not None:
                    on_bytes(done)
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error}") from None
    return digest.hexdigest()


def _key(path: Path) -> str:
    return str(path.resolve())


def _stamp(path: Path, sha256: str) -> _Stamp | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return _Stamp(status.st_size, status.st_mtime_ns, status.st_ino, sha256)


LAST_USE_FOLDER = "last-use"


class LastUse:
    """The times of the models' last loads. Without a writable state folder nothing is stored."""

    def __init__(self, state_dir: Path) -> None:
        self._folder = state_dir / LAST_USE_FOLDER

    def note(self, model: Path) -> None:
        """Record that a model is loaded now."""
        with suppress(OSError):
            # One by one: parents would be open to other users, and the daemon refuses such a state folder.
            self._folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._folder.mkdir(mode=0o700, exist_ok=True)
            self._mark(model).touch(mode=0o600)

    def age_s(self, model: Path) -> float | None:
        """Return the seconds since a model was last loaded; None if unknown."""
        try:
            return max(0.0, time.time() - self._mark(model).stat().st_mtime)
        except OSError:
            return None

    def forget(self, model: Path) -> None:
        with suppress(OSError):
            self._mark(model).unlink()

    def _mark(self, model: Path) -> Path:
        # A digest of the path, because a path can be too long for a file name.
        return self._folder / hashlib.sha256(str(model.absolute()).encode("utf-8", "surrogateescape")).hexdigest()[:32]
