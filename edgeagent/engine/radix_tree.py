"""A radix tree over token ids: which holders (sequence ids) hold which prefix.

Every holder's whole sequence is one path from the root of its partition; it is registered at the node where that path
ends. Edges are compressed: a node owns the tokens between its parent and itself. The tree answers and records; it
knows nothing of cells, memories or time.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

import numpy as np


class _Node:
    __slots__ = ("children", "depth", "holders", "parent", "tokens")

    def __init__(self, parent: _Node | None, tokens: array[int], depth: int) -> None:
        self.parent = parent
        self.tokens = tokens  # of the edge that leads here
        self.depth = depth  # tokens from the root to the end of the edge
        self.children: dict[int, _Node] = {}
        self.holders: set[int] = set()  # whose sequence ends exactly here


def common_length(a: array[int], b: array[int]) -> int:
    """Return how many leading elements are equal."""
    length = min(len(a), len(b))
    if a[:length] == b[:length]:
        return length
    differs = np.frombuffer(a, np.int32, length) != np.frombuffer(b, np.int32, length)
    return int(differs.argmax())


def to_array(tokens: Sequence[int]) -> array[int]:
    """Return tokens as the compact form used here."""
    return tokens if isinstance(tokens, array) else array("i", tokens)


class RadixTree:
    """Prefixes by holder. All lengths are in tokens."""

    def __init__(self) -> None:
        self._roots: dict[str, _Node] = {}
        self._ends: dict[int, _Node] = {}  # holder → node where its sequence ends
        self._partitions: dict[int, str] = {}

    def __contains__(self, holder: int) -> bool:
        return holder in self._ends

    def __len__(self) -> int:
        return len(self._ends)

    def length(self, holder: int) -> int:
        """Return the length of a holder's sequence."""
        return self._ends[holder].depth

    def tokens(self, holder: int) -> array[int]:
        """Return a holder's sequence."""
        parts = []
        node: _Node | None = self._ends[holder]
        while node is not None:
            parts.append(node.tokens)
            node = node.parent
        whole = array("i")
        for part in reversed(parts):
            whole.extend(part)
        return whole

    def partition(self, holder: int) -> str:
        """Return the partition a holder is in."""
        return self._partitions[holder]

    def match(self, partition: str, tokens: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Yield (length, holder) for holders that share a prefix with `tokens`, longest first. No side effect.

        A holder is yielded with the longest length it shares where it ends on the path or below its deepest point,
        and not at all if it leaves the path earlier.
        """
        root = self._roots.get(partition)
        if root is None:
            return
        node, depth, deepest = self._walk(root, to_array(tokens))
        seen: set[int] = set()
        if depth > 0:
            for holder in self._subtree(deepest):
                seen.add(holder)
                yield depth, holder
        walk: _Node | None = node
        while walk is not None and walk.depth > 0:
            for holder in walk.holders - seen:
                yield walk.depth, holder
            walk = walk.parent

    def insert(self, holder: int, partition: str, tokens: Sequence[int]) -> None:
        """Record a new holder with its whole sequence (which may be empty)."""
        assert holder not in self._ends, f"holder {holder} is already in the tree"
        root = self._roots.get(partition)
        if root is None:
            root = self._roots[partition] = _Node(None, array("i"), 0)
        root.holders.add(holder)
        self._ends[holder] = root
        self._partitions[holder] = partition
        self.extend(holder, tokens)

    def extend(self, holder: int, tokens: Sequence[int]) -> None:
        """Append tokens to a holder's sequence."""
        rest = to_array(tokens)
        node = self._ends[holder]
        if not rest:
            return
        if node.parent is not None and not node.children and len(node.holders) == 1:
            node.tokens.extend(rest)
            node.depth += len(rest)
            return
        node.holders.discard(holder)
        start = node
        while rest:
            child = node.children.get(rest[0])
            if child is None:
                leaf = _Node(node, rest[:], node.depth + len(rest))
                node.children[rest[0]] = leaf
                node = leaf
                break
            shared = common_length(child.tokens, rest)
            node = child if shared == len(child.tokens) else self._split(child, shared)
            rest = rest[shared:]
        node.holders.add(holder)
        self._ends[holder] = node
        self._compact(start)

    def truncate(self, holder: int, length: int) -> None:
        """Cut a holder's sequence to its first `length` tokens."""
        if length < self.length(holder):
            tokens, partition = self.tokens(holder)[:length], self._partitions[holder]
            self.remove(holder)
            self.insert(holder, partition, tokens)

    def remove(self, holder: int) -> None:
        """Forget a holder."""
        node = self._ends.pop(holder)
        del self._partitions[holder]
        node.holders.discard(holder)
        self._compact(node)

    def check_integrity(self) -> None:
        """Assert every invariant; for tests."""
        seen: dict[int, _Node] = {}
        for root in self._roots.values():
            stack = [root]
            while stack:
                node = stack.pop()
                for holder in node.holders:
                    assert holder not in seen
                    seen[holder] = node
                for first, child in node.children.items():
                    assert child.parent is node
                    assert child.tokens[0] == first
                    assert child.depth == node.depth + len(child.tokens)
                    stack.append(child)
                if node.parent is not None:
                    assert node.holders or len(node.children) > 1, "a node must end a holder or branch"
        assert seen == self._ends
        assert seen.keys() == self._partitions.keys()

    def _walk(self, root: _Node, tokens: array[int]) -> tuple[_Node, int, _Node]:
        """Return (last node wholly on the path, matched length, node whose subtree shares all of that length)."""
        node, depth = root, 0
        while depth < len(tokens):
            child = node.children.get(tokens[depth])
            if child is None:
                return node, depth, node
            shared = common_length(child.tokens, tokens[depth : depth + len(child.tokens)])
            depth += shared
            if shared < len(child.tokens):
                return node, depth, child
            node = child
        return node, depth, node

    def _subtree(self, node: _Node) -> Iterator[int]:
        stack = [node]
        while stack:
            node = stack.pop()
            yield from node.holders
            stack.extend(node.children.values())

    def _split(self, child: _Node, length: int) -> _Node:
        """Put a node `length` tokens into a child's edge; return it."""
        parent = child.parent
        assert parent is not None
        upper = _Node(parent, child.tokens[:length], parent.depth + length)
        parent.children[child.tokens[0]] = upper
        child.tokens = child.tokens[length:]
        child.parent = upper
        upper.children[child.tokens[0]] = child
        return upper

    def _compact(self, node: _Node) -> None:
        """Remove nodes that neither end a holder nor branch, from `node` upwards."""
        while not node.holders:
            parent = node.parent
            if parent is None:
                if not node.children:
                    self._roots = {name: root for name, root in self._roots.items() if root is not node}
                return
            if not node.children:
                del parent.children[node.tokens[0]]
            elif len(node.children) == 1:
                (child,) = node.children.values()
                child.tokens = node.tokens + child.tokens
                child.parent = parent
                parent.children[child.tokens[0]] = child
            else:
                return
            node = parent
