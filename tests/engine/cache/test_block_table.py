"""What the table keeps in memory, what it evicts first, and what it hands to the disk."""

from __future__ import annotations

import random
from array import array
from typing import Any

import pytest

from edgeagent.engine.cache.block import Block, Importance, Keyring
from edgeagent.engine.cache.block_table import BlockTable
from tests.fakes import FakeClock, FakeTier
from tests.integrity import check_integrity

KEYS = Keyring(b"model", b"s" * 32)
SIZE = 1000  # bytes of a test's block, tokens included


def make(max_bytes: int, below: FakeTier | None = None, **options: Any) -> BlockTable:
    """Return a table with this limit of memory."""
    return BlockTable(KEYS, max_bytes, below, **options)


def block(parent: Block | str, tokens: list[int], num_bytes: int = SIZE) -> Block:
    """Return a block that follows another, or that begins a partition."""
    payload = bytes(num_bytes - 4 * len(tokens))
    if isinstance(parent, str):
        root = KEYS.root(parent)
        return Block(root, root, KEYS.key(root, tokens), 0, array("i", tokens), payload)
    start = parent.start + len(parent.tokens)
    return Block(parent.root, parent.key, KEYS.key(parent.key, tokens), start, array("i", tokens), payload)


def offer(tier: BlockTable, *blocks: Block, importance: Importance = Importance.VOLATILE) -> None:
    for each in blocks:
        tier.add(each, importance)
        check_integrity(tier)


def held(tier: BlockTable, *blocks: Block) -> list[bool]:
    return [tier.read(each.key) is not None for each in blocks]


def test_what_was_offered_is_found() -> None:
    tier = make(10 * SIZE)
    first = block("", [1, 2])
    second = block(first, [3])
    offer(tier, first, second)
    assert tier.read(second.key) is second
    assert tier.read(b"?") is None
    stats = tier.stats()
    assert (stats.num_blocks, stats.num_bytes, stats.num_hits, stats.num_misses) == (2, 2 * SIZE, 1, 1)


def test_the_least_recently_used_of_equals_goes_first() -> None:
    tier = make(3 * SIZE)
    blocks = [block("", [n]) for n in range(4)]
    offer(tier, *blocks[:3])
    tier.raise_importance([blocks[0].key], Importance.VOLATILE)
    offer(tier, blocks[3])
    assert held(tier, *blocks) == [True, False, True, True]


def test_leaves_go_before_what_they_hang_on() -> None:
    tier = make(3 * SIZE)
    first = block("", [1])
    second = block(first, [2])
    other = block("", [9, 9])
    offer(tier, first, second, other)
    offer(tier, block("", [8]))
    assert held(tier, first, second, other) == [True, False, True]


def test_what_costs_more_to_compute_again_stays_longer() -> None:
    tier = make(3 * SIZE)
    dear, cheap = block("", list(range(100))), block("", [1])
    offer(tier, dear, cheap, block("", [2]))
    offer(tier, block("", [3]), block("", [4]))
    assert held(tier, dear, cheap) == [True, False]


def test_what_is_pinned_stays_and_may_fill_all() -> None:
    tier = make(2 * SIZE)
    pinned = [block("", [n]) for n in range(2)]
    offer(tier, *pinned, importance=Importance.PINNED)
    offer(tier, block("", [7]))
    assert held(tier, *pinned) == [True, True]
    assert tier.stats().num_dropped == 1


def test_a_flood_takes_only_what_is_over_the_others_share() -> None:
    clock = FakeClock()
    tier = make(8 * SIZE, clock=clock)
    mine = [block("a", [n]) for n in range(4)]
    offer(tier, *mine)
    flood = [block("b", [n]) for n in range(50)]
    offer(tier, *flood)
    assert held(tier, *mine) == [True] * 4
    clock.advance(3600)
    offer(tier, *(block("b", [100 + n]) for n in range(50)))
    assert held(tier, *mine) == [False] * 4, "nobody used them for an hour"


def test_a_longer_sibling_replaces_its_beginnings() -> None:
    tier = make(10 * SIZE)
    short, other, long = block("", [1, 2]), block("", [1, 3]), block("", [1, 2, 3])
    offer(tier, short, other, long)
    assert held(tier, short, other, long) == [False, True, True]
    exact = make(10 * SIZE, can_cut=False)
    offer(exact, short, other, long)
    assert held(exact, short, other, long) == [True, True, True]


def test_what_is_kept_is_offered_below_at_once_with_its_ancestors_first() -> None:
    below = FakeTier()
    tier = make(2 * SIZE, below=below)
    first = block("", [1])
    second = block(first, [2])
    offer(tier, first)
    tier.raise_importance([first.key], Importance.NORMAL)
    offer(tier, second, importance=Importance.NORMAL)
    assert [each for each, _ in below.offered] == [first, second]
    offer(tier, block("", [9]), block("", [10]))
    assert held(tier, first, second) == [False, False]
    offer(tier, block(second, [3]))
    assert tier.stats().num_dropped == 0, "its parent is held below"
    offer(tier, block(block("", [77]), [3]))
    assert tier.stats().num_dropped == 1


def test_what_the_disk_lost_is_offered_again_when_it_is_used_and_at_the_end() -> None:
    below = FakeTier()
    tier = make(9 * SIZE, below=below)
    blocks = [block("", [n]) for n in range(3)]
    offer(tier, *blocks, importance=Importance.NORMAL)
    offer(tier, block("", [8]), importance=Importance.VOLATILE)
    tier.poll()
    below.blocks.clear()
    below.offered.clear()
    tier.poll()
    tier.use([blocks[1].key])
    tier.use([blocks[1].key])
    assert below.offered == [(blocks[1], Importance.REUSED)]
    tier.flush()
    assert [each for each, _ in below.offered] == [blocks[1], blocks[0], blocks[2]]


def test_a_purge_forgets_one_partition_or_all() -> None:
    tier = make(9 * SIZE)
    mine = block("a", [1])
    child = block(mine, [2])
    yours = block("b", [1])
    offer(tier, mine, child, yours)
    assert tier.purge(mine.root) == 2
    check_integrity(tier)
    assert held(tier, mine, child, yours) == [False, False, True]
    assert tier.purge(None) == 1
    assert tier.stats().num_bytes == 0


def test_integrity_over_random_offers() -> None:
    rng = random.Random(0)
    for can_cut in (True, False):
        tier = make(12 * SIZE, can_cut=can_cut, below=FakeTier(), clock=FakeClock())
        known: list[Block] = []
        for _ in range(600):
            parents: list[Block | str] = [*known[-20:], "a", "b", "c"]
            parent = rng.choice(parents)
            made = block(parent, [rng.randrange(3) for _ in range(rng.randrange(1, 4))], rng.randrange(500, 3000))
            known.append(made)
            tier.add(made, rng.choice(list(Importance)[:-1]))
            tier.raise_importance([rng.choice(known).key], Importance.VOLATILE)
            tier.use([rng.choice(known).key])
            if rng.random() < 0.02:
                tier.purge(KEYS.root(rng.choice("abc")))
            check_integrity(tier)


def test_what_must_not_be_written_is_not_whoever_uses_it() -> None:
    below = FakeTier()
    tier = make(10 * SIZE, below=below)
    secret = block("", [1, 2])
    child = block(secret, [3])
    offer(tier, secret, importance=Importance.VOLATILE)
    tier.use((secret.key,))
    offer(tier, child, importance=Importance.NORMAL)
    tier.flush()
    assert below.offered == []
    # Offered once a sequence with all these tokens may be written to disk.
    tier.raise_importance((secret.key, child.key), Importance.NORMAL)
    assert [each for each, _ in below.offered] == [secret, child]


def test_a_longer_one_that_must_not_be_written_leaves_the_shorter_one_below() -> None:
    below = FakeTier()
    tier = make(10 * SIZE, below=below)
    short, longer = block("", [1, 2]), block("", [1, 2, 3])
    offer(tier, short, importance=Importance.NORMAL)
    offer(tier, longer, importance=Importance.VOLATILE)
    assert held(tier, short, longer) == [False, True]
    assert list(below.blocks) == [short.key]
    offer(tier, short, importance=Importance.NORMAL)
    offer(tier, block("", [1, 2, 3, 4]), importance=Importance.NORMAL)
    assert short.key not in below.blocks


@pytest.mark.parametrize("num_blocks", [500, 5_000])
def test_an_eviction_looks_at_a_few_blocks_however_many_there_are(
    num_blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted over all additions and evictions, since some of them put off work for later ones."""
    num_looks, may_go = 0, BlockTable._may_go

    def counted(table: BlockTable, key: bytes, entry: Any) -> bool:
        nonlocal num_looks
        num_looks += 1
        return may_go(table, key, entry)

    monkeypatch.setattr(BlockTable, "_may_go", counted)
    tier = make(num_blocks * SIZE)
    parents = [block("", [number]) for number in range(num_blocks)]
    for parent in parents:
        tier.add(parent, Importance.VOLATILE)
        tier.add(block(parent, [1]), Importance.VOLATILE)
    assert tier.stats().num_evicted == num_blocks
    assert num_looks < 10 * num_blocks
