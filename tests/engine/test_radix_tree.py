"""The radix tree against a plain dictionary of sequences."""

from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st

from edgeagent.engine.radix_tree import RadixTree
from tests.integrity import check_integrity

TOKENS = st.lists(st.integers(0, 2), max_size=12)
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("insert"), st.integers(0, 7), TOKENS),
        st.tuples(st.just("extend"), st.integers(0, 7), TOKENS),
        st.tuples(st.just("truncate"), st.integers(0, 7), st.integers(0, 12)),
        st.tuples(st.just("remove"), st.integers(0, 7), st.just(None)),
    ),
    max_size=40,
)


def common(a: list[int], b: list[int]) -> int:
    """Return how many leading tokens are equal."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@given(OPERATIONS, TOKENS)
def test_agrees_with_a_dictionary(operations: list[tuple[str, int, list[int] | int | None]], query: list[int]) -> None:
    tree, plain = RadixTree(), dict[int, list[int]]()
    for name, holder, argument in operations:
        if name == "insert" and holder not in plain:
            plain[holder] = list(argument)  # type: ignore[arg-type]
            tree.insert(holder, "", argument)  # type: ignore[arg-type]
        elif name == "extend" and holder in plain:
            plain[holder] += argument  # type: ignore[arg-type]
            tree.extend(holder, argument)  # type: ignore[arg-type]
        elif name == "truncate" and holder in plain:
            del plain[holder][argument:]  # type: ignore[arg-type]
            tree.truncate(holder, argument)  # type: ignore[arg-type]
        elif name == "remove" and holder in plain:
            del plain[holder]
            tree.remove(holder)
        check_integrity(tree)
    assert {holder: list(tree.tokens(holder)) for holder in plain} == plain
    assert {holder: tree.length(holder) for holder in plain} == {
        holder: len(tokens) for holder, tokens in plain.items()
    }
    found = list(tree.match("", query))
    best = max((common(tokens, query) for tokens in plain.values()), default=0)
    assert len({holder for _, holder in found}) == len(found), "each is found once"
    lengths = [length for length, _ in found]
    assert lengths == sorted(lengths, reverse=True)
    assert (lengths[0] if lengths else 0) == best
    for length, holder in found:
        assert plain[holder][:length] == query[:length]
    # Every holder that shares all of the longest prefix is found, and every one that ends earlier on its path.
    expected = {h for h, tokens in plain.items() if best and common(tokens, query) == best}
    expected |= {h for h, tokens in plain.items() if tokens and tokens == query[: len(tokens)]}
    assert {holder for _, holder in found} == expected


def test_partitions_do_not_meet() -> None:
    tree = RadixTree()
    tree.insert(1, "a", [5, 6, 7])
    tree.insert(2, "b", [5, 6, 8])
    assert list(tree.match("a", [5, 6, 8])) == [(2, 1)]
    assert list(tree.match("c", [5, 6, 8])) == []


def test_the_caller_s_tokens_are_not_kept() -> None:
    tree = RadixTree()
    tokens = array("i", [1, 2, 3])
    tree.insert(1, "", tokens)
    tokens.append(4)
    tree.extend(1, [9])
    assert list(tree.tokens(1)) == [1, 2, 3, 9]
    assert list(tokens) == [1, 2, 3, 4]


def test_what_leaves_a_path_is_told_with_how_far_it_agrees() -> None:
    tree = RadixTree[int, str]()
    tree.insert(1, "", [1, 2, 3, 4])
    tree.insert(2, "", [1, 2, 5])
    walk = tree.walk("", [1, 2, 3, 9])
    assert walk is not None

    def beside(min_depth: int) -> list[tuple[set[int], int]]:
        return [(node.holders, depth) for node, depth in walk.beside(min_depth)]

    assert beside(0) == [({1}, 3), ({2}, 2)]
    assert beside(1) == beside(0)
    assert beside(2) == [({1}, 3)]
    assert beside(3) == []
