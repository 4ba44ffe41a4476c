"""The vectors of kept questions, and the nearest ones to another. It is exact below MAX_EXACT vectors of one place.

Each place (see `place_of`) has a table of its own, so a search reads only what may be found. A larger table is searched
by one bit of each number first: 48 bytes a vector instead of 1,536. The nearest by bits are then compared exactly.
docs/figures.md has what that finds and costs at 100,000 vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float32]

MAX_EXACT = 4096
"""Up to this many vectors are compared with all their numbers. That takes under 1 ms."""
_NUM_COMPARED = 256  # of the nearest by bits
_FIRST_ROWS = 64
_SCALE = 32767
"""Numbers are kept as integers of 16 bits, of this many to 1. Converting 16-bit floats takes several times as long."""


class Near(NamedTuple):
    """A kept question: its answer's key, and how similar its vector is, -1 to 1."""

    key: bytes
    similarity: float


class Index:
    """The vectors of all places. Vectors have length 1, so their product is the cosine of their angle."""

    def __init__(self) -> None:
        self._tables: dict[bytes, _Table] = {}
        self._places: dict[bytes, bytes] = {}

    def __len__(self) -> int:
        return len(self._places)

    def add(self, place: bytes, key: bytes, vector: Vector) -> None:
        """Add a question, or replace the vector of one."""
        self.remove(key)
        table = self._tables.get(place)
        if table is None or table.width != len(vector):
            table = self._tables[place] = _Table(len(vector))
        table.add(key, vector)
        self._places[key] = place

    def remove(self, key: bytes) -> None:
        """Remove a question; an unknown key is ignored."""
        place = self._places.pop(key, None)
        table = None if place is None else self._tables.get(place)
        if place is not None and table is not None and table.remove(key) and not table.num_rows:
            del self._tables[place]

    def has(self, place: bytes) -> bool:
        """Whether a place has any vector."""
        return place in self._tables

    def vector(self, key: bytes) -> Vector | None:
        """Return a question's vector, rounded to 16 bits a number; None for an unknown key."""
        place = self._places.get(key)
        return None if place is None else self._tables[place].vector(key)

    def nearest(self, place: bytes, vector: Vector, count: int) -> list[Near]:
        """Return up to `count` questions of a place, the most similar first."""
        table = self._tables.get(place)
        return [] if table is None or table.width != len(vector) else table.nearest(vector, count)


class _Table:
    """The vectors of one place, in rows without gaps."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.num_rows = 0
        self._keys: list[bytes] = []
        self._row_of: dict[bytes, int] = {}
        self._vectors = np.zeros((_FIRST_ROWS, width), np.int16)
        # A row for each word of bits, so that a search reads them in order.
        self._bits = np.zeros((-(-width // 64), _FIRST_ROWS), np.uint64)

    def add(self, key: bytes, vector: Vector) -> None:
        if self.num_rows == len(self._vectors):
            self._vectors = np.concatenate([self._vectors, np.zeros_like(self._vectors)])
            self._bits = np.concatenate([self._bits, np.zeros_like(self._bits)], axis=1)
        row = self.num_rows
        self._vectors[row] = np.rint(_SCALE * vector)
        self._bits[:, row] = _bits(vector)
        self._keys.append(key)
        self._row_of[key] = row
        self.num_rows += 1

    def remove(self, key: bytes) -> bool:
        """Move the last row to the removed one's place. Return whether the key was there."""
        row = self._row_of.pop(key, None)
        if row is None:
            return False
        last_key = self._keys.pop()
        self.num_rows -= 1
        if last_key != key:
            self._vectors[row] = self._vectors[self.num_rows]
            self._bits[:, row] = self._bits[:, self.num_rows]
            self._keys[row] = last_key
            self._row_of[last_key] = row
        return True

    def vector(self, key: bytes) -> Vector:
        row: Vector = self._vectors[self._row_of[key]] / np.float32(_SCALE)
        return row

    def nearest(self, vector: Vector, count: int) -> list[Near]:
        rows = np.arange(self.num_rows) if self.num_rows <= MAX_EXACT else self._near_by_bits(vector)
        similarities = self._vectors[rows].astype(np.float32) @ (vector / _SCALE)
        best = np.argsort(-similarities)[:count]
        return [Near(self._keys[rows[index]], float(similarities[index])) for index in best]

    def _near_by_bits(self, vector: Vector) -> NDArray[np.intp]:
        different = np.zeros(self.num_rows, np.uint16)
        for words, word in zip(self._bits, _bits(vector), strict=True):
            different += np.bitwise_count(words[: self.num_rows] ^ word)
        # By counts, since that takes a third of the time of a partition.
        limit = np.searchsorted(np.cumsum(np.bincount(different)), _NUM_COMPARED)
        nearer, equal = np.flatnonzero(different < limit), np.flatnonzero(different == limit)
        return np.concatenate([nearer, equal[: _NUM_COMPARED - len(nearer)]])


def _bits(vector: Vector) -> NDArray[np.uint64]:
    """Return one bit for each number, its sign, in words of 64."""
    signs = np.packbits(vector > 0)
    return np.frombuffer(signs.tobytes().ljust(-(-len(signs) // 8) * 8, b"\0"), np.uint64)


def vector_of(content: bytes) -> Vector:
    """Return a vector from its numbers, float32 in little-endian order."""
    return np.frombuffer(content, "<f4").astype(np.float32)


def as_bytes(vectors: Sequence[float] | Vector) -> bytes:
    """Return a vector as `vector_of` reads it."""
    return np.asarray(vectors, "<f4").tobytes()
