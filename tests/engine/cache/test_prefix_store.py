"""Which part of a prompt comes from KV cells, and which from blocks."""

from __future__ import annotations

from array import array
from typing import NoReturn

import pytest

from edgeagent.engine.cache.block import CachePriority, Importance, Keyring, Payload
from edgeagent.engine.cache.block_table import BlockTable
from edgeagent.engine.cache.cached_prefix import CachedPrefix, CellPrefix
from edgeagent.engine.cache.prefix_store import PrefixStore
from edgeagent.engine.cache.radix_tree import RadixTree, Walk
from edgeagent.engine.runner import Slice
from edgeagent.types import MemoryKind
from tests.fakes import FakeClock, FakeRunner
from tests.integrity import check_integrity

PROMPT = array("i", range(1, 97))


class Cached:
    """A prompt whose blocks of 32 tokens are in host memory."""

    def __init__(self, kind: MemoryKind = MemoryKind.FULL_ATTENTION) -> None:
        can_cut = kind is MemoryKind.FULL_ATTENTION
        self.runner = FakeRunner(num_vocab=200, max_batch=128, memory_kind=kind)
        self.blocks = BlockTable(
            Keyring(b"fake", b"s" * 32), 1 << 20, can_cut=can_cut, block_tokens=32, clock=FakeClock()
        )
        self.prefixes = PrefixStore(self.runner, self.blocks, clock=FakeClock())
        parent = None
        for start in range(0, len(PROMPT), 32):
            own = PROMPT[start : start + 32]
            block = self.blocks.make(self.blocks.root(""), parent, start, own, memoryview(bytes(100)))
            assert self.blocks.add(block, Importance.NORMAL)
            parent = block.key

    def compute(self, tokens: array[int]) -> int:
        """Put a live sequence into the cells."""
        restoring = self.prefixes.claim(tokens, CachedPrefix(self.blocks.root(""), CellPrefix(), [], []))
        assert restoring is not None and self.prefixes.slots.reserve(len(tokens))
        seq_id = restoring.seq_id
        self.runner.decode([Slice(seq_id, 0, tokens, 0)])
        self.prefixes.slots.append(seq_id, tokens)
        check_integrity(self.prefixes)
        return seq_id

    def find(self, tokens: array[int]) -> CachedPrefix:
        return self.prefixes.match("", tokens, len(tokens))


def test_one_walk_tells_what_cells_and_blocks_have(monkeypatch: pytest.MonkeyPatch) -> None:
    cached, num_walks, walk = Cached(), 0, RadixTree.walk
    seq_id = cached.compute(PROMPT[:40] + array("i", [150] * 5))

    def counted(*arguments: object) -> Walk:
        nonlocal num_walks
        num_walks += 1
        return walk(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(RadixTree, "walk", counted)
    found = cached.find(PROMPT)
    assert found.cell_prefix == CellPrefix(32, seq_id), "blocks go further than the sequence, which leaves them at 40"
    assert [(link.start, link.end) for link in found.to_restore] == [(32, 64), (64, 96)]
    assert found.end == 96
    assert num_walks == 1
    restoring = cached.prefixes.claim(PROMPT, found)
    assert restoring is not None and cached.prefixes.slots.length(restoring.seq_id) == 32
    assert num_walks == 1, "to claim is not to look again"


def test_a_sequence_that_goes_further_than_the_blocks_is_taken() -> None:
    cached = Cached()
    longer = PROMPT + array("i", [150] * 20)
    seq_id = cached.compute(longer)
    assert cached.find(longer).cell_prefix == CellPrefix(116, seq_id)
    assert cached.find(longer).to_restore == []
    assert cached.prefixes.num_shared("", longer[:110] + array("i", [7])) == 110


def test_a_state_that_is_not_where_blocks_go_on_is_left_alone() -> None:
    cached = Cached(MemoryKind.RECURRENT)
    seq_id = cached.compute(PROMPT[:40])
    assert cached.find(PROMPT[:60]).cell_prefix == CellPrefix(40, seq_id)
    found = cached.find(PROMPT)
    assert found.cell_prefix == CellPrefix()
    assert [link.start for link in found.to_restore] == [0, 32, 64]


def test_partitions_share_nothing() -> None:
    cached = Cached()
    cached.compute(PROMPT[:40])
    found = cached.prefixes.match("other", PROMPT, 96)
    assert (found.cell_prefix, found.to_restore, found.end) == (CellPrefix(), [], 0)
    assert cached.prefixes.purge("other") == 0
    assert cached.find(PROMPT).end == 96
    assert cached.prefixes.purge("") == 3
    assert cached.find(PROMPT).cell_prefix.length == 40, "a live sequence stays"


class NoMemory:
    """A codec that finds no memory."""

    def pack(self, payload: Payload) -> NoReturn:
        raise MemoryError

    def unpack(self, payload: Payload) -> NoReturn:
        raise MemoryError


def test_without_memory_a_prefix_is_neither_saved_nor_restored() -> None:
    cached = Cached()
    other = array("i", range(100, 180))
    seq_id = cached.compute(other)
    cached.blocks._codec = NoMemory()
    cached.prefixes.release(seq_id, None, keep=True, priority=CachePriority())
    while cached.prefixes.saver.has_unsaved:
        cached.prefixes.saver.run_when_idle()
    assert cached.prefixes.match("", other, len(other)).cell_prefix.length == len(other), "it stays in the cells"
    restoring = cached.prefixes.claim(PROMPT, cached.find(PROMPT))
    assert restoring is not None
    while not cached.prefixes.restorer.advance(restoring, 1.0):
        pass
    assert cached.prefixes.slots.length(restoring.seq_id) == 0
    check_integrity(cached.prefixes)
