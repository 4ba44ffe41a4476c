"""Adapters: each batch is computed with one, they take turns, and none sees another's cells."""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence as Items

import pytest

from edgeagent.engine.adapter_turns import AdapterTurns
from edgeagent.engine.cache.block import Keyring
from edgeagent.engine.cache.block_table import BlockTable
from edgeagent.engine.cache.prefix_store import PrefixStore
from edgeagent.engine.costs.cost_model import StepShape
from edgeagent.engine.engine import Engine
from edgeagent.engine.runner import Slice
from edgeagent.engine.sequence import Sequence, SequenceSpec
from edgeagent.engine.speculation.draft_model import DraftModel
from edgeagent.engine.speculation.proposals import Drafters
from edgeagent.types import MemoryKind
from tests.engine.support import END, greedy, run
from tests.fakes import ALWAYS, FakeClock, FakeRunner, computed, next_token, warm_costs

ADAPTERS = ("", "1", "2")


def naive(prompt: list[int], max_tokens: int, adapter: str) -> list[int]:
    cells, output = [computed(token, adapter) for token in prompt], list[int]()
    while (token := next_token(cells, 50)) != END and len(output) < max_tokens:
        output.append(token)
        cells.append(computed(token, adapter))
    return output


class OneAdapterRunner(FakeRunner):
    """A runner that knows the adapter of each sequence, and checks every batch."""

    def __init__(self, **options: object) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        self.batches: list[tuple[str, int]] = []

    def decode(self, slices: list[Slice], min_tokens: int = 0) -> None:  # type: ignore[override]
        self.batches.append((self._adapter, len(slices)))
        super().decode(slices, min_tokens)


def make(runner: FakeRunner, host_bytes: int = 1 << 20, draft: FakeRunner | None = None) -> Engine:
    can_cut = runner.memory_kind is MemoryKind.FULL_ATTENTION
    blocks = BlockTable(Keyring(b"fake", b"s" * 32), host_bytes, None, can_cut=can_cut)
    drafters = None if draft is None else Drafters(DraftModel(draft), max_tokens=4, planning_share=ALWAYS)
    costs = warm_costs(runner.max_batch)
    return Engine(
        runner, max_running=4, drafters=drafters, prefixes=PrefixStore(runner, blocks, costs), adapters=("1", "2")
    )


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("kind", [MemoryKind.FULL_ATTENTION, MemoryKind.RECURRENT])
def test_each_answer_is_its_own_adapter_s_whatever_runs_beside_it(seed: int, kind: MemoryKind) -> None:
    """All adapters get the same few prompts, so another adapter's prefix would be found if that were possible."""
    chance = random.Random(seed)
    runner = OneAdapterRunner(memory_kind=kind, num_cells=160, num_sequences=6)
    draft = FakeRunner(num_cells=160, num_sequences=6) if kind is MemoryKind.FULL_ATTENTION and seed % 2 else None
    engine = make(runner, draft=draft)
    prompts = [[chance.randrange(1, 50) for _ in range(24)] for _ in range(2)]
    wanted, used = {}, set()
    for index in range(14):
        prompt = chance.choice(prompts)[: chance.randrange(8, 24)]
        adapter, length = chance.choice(ADAPTERS), chance.randrange(1, 12)
        engine.add(SequenceSpec(f"s{index}", prompt, greedy(), max_tokens=length, adapter=adapter))
        wanted[f"s{index}"] = naive(prompt, length, adapter)
        used.add(adapter)
    outputs = run(engine)
    assert {name: tokens for name, (tokens, _) in outputs.items()} == wanted
    assert {adapter for adapter, _ in runner.batches} == used


def test_an_adapter_finds_its_own_prefix_again_and_no_other_s() -> None:
    runner = FakeRunner()
    engine = make(runner, host_bytes=0)
    prompt = list(range(1, 33))
    cached = []
    for number, adapter in enumerate(("1", "1", "", "2", "")):
        sequence = engine.add(SequenceSpec(f"s{number}", prompt, greedy(), max_tokens=1, adapter=adapter))
        run(engine)
        cached.append(sequence.num_cached)
    assert cached == [0, 31, 0, 0, 31]
    assert runner.adapters_used == ["1", "", "2", ""]


def test_a_partition_is_purged_with_what_its_adapters_computed() -> None:
    engine = make(FakeRunner(num_cells=1000, num_sequences=32), host_bytes=0)
    for number, adapter in enumerate(ADAPTERS):
        engine.add(SequenceSpec(f"a{number}", list(range(1, 33)), greedy(), max_tokens=1, adapter=adapter))
        engine.add(SequenceSpec(f"b{number}", [9] * 32, greedy(), max_tokens=1, adapter=adapter, partition="other"))
    run(engine)
    engine.purge("")
    found = {}
    for partition in ("", "other"):
        for adapter in ADAPTERS:
            prompt = list(range(1, 33)) if not partition else [9] * 32
            spec = SequenceSpec("c", prompt, greedy(), max_tokens=1, adapter=adapter, partition=partition)
            sequence = engine.add(spec)
            run(engine)
            found[partition, adapter] = sequence.num_cached
    assert {key: count > 0 for key, count in found.items()} == {
        **{("", adapter): False for adapter in ADAPTERS},
        **{("other", adapter): True for adapter in ADAPTERS},
    }


def test_streams_of_two_adapters_advance_side_by_side() -> None:
    """Neither stream waits until the other has ended."""
    runner = FakeRunner(end_token=-1, num_cells=400)
    engine = Engine(runner, max_running=4, adapters=("1",), clock=FakeClock())
    for number, adapter in enumerate(("", "1")):
        engine.add(SequenceSpec(f"s{number}", [5, 6, 7], greedy(), max_tokens=60, adapter=adapter))
    lengths = {"s0": 0, "s1": 0}
    apart = []
    while engine.has_work and max(lengths.values()) < 60:
        for output in engine.step():
            lengths[output.sequence.id] += len(output.tokens)
        apart.append(abs(lengths["s0"] - lengths["s1"]))
    assert max(apart) <= 2


def sequence(name: str, adapter: str, order: int) -> Sequence:
    return Sequence(SequenceSpec(name, [1], greedy(), adapter=adapter), array("i", [1]), 1, 10, order)


def test_turns_go_round() -> None:
    turns = AdapterTurns()
    live = [sequence("a", "", 0), sequence("b", "1", 1), sequence("c", "2", 2), sequence("d", "1", 3)]
    seen = []
    for _ in range(7):
        seen.append("".join(each.id for each in turns.take(live)))
        turns.record(0.01)
    assert seen == ["a", "bd", "c", "a", "bd", "c", "a"]


class SwitchingRunner(FakeRunner):
    """A runner on which a step takes 10 ms, and the first one after a switch of adapters 4 ms more."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(end_token=-1, num_cells=2000)
        self.clock, self.has_switched, self.num_switches = clock, False, 0

    def use_adapter(self, adapter: str) -> None:
        super().use_adapter(adapter)
        self.has_switched = True
        self.num_switches += 1

    def decode(self, slices: Items[Slice], min_tokens: int = 0) -> None:
        super().decode(slices, min_tokens)
        self.clock.advance(0.014 if self.has_switched else 0.010)
        self.has_switched = False


def test_switches_take_a_small_part_of_the_time_and_are_not_learned_as_the_cost_of_steps() -> None:
    clock = FakeClock()
    runner = SwitchingRunner(clock)
    engine = Engine(runner, max_running=4, adapters=("1",), clock=clock)
    engine.add(SequenceSpec("warm", [9], greedy(), max_tokens=40))
    run(engine)
    engine.add(SequenceSpec("a", [5, 6, 7], greedy(), max_tokens=400))
    engine.add(SequenceSpec("b", [5, 6, 7], greedy(), max_tokens=400, adapter="1"))
    before_s = clock.now_s
    run(engine)
    assert 0.02 < runner.num_switches * 0.004 / (clock.now_s - before_s) < 0.08
    assert engine.cost_model.predict(StepShape(1, 200, 200.0)) == pytest.approx(0.010, rel=0.03)


def test_a_turn_ends_with_its_sequences() -> None:
    turns = AdapterTurns()
    live = [sequence("a", "", 0), sequence("b", "1", 1)]
    turns.record(0.02, expected_s=0.01)
    assert [turns.take(live)[0].id for _ in range(2)] == ["a", "a"]
    assert [each.id for each in turns.take(live[1:])] == ["b"]
    assert turns.take([]) == []
