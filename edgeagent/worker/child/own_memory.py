"""Computes the process's own memory without that of a side context.

The watchdog ends a worker if preparing one prompt takes too much memory. Meanwhile, the side context of another prompt
may take gigabytes, which must not be counted for the preparation.
"""

from __future__ import annotations


class OwnMemory:
    """Subtracts a side context's memory from each measurement of the process's memory. Not thread-safe."""

    def __init__(self) -> None:
        self._before = 0  # the last result without a context
        self._of_context = 0  # attributed to the context, until it is freed

    def without_side(self, own_bytes: int, num_side_bytes: int) -> int:
        """Return `own_bytes` without the side context's memory.

        `num_side_bytes` is the largest size of the side context; 0 if there is none. Growth since the last measurement
        without a context is attributed to the context, up to its largest size. A context that has ended is subtracted
        until the process has returned its memory.
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
