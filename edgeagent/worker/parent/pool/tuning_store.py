"""The daemon's tuning files, one for each model. They hold `Load.saved_tuning` from one worker to the next.

Profiles of `edgeagent tune` are kept in the same way, in a folder of their own. The daemon does not interpret the
content of these files. A hostile model that takes over its worker can only affect the next worker of the same model
file. That worker validates what it reads.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
from pathlib import Path

from edgeagent.cache_folder import ensure_private
from edgeagent.errors import ConfigError
from edgeagent.runtime_file import read_private, write_private

# Step times and the records of all sources and kinds of sampler take up to 90 KB.
MAX_BYTES = 256 << 10
PROFILES = "profiles"
"""The name of the folder of profiles, in the state folder."""
_MAX_FILES = 64

logger = logging.getLogger(__name__)


class TuningStore:
    """Keeps saved tunings as files in a private folder, or only in memory if the folder is None.

    New tunings also stay in memory, so that the next load finds them at once, even if the disk fails. A worker
    that replaces another one must make the same choices.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._latest: dict[Path, bytes] = {}

    def read(self, model: Path) -> bytes:
        """Return the tuning saved for a model file; empty if there is none, or none that can be used.

        It may read the disk, so call it in a thread.
        """
        if model in self._latest or self._folder is None:
            return self._latest.get(model, b"")
        return _read_file(self._folder, model)

    def note(self, model: Path, content: bytes) -> bool:
        """Keep a worker's tuning for a model file in memory. Return whether `write` should be called.

        Ignore a tuning that is empty or larger than MAX_BYTES.
        """
        if not content:
            return False
        if len(content) > MAX_BYTES:
            logger.warning("%s: %d bytes of step times are too much and are not kept", model, len(content))
            return False
        is_new = self._latest.get(model) != content
        self._latest[model] = content
        return is_new and self._folder is not None

    def write(self, model: Path) -> None:
        """Write the latest tuning from `note` for a model file to disk. Call this in a thread. Errors are logged."""
        folder, content = self._folder, b""
        # Another thread may write an older one meanwhile. It then finds that a later one is there, and writes that.
        while folder is not None and content != self._latest[model]:
            content = self._latest[model]
            if content != _read_file(folder, model):
                _write_file(folder, model, content)

    def contents(self) -> list[bytes]:
        """Return the contents of all files. Call this in a thread."""
        files = sorted(self._folder.glob("*.json")) if self._folder is not None else []
        return [content for file in files if (content := _content_of(file, file))]

    def remove(self, model: Path) -> bool:
        """Delete what is kept for a model file. Return False if there is nothing. Call this in a thread."""
        is_known = self._latest.pop(model, None) is not None
        if self._folder is None or not _file(self._folder, model).exists():
            return is_known
        _file(self._folder, model).unlink(missing_ok=True)
        return True


def _read_file(folder: Path, model: Path) -> bytes:
    return _content_of(_file(folder, model), model)


def _content_of(file: Path, model: Path) -> bytes:
    try:
        content = read_private(file, MAX_BYTES + 1) or b""
    except ConfigError as error:
        logger.warning("what was learned about %s is not used: %s", model, error.message)
        return b""
    return content if len(content) <= MAX_BYTES else b""


def _write_file(folder: Path, model: Path, content: bytes) -> None:
    try:
        ensure_private(folder)
        write_private(_file(folder, model), content)
        _remove_oldest(folder)
    except (ConfigError, OSError) as error:
        logger.info("what was learned about %s could not be saved: %s", model, error)


def _file(folder: Path, model: Path) -> Path:
    digest = hashlib.blake2b(str(model.absolute()).encode("utf-8", "surrogateescape"), digest_size=16)
    return folder / f"{digest.hexdigest()}.json"


def _remove_oldest(folder: Path) -> None:
    files = sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in files[_MAX_FILES:]:
        with contextlib.suppress(OSError):
            path.unlink()
