"""Which waiting sequences start, and how often the cache is searched for them."""

from __future__ import annotations

import random
from collections.abc import Sequence as Items
from dataclasses import replace

import pytest

from edgeagent.engine.cache.block import Keyring
from edgeagent.engine.cache.block_table import BlockTable
from edgeagent.engine.cache.cached_prefix import CachedPrefix
from edgeagent.engine.cache.prefix_store import PrefixStore
from edgeagent.engine.engine import Engine
from edgeagent.engine.sequence import SequenceSpec
from tests.engine.support import greedy, make_engine, run
from tests.fakes import FakeRunner, warm_costs
from tests.integrity import check_integrity


class CountingPrefixes(PrefixStore):
    """Counts lookups, and can drop all idle prefixes."""

    num_lookups = 0

    def match(self, partition: str, tokens: Items[int], max_length: int, *, only_live: bool = False) -> CachedPrefix:
        self.num_lookups += 1
        return super().match(partition, tokens, max_length, only_live=only_live)


def make(
    num_cells: int = 256, *, num_sequences: int = 8, max_running: int = 4, host_bytes: int = 0
) -> tuple[Engine, CountingPrefixes]:
    runner = FakeRunner(num_cells=num_cells, num_sequences=num_sequences, max_batch=64, end_token=-1)
    blocks = BlockTable(Keyring(b"fake", b"s" * 32), host_bytes, can_cut=True, block_tokens=32)
    prefixes = CountingPrefixes(runner, blocks, warm_costs(runner.max_batch))
    return Engine(runner, max_running=max_running, prefixes=prefixes), prefixes


def spec_of(name: str, prompt: Items[int], max_tokens: int = 200) -> SequenceSpec:
    return SequenceSpec(id=name, prompt=list(prompt), sampler=greedy(), max_tokens=max_tokens)


def start(engine: Engine, name: str, prompt: Items[int], max_tokens: int = 200) -> None:
    """Add a sequence and step until it gave a token or ended."""
    sequence = engine.add(spec_of(name, prompt, max_tokens))
    while sequence.num_output < 1:
        engine.step()


def build(seed: int) -> tuple[Engine, CountingPrefixes, list[int]]:
    """Make an engine with random forks of idle prefixes and live sequences. Return it with a new prompt."""
    chance = random.Random(seed)
    engine, prefixes = make(
        chance.randrange(130, 220),
        num_sequences=chance.choice((4, 8)),
        max_running=4,
        host_bytes=chance.choice((0, 0, 1 << 20)),
    )
    texts = [[chance.randrange(1, 50) for _ in range(100)] for _ in range(2)]
    prompts = list[list[int]]()

    def some_prompt() -> list[int]:
        base = chance.choice(texts + prompts)
        own = [chance.randrange(1, 50) for _ in range(chance.randrange(40))]
        return (base[: chance.randrange(1, len(base) + 1)] + own)[:120]

    num_live = 0
    for number in range(chance.randrange(2, 9)):
        prompts.append(some_prompt())
        is_live = num_live < 3 and chance.random() < 0.4
        num_live += is_live
        sequence = engine.add(spec_of(str(number), prompts[-1], 100 if is_live else 2))
        for _ in range(30):
            engine.step()
        if sequence.seq_id is None or not is_live:
            engine.cancel(sequence.id)
    return engine, prefixes, some_prompt()


@pytest.mark.parametrize(
    "first", [0, *(pytest.param(first, marks=pytest.mark.slow(seconds=2)) for first in range(20, 240, 20))]
)
def test_what_fits_once_all_idle_prefixes_are_gone_is_admitted(first: int) -> None:
    num_admitted = num_refused = 0
    for seed in range(first, first + 20):
        outcomes = []
        for is_emptied in (False, True):
            engine, prefixes, prompt = build(seed)
            while is_emptied and prefixes.slots.evict_one():
                pass
            sequence = engine.add(spec_of("new", prompt, 1))
            engine.admit()
            outcomes.append(sequence.seq_id is not None or sequence.awaited_prefill is not None)
            check_integrity(engine)
        assert outcomes[0] == outcomes[1], seed
        num_admitted += outcomes[0]
        num_refused += not outcomes[0]
    assert num_admitted and num_refused


def test_idle_turns_that_share_cells_make_room_beside_a_stream() -> None:
    engine, _ = make()
    common = list(range(1, 45)) * 3
    start(engine, "turn 1", [*common, 1], 1)
    start(engine, "turn 2", [*common, 2], 1)
    start(engine, "stream", [7, 7, 7], 150)
    new = engine.add(spec_of("new", [9] * 150, 5))
    engine.step()
    assert new.seq_id is not None


def test_the_last_id_is_taken_from_an_idle_prefix_that_the_prompt_begins_with() -> None:
    engine, _ = make(num_sequences=2)
    start(engine, "stream", [1, 2, 3])
    start(engine, "turn", [4, 5, 6, 7], 1)
    other = engine.add(spec_of("other", [4, 5, 8], 5))
    engine.step()
    assert other.seq_id is not None


@pytest.mark.parametrize("host_bytes", [0, 1 << 20])
def test_a_prompt_that_waits_for_cells_is_not_looked_up_in_each_step(host_bytes: int) -> None:
    engine, prefixes = make(host_bytes=host_bytes)
    long = [number % 49 + 1 for number in range(200)]
    start(engine, "before", long, 1)
    start(engine, "stream", [7] * 60, 100)
    waiting = engine.add(spec_of("waiting", [*long, 5], 5))
    engine.step()
    assert waiting.seq_id is None
    before = prefixes.num_lookups
    for _ in range(20):
        engine.admit()
        engine.step()
        engine.save_step()
    assert waiting.seq_id is None
    assert prefixes.num_lookups == before
    engine.cancel("stream")
    engine.admit()
    assert waiting.seq_id is not None
    assert prefixes.num_lookups == before + 1


def test_the_revisions_of_a_message_keep_one_prefix_and_no_other_prompt_leaves_for_them() -> None:
    runner = FakeRunner(num_cells=2048, num_sequences=6, max_batch=64, end_token=-1, num_vocab=1000)
    engine = make_engine(runner)
    prompts = {name: [ord(name), *range(100, 140)] for name in "abc"}
    for name, prompt in prompts.items():
        engine.add(SequenceSpec(name, prompt, greedy(1000), max_tokens=1, partition=name))
        run(engine)
    said = [9, *range(200, 280)]
    for number in range(12):
        said.append(300 + number)
        prompt, kept = [*said, 7, 8, 9], len(said) - 1
        spec = SequenceSpec(f"{number}", prompt, greedy(1000), prefill_only=True, partition="v")
        revision = engine.add(replace(spec, is_ahead=True, boundaries=(kept,)))
        run(engine)
        assert revision.num_cached == (kept if number else 0)
    other = engine.add(SequenceSpec("other", [*said[:9], 5], greedy(1000), max_tokens=1, partition="v"))
    run(engine)
    assert other.num_cached == 9, "another message with the same instructions"
    asked = engine.add(SequenceSpec("asked", [*said, 7, 8, 9], greedy(1000), max_tokens=1, partition="v"))
    run(engine)
    assert asked.num_cached == len(said) + 2, "all but the last token, which gives the logits"
    for name, prompt in prompts.items():
        again = engine.add(SequenceSpec(f"{name}2", [*prompt, 5], greedy(1000), max_tokens=1, partition=name))
        run(engine)
        assert again.num_cached == len(prompt), name
    check_integrity(engine)
