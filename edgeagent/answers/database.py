"""The kept answers in a SQLite file, sealed. It is synchronous, and one thread owns it.

The number of bytes and the age are limited; the least recently used answer is forgotten first. A row that cannot be
opened is deleted when it is read, and counts as not found.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from edgeagent.answers.key import KEY_BYTES
from edgeagent.sqlite_files import SqliteDatabase

VERSION = 1
_SCHEMA = """
CREATE TABLE answers (
    key BLOB PRIMARY KEY, partition TEXT NOT NULL, model TEXT NOT NULL, sealed BLOB NOT NULL,
    created_s REAL NOT NULL, used INTEGER NOT NULL, num_uses INTEGER NOT NULL, num_bytes INTEGER NOT NULL
);
CREATE INDEX answers_by_use ON answers (used, num_bytes);
CREATE INDEX answers_by_age ON answers (created_s);
CREATE INDEX answers_by_partition ON answers (partition, used);
"""
_ROW_BYTES = 256  # what a row and its places in the indexes take besides the sealed answer and the names


@dataclass(frozen=True, slots=True)
class Row:
    """A kept answer as the database has it. `num_uses`: how often it was given."""

    key: bytes
    partition: str
    model: str
    sealed: bytes
    created_s: float
    num_uses: int
    num_bytes: int


class AnswerDatabase(SqliteDatabase):
    """The kept answers in a file, or in memory if `path` is None: a store.Database.

    All methods may raise sqlite3.Error, and the constructor DamagedError or OSError too. After either, use no method
    but `close`.
    """

    counts: ClassVar[tuple[str, ...]] = ("num_answers", "num_bytes")

    def __init__(self, path: Path | None, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.num_answers = self.num_bytes = self._last_use = 0
        super().__init__(path, _SCHEMA, VERSION)

    def get(self, key: bytes) -> tuple[bytes, float] | None:
        row: tuple[bytes, float] | None = self._execute(
            "SELECT sealed, created_s FROM answers WHERE key = ?", key
        ).fetchone()
        return row

    def note_uses(self, uses: Collection[bytes]) -> None:
        with self._transaction():
            for key in uses:
                self._execute(
                    "UPDATE answers SET used = ?, num_uses = num_uses + 1 WHERE key = ?", self._next_use(), key
                )

    def put(self, key: bytes, partition: str, model: str, sealed: bytes, created_s: float) -> None:
        num_bytes = _ROW_BYTES + len(sealed) + len(partition.encode()) + len(model.encode())
        with self._transaction():
            self._remove("key = ?", key)
            self._execute(
                "INSERT INTO answers VALUES (?, ?, ?, ?, ?, ?, 0, ?)",
                *(key, partition, model, sealed, created_s, self._next_use(), num_bytes),
            )
            self.num_answers += 1
            self.num_bytes += num_bytes
            while self.num_bytes > self._max_bytes and self.num_answers:
                (oldest,) = self._execute("SELECT key FROM answers ORDER BY used LIMIT 1").fetchone()
                self._remove("key = ?", oldest)

    def rows(self, partition: str | None, limit: int, offset: int = 0) -> list[Row]:
        where = "" if partition is None else "WHERE partition = ?"
        values = (limit, offset) if partition is None else (partition, limit, offset)
        found = self._execute(
            f"SELECT key, partition, model, sealed, created_s, num_uses, num_bytes FROM answers {where} "  # noqa: S608
            "ORDER BY used DESC LIMIT ? OFFSET ?",
            *values,
        )
        return [Row(*row) for row in found.fetchall()]

    def remove(self, key: bytes, partition: str | None = None) -> int:
        last = key + b"\xff" * KEY_BYTES
        with self._transaction():
            if partition is None:
                return self._remove("key BETWEEN ? AND ?", key, last)
            return self._remove("key BETWEEN ? AND ? AND partition = ?", key, last, partition)

    def remove_older(self, than_s: float) -> int:
        with self._transaction():
            return self._remove("created_s < ?", than_s)

    def remove_all(self, partition: str | None) -> int:
        """Do what Database says. The bytes are overwritten in the file."""
        with self._transaction():
            num = self._remove("TRUE") if partition is None else self._remove("partition = ?", partition)
        self._truncate_log()
        return num

    def _prepare(self) -> None:
        self.num_answers, self.num_bytes, self._last_use = self._execute(
            "SELECT count(*), coalesce(sum(num_bytes), 0), coalesce(max(used), 0) FROM answers"
        ).fetchone()

    def _remove(self, where: str, *values: object) -> int:
        num, num_bytes = self._execute(
            f"SELECT count(*), coalesce(sum(num_bytes), 0) FROM answers WHERE {where}",  # noqa: S608
            *values,
        ).fetchone()
        if num:
            self._execute(f"DELETE FROM answers WHERE {where}", *values)  # noqa: S608
            self.num_answers -= num
            self.num_bytes -= num_bytes
        return int(num)

    def _next_use(self) -> int:
        self._last_use += 1
        return self._last_use
