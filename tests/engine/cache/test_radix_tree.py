"""The radix tree, compared with plain dictionaries of sequences and blocks."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeagent.engine.cache import radix_tree
from edgeagent.engine.cache.block import Head
from edgeagent.engine.cache.radix_tree import BlockPlace, RadixTree, Walk
from tests.integrity import check_integrity

# Few different tokens, so that sequences and blocks often overlap and diverge.
TOKENS = st.lists(st.integers(0, 1), max_size=10)
PARTITIONS = (b"a", b"b")
NUMBERS = st.integers(0, 15)  # index of an existing sequence or block
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("insert"), st.sampled_from(PARTITIONS), TOKENS),
        st.tuples(st.just("fork"), NUMBERS, st.integers(0, 12)),
        st.tuples(st.just("extend"), NUMBERS, TOKENS),
        st.tuples(st.just("truncate"), NUMBERS, st.integers(0, 12)),
        st.tuples(st.just("remove"), NUMBERS),
        st.tuples(st.just("add"), st.sampled_from(PARTITIONS), NUMBERS, TOKENS),
        st.tuples(st.just("discard"), NUMBERS),
        st.tuples(st.just("purge"), st.sampled_from((*PARTITIONS, None))),
    ),
    min_size=20,
    max_size=40,
)


def common(a: list[int], b: list[int]) -> int:
    """Return the length of the common prefix."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


class Both:
    """A tree, and the content that it should have."""

    def __init__(self) -> None:
        self.tree = RadixTree()
        self.sequences: dict[int, tuple[bytes, list[int]]] = {}
        self.blocks: dict[bytes, tuple[bytes, bytes, int, list[int]]] = {}  # partition, parent, start, whole prefix

    def insert(self, partition: bytes, tokens: list[int]) -> None:
        seq_id = self.new_id()
        self.sequences[seq_id] = partition, list(tokens)
        self.tree.insert(seq_id, partition)
        self.tree.extend(seq_id, tokens)

    def fork(self, number: int, length: int) -> None:
        if (source := self.chosen(number)) is not None:
            seq_id, (partition, tokens) = self.new_id(), self.sequences[source]
            self.sequences[seq_id] = partition, tokens[:length]
            self.tree.fork(seq_id, source, min(length, len(tokens)))

    def extend(self, number: int, tokens: list[int]) -> None:
        if (seq_id := self.chosen(number)) is not None:
            self.sequences[seq_id][1].extend(tokens)
            self.tree.extend(seq_id, tokens)

    def truncate(self, number: int, length: int) -> None:
        if (seq_id := self.chosen(number)) is not None:
            del self.sequences[seq_id][1][length:]
            self.tree.truncate(seq_id, length)

    def remove(self, number: int) -> None:
        if (seq_id := self.chosen(number)) is not None:
            del self.sequences[seq_id]
            self.tree.remove(seq_id)

    def new_id(self) -> int:
        return max(self.sequences, default=-1) + 1

    def chosen(self, number: int) -> int | None:
        return sorted(self.sequences)[number % len(self.sequences)] if self.sequences else None

    def add(self, partition: bytes, number: int, own: list[int]) -> None:
        """Add a block after another one, or after the root."""
        parents = [partition, *(key for key in sorted(self.blocks) if self.blocks[key][0] == partition)]
        parent = parents[number % len(parents)]
        before = self.blocks[parent][3] if parent in self.blocks else []
        key = parent + b"/" + bytes(own)
        if own:
            self.blocks[key] = partition, parent, len(before), before + own
            assert self.tree.add(Head(partition, parent, key, len(before), array("i", own)))

    def discard(self, number: int) -> None:
        if self.blocks:
            key = sorted(self.blocks)[number % len(self.blocks)]
            del self.blocks[key]
            self.tree.discard(key)

    def purge(self, partition: bytes | None) -> None:
        gone = [key for key, block in self.blocks.items() if partition in (None, block[0])]
        for key in gone:
            del self.blocks[key]
            self.tree.discard(key)

    def shared(self, partition: bytes, query: list[int], max_length: int) -> set[tuple[int, int]]:
        """Return how many tokens of a query each sequence shares."""
        mine = {seq_id: tokens for seq_id, (owner, tokens) in self.sequences.items() if owner == partition}
        lengths = {seq_id: min(common(tokens, query), max_length) for seq_id, tokens in mine.items()}
        return {(length, seq_id) for seq_id, length in lengths.items() if length}

    def check_walk(self, walk: Walk, partition: bytes, query: list[int], behind: int = 0) -> None:
        """Compare a walk with a search of everything; `behind` is the depth at which the walk begins, in tokens."""
        blocks = {key: block for key, block in self.blocks.items() if block[0] == partition}
        prefixes = [block[3] for block in blocks.values()]
        prefixes += [tokens for owner, tokens in self.sequences.values() if owner == partition]
        assert walk.depth == max((common(tokens, query) for tokens in prefixes), default=0)
        on = {
            BlockPlace(key, parent, start, len(whole))
            for key, (_, parent, start, whole) in blocks.items()
            if behind <= len(whole) == common(whole, query)
        }
        assert set(walk.blocks()) == on
        assert [place.end for place in walk.blocks()] == sorted(place.end for place in on)
        for min_depth in range(behind, len(query) + 1):
            across = list(walk.across(min_depth))
            depths = [depth for _, depth in across]
            assert depths == sorted(depths, reverse=True)
            assert {(place.key, depth) for place, depth in across} == {
                (key, depth)
                for key, (_, _, start, whole) in blocks.items()
                if max(start, min_depth) < (depth := common(whole, query)) < len(whole)
            }

    def check(self, query: list[int], max_length: int) -> None:
        """Compare everything."""
        check_integrity(self.tree)
        assert self.tree.blocks.keys() == self.blocks.keys()
        for key in self.blocks:
            assert self.tree.has_children(key) == any(parent == key for _, parent, _, _ in self.blocks.values())
        known = [block[3] for block in self.blocks.values()] + [tokens for _, tokens in self.sequences.values()]
        for partition, wanted in itertools.product(PARTITIONS, (query, *known, *(tokens + query for tokens in known))):
            walk = self.tree.walk(partition, wanted)
            found = list(walk.sequences(max_length))
            assert sorted(found, key=lambda each: -each[0]) == found, "longest first"
            assert len(found) == len(set(found))
            assert set(found) == self.shared(partition, wanted, max_length)
            self.check_walk(walk, partition, wanted)
        for key, (partition, _, _, whole) in self.blocks.items():
            self.check_walk(self.tree.walk(partition, query, key), partition, whole + query, len(whole))


@given(STEPS, TOKENS, st.integers(0, 12))
def test_agrees_with_dictionaries(steps: list[tuple], query: list[int], max_length: int) -> None:  # type: ignore[type-arg]
    both = Both()
    for name, *arguments in steps:
        getattr(both, name)(*arguments)
        check_integrity(both.tree)
        assert {s: (both.tree.partition(s), list(both.tree.tokens(s))) for s in both.sequences} == both.sequences
    both.check(query, max_length)


@given(STEPS, TOKENS, st.integers(0, 12))
def test_a_walk_tells_of_sequences_after_blocks_are_gone(
    steps: list[tuple],  # type: ignore[type-arg]
    query: list[int],
    max_length: int,
) -> None:
    both = Both()
    for name, *arguments in steps:
        getattr(both, name)(*arguments)
    walk = both.tree.walk(b"a", query)
    both.purge(None)
    assert set(walk.sequences(max_length)) == both.shared(b"a", query, max_length)


@given(st.lists(st.integers(0, 50), max_size=60), st.integers(0, 60), st.integers(0, 60))
def test_a_part_of_a_sequence_is_told(tokens: list[int], start: int, end: int) -> None:
    both = Both()
    both.insert(b"a", tokens)
    for length in range(7, len(tokens), 7):
        both.insert(b"a", tokens[:length])
    assert list(both.tree.tokens(0, start, end)) == tokens[start:end]


def test_the_caller_s_tokens_are_not_kept() -> None:
    tree = RadixTree()
    tokens = array("i", [1, 2, 3])
    tree.insert(1, b"")
    tree.extend(1, tokens)
    tokens.append(4)
    tree.extend(1, [9])
    assert list(tree.tokens(1)) == [1, 2, 3, 9]
    assert list(tokens) == [1, 2, 3, 4]


def test_a_block_hangs_on_what_is_there_and_ends_where_it_begins() -> None:
    tree = RadixTree()
    first = Head(b"root", b"root", b"first", 0, array("i", [1, 2]))
    second = Head(b"root", b"first", b"second", 2, array("i", [3]))
    assert not tree.add(second)
    assert tree.add(first)
    assert not tree.add(Head(b"root", b"first", b"elsewhere", 3, array("i", [3])))
    assert not tree.add(Head(b"root", b"root", b"elsewhere", 3, array("i", [3])))
    assert tree.add(second)
    tree.discard(b"first")
    assert [place.key for place in tree.walk(b"root", [1, 2, 3]).blocks()] == [b"second"]


def test_a_sequence_that_goes_on_leaves_the_block_where_it_was() -> None:
    tree = RadixTree()
    assert tree.add(Head(b"a", b"a", b"block", 0, array("i", [1, 2])))
    tree.insert(0, b"a")
    for tokens in ([1, 2], [3]):
        tree.extend(0, tokens)
        assert list(tree.walk(b"a", [1, 2]).blocks()) == [BlockPlace(b"block", b"a", 0, 2)]
        assert tree.blocks[b"block"].depth == 2
    assert list(tree.tokens(0)) == [1, 2, 3]
    check_integrity(tree)


def test_tokens_are_kept_once_whoever_has_them() -> None:
    tree, tokens = RadixTree(), array("i", range(100))
    tree.insert(0, b"root")
    tree.extend(0, tokens)
    tree.fork(1, 0, 90)
    parent = b"root"
    for start in range(0, 100, 20):
        tree.add(Head(b"root", parent, b"%d" % start, start, tokens[start : start + 20]))
        parent = b"%d" % start
    assert sum(len(node.tokens) for node in nodes_of(tree)) == 100


def nodes_of(tree: RadixTree) -> Iterator[radix_tree.Node]:
    return radix_tree._subtree(tree._roots.values())


@pytest.fixture
def num_visits(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Return a function that gives the number of nodes visited in subtrees since its last call."""
    subtree, visits = radix_tree._subtree, [0]

    def counted(nodes: object) -> Iterator[radix_tree.Node]:
        for node in subtree(nodes):  # type: ignore[arg-type]
            visits[0] += 1
            yield node

    def taken() -> int:
        num, visits[0] = visits[0], 0
        return num

    monkeypatch.setattr(radix_tree, "_subtree", counted)
    return taken


def test_to_find_sequences_no_block_is_looked_at(num_visits: Callable[[], int]) -> None:
    tree, shared = RadixTree(), list(range(40))
    tree.add(Head(b"root", b"root", b"system", 0, array("i", shared)))
    for number in range(1000):
        tree.add(Head(b"root", b"system", b"%d" % number, 40, array("i", [100 + number] * 20)))
    tree.insert(0, b"root")
    tree.extend(0, [*shared, 500, 500, 1])
    assert list(tree.walk(b"root", [*shared, 9]).sequences(99)) == [(40, 0)]
    assert list(tree.walk(b"root", [*shared, 500, 500, 500]).sequences(99)) == [(42, 0)]
    assert list(tree.walk(b"root", shared[:30]).sequences(99)) == [(30, 0)]
    assert num_visits() == 0


@pytest.mark.parametrize("num_sequences", [0, 1, 64])
def test_sequences_take_nothing_of_the_limit_for_blocks(
    num_sequences: int, num_visits: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(radix_tree, "_MAX_VISITS", 8)
    tree, shared = RadixTree(), list(range(40))
    for number in range(7):
        tree.add(Head(b"root", b"root", b"%d" % number, 0, array("i", [*shared, 100 + number])))
    for number in range(num_sequences):
        tree.insert(number, b"root")
        tree.extend(number, [*shared, *range(200, 200 + number), 7, 7])
    assert len(list(tree.walk(b"root", [*shared, 9]).across(0))) == 7
    for number in range(7, 500):
        tree.add(Head(b"root", b"root", b"%d" % number, 0, array("i", [*shared, 1000 + number])))
    num_visits()
    list(tree.walk(b"root", [*shared, 9]).across(0))
    assert num_visits() <= 8 + 2 * num_sequences


@pytest.mark.parametrize("wanted", [[1, 2, 9], [1, 2], [1, 2, 40, 9]])
def test_of_many_blocks_beside_a_path_the_latest_are_looked_at(
    wanted: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(radix_tree, "_MAX_VISITS", 4)
    tree = RadixTree()
    for number in range(50):
        tree.add(Head(b"root", b"root", b"%d" % number, 0, array("i", [1, 2, number, 7])))
    found = [place.key for place, _ in tree.walk(b"root", wanted).across(0)]
    assert found[-2:] == [b"48", b"47"], "the first to be looked at may be a branch or the one that agrees best"


def test_a_sequence_that_goes_on_leaves_a_block_where_it_ends() -> None:
    tree = RadixTree()
    tree.insert(0, b"root")
    tree.extend(0, [1, 2])
    tree.add(Head(b"root", b"root", b"block", 0, array("i", [1, 2])))
    tree.extend(0, [3])
    check_integrity(tree)
    assert [place.end for place in tree.walk(b"root", [1, 2, 3]).blocks()] == [2]
