"""Computes how much memory a worker has taken, without the memory of its side context.

The watchdog ends a worker if preparing one prompt takes too much memory. At the same time, a side context may compute
another prompt and take gigabytes. These must not be blamed on the preparation.
"""

from __future__ import annotations


class OwnMemory:
    """Subtracts a side context's memory from each measurement of the process's memory. Not thread-safe."""

    def __init__(self) -> None:
        self._before = 0  # the last result without a context
        self._of_context = 0  # attributed to the context, until it is freed

    def without_side(self, own_bytes: int, num_side_bytes: int) -> int:
        """Return `own_bytes` without the side context's memory.

        `num_side_bytes` is the most memory that the side context may take; 0 if there is none. Memory growth since the
        last measurement without a context counts as the context's, up to that size. After the context has ended, its
        memory is still subtracted until the process has returned it to the system.
        """
        grown = max(0, own_bytes - self._before)
        if num_side_bytes:
            self._of_context = min(grown, max(self._of_context, num_side_bytes))
        else:
            self._of_context = min(grown, self._of_context)
        rest = own_bytes - self._of_context
        if not num_side_bytes and not self._of_context:
            self._before = rest
        return rest
