"""The files of SQLite databases in the state folder: private to the user, and set aside if they are damaged."""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import ClassVar, Generic, Protocol, TypeVar

logger = logging.getLogger(__name__)

T = TypeVar("T")

_PRAGMAS = ("journal_mode = WAL", "synchronous = NORMAL", "secure_delete = ON", "temp_store = MEMORY")


class DamagedError(Exception):
    """The file has content that this daemon did not write, or it has the format of another version."""


def _open_private(path: Path | None) -> sqlite3.Connection:
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


class SqliteDatabase:
    """A database in a private file, or in memory if `path` is None. One thread owns it.

    The file is made with `schema` and `version`. All methods may raise sqlite3.Error, and the constructor OSError, or
    DamagedError if the file has another version.
    """

    counts: ClassVar[tuple[str, ...]] = ()
    """The names of attributes that count what is in the database. A transaction that fails sets them back."""

    def __init__(self, path: Path | None, schema: str, version: int) -> None:
        self._connection = _open_private(path)
        try:
            for pragma in _PRAGMAS:
                self._execute(f"PRAGMA {pragma}")
            self._execute(f"PRAGMA journal_size_limit = {4 << 20}")
            (found,) = self._execute("PRAGMA user_version").fetchone()
            if found == 0 and self._execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0:
                with self._transaction():
                    for statement in schema.split(";"):
                        self._execute(statement)
                    self._execute(f"PRAGMA user_version = {version}")
            elif found != version:
                raise DamagedError(f"its format is {found}, not {version}")
            self._prepare()
        except BaseException:
            self._connection.close()
            raise

    def close(self) -> None:
        self._connection.close()

    def _prepare(self) -> None:
        """Read what the constructor of a subclass needs from the open database."""

    def _execute(self, statement: str, *values: object) -> sqlite3.Cursor:
        return self._connection.execute(statement, values)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Commit what the `with` block writes, or undo it if the block or the commit raises."""
        before = {name: getattr(self, name) for name in self.counts}
        self._execute("BEGIN IMMEDIATE")
        try:
            yield
            self._execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):
                self._execute("ROLLBACK")
            for name, count in before.items():
                setattr(self, name, count)
            raise

    def _truncate_log(self) -> None:
        """Remove from the log what was deleted. If that fails now, the next deletion or the close does it."""
        with suppress(sqlite3.Error):
            self._execute("PRAGMA wal_checkpoint(TRUNCATE)")


class Closable(Protocol):
    """A database that can be closed."""

    def close(self) -> None: ...


D = TypeVar("D", bound=Closable)


class LazyDatabase(Generic[D]):
    """A database that is opened when it is first used. If its file is damaged, a new one is begun.

    One thread owns it. `path`: the file; None if there is none.
    """

    def __init__(self, opened: Callable[[], D], path: Path | None) -> None:
        self._open, self._path = opened, path
        self.opened: D | None = None

    def use(self, act: Callable[[D], T]) -> T:
        """Return what `act` returns. If the file is damaged, set it aside and call `act` again.

        Raise OSError, sqlite3.Error or DamagedError if the database cannot be used.
        """
        try:
            return act(self._opened())
        except (DamagedError, sqlite3.DatabaseError) as error:
            if not _is_damage(error):
                raise
            self.close()
            if self._path is not None:
                aside = _set_aside(self._path)
                logger.warning("%s is damaged (%s): moved to %s, and a new one begun", self._path, error, aside.name)
            return act(self._opened())

    def close(self) -> None:
        """Close the database. The next use opens it again."""
        if self.opened is not None:
            with suppress(sqlite3.Error):
                self.opened.close()
            self.opened = None

    def _opened(self) -> D:
        if self.opened is None:
            self.opened = self._open()
        return self.opened


def _set_aside(path: Path) -> Path:
    """Rename a damaged file to NAME.damaged, in place of an earlier one. Delete its log, and return its new path."""
    aside = path.with_name(f"{path.name}.damaged")
    path.replace(aside)
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    return aside


def _is_damage(error: Exception) -> bool:
    """Whether an error of a database means that its file is damaged, and not that the disk is full, for example."""
    if isinstance(error, DamagedError):
        return True
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)
