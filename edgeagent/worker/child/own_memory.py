"""How much memory the process took for itself, without that of a long prompt's own context.

The daemon ends a worker in which the preparation of one prompt takes too much memory. A context that is made meanwhile
for another prompt may take gigabytes, and belongs to no preparation.
"""

from __future__ import annotations


class OwnMemory:
    """Tells the process's own memory at each look, for one thread."""

    def __init__(self) -> None:
        self._before = 0  # what was told before the context
        self._of_context = 0  # what is attributed to it, until that is free again

    def tell(self, own_bytes: int, num_side_bytes: int) -> int:
        """Return `own_bytes` without what a context took that may take `num_side_bytes` (0: there is none)."""
        grown = max(0, own_bytes - self._before)
        if num_side_bytes:
            self._of_context = min(grown, max(self._of_context, num_side_bytes))
        else:
            self._of_context = min(grown, self._of_context)
        told = own_bytes - self._of_context
        if not num_side_bytes and not self._of_context:
            self._before = told
        return told
