"""Blocks on their way to the tier below: which count as pending, and until when."""

from __future__ import annotations

import pytest

from edgeagent.engine.cache.backlog import Backlog
from edgeagent.engine.cache.block import Block, BlockKey, Importance
from tests.engine.cache.disk.stores import make_chain
from tests.fakes import FakeTier

FIRST, SECOND = make_chain(2)


class SlowTier(FakeTier):
    """A tier whose blocks are pending until `write`; it takes none while `is_full`."""

    def __init__(self) -> None:
        super().__init__()
        self.pending: dict[BlockKey, Block] = {}
        self.is_full = self.is_idle = False

    def offer(self, block: Block, importance: Importance) -> bool:
        if not self.is_full:
            self.pending[block.key] = block
        return not self.is_full

    def is_pending(self, key: BlockKey) -> bool:
        return key in self.pending

    def withdraw(self, key: BlockKey) -> None:
        self.pending.pop(key, None)

    @property
    def is_stalled(self) -> bool:
        return self.is_idle

    def write(self, key: BlockKey) -> None:
        self.blocks[key] = self.pending.pop(key)


@pytest.fixture
def below() -> SlowTier:
    return SlowTier()


@pytest.fixture
def backlog(below: SlowTier) -> Backlog:
    made = Backlog(below)
    assert made.offer(FIRST, Importance.NORMAL)
    assert made.offer(SECOND, Importance.NORMAL)
    return made


def test_what_is_taken_counts_once_however_often_it_is_offered(backlog: Backlog) -> None:
    assert backlog.offer(FIRST, Importance.SYSTEM)
    assert backlog.num_bytes == FIRST.num_bytes + SECOND.num_bytes
    assert list(backlog) == [SECOND.key, FIRST.key]
    backlog.forget(FIRST.key)
    backlog.forget(FIRST.key)
    assert backlog.num_bytes == SECOND.num_bytes
    assert FIRST.key not in backlog
    assert SECOND.key in backlog


def test_what_is_not_taken_does_not_count(below: SlowTier) -> None:
    backlog = Backlog(below)
    below.is_full = True
    assert not backlog.offer(FIRST, Importance.NORMAL)
    assert (list(backlog), backlog.num_bytes) == ([], 0)


def test_what_is_written_counts_until_the_next_look(backlog: Backlog, below: SlowTier) -> None:
    assert backlog.is_pending(FIRST.key)
    assert backlog.is_below_or_pending(FIRST.key)
    assert not backlog.is_below(FIRST.key)
    below.write(FIRST.key)
    assert not backlog.is_pending(FIRST.key)
    assert backlog.is_below_or_pending(FIRST.key)
    assert backlog.is_below(FIRST.key)
    assert backlog.num_bytes == FIRST.num_bytes + SECOND.num_bytes
    assert backlog.forget_finished() == [FIRST.key]
    assert backlog.num_bytes == SECOND.num_bytes
    assert backlog.forget_finished() == []


def test_what_is_taken_back_is_not_on_its_way(backlog: Backlog, below: SlowTier) -> None:
    backlog.withdraw(SECOND.key)
    assert not below.is_pending(SECOND.key)
    assert not backlog.is_below_or_pending(SECOND.key)
    assert backlog.num_bytes == FIRST.num_bytes


def test_what_others_have_pending_is_taken_but_not_pending_here(below: SlowTier) -> None:
    below.offer(FIRST, Importance.NORMAL)
    backlog = Backlog(below)
    assert backlog.is_below_or_pending(FIRST.key)
    assert not backlog.is_pending(FIRST.key)


def test_it_stalls_with_the_tier_below(backlog: Backlog, below: SlowTier) -> None:
    assert not backlog.is_stalled
    below.is_idle = True
    assert backlog.is_stalled


def test_without_a_tier_below_nothing_is_taken() -> None:
    backlog = Backlog(None)
    assert not backlog.offer(FIRST, Importance.PINNED)
    backlog.withdraw(FIRST.key)
    assert not backlog.is_stalled
    assert not backlog.is_below_or_pending(FIRST.key)
    assert not backlog.is_pending(FIRST.key)
    assert (backlog.forget_finished(), backlog.num_bytes) == ([], 0)
