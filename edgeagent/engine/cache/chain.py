"""The chain of blocks at the beginning of a sequence."""

from __future__ import annotations

import bisect
from collections.abc import Iterable

from edgeagent.engine.cache.block import BlockKey


class Chain:
    """Keys of blocks, by where they end; the next block begins where the last one ends."""

    def __init__(self, blocks: Iterable[tuple[int, BlockKey]] = ()) -> None:
        self._ends: list[int] = []
        self._keys: list[BlockKey] = []
        self._num_kept = 0
        for end, key in blocks:
            self.append(end, key)

    @property
    def end(self) -> int:
        """How many tokens the blocks have together."""
        return self._ends[-1] if self._ends else 0

    @property
    def key(self) -> BlockKey | None:
        """The last block's key; None where there is none."""
        return self._keys[-1] if self._keys else None

    def append(self, end: int, key: BlockKey) -> None:
        """Add a block."""
        assert end > self.end
        self._ends.append(end)
        self._keys.append(key)

    def pop(self) -> None:
        """Remove the last block."""
        self._ends.pop()
        self._keys.pop()
        self._num_kept = min(self._num_kept, len(self._keys))

    def keys_until(self, length: int) -> list[BlockKey]:
        """Return the keys of the blocks that end at `length` or before."""
        return self._keys[: bisect.bisect_right(self._ends, length)]

    def take_unkept(self, length: int) -> list[tuple[int, BlockKey]]:
        """Return (end, key) of the blocks up to `length` that were not returned before."""
        first, self._num_kept = self._num_kept, max(self._num_kept, bisect.bisect_right(self._ends, length))
        return list(zip(self._ends[first : self._num_kept], self._keys[first : self._num_kept], strict=True))
