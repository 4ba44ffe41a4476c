"""Counts the KV cells in use when sequences share prefixes.

llama.cpp counts its cells too, but its API no longer reports the number. Computing a token takes one cell. When two
sequences share a prefix, both hold the same cells. Trimming a sequence frees the cells that no other sequence holds.
Like llama.cpp, this module takes the lowest free cells first, so it can estimate which used cell is the highest.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Mapping

import numpy as np


class KvCells:
    """The cells of each holder, which is a sequence id. A cell is used while at least one holder has it."""

    def __init__(self, num_cells: int) -> None:
        self.num_cells = num_cells
        self._num_holders = np.zeros(num_cells, np.int32)  # by cell
        self._free = list(range(num_cells))  # a heap
        self._cells: dict[int, array[int]] = {}

    @property
    def num_free(self) -> int:
        """How many cells have no holder."""
        return len(self._free)

    @property
    def num_used(self) -> int:
        """How many cells have a holder."""
        return self.num_cells - len(self._free)

    @property
    def span(self) -> int:
        """How many cells a step attends to: all from cell 0 to the highest used one."""
        used = np.flatnonzero(self._num_holders)
        return int(used[-1]) + 1 if len(used) else 0

    def highest(self, holder: int, length: int | None = None) -> int:
        """Return the highest cell index among a holder's first `length` cells (None: all); -1 if there are none."""
        cells = self._cells.get(holder)
        return int(np.frombuffer(cells, np.int32)[:length].max()) if cells and length != 0 else -1

    def length(self, holder: int) -> int:
        """Return how many cells a holder has."""
        return len(self._cells.get(holder, ()))

    def num_held(self, lengths: Mapping[int, int | None]) -> int:
        """Return how many cells these holders have together. `lengths`: count only that many of a holder's first ones.

        None: count all of them.
        """
        is_held = np.zeros(self.num_cells, np.bool_)
        for holder, length in lengths.items():
            if cells := self._cells.get(holder):
                is_held[np.frombuffer(cells, np.int32)[:length]] = True
        return int(is_held.sum())

    def num_unshared(self, holder: int) -> int:
        """Return how many cells only this holder has."""
        cells = self._cells.get(holder)
        return int((self._num_holders[np.frombuffer(cells, np.int32)] == 1).sum()) if cells else 0

    def take(self, holder: int, count: int) -> None:
        """Give a holder the `count` lowest free cells. At least that many must be free."""
        cells = self._cells.setdefault(holder, array("i"))
        for _ in range(count):
            cell = heapq.heappop(self._free)
            self._num_holders[cell] = 1
            cells.append(cell)

    def share(self, source: int, target: int, length: int) -> None:
        """Let `target`, which must be empty, hold the first `length` cells of `source` too."""
        assert not self._cells.get(target), f"holder {target} is not empty"
        cells = self._cells[source][:length]
        if cells:
            self._num_holders[np.frombuffer(cells, np.int32)] += 1
        self._cells[target] = cells

    def trim(self, holder: int, length: int) -> None:
        """Remove all cells of a holder but its first `length`. Cells without another holder become free."""
        cells = self._cells.get(holder)
        if cells is None or len(cells) <= length:
            return
        gone = np.array(cells[length:], np.int32)
        del cells[length:]
        self._num_holders[gone] -= 1
        for cell in gone[self._num_holders[gone] == 0].tolist():
            heapq.heappush(self._free, cell)
        if not cells:
            del self._cells[holder]
