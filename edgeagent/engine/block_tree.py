"""Which blocks stand for which tokens, whatever tier holds them: a radix tree over the tokens of all of them.

Keys name blocks and are made once, when a block is; here blocks are found by their tokens, token by token. The tree
knows no tiers: its owner takes out the blocks that no tier holds any more.
"""

from __future__ import annotations

import itertools
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from edgeagent.engine.blocks import BlockKey, Head
from edgeagent.engine.radix_tree import RadixTree, Walk

# Most nodes to look at for a block that goes on from where a search ends.
_MAX_VISITS = 256


@dataclass(frozen=True, slots=True)
class Place:
    """Where a block stands: its tokens are those from `start` to `end` of a prefix."""

    key: BlockKey
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Path:
    """What the tree has of some tokens: blocks `on` their path, by their ends, and how many tokens it has (`depth`)."""

    on: list[Place]
    depth: int
    walk: Walk[BlockKey] | None


class BlockTree:
    """Blocks by their tokens, apart for each root."""

    def __init__(self) -> None:
        self._tree: RadixTree[BlockKey, BlockKey] = RadixTree()
        self._starts: dict[BlockKey, int] = {}
        self._parents: dict[BlockKey, BlockKey] = {}
        self._num_children: Counter[BlockKey] = Counter()

    def __contains__(self, key: BlockKey) -> bool:
        return key in self._starts

    def __len__(self) -> int:
        return len(self._starts)

    def __iter__(self) -> Iterator[BlockKey]:
        return iter(tuple(self._starts))

    def has_children(self, key: BlockKey) -> bool:
        """Whether a block has children."""
        return self._num_children[key] > 0

    def add(self, head: Head) -> bool:
        """Add a block; False where its parent is not here, or does not end where it begins."""
        if head.key in self._starts:
            return True
        if head.parent == head.root and head.start == 0:
            self._tree.insert(head.key, head.root, head.tokens)
        elif head.parent in self._starts and self._tree.length(head.parent) == head.start:
            self._tree.insert_behind(head.key, head.parent, head.tokens)
        else:
            return False
        self._starts[head.key], self._parents[head.key] = head.start, head.parent
        self._num_children[head.parent] += 1
        return True

    def remove(self, key: BlockKey) -> None:
        """Remove a block, if it is here. Its children stay, since another block may have its tokens."""
        if self._starts.pop(key, None) is not None:
            self._tree.remove(key)
            parent = self._parents.pop(key)
            self._num_children[parent] -= 1
            if not self._num_children[parent]:
                del self._num_children[parent]

    def purge(self, root: BlockKey | None) -> None:
        """Take out all blocks of a root (None: of all)."""
        for key in self:
            if root is None or self._tree.partition(key) == root:
                self.remove(key)

    def path(self, root: BlockKey, tokens: Sequence[int], behind: BlockKey | None = None) -> Path:
        """Go along tokens from the root, or from where a block that is here ends. No side effect."""
        walk = self._tree.walk(root, tokens, behind)
        if walk is None:
            return Path([], 0, None)
        on = [self._place(key, node.depth) for node in walk.nodes for key in node.holders]
        return Path(on, walk.depth, walk)

    def across(self, path: Path, min_depth: int) -> Iterator[tuple[Place, int]]:
        """Yield blocks that leave a path in their middle, with the depth up to which they agree, the deepest first.

        Those that agree up to `min_depth` or less are left out. The tree must not change meanwhile.
        """
        beside = iter(()) if path.walk is None else path.walk.beside(min_depth)
        for node, depth in itertools.islice(beside, _MAX_VISITS):
            for key in node.holders:
                if self._starts[key] < depth < node.depth:
                    yield self._place(key, node.depth), depth

    def tokens(self, key: BlockKey) -> array[int]:
        """Return a block's own tokens."""
        return self._tree.tokens(key, self._starts[key])

    def _place(self, key: BlockKey, end: int) -> Place:
        return Place(key, self._starts[key], end)
