"""A prefix that many conversations share is kept once and written at once."""

from __future__ import annotations

import random

import pytest

from edgeagent.engine.cache.block import MAX_BLOCK_TOKENS, MIN_PART, CachePriority, Importance, Keyring
from edgeagent.engine.cache.block_table import BlockTable
from edgeagent.engine.cache.prefix_store import PrefixStore
from edgeagent.engine.engine import Engine
from edgeagent.engine.sequence import Sequence, SequenceSpec
from edgeagent.types import MemoryKind
from tests.engine.support import greedy, naive, run
from tests.fakes import FakeClock, FakeRunner, FakeTier
from tests.integrity import check_integrity

SECRET = b"s" * 32


class Kept:
    """An engine on a fake runner, and its blocks in memory and on disk."""

    def __init__(
        self, *, host_bytes: int = 1 << 22, num_cells: int = 4096, kind: MemoryKind = MemoryKind.FULL_ATTENTION
    ) -> None:
        self.runner = FakeRunner(num_cells=num_cells, memory_kind=kind)
        can_cut = kind is MemoryKind.FULL_ATTENTION
        self.below = FakeTier()
        self.blocks = BlockTable(Keyring(b"fake", SECRET), host_bytes, self.below, can_cut=can_cut, clock=FakeClock())
        prefixes = PrefixStore(self.runner, self.blocks, clock=FakeClock())
        self.engine = Engine(self.runner, max_running=4, prefixes=prefixes, clock=FakeClock())

    def ask(self, name: str, prompt: list[int], **options: object) -> Sequence:
        sequence = self.engine.add(SequenceSpec(name, prompt, greedy(), max_tokens=3, **options))  # type: ignore[arg-type]
        assert run(self.engine)[name] == naive(prompt, 3)
        check_integrity(self.engine)
        return sequence

    def importances(self) -> dict[int, Importance]:
        """Return the importance of each block offered below, by the position of its end."""
        return {block.start + len(block.tokens): importance for block, importance in self.below.offered}


def tokens_of(length: int, seed: int) -> list[int]:
    chance = random.Random(seed)
    return [chance.randrange(1, 50) for _ in range(length)]


@pytest.mark.parametrize("num_system", [40, 88 + 512, 700, 2000, 2048, 2055])
def test_many_conversations_keep_one_system_prompt_once(num_system: int) -> None:
    kept, system = Kept(), tokens_of(num_system, 0)
    num_unique = num_system
    for number in range(30):
        question = [1 + number, *tokens_of(30, number + 1)]
        sequence = kept.ask(f"{number}", [*system, *question], num_system=num_system)
        num_unique += len(sequence.tokens) - num_system
        if number:
            assert sequence.num_cached >= num_system
    kept.engine.close()
    # A system prompt's last part, if too short for a block of its own, is stored in each conversation's block.
    num_unique += 30 * (num_system % MAX_BLOCK_TOKENS if num_system % MAX_BLOCK_TOKENS < MIN_PART else 0)
    assert sum(len(block.tokens) for block in kept.below.blocks.values()) <= 1.02 * num_unique
    assert sum(len(block.tokens) for key in kept.below.blocks if (block := kept.blocks.read(key))) <= 1.02 * num_unique


def test_later_turns_keep_nothing_twice() -> None:
    kept, system = Kept(), tokens_of(300, 0)
    prompts = [[*system, 1 + number, *tokens_of(60, number + 1)] for number in range(5)]
    for turn in range(4):
        for number, prompt in enumerate(prompts):
            sequence = kept.ask(f"{turn} {number}", prompt, num_system=300)
            assert sequence.num_cached >= (300 if turn or number else 0)
            prompts[number] = [*sequence.tokens, *tokens_of(70, 100 * turn + number)]
    kept.engine.close()
    unique = {tuple(prompt[:end]) for prompt in prompts for end in range(1, len(prompt) - 69)}
    assert sum(len(block.tokens) for block in kept.below.blocks.values()) <= 1.02 * len(unique)


def test_who_does_not_know_where_instructions_end_goes_on_from_there_too() -> None:
    kept, system = Kept(), tokens_of(300, 0)
    kept.ask("a", [*system, 1, *tokens_of(100, 1)], num_system=300)
    kept.ask("b", [*system, 2, *tokens_of(50, 2)])
    kept.engine.close()
    assert sum(len(block.tokens) for block in kept.below.blocks.values()) < 300 + 104 + 54
    # A prompt that differs before the end of these blocks still finds the shared part.
    again = Kept()
    again.below.blocks.update(kept.below.blocks)
    assert again.ask("c", [*system, 1, *tokens_of(100, 1)]).num_cached == 400
    assert again.ask("d", [*system[:280], 7, 7, 7]).num_cached == 280


def test_instructions_that_begin_with_others_hang_on_them() -> None:
    kept, system = Kept(), tokens_of(500, 0)
    prompts = [[*system[:length], *tokens_of(200, length)] for length in (300, 305, 340, 500)]
    for length, prompt in zip((300, 305, 340, 500), prompts, strict=True):
        sequence = kept.ask(f"{length}", prompt, num_system=length)
        prompt.extend(sequence.tokens[len(prompt) : -1])
    kept.engine.close()
    again = Kept()
    again.below.blocks.update(kept.below.blocks)
    for number, prompt in enumerate(prompts):
        assert again.ask(f"{number}", prompt).num_cached == len(prompt) - 1


@pytest.mark.parametrize("kind", [MemoryKind.FULL_ATTENTION, MemoryKind.RECURRENT])
def test_instructions_are_written_at_once_and_matter_more(kind: MemoryKind) -> None:
    kept, prompt = Kept(kind=kind), tokens_of(800, 0)
    kept.engine.add(SequenceSpec("a", prompt, greedy(), max_tokens=9, num_system=300, boundaries=(300,)))
    while 300 not in kept.importances():
        kept.engine.step()
    if kind is MemoryKind.RECURRENT:
        assert kept.engine.status().num_running == 1, "a state is gone when the rest of the prompt is computed"
    run(kept.engine)
    kept.engine.close()
    ends = kept.importances()
    assert ends.pop(300) is Importance.SYSTEM
    assert ends.pop(256, Importance.SYSTEM) is Importance.SYSTEM
    assert set(ends.values()) == {Importance.NORMAL}


def test_instructions_that_must_not_be_written_are_not() -> None:
    kept = Kept()
    kept.ask("secret", tokens_of(400, 0), num_system=300, persist=False)
    kept.engine.close()
    assert kept.below.offered == []


def test_where_blocks_end() -> None:
    priority = CachePriority(num_system=300)
    assert tuple(priority.block_end(start, 256) for start in (0, 256, 300, 500)) == (
        256,
        300,
        556,
        756,
    )
    assert [now for now in range(1, 900) if priority.has_block_end(now - 1, now, 256)] == [256, 300, 556, 812]
    assert CachePriority(num_system=520).block_end(512, 256) == 768, "too little for a block of its own"
    assert [now for now in range(1, 900) if CachePriority().has_block_end(now - 1, now, 256)] == [256, 512, 768]
