"""A radix tree over token ids: which sequences and which blocks hold which prefix.

The prefix of each sequence and block is a path from the root of its partition to a node. Edges are compressed: a node
holds the tokens between its parent and itself, for all prefixes that go through it. So one walk along a prompt's tokens
finds its prefixes in KV cells, host memory and disk. The tree knows nothing of cells, memories, tiers or time. Its
users must remove sequences and blocks that no longer exist.
"""

from __future__ import annotations

import itertools
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from edgeagent.engine.cache.block import BlockKey, Head, common_length, to_array

# At most this many nodes, in addition to those of sequences, are searched for a block that continues beyond a walk.
_MAX_VISITS = 256


@dataclass(frozen=True, slots=True)
class BlockPlace:
    """The position of a block: it holds the tokens from `start` to `end` of a prefix."""

    key: BlockKey
    parent: BlockKey
    start: int
    end: int


class Node:
    """A node of the tree: a position where a prefix ends, or where prefixes diverge."""

    __slots__ = ("blocks", "children", "depth", "parent", "sequences", "tokens")

    def __init__(self, parent: Node | None, tokens: array[int], depth: int) -> None:
        self.parent = parent
        self.tokens = tokens  # of the edge that ends here
        self.depth = depth  # tokens from the root to the end of the edge
        self.children: dict[int, Node] = {}
        self.blocks: dict[BlockKey, BlockPlace] = {}  # the blocks that end exactly here
        self.sequences: frozenset[int] = frozenset()  # those that end here or below; few, so a copy is fast


@dataclass(frozen=True, slots=True)
class Walk:
    """The path of looked-up tokens through a tree: the result of a lookup.

    `depth`: how many of the tokens are in the tree, counted from the root. `nodes`: the nodes whose edges match the
    tokens completely, from the first to the last. `deepest`: the last node whose edge matches at least in part; all
    prefixes below it share the first `depth` tokens.

    The tree must not change while a walk is used, with one exception: `sequences` may be called after blocks were
    removed.
    """

    nodes: list[Node]
    depth: int
    deepest: Node

    def sequences(self, max_length: int) -> Iterator[tuple[int, int]]:
        """Yield (shared length, seq_id) of all sequences that share leading tokens, the longest shared length first.

        At most `max_length` tokens count as shared.
        """
        seen: frozenset[int] = frozenset()
        ends = ((node, node.depth) for node in reversed(self.nodes))
        for node, depth in itertools.chain(((self.deepest, self.depth),), ends):
            length = min(depth, max_length)
            if not length:
                return
            if len(node.sequences) > len(seen):  # it includes the sequences of the node below
                yield from ((length, seq_id) for seq_id in node.sequences - seen)
                seen = node.sequences

    def blocks(self) -> Iterator[BlockPlace]:
        """Yield the blocks whose tokens are all on the path, in the order of their ends."""
        return (place for node in self.nodes for place in node.blocks.values())

    def across(self, min_depth: int) -> Iterator[tuple[BlockPlace, int]]:
        """Yield (block, depth) of blocks that leave the path: only their tokens before position `depth` are on it.

        The greatest depths come first. Only depths greater than `min_depth` are searched. At most _MAX_VISITS nodes are
        searched in addition to those of sequences, so some blocks may be missing.
        """
        # A sequence adds a node where it ends and one where it leaves the others.
        max_visits = _MAX_VISITS + 2 * len(self.nodes[0].sequences)
        for node, depth in itertools.islice(self._beside(min_depth), max_visits):
            for place in node.blocks.values():
                if place.start < depth < place.end:
                    yield place, depth

    def branches(self, min_length: int, max_branches: int) -> Iterator[array[int]]:
        """Yield the tokens of prefixes that leave the path, or that continue it, from the root to their ends.

        They have at least `min_length` tokens that are not on the path. Those that share the most tokens come first,
        and of those the latest. At most `max_branches` are returned, and at most _MAX_VISITS nodes are searched.
        """
        ends = (
            node
            for node, depth in itertools.islice(self._beside(0), _MAX_VISITS)
            if not node.children and node.depth - depth >= min_length
        )
        return (_path(node) for node in itertools.islice(ends, max_branches))

    def _beside(self, min_depth: int) -> Iterator[tuple[Node, int]]:
        """Yield (node, depth) of nodes whose prefixes share exactly `depth` tokens with the path.

        The greatest depths come first. Only depths greater than `min_depth` are searched.
        """
        if self.depth <= min_depth:
            return
        yield from ((node, self.depth) for node in _subtree([self.deepest]))
        before = self.deepest
        for node in reversed(self.nodes):
            if node.depth <= min_depth:
                return
            if node is not before:
                others = (child for child in reversed(node.children.values()) if child is not before)
                yield from ((other, node.depth) for other in _subtree(others))
                before = node


def _path(node: Node) -> array[int]:
    """Return the tokens from the root to a node."""
    parts = []
    at: Node | None = node
    while at is not None:
        parts.append(at.tokens)
        at = at.parent
    whole = array("i")
    for part in reversed(parts):
        whole.extend(part)
    return whole


def _subtree(nodes: Iterable[Node]) -> Iterator[Node]:
    # A node may have thousands of children. A caller looks at a few of them, so the latest come first.
    stack: list[Iterator[Node]] = [iter(nodes)]
    while stack:
        node = next(stack[-1], None)
        if node is None:
            stack.pop()
        else:
            yield node
            stack.append(reversed(node.children.values()))


class RadixTree:
    """A tree of the prefixes of sequences and blocks. A partition is named by its root key."""

    def __init__(self) -> None:
        self._roots: dict[BlockKey, Node] = {}
        self._sequences: dict[int, Node] = {}  # where each ends
        self._partitions: dict[int, BlockKey] = {}
        self.blocks: dict[BlockKey, Node] = {}
        """The node where each block ends. Read-only for other modules."""
        self._num_children: Counter[BlockKey] = Counter()

    def walk(self, partition: BlockKey, tokens: Sequence[int], behind: BlockKey | None = None) -> Walk:
        """Look up `tokens` in a partition. If `behind` is a block's key, begin at the end of that block.

        The tree must contain that block. This does not change the tree.
        """
        node = self._roots.get(partition) if behind is None else self.blocks[behind]
        if node is None:
            node = Node(None, array("i"), 0)
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

    def length(self, seq_id: int) -> int:
        return self._sequences[seq_id].depth

    def tokens(self, seq_id: int, start: int = 0, end: int | None = None) -> array[int]:
        """Return a sequence's tokens from `start` to `end`; None means to the sequence's end."""
        parts = []
        node: Node | None = self._sequences[seq_id]
        end = self.length(seq_id) if end is None else end
        while node is not None and node.depth > start:
            first = node.depth - len(node.tokens)
            if end > first:
                parts.append(node.tokens[max(0, start - first) : end - first])
            node = node.parent
        whole = array("i")
        for part in reversed(parts):
            whole.extend(part)
        return whole

    def partition(self, seq_id: int) -> BlockKey:
        """Return the root key of the partition that a sequence belongs to."""
        return self._partitions[seq_id]

    def insert(self, seq_id: int, partition: BlockKey) -> None:
        """Record a new sequence without tokens."""
        self._begin(seq_id, partition, self._root(partition))

    def fork(self, seq_id: int, source: int, length: int) -> None:
        """Record a new sequence with the first `length` tokens of the sequence `source`."""
        self._begin(seq_id, self._partitions[source], self._node_at(self._sequences[source], length))

    def extend(self, seq_id: int, tokens: Sequence[int]) -> None:
        """Append tokens to a sequence."""
        rest = to_array(tokens)
        node = self._sequences[seq_id]
        if node.parent is not None and not node.children and not node.blocks and len(node.sequences) == 1:
            node.tokens.extend(rest)
            node.depth += len(rest)
            return
        self._sequences[seq_id] = self._descend(node, rest, frozenset((seq_id,)))
        self._compact(node)

    def truncate(self, seq_id: int, length: int) -> None:
        """Cut a sequence to its first `length` tokens."""
        node = self._sequences[seq_id]
        if length < node.depth:
            end = self._sequences[seq_id] = self._node_at(node, length)
            self._leave(seq_id, node, end)
            self._compact(node)

    def remove(self, seq_id: int) -> None:
        """Forget a sequence."""
        node = self._sequences.pop(seq_id)
        del self._partitions[seq_id]
        self._leave(seq_id, node, None)
        self._compact(node)

    def add(self, head: Head) -> bool:
        """Record a block; return False if its parent is unknown or does not end where the block begins."""
        if head.key in self.blocks:
            return True
        if head.parent == head.root and head.start == 0:
            node = self._root(head.root)
        elif head.parent in self.blocks and self.blocks[head.parent].depth == head.start:
            node = self.blocks[head.parent]
        else:
            return False
        node = self.blocks[head.key] = self._descend(node, head.tokens, frozenset())
        node.blocks[head.key] = BlockPlace(head.key, head.parent, head.start, node.depth)
        self._num_children[head.parent] += 1
        return True

    def discard(self, key: BlockKey) -> None:
        """Forget a block, if it is known. Its children stay, since a chain of other blocks may lead to them."""
        node = self.blocks.pop(key, None)
        if node is not None:
            parent = node.blocks.pop(key).parent
            self._num_children[parent] -= 1
            if not self._num_children[parent]:
                del self._num_children[parent]
            self._compact(node)

    def beginnings(self, key: BlockKey) -> list[BlockKey]:
        """Return the shorter blocks that have the same parent as a block, and whose tokens it begins with."""
        place = self.blocks[key].blocks[key]
        keys: list[BlockKey] = []
        node = self.blocks[key].parent
        while node is not None and node.depth > place.start:
            keys += [other.key for other in node.blocks.values() if other.parent == place.parent]
            node = node.parent
        return keys

    def has_children(self, key: BlockKey) -> bool:
        return self._num_children[key] > 0

    def _root(self, partition: BlockKey) -> Node:
        root = self._roots.get(partition)
        if root is None:
            root = self._roots[partition] = Node(None, array("i"), 0)
        return root

    def _begin(self, seq_id: int, partition: BlockKey, end: Node) -> None:
        assert seq_id not in self._sequences, f"sequence {seq_id} is already in the tree"
        self._sequences[seq_id], self._partitions[seq_id] = end, partition
        node: Node | None = end
        while node is not None:
            node.sequences |= {seq_id}
            node = node.parent

    def _leave(self, seq_id: int, node: Node | None, end: Node | None) -> None:
        """Remove a sequence from a node and its ancestors, except `end` and those above it."""
        while node is not None and node is not end:
            node.sequences -= {seq_id}
            node = node.parent

    def _node_at(self, node: Node, length: int) -> Node:
        """Return the node at depth `length` on the path from the root to `node`. Create it if there is none."""
        while node.parent is not None and node.depth - len(node.tokens) >= length:
            node = node.parent
        return node if node.depth == length else self._split(node, len(node.tokens) - (node.depth - length))

    def _descend(self, node: Node, tokens: Sequence[int], sequences: frozenset[int]) -> Node:
        """Follow `tokens` down from a node, and return the last node. Create missing nodes.

        Add `sequences` to each node below the first.
        """
        rest, at = to_array(tokens), 0
        while at < len(rest):
            child = node.children.get(rest[at])
            if child is None:
                child = node.children[rest[at]] = Node(node, rest[at:], node.depth + len(rest) - at)
            else:
                shared = common_length(child.tokens, rest[at : at + len(child.tokens)])
                child = child if shared == len(child.tokens) else self._split(child, shared)
            if sequences:
                child.sequences |= sequences
            at += len(child.tokens)
            node = child
        return node

    def _split(self, child: Node, length: int) -> Node:
        """Split the edge to a child after `length` tokens; return the new node between parent and child."""
        parent = child.parent
        assert parent is not None
        upper = Node(parent, child.tokens[:length], parent.depth + length)
        upper.sequences = child.sequences
        parent.children[child.tokens[0]] = upper
        child.tokens = child.tokens[length:]
        child.parent = upper
        upper.children[child.tokens[0]] = child
        return upper

    def _compact(self, node: Node) -> None:
        """Remove unneeded nodes from `node` upwards. Stop at a node where a prefix ends or prefixes diverge."""
        while len(node.children) < 2 and not node.blocks:
            child = next(iter(node.children.values()), None)
            if len(node.sequences) > (0 if child is None else len(child.sequences)):
                return  # a sequence ends here
            parent = node.parent
            if parent is None:
                if child is None:
                    self._roots = {name: root for name, root in self._roots.items() if root is not node}
                return
            if child is None:
                del parent.children[node.tokens[0]]
            else:
                child.tokens = node.tokens + child.tokens
                child.parent = parent
                parent.children[child.tokens[0]] = child
            node = parent
