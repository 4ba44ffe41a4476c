"""What the block cache finds, and what it reports to its tiers."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from types import SimpleNamespace

import psutil
import pytest

from edgeagent.config import EngineConfig
from edgeagent.engine.cache.block import MIN_CUT, Block, BlockDisk, BlockKey, CachePriority, Importance, Keyring
from edgeagent.engine.cache.block_table import BlockTable, NextBlocks, make_table
from edgeagent.engine.cache.cached_prefix import BlockReference, CachedPrefix, CellPrefix
from edgeagent.engine.cache.prefix_store import PrefixStore
from edgeagent.engine.runner import Slice
from edgeagent.types import MemoryKind
from tests.fakes import FakeClock, FakeRunner, FakeTier
from tests.models import MEMORIES

TOKENS = array("i", range(64))
KEYS = Keyring(b"model", b"s" * 32)
ROOT = KEYS.root("")


class TouchedTier(FakeTier):
    """Records the blocks that were reported as used."""

    def __init__(self) -> None:
        super().__init__()
        self.touched: list[BlockKey] = []

    def touch(self, keys: Iterable[BlockKey]) -> None:
        self.touched += keys


def find(blocks: BlockTable, tokens: array[int]) -> list[BlockReference]:
    """Look tokens up."""
    return blocks.find(blocks.walk(ROOT, tokens))


def make_cache(below: BlockDisk | None) -> BlockTable:
    """Return a cache with two blocks of one prefix."""
    blocks = BlockTable(KEYS, 1 << 20, below, can_cut=True, block_tokens=32, clock=FakeClock())
    parent = None
    for start in (0, 32):
        block = blocks.make(ROOT, parent, start, TOKENS[start : start + 32], memoryview(bytes(100)))
        assert blocks.add(block, Importance.NORMAL)
        parent = block.key
    return blocks


def test_the_tier_below_is_told_what_is_used() -> None:
    below = TouchedTier()
    blocks = make_cache(below)
    references = find(blocks, TOKENS)
    assert [(reference.start, reference.end) for reference in references] == [(0, 32), (32, 64)]
    assert below.touched == [], "to find is not to use"
    blocks.use([reference.key for reference in references])
    assert below.touched == [reference.key for reference in references]


@pytest.mark.parametrize("max_length", [64, 32])
def test_without_a_tier_below_uses_concern_host_memory_alone(max_length: int) -> None:
    blocks = make_cache(None)
    references = find(blocks, TOKENS[:max_length])
    blocks.use([reference.key for reference in references])
    assert find(blocks, TOKENS[:max_length]) == references


@pytest.mark.parametrize("lengths", [(32, 28, 24), (24, 28, 32)])
def test_of_blocks_that_go_equally_far_the_one_with_the_least_to_cut_off_is_taken(lengths: tuple[int, ...]) -> None:
    blocks = no_tier_below(MemoryKind.FULL_ATTENTION)
    for length in lengths:
        own = TOKENS[:20] + array("i", [100 + length]) * (length - 20)
        assert blocks.add(blocks.make(ROOT, None, 0, own, memoryview(bytes(100))), Importance.NORMAL)
    (reference,) = find(blocks, TOKENS)
    assert (reference.end, reference.length) == (20, 24)


@pytest.mark.parametrize("longest_first", [True, False])
def test_of_chains_that_end_together_the_one_of_the_fewest_blocks_is_found(longest_first: bool) -> None:
    blocks = no_tier_below(MemoryKind.FULL_ATTENTION)
    for lengths in sorted([(32,), (16, 16)], key=len, reverse=longest_first):
        parent, start = None, 0
        for length in lengths:
            block = blocks.make(ROOT, parent, start, TOKENS[start : start + length], memoryview(bytes(100)))
            assert blocks.add(block, Importance.NORMAL)
            parent, start = block.key, start + length
    assert [(reference.start, reference.end) for reference in find(blocks, TOKENS[:32])] == [(0, 32)]


@pytest.mark.parametrize("num_before", [0, 32])
@pytest.mark.parametrize("shared", [MIN_CUT - 1, MIN_CUT])
def test_a_part_that_is_worth_restoring_is_found(num_before: int, shared: int) -> None:
    references = find(make_cache(None), TOKENS[: num_before + shared] + array("i", [99]) * 32)
    whole, part = [32] * (num_before // 32), [shared] if shared >= MIN_CUT else []
    assert [reference.num_tokens for reference in references] == whole + part


@pytest.mark.parametrize("kind", MEMORIES)
def test_only_a_block_of_full_attention_is_cut(kind: MemoryKind) -> None:
    blocks = no_tier_below(kind)
    assert blocks.add(blocks.make(ROOT, None, 0, TOKENS[:32], memoryview(bytes(100))), Importance.NORMAL)
    assert [reference.end for reference in find(blocks, TOKENS[:32])] == [32]
    assert [reference.end for reference in find(blocks, TOKENS[:20])] == (
        [20] if kind is MemoryKind.FULL_ATTENTION else []
    )


def no_tier_below(kind: MemoryKind) -> BlockTable:
    """Return an empty cache for a kind of memory."""
    return make_table(kind, EngineConfig(cache_memory_bytes=1 << 20), token_bytes=128 << 10, block_tokens=32)


def offered_below(blocks: BlockTable, below: FakeTier, parent: Block | None, own: array[int]) -> Block:
    """Put a block into the tier below alone, as another process would."""
    start = 0 if parent is None else parent.start + len(parent.tokens)
    block = blocks.make(ROOT, None if parent is None else parent.key, start, own, memoryview(bytes(100)))
    below.blocks[block.key] = block
    return block


def over(below: FakeTier, host_bytes: int = 1 << 20) -> BlockTable:
    """Return an empty cache over a tier."""
    return BlockTable(KEYS, host_bytes, below, can_cut=True, block_tokens=32, clock=FakeClock())


def test_a_block_behind_one_that_is_gone_hides_no_other() -> None:
    below = FakeTier()
    blocks = over(below)
    first = offered_below(blocks, below, None, TOKENS[:20])
    offered_below(blocks, below, first, TOKENS[20:52])
    other = offered_below(blocks, below, None, TOKENS[:30] + array("i", [99, 98]))
    assert [reference.end for reference in find(blocks, TOKENS)] == [20, 52]
    del below.blocks[first.key]
    for length in (64, 40):
        assert [(reference.key, reference.end) for reference in find(blocks, TOKENS[:length])] == [(other.key, 30)]


def test_a_sequence_is_saved_behind_a_block_that_went_and_came_back() -> None:
    below = FakeTier()
    blocks, runner = over(below), FakeRunner(num_cells=256)
    prefixes = PrefixStore(runner, blocks)
    first = offered_below(blocks, below, None, TOKENS[:32])
    claimed = prefixes.claim(TOKENS, CachedPrefix(ROOT, CellPrefix(), [], find(blocks, TOKENS)))
    assert claimed is not None and prefixes.slots.reserve(64)
    runner.decode([Slice(claimed.seq_id, 0, list(TOKENS[:64]), 0)])
    prefixes.slots.append(claimed.seq_id, TOKENS[:64])
    del below.blocks[first.key]
    assert find(blocks, TOKENS[:20]) == []  # the tree forgets the block too
    below.blocks[first.key] = first
    prefixes.release(claimed.seq_id, None, keep=True, priority=CachePriority())
    for _ in range(3):  # two blocks, and one call that finds no third
        prefixes.saver.save_one()
    assert not prefixes.saver.has_unsaved
    assert [reference.end for reference in find(blocks, TOKENS[:64])] == [32, 64]


def test_of_blocks_that_go_equally_far_one_in_host_memory_is_taken() -> None:
    below = FakeTier()
    blocks = over(below)
    offered_below(blocks, below, None, TOKENS[:20] + array("i", [99] * 4))
    longer = blocks.make(ROOT, None, 0, TOKENS[:20] + array("i", [98] * 12), memoryview(bytes(100)))
    assert blocks.add(longer, Importance.VOLATILE)
    (reference,) = find(blocks, TOKENS)
    assert (reference.is_in_memory, reference.key, reference.end) == (True, longer.key, 20)


class TestContinuation:
    """The stored blocks for a sequence's next tokens, when its next block is about to be saved."""

    def test_behind_a_block_that_is_gone_there_is_nothing(self) -> None:
        blocks = over(FakeTier())
        assert blocks.continuation(ROOT, b"gone" * 8, 32, TOKENS[32:40], 0) == NextBlocks(None, None)

    def test_a_block_that_has_all_of_the_tokens_is_complete_though_it_goes_on(self) -> None:
        blocks = no_tier_below(MemoryKind.FULL_ATTENTION)
        block = blocks.make(ROOT, None, 0, TOKENS[:32], memoryview(bytes(100)))
        assert blocks.add(block, Importance.NORMAL)
        found = blocks.continuation(ROOT, None, 0, TOKENS[:24], 0)
        assert found.extendable is None
        assert found.complete is not None and (found.complete.key, found.complete.end) == (block.key, 24)

    def test_a_block_that_has_all_but_the_last_is_not(self) -> None:
        below = FakeTier()
        blocks = over(below)
        first = offered_below(blocks, below, None, TOKENS[:20])
        offered_below(blocks, below, first, TOKENS[20:52])
        offered_below(blocks, below, None, TOKENS[:23] + array("i", [99] * 9))
        blocks.poll()
        assert blocks.continuation(ROOT, None, 0, TOKENS[:24], 0).complete is None

    @pytest.mark.parametrize(
        ("length", "instructions_end", "has_child", "is_extendable"),
        [(32, 0, False, True), (20, 0, False, False), (20, 20, False, True), (20, 0, True, True)],
    )
    def test_a_child_may_extend_what_is_full_ends_the_instructions_or_has_one(
        self, length: int, instructions_end: int, has_child: bool, is_extendable: bool
    ) -> None:
        below = FakeTier()
        blocks = over(below)
        block = offered_below(blocks, below, None, TOKENS[:length])
        if has_child:
            offered_below(blocks, below, block, array("i", [99] * 8))
        references = find(blocks, TOKENS[:length])
        is_known = is_extendable and not instructions_end
        assert [reference.key for reference in blocks.extendable(references)] == [block.key] * is_known
        found = blocks.continuation(ROOT, None, 0, TOKENS[:length], instructions_end)
        assert (found.extendable is not None) == is_extendable


@pytest.mark.parametrize(("total_bytes", "host_bytes"), [(8 << 30, 1 << 30), (1 << 40, 2 << 30)])
def test_host_memory_is_an_eighth_of_the_machines_within_a_bound(
    monkeypatch: pytest.MonkeyPatch, total_bytes: int, host_bytes: int
) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=total_bytes, available=total_bytes))
    config = EngineConfig(cache_memory_bytes=-1)
    assert make_table(MemoryKind.FULL_ATTENTION, config).max_bytes == host_bytes
    assert make_table(MemoryKind.FULL_ATTENTION, config, share=0.25).max_bytes == host_bytes // 4
