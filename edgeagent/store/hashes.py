"""Computes the sha256 of model files, for policies that allow only certain files and for clients that ask for it.

Hashes that are computed here are not stored on disk, where they could be forged.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from edgeagent.errors import StoreError
from edgeagent.state_files import file_stamp
from edgeagent.store.verified import VerifiedFiles, file_sha256

# A file up to this size is read to compute its sha256, which takes about 40 ms.
_SMALL_BYTES = 64 << 20


def sha256_of(path: Path) -> str:
    """Return a file's sha256. This process reads the file again only after it has changed.

    Raise StoreError if the file cannot be read.
    """
    path = path.resolve()
    return _sha256_at(path, file_stamp(path))


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


@lru_cache(maxsize=256)
def _sha256_at(path: Path, _stamp: object) -> str:
    return file_sha256(path)
