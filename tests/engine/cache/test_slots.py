"""Sequence ids, cells and prefixes, on a fake runner."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from edgeagent.engine.cache.cached_prefix import CellPrefix
from edgeagent.engine.cache.radix_tree import RadixTree
from edgeagent.engine.cache.slots import Slots
from edgeagent.engine.runner import Slice
from edgeagent.types import MemoryKind
from tests.fakes import FakeRunner
from tests.integrity import check_integrity

ROOT = b"root"


def make_cache(runner: FakeRunner, on_evict: Callable[[int], None] | None = None) -> Slots:
    return Slots(runner, RadixTree(), on_evict)


def match(cache: Slots, tokens: list[int]) -> CellPrefix:
    return cache.match(cache._tree.walk(ROOT, tokens), len(tokens))


def claim(cache: Slots, tokens: list[int]) -> int:
    """Claim the cached prefix of a prompt."""
    seq_id = cache.claim(ROOT, match(cache, tokens))
    assert seq_id is not None
    return seq_id


def compute(runner: FakeRunner, cache: Slots, tokens: list[int], keep: bool = True) -> tuple[int, int]:
    """Claim, compute and release a prompt; return its sequence id and the number of cached tokens."""
    seq_id = claim(cache, tokens)
    found = cache.length(seq_id)
    rest = tokens[found:]
    if rest:
        assert cache.reserve(len(rest))
        runner.decode([Slice(seq_id, found, rest, 0)])
        cache.append(seq_id, rest)
    check_integrity(cache)
    cache.release(seq_id, keep=keep)
    check_integrity(cache)
    return seq_id, found


def test_a_continued_prefix_is_taken_over_without_a_copy() -> None:
    runner = FakeRunner()
    cache = make_cache(runner)
    first = compute(runner, cache, [1, 2, 3])
    second = compute(runner, cache, [1, 2, 3, 4])
    assert (first, second) == ((first[0], 0), (first[0], 3))
    assert len(cache.idle_ids) == 1


def test_a_branch_shares_cells_and_keeps_both() -> None:
    runner = FakeRunner()
    cache = make_cache(runner)
    compute(runner, cache, [1, 2, 3, 4])
    _, found = compute(runner, cache, [1, 2, 9])
    assert found == 2
    assert (len(cache.idle_ids), cache.num_cells_used) == (2, 5)
    assert match(cache, [1, 2, 3, 4, 5]).length == 4


def test_the_least_recently_used_prefix_goes_first() -> None:
    runner = FakeRunner(num_cells=12, max_batch=12)
    cache = make_cache(runner)
    compute(runner, cache, [1, 1, 1, 1])
    compute(runner, cache, [2, 2, 2, 2])
    compute(runner, cache, [1, 1, 1, 1, 1])
    compute(runner, cache, [3, 3, 3, 3])
    assert [match(cache, [n] * 4).length for n in (1, 2, 3)] == [4, 0, 4]


def test_live_sequences_are_never_evicted() -> None:
    runner = FakeRunner(num_cells=8, num_sequences=2)
    cache = make_cache(runner)
    assert {claim(cache, [n]) for n in (1, 2)} == {0, 1}
    assert cache.claim(ROOT, CellPrefix()) is None
    assert cache.reserve(8)
    assert not cache.reserve(9)


def test_ids_run_out_before_cells_and_an_idle_one_is_reused() -> None:
    runner = FakeRunner(num_sequences=2)
    cache = make_cache(runner)
    for n in (1, 2, 3, 4):
        compute(runner, cache, [n, n])
    assert len(cache.idle_ids) == 2
    assert [match(cache, [n, n]).length for n in (1, 2, 3, 4)] == [0, 0, 2, 2]


def test_a_memory_that_cannot_be_cut_offers_only_whole_sequences() -> None:
    runner = FakeRunner(memory_kind=MemoryKind.RECURRENT)
    cache = make_cache(runner)
    compute(runner, cache, [1, 2, 3])
    assert match(cache, [1, 2, 3, 4]).length == 3
    assert match(cache, [1, 2, 9]) == CellPrefix()
    assert cache.match(cache._tree.walk(ROOT, [1, 2, 3]), 2) == CellPrefix()


def test_what_must_not_be_kept_is_gone() -> None:
    runner = FakeRunner()
    cache = make_cache(runner)
    compute(runner, cache, [1, 2, 3], keep=False)
    assert (len(cache.idle_ids), cache.num_cells_used, match(cache, [1, 2, 3]).length) == (0, 0, 0)


def test_what_fits_counts_all_cells_that_eviction_would_free() -> None:
    runner = FakeRunner(num_cells=10, max_batch=10)
    cache = make_cache(runner)
    compute(runner, cache, [1, 2, 3, 4])
    compute(runner, cache, [1, 2, 3, 5])  # it shares three cells
    for prefix in (CellPrefix(), match(cache, [1, 2, 3, 4, 9])):
        assert cache.fits(10, prefix)
        assert not cache.fits(11, prefix)


def test_of_equally_long_prefixes_the_one_that_ends_there_is_taken_over() -> None:
    runner = FakeRunner()
    cache = make_cache(runner)
    compute(runner, cache, [1, 2, 3, 4])
    compute(runner, cache, [1, 2, 3])
    assert len(cache.idle_ids) == 2
    compute(runner, cache, [1, 2, 3, 9])
    assert len(cache.idle_ids) == 2, "the shorter one has grown; there is no third"


def test_a_live_sequence_that_cannot_be_cut_is_emptied() -> None:
    runner = FakeRunner(memory_kind=MemoryKind.RECURRENT)
    cache = make_cache(runner)
    seq_id = claim(cache, [1, 2, 3])
    assert cache.reserve(3)
    runner.decode([Slice(seq_id, 0, [1, 2, 3], 0)])
    cache.append(seq_id, [1, 2])
    assert cache.rewind(seq_id) == 0, "it ended in the middle of a step"
    assert (cache.length(seq_id), cache.num_cells_used, runner.length(seq_id)) == (0, 0, 0)


def test_the_gap_below_an_idle_prefix_counts_what_is_neither_its_own_nor_live() -> None:
    runner = FakeRunner()
    cache = make_cache(runner)
    compute(runner, cache, [1] * 6)
    live = claim(cache, [2])
    assert cache.reserve(3)
    runner.decode([Slice(live, 0, [2, 2, 2], 0)])
    cache.append(live, [2, 2, 2])
    high, _ = compute(runner, cache, [3] * 4)
    assert cache.gap_below(high, 4) == 6, "the first prefix's cells"
    assert cache.gap_below(high, 2) == 6
    low = next(iter(cache.idle_ids))
    assert cache.gap_below(low, 6) == 0, "a live sequence reaches further up"


def test_below_a_prefix_that_a_live_sequence_shares_is_no_gap() -> None:
    """The cells of such a prefix stay where they are for the live sequence."""
    runner = FakeRunner()
    cache = make_cache(runner)
    compute(runner, cache, [1] * 6)
    idle, _ = compute(runner, cache, [3] * 4)
    assert cache.gap_below(idle, 2) == 6
    claim(cache, [3, 3, 9])
    assert cache.gap_below(idle, 2) == 0
    assert cache.gap_below(idle, 4) == 6 - 2, "of what the live one has nothing lies further up"


def test_of_equally_long_prefixes_an_idle_one_is_found_before_a_live_one() -> None:
    runner = FakeRunner()
    cache = make_cache(runner)
    idle, _ = compute(runner, cache, [1, 2, 3, 4])
    assert claim(cache, [1, 2, 3]) != idle
    assert match(cache, [1, 2, 3, 9]) == CellPrefix(3, idle)


def test_one_idle_prefix_is_evicted_at_a_time_and_told_of_first() -> None:
    runner, evicted = FakeRunner(), list[int]()
    cache = make_cache(runner, evicted.append)
    first, _ = compute(runner, cache, [1, 1, 1])
    second, _ = compute(runner, cache, [2, 2, 2])
    assert [cache.evict_one() for _ in range(3)] == [True, True, False]
    assert evicted == [first, second]
    assert (cache.idle_ids, cache.num_cells_used) == ((), 0)


def test_a_prefix_of_one_token_stays_and_one_of_none_does_not() -> None:
    runner = FakeRunner()
    cache = make_cache(runner)
    first, _ = compute(runner, cache, [1])
    empty = claim(cache, [7])
    cache.release(empty, keep=True)
    assert cache.idle_ids == (first,)
    assert cache.is_idle(first) and not cache.is_idle(empty)
    check_integrity(cache)


def test_what_is_cut_off_frees_its_cells() -> None:
    runner = FakeRunner()
    cache = make_cache(runner)
    seq_id = claim(cache, [1, 2, 3, 4])
    runner.decode([Slice(seq_id, 0, [1, 2, 3, 4], 0)])
    cache.append(seq_id, [1, 2, 3, 4])
    assert cache.num_cells_used == 4
    assert cache.cut(seq_id, 3) == 3
    assert (cache.num_cells_used, runner.length(seq_id)) == (3, 3)
    check_integrity(cache)


def test_a_prefix_that_another_branches_from_counts_as_used() -> None:
    runner = FakeRunner()
    cache = make_cache(runner)
    first, _ = compute(runner, cache, [1, 2, 3, 4])
    second, _ = compute(runner, cache, [5, 6])
    branch, found = compute(runner, cache, [1, 2, 9])
    assert found == 2
    assert cache.idle_ids == (second, first, branch)


@pytest.mark.parametrize("is_first_live", [True, False])
def test_an_idle_prefix_is_found_before_a_live_one_whichever_came_first(is_first_live: bool) -> None:
    runner = FakeRunner()
    cache = make_cache(runner)
    ids = []
    for tokens in ([1, 2, 3], [1, 2, 4]):
        seq_id = cache.claim(ROOT, CellPrefix())
        assert seq_id is not None
        runner.decode([Slice(seq_id, 0, tokens, 0)])
        cache.append(seq_id, tokens)
        ids.append(seq_id)
    idle = ids[1] if is_first_live else ids[0]
    cache.release(idle, keep=True)
    assert match(cache, [1, 2, 9]) == CellPrefix(2, idle)


def test_a_sequence_s_partition_is_told() -> None:
    runner = FakeRunner()
    cache = make_cache(runner)
    seq_id, _ = compute(runner, cache, [1, 2, 3, 4])
    assert cache.root(seq_id) == ROOT
