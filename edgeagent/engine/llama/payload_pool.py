"""Reuses memory for payloads.

The first use of a page takes several times as long as copying into it. Measured: to read a block of 4 MiB out of the
cells takes 1.5 to 6 ms into fresh memory, and 0.5 ms into memory that was used before.
"""

from __future__ import annotations

import weakref
from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

_GRAIN = 64 << 10
_MIN_BYTES = 256 << 10  # smaller ones come from the allocator, which keeps their pages

Buffer = NDArray[np.uint8]


class PayloadPool:
    """Lends buffers. A buffer returns to the pool when its last reference is dropped, on any thread.

    `max_free_bytes` limits the free buffers.
    """

    def __init__(self) -> None:
        self.max_free_bytes = 0
        self._free: defaultdict[int, list[Buffer]] = defaultdict(list)  # by capacity

    @property
    def num_free_bytes(self) -> int:
        """Bytes of free buffers."""
        return sum(capacity * len(buffers) for capacity, buffers in tuple(self._free.items()))

    def take(self, num_bytes: int) -> memoryview:
        """Return a buffer of this many bytes with undefined content."""
        if num_bytes < _MIN_BYTES:
            return np.empty(num_bytes, np.uint8).data
        capacity = _capacity(num_bytes)
        try:
            whole = self._free[capacity].pop()
        except IndexError:
            whole = np.empty(capacity, np.uint8)
        buffer = whole[:num_bytes]
        weakref.finalize(buffer, self._give_back, whole).atexit = False
        # Not the array itself: numpy's views of it would refer to `whole` only, and `buffer` would be finalized.
        return buffer.data

    def prepare(self, num_bytes: int) -> bool:
        """Prepare one more free buffer of this many bytes, with its pages touched; False if there are enough."""
        capacity = _capacity(num_bytes)
        if num_bytes < _MIN_BYTES or self.num_free_bytes + capacity > self.max_free_bytes:
            return False
        self._free[capacity].append(np.ones(capacity, np.uint8))  # with zeros the pages would stay unmapped
        return True

    def _give_back(self, whole: Buffer) -> None:
        if self.num_free_bytes + len(whole) <= self.max_free_bytes:
            self._free[len(whole)].append(whole)


def _capacity(num_bytes: int) -> int:
    return -(-num_bytes // _GRAIN) * _GRAIN
