"""What the cache of blocks tells its tiers."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

import pytest

from edgeagent.config import EngineConfig
from edgeagent.engine.block_cache import BlockCache, make_blocks
from edgeagent.engine.blocks import BlockKey, Importance, Keyring, LowerTier
from edgeagent.engine.host_tier import HostTier
from edgeagent.types import MemoryKind
from tests.fakes import FakeClock, FakeTier

TOKENS = array("i", range(64))


class TouchedTier(FakeTier):
    """Remembers of which blocks it was told that they are used."""

    def __init__(self) -> None:
        super().__init__()
        self.touched: list[BlockKey] = []

    def touch(self, keys: Iterable[BlockKey]) -> None:
        self.touched += keys


def make_cache(below: LowerTier | None) -> BlockCache:
    """Return a cache with two blocks of one prefix."""
    host = HostTier(1 << 20, can_cut=True, below=below, clock=FakeClock())
    blocks = BlockCache(Keyring(b"model", b"s" * 32), host, below, can_cut=True, block_tokens=32)
    parent = None
    for start in (0, 32):
        block = blocks.make("", parent, start, TOKENS[start : start + 32], memoryview(bytes(100)))
        assert blocks.add(block, Importance.IDLE)
        parent = block.key
    return blocks


def test_the_tier_below_is_told_what_is_used() -> None:
    below = TouchedTier()
    blocks = make_cache(below)
    links = blocks.find("", TOKENS, 64)
    assert [(link.start, link.end) for link in links] == [(0, 32), (32, 64)]
    assert below.touched == [], "to find is not to use"
    blocks.use(links)
    assert below.touched == [link.key for link in links]


@pytest.mark.parametrize("max_length", [64, 32])
def test_without_a_tier_below_uses_concern_host_memory_alone(max_length: int) -> None:
    blocks = make_cache(None)
    links = blocks.find("", TOKENS, max_length)
    blocks.use(links)
    assert blocks.find("", TOKENS, max_length) == links


@pytest.mark.parametrize("lengths", [(32, 28, 24), (24, 28, 32)])
def test_of_blocks_that_go_equally_far_the_one_with_the_least_to_cut_off_is_taken(lengths: tuple[int, ...]) -> None:
    blocks = no_tier_below(MemoryKind.FULL_ATTENTION)
    for length in lengths:
        own = TOKENS[:20] + array("i", [100 + length]) * (length - 20)
        assert blocks.add(blocks.make("", None, 0, own, memoryview(bytes(100))), Importance.IDLE)
    (link,) = blocks.find("", TOKENS, 64)
    assert (link.end, link.length) == (20, 24)


@pytest.mark.parametrize("kind", list(MemoryKind))
def test_only_a_block_of_full_attention_is_cut(kind: MemoryKind) -> None:
    blocks = no_tier_below(kind)
    assert blocks.add(blocks.make("", None, 0, TOKENS[:32], memoryview(bytes(100))), Importance.IDLE)
    assert [link.end for link in blocks.find("", TOKENS, 32)] == [32]
    assert [link.end for link in blocks.find("", TOKENS, 20)] == ([20] if kind is MemoryKind.FULL_ATTENTION else [])


def no_tier_below(kind: MemoryKind) -> BlockCache:
    """Return an empty cache for a kind of memory."""
    return make_blocks(kind, EngineConfig(cache_memory_bytes=1 << 20), block_tokens=32)
