"""Who runs and who waits: urgent sequences first, and none kept out for ever."""

from __future__ import annotations

import itertools
import random

import pytest

from edgeagent.engine.cache.block import Keyring
from edgeagent.engine.cache.block_table import BlockTable
from edgeagent.engine.cache.prefix_store import PrefixStore
from edgeagent.engine.engine import Engine
from edgeagent.engine.sequence import Sequence, SequenceSpec
from edgeagent.types import Tier
from tests.engine.support import greedy, make_engine, run
from tests.fakes import FakeClock, FakeRunner, next_token, warm_costs
from tests.integrity import check_integrity


class TestPreemption:
    def test_usage_and_waiting_time_are_those_of_the_first_turn(self) -> None:
        ticks = iter(range(1, 10_000))
        runner = FakeRunner(num_cells=40, end_token=-1)
        engine = Engine(runner, max_running=2, clock=lambda: float(next(ticks)))
        first = engine.add(SequenceSpec("a", list(range(1, 16)), greedy(), max_tokens=20))
        second = engine.add(SequenceSpec("b", list(range(21, 36)), greedy(), max_tokens=20))
        engine.step()
        claimed_s, cache_s = second.marks.claimed_s, second.marks.cache_s
        was_preempted = False
        while engine.has_work:
            engine.step()
            check_integrity(engine)
            was_preempted = was_preempted or second.seq_id is None
        assert was_preempted
        assert (first.num_cached, second.num_cached) == (0, 0), "what it had computed itself was not cached for it"
        assert (second.marks.claimed_s, second.marks.cache_s) == (claimed_s, cache_s)


def make_scene(
    *, num_cells: int = 1024, max_running: int = 2, host_bytes: int = 0, batch_s: float = 0.05
) -> tuple[Engine, FakeRunner, FakeClock]:
    clock, runner = FakeClock(), FakeRunner(end_token=-1, num_cells=num_cells, max_batch=64)
    blocks = BlockTable(Keyring(b"fake", b"s" * 32), host_bytes, None, can_cut=True, block_tokens=16)
    prefixes = PrefixStore(runner, blocks, warm_costs(64, batch_s), clock)
    return Engine(runner, max_running=max_running, prefixes=prefixes, clock=clock), runner, clock


def prompt_of(num_tokens: int, seed: int) -> list[int]:
    return [1 + (7 * seed + 3 * index) % 47 for index in range(num_tokens)]


class TestGivingWay:
    """A less urgent sequence gives up its place and its cells, and goes on later."""

    @pytest.mark.parametrize("tier", [Tier.REALTIME, Tier.INTERACTIVE])
    def test_a_place(self, tier: Tier) -> None:
        engine, runner, _ = make_scene(max_running=2)
        prompts = {"old": prompt_of(300, 1), "new": prompt_of(300, 2), "urgent": prompt_of(30, 3)}
        batch = {name: SequenceSpec(name, prompts[name], greedy(), 40, tier=Tier.BATCH) for name in ("old", "new")}
        old, new = (engine.add(spec) for spec in batch.values())
        while new.num_output < 5:
            engine.step()
        urgent = engine.add(SequenceSpec("urgent", prompts["urgent"], greedy(), 3, tier=tier))
        engine.step()
        assert urgent.seq_id is not None and urgent.num_output == 1, "it gets its first token at once"
        assert new.seq_id is None and old.seq_id is not None, "the one that came last gives way"
        while urgent.num_output < 3:
            engine.step()
            check_integrity(engine)
        run(engine)
        for sequence, name, num_tokens in ((old, "old", 40), (new, "new", 40), (urgent, "urgent", 3)):
            assert sequence.tokens[len(prompts[name]) :].tolist() == plain(prompts[name], num_tokens)
        num_tokens = sum(len(prompt) for prompt in prompts.values()) + 39 + 39 + 2
        assert runner.num_tokens_computed == num_tokens, "no token is computed twice"

    def test_cells(self) -> None:
        """Its tokens are kept in blocks, and go back to the cells."""
        engine, runner, _ = make_scene(num_cells=512, max_running=4, host_bytes=1 << 20)
        batch = engine.add(SequenceSpec("batch", prompt_of(400, 1), greedy(), 40, tier=Tier.BATCH))
        while batch.num_output < 5:
            engine.step()
        urgent = engine.add(SequenceSpec("urgent", prompt_of(300, 2), greedy(), 3, tier=Tier.REALTIME))
        engine.step()
        assert batch.seq_id is None and urgent.num_computed > 0
        run(engine)
        assert batch.tokens[400:].tolist() == plain(prompt_of(400, 1), 40)
        assert urgent.tokens[300:].tolist() == plain(prompt_of(300, 2), 3)
        assert runner.num_tokens_computed < 400 + 39 + 300 + 2 + 32, "at most a block's part is computed again"

    def test_no_more_gives_way_than_is_needed(self) -> None:
        engine, _, _ = make_scene(num_cells=512, max_running=4)
        specs = [SequenceSpec(f"b{seed}", prompt_of(150, seed), greedy(), 40, tier=Tier.BATCH) for seed in range(3)]
        batch = [engine.add(spec) for spec in specs]
        while batch[-1].num_output < 5:
            engine.step()
        engine.add(SequenceSpec("large", prompt_of(200, 7), greedy(), 3))
        engine.step()
        assert [sequence.seq_id is None for sequence in batch] == [False, True, True]

    def test_nothing_gives_way_if_that_is_not_enough(self) -> None:
        engine, _, _ = make_scene(num_cells=512, max_running=4)
        stream = engine.add(SequenceSpec("stream", prompt_of(300, 1), greedy(), 100))
        batch = engine.add(SequenceSpec("batch", prompt_of(100, 2), greedy(), 40, tier=Tier.BATCH))
        while not (stream.num_output and batch.num_output):
            engine.step()
        large = engine.add(SequenceSpec("large", prompt_of(400, 3), greedy(), 3))
        engine.step()
        assert large.seq_id is None and batch.seq_id is not None

    def test_one_that_would_lose_its_tokens_comes_last(self) -> None:
        engine, runner, _ = make_scene(max_running=2)
        specs = [
            SequenceSpec("kept", prompt_of(300, 1), greedy(), 40, tier=Tier.BATCH),
            SequenceSpec("lost", prompt_of(300, 2), greedy(), 40, tier=Tier.BATCH, write_cache=False),
        ]
        kept, lost = (engine.add(spec) for spec in specs)
        while lost.num_output < 5:
            engine.step()
        engine.add(SequenceSpec("urgent", prompt_of(30, 3), greedy(), 3, tier=Tier.REALTIME))
        engine.step()
        assert kept.seq_id is None and lost.seq_id is not None
        run(engine)
        assert runner.num_tokens_computed == 2 * 339 + 32

    def test_an_equal_gives_no_way(self) -> None:
        engine, _, _ = make_scene(max_running=1)
        first = engine.add(SequenceSpec("first", prompt_of(30, 1), greedy(), 40))
        engine.step()
        engine.add(SequenceSpec("second", prompt_of(30, 2), greedy(), 3))
        engine.step()
        assert first.seq_id is not None

    def test_what_is_computed_ahead_gives_way_to_batch(self) -> None:
        engine, _, _ = make_scene(max_running=1)
        ahead = engine.add(SequenceSpec("ahead", prompt_of(30, 1), greedy(), 40, is_ahead=True))
        engine.step()
        batch = engine.add(SequenceSpec("batch", prompt_of(30, 2), greedy(), 3, tier=Tier.BATCH))
        engine.step()
        assert ahead.seq_id is None and batch.num_output == 1
        run(engine)
        assert ahead.tokens[30:].tolist() == plain(prompt_of(30, 1), 40)


def plain(prompt: list[int], num_tokens: int) -> list[int]:
    """Return what a plain loop would generate, without an end token."""
    tokens = list(prompt)
    for _ in range(num_tokens):
        tokens.append(next_token(tokens, 50))
    return tokens[len(prompt) :]


def test_no_more_run_than_a_batch_has_tokens() -> None:
    runner = FakeRunner(end_token=-1, num_cells=1024, num_sequences=20, max_batch=8)
    engine = make_engine(runner, max_running=16)
    for index in range(16):
        engine.add(SequenceSpec(f"s{index}", [index + 1], greedy(), max_tokens=40))
    engine.step()
    assert engine.status().num_running == 8
    assert len(run(engine)) == 16


@pytest.mark.parametrize(
    ("num_urgent", "num_prompt", "num_output"),
    [(1, 200, 20), (4, 20, 20), (3, 120, 1)],
    ids=["takes its cells", "takes its place", "takes its share of a step"],
)
def test_more_urgent_ones_do_not_keep_one_out_for_ever(num_urgent: int, num_prompt: int, num_output: int) -> None:
    clock, names = FakeClock(), itertools.count()
    runner = FakeRunner(end_token=-1, num_cells=1024, max_batch=64)
    prefixes = PrefixStore(runner, costs=warm_costs(64, 0.05), clock=clock)
    engine = Engine(runner, max_running=4, prefixes=prefixes, clock=clock)
    long = engine.add(SequenceSpec("long", [1 + i % 40 for i in range(900)], greedy(), max_tokens=3))
    urgent: list[Sequence] = []
    while engine.has_work and clock.now_s < 120:
        urgent = [sequence for sequence in urgent if sequence.num_output < num_output]
        while len(urgent) < num_urgent and long.num_output < 3:
            number = next(names)
            prompt = [1 + (7 * number + 3 * i) % 47 for i in range(num_prompt)]
            spec = SequenceSpec(f"{number}", prompt, greedy(), max_tokens=num_output, tier=Tier.REALTIME)
            urgent.append(engine.add(spec))
        engine.step()
        check_integrity(engine)
        clock.advance(0.5)
        assert sum(sequence.is_boosted for sequence in (long, *urgent)) <= 1
    assert long.num_output == 3


SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.slow(seconds=10)) for seed in range(1, 20))]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("tier", [Tier.BATCH, Tier.INTERACTIVE])
def test_random_arrivals_of_more_urgent_ones_keep_none_out_for_ever(tier: Tier, seed: int) -> None:
    """Those come more often than they can be served, with any size, due time, target and client."""
    (engine, _, clock), rng, names = make_scene(max_running=4), random.Random(seed), itertools.count()
    more_urgent = (Tier.REALTIME, Tier.INTERACTIVE)[: 1 + (tier is Tier.BATCH)]

    def add(tier: Tier, client: str, **options: object) -> Sequence:
        number = next(names)
        prompt, num_output = prompt_of(rng.randrange(10, 200), number), rng.randrange(2, 13)
        spec = SequenceSpec(f"{number}", prompt, greedy(), num_output, tier=tier, partition=client, **options)  # type: ignore[arg-type]
        return engine.add(spec)

    kept_out, next_s = [add(tier, client) for client in "ab"], 0.0
    while any(sequence.num_output < (sequence.spec.max_tokens or 0) for sequence in kept_out):
        while next_s <= clock.now_s:
            if engine.num_live < 16:
                due_s, token_s = clock.now_s + 2 * rng.random(), rng.choice((None, 0.05, 0.1))
                add(rng.choice(more_urgent), rng.choice("xyz"), due_s=due_s, token_s=token_s)
            next_s += rng.expovariate(1)
        engine.step()
        clock.advance(1.0)
        assert clock.now_s < 60 + 2 * 20, "a minute without progress, and then the steps of one after the other"
    check_integrity(engine)
    assert clock.now_s > 60, "they were kept out"


@pytest.mark.parametrize("seed", SEEDS)
def test_a_client_with_a_backlog_delays_no_other(seed: int) -> None:
    (engine, _, clock), rng, names = make_scene(max_running=4), random.Random(seed), itertools.count()
    backlog, other = list[Sequence](), list[Sequence]()

    def add(client: str, num_output: int) -> Sequence:
        number = next(names)
        prompt = prompt_of(rng.randrange(10, 200), number)
        return engine.add(SequenceSpec(f"{client}{number}", prompt, greedy(), num_output, partition=client))

    num_served = 0
    while num_served < 10:
        backlog = [sequence for sequence in backlog if sequence.num_output < (sequence.spec.max_tokens or 0)]
        while len(backlog) < 12:
            backlog.append(add("A", rng.randrange(5, 40)))
        if not other and rng.random() < 0.2:
            other.append(add("B", 5))
        waiting = [sequence for sequence in backlog if sequence.seq_id is None]
        engine.step()
        clock.advance(0.05)
        if other and other[0].seq_id is None:
            assert all(sequence.seq_id is None for sequence in waiting), "the next free place is the other's"
        elif other and other[0].num_output:
            num_served += 1
            other.clear()


def test_a_boosted_sequence_that_lacks_cells_holds_up_all_but_realtime_ones_and_later_these_too() -> None:
    clock = FakeClock()
    runner = FakeRunner(end_token=-1, num_cells=1024)
    prefixes = PrefixStore(runner, costs=warm_costs(64, 0.05), clock=clock)
    engine = Engine(runner, max_running=4, prefixes=prefixes, clock=clock)
    engine.add(SequenceSpec("stream", [1] * 200, greedy(), max_tokens=700))
    engine.step()
    long = engine.add(SequenceSpec("long", [1 + i % 40 for i in range(900)], greedy(), max_tokens=3))
    for _ in range(80):
        engine.step()
        clock.advance(1.0)
    assert long.is_boosted and long.seq_id is None
    other = engine.add(SequenceSpec("other", [3] * 20, greedy(), max_tokens=3))
    urgent = engine.add(SequenceSpec("urgent", [2] * 20, greedy(), max_tokens=3, tier=Tier.REALTIME))
    engine.step()
    assert urgent.num_computed > 0 and other.num_computed == 0
    for _ in range(60):
        engine.step()
        clock.advance(1.0)
    last = engine.add(SequenceSpec("last", [4] * 20, greedy(), max_tokens=3, tier=Tier.REALTIME))
    engine.step()
    assert last.num_computed == 0, "others would take the cells as soon as they are free"
    engine.cancel("stream")
    engine.cancel("urgent")
    engine.step()
    assert long.seq_id is not None


def test_one_that_waits_for_a_prefill_that_gets_further_is_not_boosted() -> None:
    clock = FakeClock()
    runner = FakeRunner(num_cells=4096)
    prefixes = PrefixStore(runner, costs=warm_costs(64, 1.0), clock=clock)
    engine = Engine(runner, max_running=4, prefixes=prefixes, clock=clock)
    prompt = [1 + i % 40 for i in range(3000)]
    leader = engine.add(SequenceSpec("leader", prompt, greedy(), max_tokens=3))
    engine.step()
    follower = engine.add(SequenceSpec("follower", prompt, greedy(), max_tokens=3))
    while leader.num_computed < 2900:
        engine.step()
        clock.advance(3.0)
        assert not (leader.is_boosted or follower.is_boosted)
    assert clock() > 70


def test_one_whose_leader_has_ended_is_not_kept_out_for_ever() -> None:
    clock, names = FakeClock(), itertools.count()
    runner = FakeRunner(end_token=-1, num_cells=4096)
    engine = Engine(runner, max_running=2, prefixes=PrefixStore(runner, clock=clock), clock=clock)
    prompt = [1 + i % 40 for i in range(2000)]
    engine.add(SequenceSpec("leader", prompt, greedy(), max_tokens=3))
    engine.step()
    follower = engine.add(SequenceSpec("follower", prompt, greedy(), max_tokens=3, tier=Tier.BATCH))
    engine.step()
    assert follower.awaited_prefill is not None
    urgent: list[Sequence] = []
    while follower.num_output == 0 and clock.now_s < 120:
        urgent = [sequence for sequence in urgent if sequence.num_output < 3]
        while len(urgent) < 4:
            spec = SequenceSpec(str(next(names)), [5], greedy(), max_tokens=3, tier=Tier.REALTIME)
            urgent.append(engine.add(spec))
        engine.step()
        engine.cancel("leader")
        check_integrity(engine)
        clock.advance(0.5)
    assert follower.num_output


class TestUrgency:
    def test_realtime_goes_before_batch_and_equals_by_arrival(self) -> None:
        engine = make_engine(FakeRunner(end_token=-1), max_running=1)
        for name, tier in (("a", Tier.BATCH), ("b", Tier.INTERACTIVE), ("c", Tier.REALTIME), ("d", Tier.REALTIME)):
            engine.add(SequenceSpec(name, [5], greedy(), max_tokens=1, tier=tier))
        finished = []
        while engine.has_work:
            finished += [output.sequence.id for output in engine.step() if output.finish_reason]
        assert finished == ["c", "d", "b", "a"]
