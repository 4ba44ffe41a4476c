"""Descriptions of a cached prefix: where its parts are, and how far its restore is. Plain data.

PrefixStore makes these and moves what they describe; others read them.
"""

from __future__ import annotations

from array import array
from collections import deque
from dataclasses import dataclass, field

from edgeagent.engine.cache.block import BlockKey, BlockTier


@dataclass(frozen=True, slots=True)
class Source:
    """A prefix in cells: the first `length` tokens of a sequence (None: no tokens, of none)."""

    length: int = 0
    seq_id: int | None = None


@dataclass(frozen=True, slots=True)
class BlockReference:
    """A block to restore at position `start`: the first `num_tokens` of its `length` tokens are wanted."""

    tier: BlockTier
    key: BlockKey
    start: int
    num_tokens: int
    length: int
    num_bytes: int

    @property
    def end(self) -> int:
        """Positions that are restored after it."""
        return self.start + self.num_tokens

    @property
    def is_whole(self) -> bool:
        """Whether all of its tokens are wanted."""
        return self.num_tokens == self.length


@dataclass(frozen=True, slots=True)
class CachedPrefix:
    """The cached part of a prompt: `source` in cells, then blocks `to_restore`; `known` are all its blocks."""

    root: BlockKey
    source: Source
    to_restore: list[BlockReference]
    known: list[BlockReference]

    @property
    def end(self) -> int:
        """Tokens that need not be computed."""
        return self.to_restore[-1].end if self.to_restore else self.source.length


@dataclass(slots=True)
class Restoring:
    """A live sequence that is being restored, with its remaining blocks."""

    seq_id: int
    tokens: array[int]
    references: deque[BlockReference]
    epoch: int  # of its partition when it began
    unasked: deque[BlockReference] = field(default_factory=deque)  # to be asked of the loader, in order
    requested: set[BlockKey] = field(default_factory=set)  # of the loader, and not taken yet
    read: set[BlockKey] = field(default_factory=set)  # came from the tier below
    num_restored: dict[str, int] = field(default_factory=dict)  # tokens by tier

    @property
    def num_tokens(self) -> int:
        """Restored tokens."""
        return sum(self.num_restored.values())
