"""Limits the memory of a worker: what it takes beyond its plans is a leak, or a request that is not bounded."""

from __future__ import annotations

# Room for requests, compiled grammars, buffers, and memory that was freed but not returned to the system.
MAX_UNPLANNED_BYTES = 1 << 30


class MemoryLimit:
    """Compares a ready worker's memory with what it plans to take: cached blocks and further contexts.

    Memory that a plan has released still counts as planned, since the process may keep it.
    """

    def __init__(self, loaded_bytes: int) -> None:
        """`loaded_bytes`: the process's memory without mapped files after the load; 0 if the system does not tell."""
        self._loaded_bytes = loaded_bytes
        self._planned_bytes = 0

    def excess(self, own_bytes: int, planned_bytes: int) -> int:
        """Return how many unplanned bytes the process has taken if that is too many; otherwise 0.

        `own_bytes` is like `loaded_bytes`, but now. `planned_bytes`: how much of it the worker may have taken since its
        load, by its own count.
        """
        self._planned_bytes = max(self._planned_bytes, planned_bytes)
        unplanned_bytes = own_bytes - self._loaded_bytes - self._planned_bytes
        return unplanned_bytes if unplanned_bytes > MAX_UNPLANNED_BYTES else 0
