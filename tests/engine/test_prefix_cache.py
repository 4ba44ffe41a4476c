"""Sequence ids, cells and prefixes, on a fake runner."""

from __future__ import annotations

from edgeagent.engine.prefix_cache import PrefixCache
from edgeagent.engine.runner import Slice
from edgeagent.types import MemoryKind
from tests.fakes import FakeRunner
from tests.integrity import check_integrity


def compute(
    runner: FakeRunner, cache: PrefixCache, tokens: list[int], partition: str = "", keep: bool = True
) -> tuple[int, int]:
    """Claim, compute and release a prompt; return (sequence id, tokens found in the cache)."""
    claimed = cache.claim(partition, tokens, len(tokens))
    assert claimed is not None
    seq_id, found = claimed
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
    cache = PrefixCache(runner)
    first = compute(runner, cache, [1, 2, 3])
    second = compute(runner, cache, [1, 2, 3, 4])
    assert (first, second) == ((first[0], 0), (first[0], 3))
    assert len(cache.idle_ids) == 1


def test_a_branch_shares_cells_and_keeps_both() -> None:
    runner = FakeRunner()
    cache = PrefixCache(runner)
    compute(runner, cache, [1, 2, 3, 4])
    _, found = compute(runner, cache, [1, 2, 9])
    assert found == 2
    assert (len(cache.idle_ids), cache.num_cells_used) == (2, 5)
    assert cache.match("", [1, 2, 3, 4, 5], 5) == 4


def test_the_least_recently_used_prefix_goes_first() -> None:
    runner = FakeRunner(num_cells=12, max_batch=12)
    cache = PrefixCache(runner)
    compute(runner, cache, [1, 1, 1, 1])
    compute(runner, cache, [2, 2, 2, 2])
    compute(runner, cache, [1, 1, 1, 1, 1])
    compute(runner, cache, [3, 3, 3, 3])
    assert [cache.match("", [n] * 4, 4) for n in (1, 2, 3)] == [4, 0, 4]


def test_live_sequences_are_never_evicted() -> None:
    runner = FakeRunner(num_cells=8, num_sequences=2)
    cache = PrefixCache(runner)
    claimed = [cache.claim("", [n], 1) for n in (1, 2)]
    assert None not in claimed
    assert cache.claim("", [3], 1) is None
    assert cache.reserve(8)
    assert not cache.reserve(9)


def test_ids_run_out_before_cells_and_an_idle_one_is_reused() -> None:
    runner = FakeRunner(num_sequences=2)
    cache = PrefixCache(runner)
    for n in (1, 2, 3, 4):
        compute(runner, cache, [n, n])
    assert len(cache.idle_ids) == 2
    assert [cache.match("", [n, n], 2) for n in (1, 2, 3, 4)] == [0, 0, 2, 2]


def test_a_memory_that_cannot_be_cut_offers_only_whole_sequences() -> None:
    runner = FakeRunner(memory_kind=MemoryKind.RECURRENT)
    cache = PrefixCache(runner)
    compute(runner, cache, [1, 2, 3])
    assert cache.match("", [1, 2, 3, 4], 4) == 3
    assert cache.match("", [1, 2, 9], 3) == 0
    assert cache.match("", [1, 2, 3], 2) == 0


def test_what_must_not_be_kept_is_gone() -> None:
    runner = FakeRunner()
    cache = PrefixCache(runner)
    compute(runner, cache, [1, 2, 3], keep=False)
    assert (len(cache.idle_ids), cache.num_cells_used, cache.match("", [1, 2, 3], 3)) == (0, 0, 0)


def test_can_hold_counts_what_eviction_would_free() -> None:
    runner = FakeRunner(num_cells=10, max_batch=10)
    cache = PrefixCache(runner)
    compute(runner, cache, [1, 2, 3, 4])
    assert cache.can_hold(10)
    assert not cache.can_hold(11)
