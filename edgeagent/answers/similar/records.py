"""What is known of kept questions, in a SQLite file, sealed. It is synchronous, and one thread owns it.

A record that cannot be opened is left out. A damaged file is set aside, and a new one begun: then everything is learned
again.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from msgspec import DecodeError, Struct, msgpack

from edgeagent import __version__
from edgeagent.answers.key import FORM
from edgeagent.answers.seal import Seal
from edgeagent.sqlite_files import DamagedError, LazyDatabase, SqliteDatabase

logger = logging.getLogger(__name__)

T = TypeVar("T")
_SCHEMA = "CREATE TABLE IF NOT EXISTS records (key BLOB PRIMARY KEY, sealed BLOB NOT NULL)"
_LEARNED = b"learned"  # a key of another length than those of answers


class Kept(Struct, frozen=True):
    """A kept question; see events.Added and memory.Known. `observations`: of its boundary, a similarity and right."""

    place: bytes
    text: str
    vector: bytes
    observations: tuple[tuple[float, bool], ...] = ()
    root: bytes = b""


class Learned(Struct, frozen=True):
    """What all questions taught. `model`: the embedding model's file. `judge`: who compared answers.

    `boundaries`: the state of each group's boundary. For `test` see ErrorTest. `form`: another has other places.
    """

    model: str
    judge: str
    max_error: float
    boundaries: dict[bytes, dict[str, bytes]]
    test: dict[str, float | list[float]]
    form: tuple[int, str] = (FORM, __version__)


class Records:
    """The records in a file, or in memory if `path` is None. No method raises anything: what fails is not kept."""

    def __init__(self, path: Path | None, seal: Seal) -> None:
        self._seal = seal
        self._database = LazyDatabase(lambda: _Database(path, _SCHEMA, version=0), path)
        self.trouble: str | None = None

    def load(self) -> tuple[Learned | None, dict[bytes, Kept]]:
        """Return what was kept. If its form is another one, or cannot be read, return nothing, and remove it."""
        none: list[tuple[bytes, bytes]] = []
        rows = self._try(lambda database: database.rows(), none)
        learned: Learned | None = None
        kept: dict[bytes, Kept] = {}
        for key, sealed in rows:
            content = self._seal.open(key, sealed)
            with suppress(DecodeError):
                if content is not None and key == _LEARNED:
                    learned = msgpack.decode(content, type=Learned)
                elif content is not None:
                    kept[key] = msgpack.decode(content, type=Kept)
        if learned is not None and learned.form == (FORM, __version__):
            return learned, kept
        if rows:
            self.remove(None)
        return None, {}

    def put(self, learned: Learned | None, kept: dict[bytes, Kept]) -> None:
        """Write what was learned, unless it is None, and the questions in `kept`."""
        records: dict[bytes, Kept | Learned] = {**kept, **({} if learned is None else {_LEARNED: learned})}
        rows = [(key, self._seal.seal(key, msgpack.encode(each))) for key, each in records.items()]
        self._try(lambda database: database.change("INSERT OR REPLACE INTO records VALUES (?, ?)", rows), None)

    def remove(self, keys: Collection[bytes] | None) -> None:
        """Remove questions; with None, all of them and what was learned."""
        if keys is None:
            self._try(lambda database: database.change("DELETE FROM records", [()]), None)
        else:
            rows = [(key,) for key in keys]
            self._try(lambda database: database.change("DELETE FROM records WHERE key = ?", rows), None)

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def _try(self, act: Callable[[_Database], T], otherwise: T) -> T:
        try:
            result = self._database.use(act)
        except (DamagedError, sqlite3.Error, OSError) as error:
            self.close()
            if self.trouble is None:
                logger.warning("what is known of similar questions cannot be kept: %s", error)
            self.trouble = str(error)
            return otherwise
        self.trouble = None
        return result


class _Database(SqliteDatabase):
    def rows(self) -> list[tuple[bytes, bytes]]:
        return self._execute("SELECT key, sealed FROM records").fetchall()

    def change(self, statement: str, rows: Collection[tuple[object, ...]]) -> None:
        with self._transaction():
            self._connection.executemany(statement, rows)
