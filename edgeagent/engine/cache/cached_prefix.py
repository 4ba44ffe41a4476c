"""Plain data that describes a cached prefix: where its parts are, and how far it is restored.

PrefixStore and its parts (Slots, BlockTable, Restorer and Saver) make and change these objects, and move the cells and
blocks that the objects describe. Other modules only read the objects.
"""

from __future__ import annotations

import bisect
from array import array
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from edgeagent.engine.cache.block import BlockKey


@dataclass(frozen=True, slots=True)
class CellPrefix:
    """A prefix in cells: the first `length` tokens of a sequence. If there is none, `seq_id` is None."""

    length: int = 0
    seq_id: int | None = None


@dataclass(frozen=True, slots=True)
class BlockReference:
    """A block to restore at position `start`, from memory or from disk.

    The block has `length` tokens. The first `num_tokens` of them are wanted. A read moves `num_bytes`.
    """

    is_in_memory: bool
    key: BlockKey
    start: int
    num_tokens: int
    length: int
    num_bytes: int

    @property
    def end(self) -> int:
        """The position after the last wanted token."""
        return self.start + self.num_tokens

    @property
    def is_whole(self) -> bool:
        """Whether all tokens of the block are wanted."""
        return self.num_tokens == self.length


@dataclass(frozen=True, slots=True)
class CachedPrefix:
    """The cached part of a prompt: first the cells of `cell_prefix`, then the blocks `to_restore`.

    `known`: all blocks that were found for the prompt, also those that need no restore.
    """

    root: BlockKey
    cell_prefix: CellPrefix
    to_restore: list[BlockReference]
    known: list[BlockReference]

    @property
    def end(self) -> int:
        """How many leading tokens of the prompt need not be computed."""
        return self.to_restore[-1].end if self.to_restore else self.cell_prefix.length


@dataclass(slots=True)
class Restoring:
    """A live sequence that is being restored, with the blocks still to restore."""

    seq_id: int
    tokens: array[int]
    references: deque[BlockReference]
    unasked: deque[BlockReference] = field(default_factory=deque)  # still to request from the disk, in order
    requested: set[BlockKey] = field(default_factory=set)  # from the disk, and not received yet
    read: set[BlockKey] = field(default_factory=set)  # read from disk
    num_restored: dict[str, int] = field(default_factory=dict)  # tokens by tier

    @property
    def num_tokens(self) -> int:
        """How many tokens were restored so far."""
        return sum(self.num_restored.values())


class Chain:
    """The blocks at the beginning of a sequence: the key and the end of each.

    Each block begins where the previous block ends.
    """

    def __init__(self, blocks: Iterable[tuple[int, BlockKey]] = ()) -> None:
        self._ends: list[int] = []
        self._keys: list[BlockKey] = []
        self._num_raised = 0
        for end, key in blocks:
            self.append(end, key)

    @property
    def end(self) -> int:
        """How many tokens the blocks have together; the next block begins there."""
        return self._ends[-1] if self._ends else 0

    @property
    def key(self) -> BlockKey | None:
        """The last block's key; None if there are no blocks."""
        return self._keys[-1] if self._keys else None

    def append(self, end: int, key: BlockKey) -> None:
        """Add the next block, which ends at position `end`."""
        assert end > self.end
        self._ends.append(end)
        self._keys.append(key)

    def pop(self) -> None:
        """Remove the last block."""
        self._ends.pop()
        self._keys.pop()
        self._num_raised = min(self._num_raised, len(self._keys))

    def keys_until(self, length: int) -> list[BlockKey]:
        """Return the keys of the blocks that end at `length` or before."""
        return self._keys[: bisect.bisect_right(self._ends, length)]

    def take_unraised(self, length: int) -> list[tuple[int, BlockKey]]:
        """Return (end, key) of blocks whose importance is to be raised: those that end at `length` or before.

        Leave out blocks that an earlier call returned.
        """
        first, self._num_raised = self._num_raised, max(self._num_raised, bisect.bisect_right(self._ends, length))
        return list(zip(self._ends[first : self._num_raised], self._keys[first : self._num_raised], strict=True))
