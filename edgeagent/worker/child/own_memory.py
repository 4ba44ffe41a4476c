"""The process's own memory without a side context's.

The watchdog ends a worker if preparing one prompt takes too much memory. A side context, which another prompt has, may
take gigabytes meanwhile; they must not count as the preparation's.
"""

from __future__ import annotations


class OwnMemory:
    """Subtracts a side context's memory from the process's, measurement by measurement. Not thread-safe."""

    def __init__(self) -> None:
        self._before = 0  # the last result without a context
        self._of_context = 0  # attributed to the context, until it is freed

    def without_side(self, own_bytes: int, num_side_bytes: int) -> int:
        """Return `own_bytes` without the context's, which may take `num_side_bytes` (0: there is no context).

        Growth since the last measurement without a context is attributed to it, up to that many bytes.
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
