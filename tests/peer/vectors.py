"""Measures searches among many vectors: `python -m tests.peer.vectors [--sizes 10000 100000] [--kinds ours usearch]`.

It compares the index of answers from similarity with exact products in numpy, usearch (a graph) and sqlite-vec (a scan,
of all numbers, or of one bit of each with the nearest compared exactly). Each has a process of its own, so that its
memory is known. usearch and sqlite-vec are no dependencies: `pip install usearch sqlite-vec apsw` for this script. What
is not installed is left out.
Not each Python has a sqlite3 that loads extensions, so SQLite comes from apsw.
It prints a table for docs/figures.md.

The vectors lie in groups of about five, as wordings of one question do, and vary in `--dimensions` directions. Those of
real texts vary in some tens. A question is near to one of them. `recall`: which share of the eight nearest is found.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from statistics import median
from typing import Any, Protocol

import numpy as np
import psutil
from numpy.typing import NDArray

from edgeagent.answers.similar.index import Index, Vector
from edgeagent.bench.stats import quantile

WIDTH = 384
NUM_NEAREST = 8
_CHUNK = 10_000
_NUM_SEARCHES = 200
_MAX_SEARCH_S = 60.0

Vectors = NDArray[np.float32]
Rows = NDArray[np.int64]


class Kind(Protocol):
    """A way to search. Rows are numbered in the order in which they were added."""

    def add(self, first: int, vectors: Vectors) -> None:
        """Add vectors, whose rows begin at `first`."""

    def nearest(self, vector: Vector) -> Sequence[int]:
        """Return the rows of the most similar vectors."""


class Ours:
    """The index that the daemon uses: exact up to 4,096 vectors, above that by one bit of each number first."""

    def __init__(self) -> None:
        self._index = Index()

    def add(self, first: int, vectors: Vectors) -> None:
        for row, vector in enumerate(vectors, first):
            self._index.add(b"place", row.to_bytes(8, "big"), vector)

    def nearest(self, vector: Vector) -> Sequence[int]:
        return [int.from_bytes(near.key, "big") for near in self._index.nearest(b"place", vector, NUM_NEAREST)]


class Exact:
    """All products in numpy, with 32 bits a number."""

    def __init__(self, size: int) -> None:
        self._vectors = np.zeros((size, WIDTH), np.float32)

    def add(self, first: int, vectors: Vectors) -> None:
        self._vectors[first : first + len(vectors)] = vectors

    def nearest(self, vector: Vector) -> Sequence[int]:
        similarities = self._vectors @ vector
        best = np.argpartition(-similarities, NUM_NEAREST)[:NUM_NEAREST]
        found: list[int] = best.tolist()
        return found


class Usearch:
    """A graph (HNSW), with 16 bits a number."""

    def __init__(self) -> None:
        from usearch.index import Index as Graph

        self._graph: Any = Graph(ndim=WIDTH, metric="cos", dtype="f16")

    def add(self, first: int, vectors: Vectors) -> None:
        self._graph.add(np.arange(first, first + len(vectors)), vectors, threads=1)

    def nearest(self, vector: Vector) -> Sequence[int]:
        found: list[int] = self._graph.search(vector, NUM_NEAREST, threads=1).keys.tolist()
        return found


class SqliteVec:
    """A virtual table of SQLite, in memory. `has_bits`: search one bit of each number first."""

    def __init__(self, *, has_bits: bool) -> None:
        import apsw
        import sqlite_vec

        self._has_bits = has_bits
        self._connection: Any = apsw.Connection(":memory:")
        self._connection.enable_load_extension(True)
        self._connection.load_extension(sqlite_vec.loadable_path())
        columns = f"bits bit[{WIDTH}], +numbers blob" if has_bits else f"numbers float[{WIDTH}] distance_metric=cosine"
        self._connection.execute(f"CREATE VIRTUAL TABLE vectors USING vec0(row integer primary key, {columns})")

    def add(self, first: int, vectors: Vectors) -> None:
        values = "vec_quantize_binary(?2), ?2" if self._has_bits else "?2"
        columns = "bits, numbers" if self._has_bits else "numbers"
        self._connection.execute("BEGIN")
        self._connection.executemany(
            f"INSERT INTO vectors (row, {columns}) VALUES (?1, {values})",
            ((row, vector.tobytes()) for row, vector in enumerate(vectors, first)),
        )
        self._connection.execute("COMMIT")

    def nearest(self, vector: Vector) -> Sequence[int]:
        asked = vector.tobytes()
        if not self._has_bits:
            found = self._connection.execute(
                "SELECT row FROM vectors WHERE numbers MATCH ? AND k = ?", (asked, NUM_NEAREST)
            )
            return [row for (row,) in found]
        near = self._connection.execute(
            "SELECT row, numbers FROM vectors WHERE bits MATCH vec_quantize_binary(?) AND k = 512", (asked,)
        ).fetchall()
        similarities = np.stack([np.frombuffer(numbers, np.float32) for _, numbers in near]) @ vector
        return [near[index][0] for index in np.argsort(-similarities)[:NUM_NEAREST]]


KINDS: dict[str, Callable[[int], Kind]] = {
    "ours": lambda size: Ours(),
    "exact": Exact,
    "usearch": lambda size: Usearch(),
    "sqlite-vec": lambda size: SqliteVec(has_bits=False),
    "sqlite-vec bits": lambda size: SqliteVec(has_bits=True),
}


def chunks(size: int, dimensions: int) -> Iterator[Vectors]:
    """Yield the same vectors each time, in chunks, so that they need not all be in memory."""
    spread = np.random.default_rng(1).standard_normal((dimensions, WIDTH), np.float32)
    for first in range(0, size, _CHUNK):
        random = np.random.default_rng((2, first))
        centres = random.standard_normal((_CHUNK // 5, dimensions), np.float32)
        inner = centres[random.integers(0, len(centres), _CHUNK)]
        inner += 0.4 * random.standard_normal(inner.shape, np.float32)
        yield _unit(inner @ spread)[: size - first]


def questions(size: int, dimensions: int) -> Vectors:
    """Return vectors that are each near to one of the others."""
    random = np.random.default_rng(3)
    wanted = np.sort(random.integers(0, size, _NUM_SEARCHES))
    chosen = [
        chunk[wanted[(wanted >= number * _CHUNK) & (wanted < (number + 1) * _CHUNK)] - number * _CHUNK]
        for number, chunk in enumerate(chunks(size, dimensions))
    ]
    near = np.concatenate(chosen)
    return _unit(near + 0.02 * random.standard_normal(near.shape, np.float32))


def _unit(vectors: Vectors) -> Vectors:
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), np.float32)


def measure(name: str, size: int, dimensions: int) -> str:
    """Return a row of the table, for this process."""
    asked = questions(size, dimensions)
    best_rows = np.zeros((len(asked), NUM_NEAREST), np.int64)
    best = np.full((len(asked), NUM_NEAREST), -2.0, np.float32)
    process = psutil.Process()
    for chunk in chunks(min(size, _CHUNK), dimensions):  # what numpy takes by itself is there before
        _keep_best(best.copy(), best_rows.copy(), asked, 0, chunk)
    before = process.memory_info().rss
    kind: Kind = KINDS[name](size)
    built_s, first = 0.0, 0
    for chunk in chunks(size, dimensions):
        began_s = time.process_time()
        kind.add(first, chunk)
        built_s += time.process_time() - began_s
        best, best_rows = _keep_best(best, best_rows, asked, first, chunk)
        first += len(chunk)
    held = process.memory_info().rss - before
    walls_s: list[float] = []
    cpu_s: list[float] = []
    num_found = 0
    give_up_s = time.monotonic() + _MAX_SEARCH_S
    for vector, rows in zip(asked, best_rows, strict=True):
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        found = kind.nearest(vector)
        walls_s.append(time.perf_counter() - began_s)
        cpu_s.append(time.process_time() - began_cpu_s)
        num_found += len(set(found) & set(rows.tolist()))
        if time.monotonic() > give_up_s:
            break
    recall = num_found / (NUM_NEAREST * len(walls_s))
    return (
        f"| {size:,} | {name} | {1000 * median(walls_s):.2f} ms ({1000 * quantile(walls_s, 0.95):.2f}) | "
        f"{1000 * median(cpu_s):.2f} ms | {100 * recall:.1f} % | {built_s:.1f} s | {held / 2**20:,.0f} MiB |"
    )


def _keep_best(best: Vectors, best_rows: Rows, asked: Vectors, first: int, chunk: Vectors) -> tuple[Vectors, Rows]:
    """Return the highest similarities so far, and their rows."""
    similarities = np.concatenate([best, asked @ chunk.T], axis=1)
    rows = np.concatenate(
        [best_rows, np.broadcast_to(np.arange(first, first + len(chunk)), (len(asked), len(chunk)))], 1
    )
    order = np.argsort(-similarities, axis=1)[:, :NUM_NEAREST]
    return np.take_along_axis(similarities, order, 1), np.take_along_axis(rows, order, 1)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure. `arguments`: of the command line; None: those of this process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--dimensions", type=int, default=48)
    parser.add_argument("--here", action="store_true", help="measure one kind in this process")
    given = parser.parse_args(arguments)
    if given.here:
        print(measure(given.kinds[0], given.sizes[0], given.dimensions), flush=True)
        return
    missing = {name: found for name in given.kinds if (found := _missing(name))}
    for name, libraries in missing.items():
        print(f"{name} is left out: `pip install {' '.join(libraries)}` first")
    print("| vectors | search | time: median (95 %) | CPU | recall | built (CPU) | memory |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for size in given.sizes:
        for name in filter(lambda name: name not in missing, given.kinds):
            command = [sys.executable, "-m", "tests.peer.vectors", "--here", "--sizes", str(size), "--kinds", name]
            # One thread for each: a daemon's other core computes an answer meanwhile.
            environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
            subprocess.run([*command, "--dimensions", str(given.dimensions)], check=True, env=environment)
    print(f"\nload of the machine {os.getloadavg()[0]:.1f}")


def _missing(name: str) -> list[str]:
    """Return the packages of a kind of search that are not installed."""
    packages = {"usearch": "usearch", "sqlite_vec": "sqlite-vec", "apsw": "apsw"}
    needed = ["usearch"] if name == "usearch" else ["sqlite_vec", "apsw"] if name.startswith("sqlite") else []
    return [packages[module] for module in needed if find_spec(module) is None]


if __name__ == "__main__":
    main()
