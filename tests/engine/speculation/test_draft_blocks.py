"""The draft's own blocks: read out beside the target's, and restored without a step that waits for them."""

from __future__ import annotations

import math
from array import array
from typing import Any

import pytest

from edgeagent.engine.cache.block import Keyring
from edgeagent.engine.cache.block_table import BlockTable
from edgeagent.engine.cache.prefix_store import PrefixStore
from edgeagent.engine.costs.cost_model import CostModel, StepShape
from edgeagent.engine.engine import Engine
from edgeagent.engine.sampling.params import ResolvedSampling
from edgeagent.engine.sampling.sampler import Sampler
from edgeagent.engine.sequence import Sequence, SequenceSpec
from edgeagent.engine.speculation.draft_model import DraftModel
from edgeagent.engine.speculation.proposals import Drafters
from edgeagent.errors import InternalError
from tests.engine.support import greedy, naive, run
from tests.fakes import FakeClock, FakeRunner, FakeTier
from tests.integrity import check_integrity

PROMPT = [1 + number * number % 49 for number in range(200)]
BLOCK_TOKENS = 32


class SlowTier(FakeTier):
    """A disk that reports a slow reading rate."""

    @property
    def read_bytes_per_s(self) -> float:
        return 1000.0


def make_draft(
    runner: FakeRunner, below: FakeTier, costs: CostModel | None = None, fingerprint: bytes = b"1"
) -> DraftModel:
    keyring = Keyring(b"draft" + fingerprint, b"s" * 32)
    blocks = BlockTable(
        keyring, 1 << 20, below, can_cut=True, block_tokens=BLOCK_TOKENS, is_draft=True, clock=FakeClock()
    )
    return DraftModel(runner, PrefixStore(runner, blocks, costs, FakeClock()), FakeClock())


def decoding(name: str = "a", tokens: list[int] = PROMPT, **options: object) -> Sequence:
    spec = SequenceSpec(name, tokens[:-1], Sampler(ResolvedSampling(), 50), **options)  # type: ignore[arg-type]
    return Sequence(spec, array("i", tokens), len(tokens) - 1, 400, 0, seq_id=0, num_computed=len(tokens) - 1)


def draft_all(draft: DraftModel, sequence: Sequence) -> tuple[int, ...]:
    """Return the first proposals for a sequence, however far the draft is behind it."""
    for _ in range(100):
        proposals = draft.draft([(sequence, 3)])
        if proposals:
            return proposals[sequence.id]
        restorings = [each.restoring for each in draft._drafts.values() if each.restoring is not None]
        draft.prefixes.restorer.wait(restorings, 10.0)
    raise AssertionError("it never drafts")


def keep(below: FakeTier) -> None:
    """Let a first process save the prompt."""
    first = make_draft(FakeRunner(num_cells=512), below)
    sequence = decoding()
    draft_all(first, sequence)
    first.release(sequence)
    first.prefixes.close()
    below.close()


def test_the_next_process_begins_where_the_blocks_end() -> None:
    below = FakeTier()
    keep(below)
    assert {block.is_draft for block in below.blocks.values()} == {True}
    runner = FakeRunner(num_cells=512)
    draft, sequence = make_draft(runner, below), decoding()
    expected = draft_all(DraftModel(FakeRunner(num_cells=512)), decoding())
    assert draft_all(draft, sequence) == expected
    assert runner.num_tokens_computed <= BLOCK_TOKENS
    draft.release(sequence)
    check_integrity(draft)
    draft.prefixes.close()


def test_another_drafts_blocks_are_not_found() -> None:
    below = FakeTier()
    keep(below)
    runner = FakeRunner(num_cells=512)
    draft = make_draft(runner, below, fingerprint=b"2")
    draft_all(draft, decoding())
    assert runner.num_tokens_computed >= len(PROMPT)
    draft.prefixes.close()


def test_no_step_waits_for_a_block_that_is_being_read() -> None:
    below = FakeTier()
    keep(below)
    below.is_slow = True
    runner = FakeRunner(num_cells=512)
    draft, sequence = make_draft(runner, below), decoding()
    for _ in range(3):
        assert draft.catch_up_s(sequence) == math.inf
        assert draft.draft([(sequence, 3)]) == {}
    assert draft.is_restoring
    assert runner.num_tokens_computed == 0, "what is about to be read is not computed"
    other = decoding("b", [7, 8, 9])
    assert draft.draft([(other, 2)]).keys() == {"b"}, "others are drafted for meanwhile"
    below.is_slow = False
    draft_all(draft, sequence)
    assert not draft.is_restoring
    assert runner.num_tokens_computed <= BLOCK_TOKENS + 5
    for each in (sequence, other):
        draft.release(each)
    check_integrity(draft)
    draft.prefixes.close()


def test_a_sequence_that_ends_while_it_is_read_leaves_nothing() -> None:
    below = FakeTier()
    keep(below)
    below.is_slow = True
    draft, sequence = make_draft(FakeRunner(num_cells=512), below), decoding()
    assert draft.catch_up_s(sequence) == math.inf
    draft.release(sequence)
    assert not draft.is_restoring
    assert draft.prefixes.restorer._reads.num_bytes == 0
    check_integrity(draft)
    below.is_slow = False
    draft.prefixes.close()


def test_a_draft_that_breaks_while_blocks_are_read_computes_anew() -> None:
    class Broken(FakeRunner):
        is_broken = False

        def decode(self, slices, min_tokens: int = 0):  # type: ignore[no-untyped-def]
            if self.is_broken:
                raise InternalError("llama_decode failed with status -3")
            super().decode(slices)

    below = FakeTier()
    keep(below)
    below.is_slow = True
    runner = Broken(num_cells=512)
    draft, sequence, other = make_draft(runner, below), decoding(), decoding("b", [7, 8, 9])
    assert draft.catch_up_s(sequence) == math.inf
    runner.is_broken = True
    assert draft.draft([(other, 1)]) == {}
    assert not draft.is_restoring
    runner.is_broken = False
    below.is_slow = False
    draft_all(draft, sequence)
    assert runner.num_tokens_computed >= len(PROMPT)
    for each in (sequence, other):
        draft.release(each)
    check_integrity(draft)
    draft.prefixes.close()


def test_a_block_that_cannot_be_read_is_computed() -> None:
    below = FakeTier()
    keep(below)
    first, *_ = (block for block in below.blocks.values() if block.start == 0)
    below.lost.add(first.key)
    runner = FakeRunner(num_cells=512)
    draft = make_draft(runner, below)
    assert draft_all(draft, decoding()) == draft_all(DraftModel(FakeRunner(num_cells=512)), decoding())
    assert runner.num_tokens_computed >= len(PROMPT)
    draft.prefixes.close()


@pytest.mark.parametrize(("step_s", "is_read"), [(0.001, False), (10.0, True)])
def test_what_is_computed_sooner_than_read_is_computed(step_s: float, is_read: bool) -> None:
    below = SlowTier()
    keep(below)
    costs = CostModel(64)
    for size in (1, 64):
        costs.observe(StepShape.alone(size, 0), step_s)
    runner = FakeRunner(num_cells=512)
    draft = make_draft(runner, below, costs)
    draft_all(draft, decoding())
    assert (below.num_reads > 0) == is_read
    assert (runner.num_tokens_computed < BLOCK_TOKENS) == is_read
    draft.prefixes.close()


def test_full_blocks_of_a_stream_are_written_while_it_runs() -> None:
    """A process that is killed leaves these blocks."""
    below = FakeTier()
    draft, sequence = make_draft(FakeRunner(num_cells=512), below), decoding()
    draft_all(draft, sequence)
    draft.draft([(sequence, 1)])
    while draft.prefixes.saver.has_work:
        draft.prefixes.saver.save_one()
    assert sum(len(block.tokens) for block in below.blocks.values()) == len(PROMPT) // BLOCK_TOKENS * BLOCK_TOKENS
    draft.draft([(sequence, 1)])
    assert not draft.prefixes.saver.has_work, "they are looked for once"
    draft.release(sequence)
    draft.prefixes.close()


@pytest.mark.parametrize("options", [{"persist": False}, {"write_cache": False}])
def test_what_must_not_be_written_is_not(options: dict[str, Any]) -> None:
    below = FakeTier()
    draft, sequence = make_draft(FakeRunner(num_cells=512), below), decoding(**options)
    draft_all(draft, sequence)
    draft.draft([(sequence, 1)])
    draft.release(sequence)
    while draft.prefixes.saver.has_work:
        draft.prefixes.saver.save_one()
    draft.prefixes.close()
    assert not below.blocks


def pair(below: FakeTier) -> Engine:
    blocks = BlockTable(Keyring(b"target", b"s" * 32), 1 << 20, below, can_cut=True, clock=FakeClock())
    draft = make_draft(FakeRunner(num_cells=512), below)
    runner = FakeRunner(num_cells=512)
    prefixes = PrefixStore(runner, blocks, clock=FakeClock())
    return Engine(runner, max_running=2, drafters=Drafters(draft), prefixes=prefixes, clock=FakeClock())


def test_a_purge_leaves_nothing_of_either() -> None:
    below = FakeTier()
    engine = pair(below)
    for partition in ("mine", "yours"):
        engine.add(SequenceSpec(partition, PROMPT, greedy(), max_tokens=9, partition=partition, draft_tokens=2))
    run(engine)
    roots = {(block.root, block.is_draft) for block in below.blocks.values()}
    assert len(roots) == 4
    assert engine.purge("mine") > 0
    left = {(block.root, block.is_draft) for block in below.blocks.values()}
    assert len(left) == 2 and left < roots and {is_draft for _, is_draft in left} == {False, True}
    assert engine.memory_cache().num_blocks == len(below.blocks)
    engine.purge()
    assert not below.blocks
    assert engine.memory_cache().num_bytes == 0
    engine.close()


def test_the_status_counts_the_bytes_of_both() -> None:
    engine = pair(FakeTier())
    engine.add(SequenceSpec("a", PROMPT, greedy(), max_tokens=9, draft_tokens=2))
    run(engine)
    host = engine.memory_cache()
    saved = [prefixes.blocks.stats().num_bytes for prefixes in engine._stores]
    assert min(saved) > 0
    assert host.num_bytes == sum(saved)
    assert host.max_bytes == 2 << 20
    engine.close()


def test_the_end_of_the_process_keeps_what_either_has_not_read_out() -> None:
    below = FakeTier()
    engine = pair(below)
    engine.add(SequenceSpec("a", PROMPT, greedy(), max_tokens=9, draft_tokens=2))
    while engine.num_live:
        engine.step()
    engine.close()
    assert {block.is_draft for block in below.blocks.values()} == {False, True}
    engine = pair(below)
    engine.add(SequenceSpec("b", PROMPT, greedy(), max_tokens=9, draft_tokens=2))
    assert run(engine) == {"b": naive(PROMPT, 9)}
    draft = engine.proposals.drafters.model
    assert draft is not None
    assert draft._runner.num_tokens_computed < 2 * BLOCK_TOKENS  # type: ignore[attr-defined]
    engine.close()
