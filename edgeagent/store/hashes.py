"""The sha256 of model files, for a policy that allows only some. Nothing is kept on disk, where it could be forged."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from edgeagent.state_files import file_stamp
from edgeagent.store.verified import file_sha256


def sha256_of(path: Path) -> str:
    """Return a file's sha256, read once by this process for as long as the file stays as it is. Raise StoreError."""
    path = path.resolve()
    return _sha256_at(path, file_stamp(path))


@lru_cache(maxsize=256)
def _sha256_at(path: Path, _stamp: object) -> str:
    return file_sha256(path)
