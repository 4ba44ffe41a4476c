"""The files of SQLite databases in the state folder: private to the user, and set aside if they are damaged."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path


class DamagedError(Exception):
    """The file has content that this daemon did not write, or it has the format of another version."""


def open_private(path: Path | None) -> sqlite3.Connection:
    """Open a database that only this user may read; in memory if `path` is None. Raise OSError or sqlite3.Error."""
    if path is not None:
        # SQLite makes its other files with the mode of this one.
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR | getattr(os, "O_NOFOLLOW", 0), 0o600)
        try:
            if os.name == "posix":
                os.fchmod(descriptor, 0o600)
        finally:
            os.close(descriptor)
    return sqlite3.connect(path or ":memory:", isolation_level=None, check_same_thread=False)


def set_aside(path: Path) -> Path:
    """Rename a damaged file to NAME.damaged, in place of an earlier one. Delete its log, and return its new path."""
    aside = path.with_name(f"{path.name}.damaged")
    path.replace(aside)
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    return aside


def is_damage(error: Exception) -> bool:
    """Whether an error of a database means that its file is damaged, and not that the disk is full, for example."""
    if isinstance(error, DamagedError):
        return True
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)
