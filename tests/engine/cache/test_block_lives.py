"""One tree finds blocks by their tokens in all tiers: compared with a full search, over random lives."""

from __future__ import annotations

import random
from array import array

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from edgeagent.engine.cache.block import MIN_CUT, MIN_PART, Block, Dropped, Importance, Keyring, common_length
from edgeagent.engine.cache.block_table import BlockTable
from edgeagent.engine.cache.cached_prefix import BlockReference
from edgeagent.engine.cache.prefix_store import PrefixStore
from edgeagent.engine.engine import Engine
from edgeagent.engine.sequence import Sequence, SequenceSpec
from edgeagent.types import MemoryKind
from tests.engine.support import greedy, naive, run
from tests.examples import examples
from tests.fakes import FakeClock, FakeRunner, FakeTier
from tests.integrity import check_integrity

KEYS = Keyring(b"model", b"s" * 32)
BLOCK_TOKENS = 32
# Few different tokens, most of them the same, so that prefixes often overlap and diverge.
RUNS = st.lists(st.tuples(st.integers(1, 2), st.integers(1, 24)), min_size=1, max_size=5)
PARTITIONS = st.sampled_from(["a", "b"])


def tokens_of(runs: list[tuple[int, int]]) -> array[int]:
    return array("i", [token for token, count in runs for _ in range(count)])


class LossyTier(FakeTier):
    """Takes a block only if it holds the parent, which it may have lost."""

    def write(self, block: Block, importance: Importance, *, is_full: bool) -> None:
        if block.parent != block.root and block.parent not in self.blocks:
            self._results[block.is_draft].append(Dropped(block))
        else:
            super().write(block, importance, is_full=is_full)


class Lives(RuleBasedStateMachine):
    """Blocks are saved, evicted, lost, purged and found, across restarts; a lookup finds the longest stored prefix."""

    @initialize(can_cut=st.booleans())
    def begin(self, can_cut: bool) -> None:
        self.can_cut = can_cut
        self.below = LossyTier()
        self.known: dict[bytes, tuple[str, array[int], int]] = {}  # partition, whole prefix, start
        self.start()

    def start(self) -> None:
        self.blocks = BlockTable(
            KEYS, 6000, self.below, can_cut=self.can_cut, block_tokens=BLOCK_TOKENS, clock=FakeClock()
        )

    @rule(partition=PARTITIONS, runs=RUNS, size=st.integers(MIN_PART, BLOCK_TOKENS), payload=st.integers(100, 900))
    def save(self, partition: str, runs: list[tuple[int, int]], size: int, payload: int) -> None:
        """Add one more block of a prefix, after its stored blocks."""
        tokens = tokens_of(runs)
        references = self.look_up(partition, tokens)
        whole = [reference for reference in references if reference.is_whole]
        start = whole[-1].end if whole else 0
        own = tokens[start : start + size]
        if len(own) < MIN_PART:
            return
        block = self.blocks.make(
            KEYS.root(partition), whole[-1].key if whole else None, start, own, memoryview(bytes(payload))
        )
        if self.blocks.add(block, Importance.NORMAL):
            self.known[block.key] = partition, tokens[: start + len(own)], start

    @rule(number=st.integers(0, 1 << 16))
    def lose(self, number: int) -> None:
        """Lose a block of the tier below, as by eviction or a damaged file."""
        if self.below.blocks:
            del self.below.blocks[sorted(self.below.blocks)[number % len(self.below.blocks)]]

    @rule(number=st.integers(0, 1 << 16))
    def promote(self, number: int) -> None:
        """Load a block from the tier below."""
        if self.below.blocks:
            block = self.below.blocks[sorted(self.below.blocks)[number % len(self.below.blocks)]]
            self.blocks.add(block, Importance.NORMAL)

    @rule(partition=st.one_of(PARTITIONS, st.none()))
    def purge(self, partition: str | None) -> None:
        self.blocks.purge(None if partition is None else KEYS.root(partition))
        assert not [key for key, (owner, _, _) in self.held().items() if partition in (None, owner)]

    @rule()
    def restart(self) -> None:
        self.blocks.flush()
        self.below.close()
        self.start()

    @rule(partition=PARTITIONS, runs=RUNS)
    def find(self, partition: str, runs: list[tuple[int, int]]) -> None:
        wanted = tokens_of(runs)
        references = self.look_up(partition, wanted)
        self.check_references(partition, wanted, references)
        assert (references[-1].end if references else 0) == self.reach(partition, wanted)

    @precondition(lambda self: self.known)
    @rule(number=st.integers(0, 1 << 16), more=RUNS)
    def find_again(self, number: int, more: list[tuple[int, int]]) -> None:
        partition, tokens, _ = self.known[sorted(self.known)[number % len(self.known)]]
        wanted = tokens + tokens_of(more)
        references = self.look_up(partition, wanted)
        self.check_references(partition, wanted, references)
        assert (references[-1].end if references else 0) == self.reach(partition, wanted)

    def look_up(self, partition: str, tokens: array[int]) -> list[BlockReference]:
        return self.blocks.find(self.blocks.walk(KEYS.root(partition), tokens))

    def held(self) -> dict[bytes, tuple[str, array[int], int]]:
        return {key: known for key, known in self.known.items() if self.blocks.is_held(key)}

    def reach(self, partition: str, wanted: array[int]) -> int:
        """Return how many tokens of a prefix the blocks can restore, by a search of all blocks."""
        mine = [known[1:] for known in self.held().values() if known[0] == partition and known[1][:0] == wanted[:0]]
        reached = {0}
        for prefix, start in sorted(mine, key=lambda each: len(each[0])):
            if start in reached and wanted[: len(prefix)] == prefix:
                reached.add(len(prefix))
        parts = [
            shared
            for prefix, start in mine
            if start in reached and (shared := common_length(prefix, wanted)) - start >= MIN_CUT
        ]
        return max(reached | set(parts if self.can_cut else ()))

    def check_references(self, partition: str, wanted: array[int], references: list[BlockReference]) -> None:
        at = 0
        for number, reference in enumerate(references):
            owner, prefix, start = self.known[reference.key]
            assert (owner, start) == (partition, at)
            assert reference.is_whole or (self.can_cut and number == len(references) - 1)
            assert prefix[: reference.end] == wanted[: reference.end]
            block = self.blocks.read(reference.key)
            assert reference.is_in_memory == (block is not None)
            assert reference.num_bytes == (block or self.below.blocks[reference.key]).num_bytes
            at = reference.end

    @invariant()
    def is_sound(self) -> None:
        if hasattr(self, "blocks"):
            check_integrity(self.blocks)


TestLives = Lives.TestCase
TestLives.settings = settings(max_examples=examples(100), stateful_step_count=40, deadline=None)


def make_engine(below: FakeTier, runner: FakeRunner | None = None) -> tuple[Engine, FakeRunner]:
    runner = runner or FakeRunner(num_cells=8192, max_batch=512)
    can_cut = runner.memory_kind is MemoryKind.FULL_ATTENTION
    blocks = BlockTable(KEYS, 1 << 22, below, can_cut=can_cut)
    prefixes = PrefixStore(runner, blocks, clock=FakeClock())
    return Engine(runner, max_running=4, prefixes=prefixes, clock=FakeClock()), runner


def ask(engine: Engine, name: str, prompt: list[int]) -> Sequence:
    sequence = engine.add(SequenceSpec(name, prompt, greedy(), max_tokens=3))
    assert run(engine)[name] == naive(prompt, 3)
    check_integrity(engine)
    return sequence


def prompt_of(length: int, seed: int) -> list[int]:
    chance = random.Random(seed)
    return [chance.randrange(1, 50) for _ in range(length)]


@pytest.mark.parametrize("num_siblings", [1, 6, 40])
def test_after_a_restart_siblings_have_all_that_they_share(num_siblings: int) -> None:
    below, shared = FakeTier(), prompt_of(1400, 0)
    first, _ = make_engine(below)
    prompts = [[*shared, *prompt_of(60, seed + 1)] for seed in range(num_siblings)]
    for number, prompt in enumerate(prompts):
        ask(first, f"{number}", prompt)
    first.close()
    for prompt in (*prompts[:3], [*shared, *prompt_of(60, 99)]):
        engine, runner = make_engine(below)
        sequence = ask(engine, "again", prompt)
        assert sequence.num_cached >= 1400 - 32
        assert runner.num_tokens_computed <= len(prompt) - sequence.num_cached + 2
        engine.close()


@pytest.mark.parametrize("shared", [40, 255, 256, 300, 777, 1399])
def test_a_prompt_that_leaves_another_anywhere_has_what_they_share(shared: int) -> None:
    below, prompt = FakeTier(), prompt_of(1400, 0)
    first, _ = make_engine(below)
    ask(first, "whole", prompt)
    first.close()
    engine, _ = make_engine(below)
    other = 50 - prompt[shared]
    sequence = ask(engine, "edited", [*prompt[:shared], other if other != prompt[shared] else 1, 7, 7])
    assert shared - MIN_CUT < sequence.num_cached <= shared
    assert sequence.num_restored == {"disk": sequence.num_cached}


class Fragile(FakeRunner):
    """Refuses restores after the first few."""

    def __init__(self, num_good_restores: int, kind: MemoryKind) -> None:
        super().__init__(num_cells=8192, max_batch=512, memory_kind=kind)
        self.num_good_restores = num_good_restores

    def restore(self, seq_id: int, payload: memoryview, end: int) -> bool:  # type: ignore[override]
        self.num_good_restores -= 1
        return self.num_good_restores >= 0 and super().restore(seq_id, payload, end)


@pytest.mark.parametrize("kind", [MemoryKind.FULL_ATTENTION, MemoryKind.RECURRENT])
@pytest.mark.parametrize("num_good_restores", [0, 1, 3, 100])
@pytest.mark.parametrize("min_prompt_chunk", [1, 2])
def test_what_is_told_as_cached_is_what_is_not_computed(
    kind: MemoryKind, num_good_restores: int, min_prompt_chunk: int
) -> None:
    below, prompt = FakeTier(), prompt_of(1400, 0)
    first, _ = make_engine(below, Fragile(0, kind))
    ask(first, "whole", prompt)
    first.close()
    runner = Fragile(num_good_restores, kind)
    runner.min_prompt_chunk = min_prompt_chunk
    engine, _ = make_engine(below, runner)
    for name, wanted in (("restored", prompt), ("from cells", prompt), ("longer", [*prompt, 3, 4, 5])):
        before = runner.num_tokens_computed
        sequence = ask(engine, name, wanted)
        # all tokens of an answer except the last are computed
        num_fed_back = len(sequence.tokens) - sequence.num_prompt - 1
        num_computed = runner.num_tokens_computed - before - max(0, num_fed_back)
        assert sequence.num_cached + num_computed in (sequence.num_prompt, sequence.num_prompt + 1)
        assert sequence.num_cached <= sequence.num_prompt - min_prompt_chunk
