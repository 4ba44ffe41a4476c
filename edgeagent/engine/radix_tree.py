"""A radix tree over token ids: which holders (sequences, blocks) hold which prefix.

Every holder's whole prefix is one path from the root of its partition; it is registered at the node where that path
ends. Edges are compressed: a node owns the tokens between its parent and itself. The tree answers and records; it
knows nothing of cells, memories, tiers or time.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

H = TypeVar("H", bound=Hashable)
P = TypeVar("P", bound=Hashable)


class Node(Generic[H]):
    """A place where a prefix ends or several part."""

    __slots__ = ("children", "depth", "holders", "parent", "tokens")

    def __init__(self, parent: Node[H] | None, tokens: array[int], depth: int) -> None:
        self.parent = parent
        self.tokens = tokens  # of the edge that leads here
        self.depth = depth  # tokens from the root to the end of the edge
        self.children: dict[int, Node[H]] = {}
        self.holders: set[H] = set()  # whose prefix ends exactly here


@dataclass(frozen=True, slots=True)
class Walk(Generic[H]):
    """How far tokens go down a tree: `nodes` are wholly on their path, all below `deepest` shares `depth` of them."""

    nodes: list[Node[H]]
    depth: int
    deepest: Node[H]

    def subtree(self) -> Iterator[Node[H]]:
        """Yield the nodes that share all of the path and end no earlier."""
        yield from _subtree([self.deepest])

    def beside(self, min_depth: int) -> Iterator[tuple[Node[H], int]]:
        """Yield (node, depth) for nodes that share the path up to a depth and end no earlier, the deepest first.

        Those that share no more than `min_depth` are left out.
        """
        if self.depth <= min_depth:
            return
        yield from ((node, self.depth) for node in self.subtree())
        before = self.deepest
        for node in reversed(self.nodes):
            if node.depth <= min_depth:
                return
            if node is not before:
                others = [child for child in node.children.values() if child is not before]
                yield from ((other, node.depth) for other in _subtree(others))
                before = node


def _subtree(stack: list[Node[H]]) -> Iterator[Node[H]]:
    while stack:
        node = stack.pop()
        yield node
        stack.extend(node.children.values())


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


class RadixTree(Generic[H, P]):
    """Prefixes by holder, in partitions. All lengths are in tokens."""

    def __init__(self) -> None:
        self._roots: dict[P, Node[H]] = {}
        self._ends: dict[H, Node[H]] = {}  # holder → node where its prefix ends
        self._partitions: dict[H, P] = {}

    def __len__(self) -> int:
        return len(self._ends)

    def __iter__(self) -> Iterator[H]:
        return iter(self._ends)

    def length(self, holder: H) -> int:
        """Return the length of a holder's prefix."""
        return self._ends[holder].depth

    def tokens(self, holder: H, start: int = 0, end: int | None = None) -> array[int]:
        """Return a holder's prefix, or its tokens from `start` to `end`; takes no longer than these are many."""
        parts = []
        node: Node[H] | None = self._ends[holder]
        end = self.length(holder) if end is None else end
        while node is not None and node.depth > start:
            first = node.depth - len(node.tokens)
            if end > first:
                parts.append(node.tokens[max(0, start - first) : end - first])
            node = node.parent
        if len(parts) == 1:
            return parts[0]
        whole = array("i")
        for part in reversed(parts):
            whole.extend(part)
        return whole

    def partition(self, holder: H) -> P:
        """Return the partition a holder is in."""
        return self._partitions[holder]

    def match(self, partition: P, tokens: Sequence[int]) -> Iterator[tuple[int, H]]:
        """Yield (length, holder) for holders that share a prefix with `tokens`, longest first. No side effect.

        A holder is yielded with the longest length it shares where it ends on the path or below its deepest point,
        and not at all if it leaves the path earlier.
        """
        walk = self.walk(partition, tokens)
        if walk is None:
            return
        seen: set[H] = set()
        if walk.depth > 0:
            for node in walk.subtree():
                for holder in node.holders:
                    seen.add(holder)
                    yield walk.depth, holder
        for node in reversed(walk.nodes):
            if node.depth > 0:
                for holder in node.holders - seen:
                    yield node.depth, holder

    def walk(self, partition: P, tokens: Sequence[int], behind: H | None = None) -> Walk[H] | None:
        """Go down a partition's tree as far as it has `tokens`, from its root or from where a holder ends.

        None where the partition is empty. No side effect.
        """
        node = self._roots.get(partition) if behind is None else self._ends[behind]
        if node is None:
            return None
        rest, at = to_array(tokens), 0
        nodes = [node]
        while at < len(rest):
            child = node.children.get(rest[at])
            if child is None:
                break
            shared = common_length(child.tokens, rest[at : at + len(child.tokens)])
            at += shared
            if shared < len(child.tokens):
                return Walk(nodes, node.depth + shared, child)
            node = child
            nodes.append(node)
        return Walk(nodes, node.depth, node)

    def insert(self, holder: H, partition: P, tokens: Sequence[int]) -> None:
        """Record a new holder with its whole prefix (which may be empty)."""
        root = self._roots.get(partition)
        if root is None:
            root = self._roots[partition] = Node(None, array("i"), 0)
        self._register(holder, partition, root)
        self.extend(holder, tokens)

    def insert_behind(self, holder: H, other: H, tokens: Sequence[int]) -> None:
        """Record a new holder whose prefix is another's and then `tokens`; takes no longer than these are many."""
        self._register(holder, self._partitions[other], self._ends[other])
        self.extend(holder, tokens)

    def extend(self, holder: H, tokens: Sequence[int]) -> None:
        """Append tokens to a holder's prefix."""
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
                leaf = Node(node, rest[:], node.depth + len(rest))
                node.children[rest[0]] = leaf
                node = leaf
                break
            shared = common_length(child.tokens, rest)
            node = child if shared == len(child.tokens) else self._split(child, shared)
            rest = rest[shared:]
        node.holders.add(holder)
        self._ends[holder] = node
        self._compact(start)

    def truncate(self, holder: H, length: int) -> None:
        """Cut a holder's prefix to its first `length` tokens."""
        if length < self.length(holder):
            tokens, partition = self.tokens(holder, 0, length), self._partitions[holder]
            self.remove(holder)
            self.insert(holder, partition, tokens)

    def remove(self, holder: H) -> None:
        """Forget a holder."""
        node = self._ends.pop(holder)
        del self._partitions[holder]
        node.holders.discard(holder)
        self._compact(node)

    def _register(self, holder: H, partition: P, node: Node[H]) -> None:
        assert holder not in self._ends, f"holder {holder!r} is already in the tree"
        node.holders.add(holder)
        self._ends[holder] = node
        self._partitions[holder] = partition

    def _split(self, child: Node[H], length: int) -> Node[H]:
        """Put a node `length` tokens into a child's edge; return it."""
        parent = child.parent
        assert parent is not None
        upper: Node[H] = Node(parent, child.tokens[:length], parent.depth + length)
        parent.children[child.tokens[0]] = upper
        child.tokens = child.tokens[length:]
        child.parent = upper
        upper.children[child.tokens[0]] = child
        return upper

    def _compact(self, node: Node[H]) -> None:
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
