"""Tracks the blocks of host memory that the tier below has accepted and not yet written."""

from __future__ import annotations

from collections.abc import Iterator

from edgeagent.engine.cache.block import Block, BlockKey, Importance, LowerTier


class Backlog:
    """The blocks that wait until the tier below writes them, in the order in which that tier accepted them.

    Always empty if there is no tier below. This class only tracks blocks; it evicts none.
    """

    def __init__(self, below: LowerTier | None) -> None:
        self._below = below
        self._sizes: dict[BlockKey, int] = {}  # bytes by key, oldest first
        self._num_bytes = 0

    def __contains__(self, key: BlockKey) -> bool:
        return key in self._sizes

    def __iter__(self) -> Iterator[BlockKey]:
        return iter(tuple(self._sizes))

    @property
    def num_bytes(self) -> int:
        """Bytes of all tracked blocks. Blocks written since the last `forget_finished` still count."""
        return self._num_bytes

    @property
    def is_stalled(self) -> bool:
        """Whether the tier below cannot write at the moment."""
        return self._below is not None and self._below.is_stalled

    def offer(self, block: Block, importance: Importance) -> bool:
        """Offer a block to the tier below. Return False if it is not accepted, or if there is no such tier.

        Offer its parent first.
        """
        if self._below is None or not self._below.offer(block, importance):
            return False
        self.forget(block.key)
        self._sizes[block.key] = block.num_bytes
        self._num_bytes += block.num_bytes
        return True

    def forget(self, key: BlockKey) -> None:
        """Stop tracking a block."""
        self._num_bytes -= self._sizes.pop(key, 0)

    def withdraw(self, key: BlockKey) -> None:
        """Withdraw a pending block from the tier below, and stop tracking it."""
        if self._below is not None:
            self._below.withdraw(key)
        self.forget(key)

    def forget_finished(self) -> list[BlockKey]:
        """Stop tracking the blocks that the tier below has written or dropped; return their keys."""
        done = [key for key in self if not self._is_pending(key)]
        for key in done:
            self.forget(key)
        return done

    def is_below(self, key: BlockKey) -> bool:
        """Whether the tier below holds a block."""
        return self._below is not None and self._below.num_bytes(key) is not None

    def is_below_or_pending(self, key: BlockKey) -> bool:
        """Whether the tier below holds a block, or has accepted it and will write it."""
        return self._is_pending(key) or self.is_below(key)

    def is_pending(self, key: BlockKey) -> bool:
        """Whether a block is tracked here and the tier below has still to write it."""
        return key in self._sizes and self._is_pending(key)

    def _is_pending(self, key: BlockKey) -> bool:
        return self._below is not None and self._below.is_pending(key)
