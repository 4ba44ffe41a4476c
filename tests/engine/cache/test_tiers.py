"""Prefixes outside the cells: host memory, a slow tier below, and prompts computed once for several requests."""

from __future__ import annotations

import random
from collections.abc import Callable
from collections.abc import Sequence as Items
from pathlib import Path

import numpy as np
import pytest

from edgeagent.cache_folder import scan
from edgeagent.engine.cache.block import BlockDisk, DiskResult, Importance, Keyring
from edgeagent.engine.cache.block_table import BlockTable
from edgeagent.engine.cache.prefix_store import PrefixStore
from edgeagent.engine.engine import Engine
from edgeagent.engine.runner import Slice
from edgeagent.engine.sequence import Rank, Sequence, SequenceSpec
from edgeagent.types import FinishReason, MemoryKind, Tier
from tests.engine.cache.disk.stores import make_disk
from tests.engine.support import greedy, naive, run
from tests.fakes import FakeClock, FakeRunner, FakeTier, warm_costs
from tests.integrity import check_integrity

KINDS = [MemoryKind.FULL_ATTENTION, MemoryKind.RECURRENT]
SECRET = b"s" * 32


def make_engine(
    runner: FakeRunner,
    *,
    below: BlockDisk | None = None,
    host_bytes: int = 1 << 20,
    max_running: int = 4,
    clock: Callable[[], float] | None = None,
) -> Engine:
    """Make an engine with a clock that stands still.

    With a running `clock` it restores only what is worth restoring.
    """
    can_cut = runner.memory_kind is MemoryKind.FULL_ATTENTION
    blocks = BlockTable(Keyring(b"fake", SECRET), host_bytes, below, can_cut=can_cut)
    clock = clock or FakeClock()
    prefixes = PrefixStore(runner, blocks, warm_costs(runner.max_batch), clock)
    return Engine(runner, max_running=max_running, prefixes=prefixes, clock=clock)


def prompt_of(length: int, seed: int = 1) -> list[int]:
    return [1 + (seed * 7 + index * index) % 49 for index in range(length)]


def ask(engine: Engine, name: str, prompt: list[int], **options: object) -> Sequence:
    """Run one request to its end, and check its answer."""
    sequence = engine.add(SequenceSpec(name, prompt, greedy(), max_tokens=3, **options))  # type: ignore[arg-type]
    results = run(engine)
    assert results[name] == naive(prompt, 3)
    return sequence


def kept(below: FakeTier) -> list[int]:
    """Let an engine compute a prompt and close, so that the tier has the prompt's blocks; return the prompt."""
    engine, prompt = make_engine(FakeRunner(num_cells=4096), below=below), prompt_of(1500)
    ask(engine, "a", prompt)
    engine.close()
    return prompt


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_evicted_from_the_cells_comes_back_from_host_memory(kind: MemoryKind) -> None:
    runner = FakeRunner(num_cells=700, max_batch=64, memory_kind=kind)
    engine = make_engine(runner)
    prompts = [prompt_of(600, seed) for seed in range(3)]
    for index, prompt in enumerate(prompts):
        assert ask(engine, f"first {index}", prompt).num_cached == 0
    for index, prompt in enumerate(prompts):
        before = runner.num_tokens_computed
        sequence = ask(engine, f"again {index}", prompt)
        assert sequence.num_cached == 599, "the last token must be computed for its logits"
        assert runner.num_tokens_computed - before <= 3
        assert index == 2 or sum(sequence.num_restored.values()) >= 580


def test_host_memory_gives_part_of_a_block() -> None:
    runner = FakeRunner(num_cells=700, max_batch=64)
    engine = make_engine(runner)
    prompt = prompt_of(600)
    ask(engine, "a", prompt)
    ask(engine, "b", prompt_of(600, 2))
    edited = ask(engine, "c", [*prompt[:345], *prompt_of(50, 3)])
    assert edited.num_cached == 345
    assert edited.num_restored == {"host": 345}


def test_an_idle_prefix_leaves_the_cells_when_another_computes() -> None:
    runner = FakeRunner(num_cells=2048, max_batch=64)
    engine = make_engine(runner)
    ask(engine, "a", prompt_of(600))
    assert len(engine.prefixes.slots.idle_ids) == 1
    engine.add(SequenceSpec("b", prompt_of(10, 5), greedy(), max_tokens=3))
    engine.step()
    assert (len(engine.prefixes.slots.idle_ids), engine.status().num_cells_used) == (0, 10)
    run(engine)
    assert ask(engine, "c", prompt_of(600)).num_cached == 599


def span_of(engine: Engine) -> int:
    """Return how many cells a step attends to: all up to the highest used one."""
    used = np.flatnonzero(engine.prefixes.slots._cells._num_holders)
    return int(used[-1]) + 1 if len(used) else 0


class TestCompactness:
    """A step attends to all cells up to the last used one, so the cells below it must not be empty."""

    @staticmethod
    def begun(engine: Engine, name: str, prompt: list[int]) -> tuple[Sequence, int]:
        """Add a request and admit it; return its sequence, and the span of the used cells afterwards."""
        sequence = engine.add(SequenceSpec(name, prompt, greedy(), max_tokens=3))
        engine.admit()
        return sequence, span_of(engine)

    def test_live_streams_attend_to_as_many_cells_with_idle_conversations_as_without(self) -> None:
        spans = []
        for num_idle in (0, 50):
            engine = make_engine(FakeRunner(num_cells=8192, max_batch=512), host_bytes=1 << 24)
            for number in range(num_idle):
                engine.add(SequenceSpec(f"idle {number}", prompt_of(400, number), greedy(), max_tokens=3))
            run(engine)
            for number in range(4):
                engine.add(SequenceSpec(f"live {number}", prompt_of(40, 60 + number), greedy(), max_tokens=20))
            engine.step()
            spans.append(span_of(engine))
            assert engine.status().num_cells_used == 160
            run(engine)
        assert spans == [160, 160]

    def test_what_is_restored_takes_the_place_of_what_leaves(self) -> None:
        engine = make_engine(FakeRunner(num_cells=8192))
        first = ask(engine, "first", prompt_of(900, 1))
        ask(engine, "second", prompt_of(1900, 2))
        sequence, span = self.begun(engine, "next", [*first.tokens, 5])
        assert sequence.num_restored == {"host": 902}
        assert span == 902
        assert run(engine)["next"] == naive([*first.tokens, 5], 3)

    def test_a_follow_up_far_up_in_the_cells_comes_down(self) -> None:
        runner = FakeRunner(num_cells=8192)
        engine = make_engine(runner)
        prompts = [prompt_of(900, seed) for seed in range(4)]
        for number, prompt in enumerate(prompts):
            engine.add(SequenceSpec(f"{number}", prompt, greedy(), max_tokens=3))
        run(engine)
        assert engine.status().num_cells_used > 3600
        before = runner.num_tokens_computed
        _, span = self.begun(engine, "next", [*prompts[3], 5])
        assert span == 900
        check_integrity(engine)
        assert run(engine)["next"] == naive([*prompts[3], 5], 3)
        assert runner.num_tokens_computed - before <= 4

    def test_beside_a_live_stream_that_is_far_up_it_stays_where_it_is(self) -> None:
        engine = make_engine(FakeRunner(num_cells=8192, end_token=-1))
        prompts = [prompt_of(900, seed) for seed in range(4)]
        for number, prompt in enumerate(prompts):
            engine.add(SequenceSpec(f"{number}", prompt, greedy(), max_tokens=3 if number < 3 else 1000))
        while engine.status().num_running + engine.status().num_waiting > 1:
            engine.step()
        sequence, _ = self.begun(engine, "next", [*prompts[2], 5])
        assert (sequence.num_cached, sequence.num_restored) == (900, {})
        engine.cancel("3")
        run(engine)


def test_beside_a_live_stream_idle_prefixes_are_read_out_little_by_little() -> None:
    runner = FakeRunner(num_cells=2048, max_batch=64, end_token=-1)
    engine = make_engine(runner)
    engine.add(SequenceSpec("live", prompt_of(5), greedy(), max_tokens=400))
    engine.step()
    engine.add(SequenceSpec("short", prompt_of(300, 4), greedy(), max_tokens=1))
    while engine.status().num_running + engine.status().num_waiting > 1:
        engine.step()
    num_steps = engine.status().num_steps
    assert len(engine.prefixes.slots.idle_ids) == 1
    while engine.prefixes.slots.idle_ids:
        engine.step()
        check_integrity(engine)
    assert engine.status().num_steps - num_steps >= 50, "two blocks, 25 steps apart"
    engine.cancel("live")


class CrowdedRunner(FakeRunner):
    """A runner on which each token is multiplied with all used cells."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(num_cells=8192, end_token=-1)
        self._clock = clock

    def decode(self, slices: Items[Slice], min_tokens: int = 0) -> None:
        super().decode(slices, min_tokens)
        num_used = sum(map(len, self._sequences.values()))
        self._clock.advance(sum(len(part.tokens) for part in slices) * (1e-4 + 1e-7 * num_used))


def test_conversations_that_end_all_the_time_do_not_fill_the_cells() -> None:
    clock = FakeClock()
    engine = make_engine(CrowdedRunner(clock), host_bytes=1 << 24, clock=clock)
    engine.add(SequenceSpec("live", prompt_of(5), greedy(), max_tokens=8000))
    most = 0
    for number in range(60):
        engine.add(SequenceSpec(f"{number}", prompt_of(300, number), greedy(), max_tokens=9))
        for _ in range(16):
            engine.step()
        most = max(most, engine.status().num_cells_used)
    check_integrity(engine)
    assert most < 3000, "of 18,000 that were computed"
    engine.cancel("live")


@pytest.mark.parametrize("kind", KINDS)
def test_a_shared_prompt_in_flight_is_computed_once(kind: MemoryKind) -> None:
    runner = FakeRunner(num_cells=4096, max_batch=64, memory_kind=kind)
    engine = make_engine(runner)
    system = prompt_of(500)
    prompts = {f"s{index}": [*system, *prompt_of(20, index + 3)] for index in range(4)}
    sequences = {
        name: engine.add(SequenceSpec(name, prompt, greedy(), max_tokens=3)) for name, prompt in prompts.items()
    }
    assert run(engine) == {name: naive(prompt, 3) for name, prompt in prompts.items()}
    assert sequences["s0"].num_cached == 0
    assert all(sequences[name].num_cached >= 500 for name in ("s1", "s2", "s3"))
    assert runner.num_tokens_computed < 500 + 4 * 20 + 4 * 3 + 1


def test_who_is_waited_for_gets_the_urgency_of_those_that_wait() -> None:
    runner = FakeRunner(num_cells=4096, max_batch=64)
    engine = make_engine(runner)
    system = prompt_of(300)
    slow = engine.add(SequenceSpec("slow", [*system, 3], greedy(), max_tokens=1, tier=Tier.BATCH))
    engine.step()
    engine.add(SequenceSpec("urgent", [*system, 5], greedy(), max_tokens=1, tier=Tier.REALTIME))
    engine.step()
    assert slow.rank is Rank.REALTIME
    run(engine)


def test_who_waits_for_one_that_is_cancelled_goes_on_with_what_it_left() -> None:
    runner = FakeRunner(num_cells=4096, max_batch=64)
    engine = make_engine(runner)
    system = prompt_of(300)
    engine.add(SequenceSpec("first", [*system, 3], greedy(), max_tokens=1))
    engine.step()
    second = engine.add(SequenceSpec("second", [*system, 5], greedy(), max_tokens=1))
    engine.step()
    assert second.seq_id is None
    engine.cancel("first")
    assert run(engine)["second"] == naive([*system, 5], 1)
    assert second.num_cached == 128


@pytest.mark.parametrize("kind", KINDS)
def test_a_restart_finds_everything_in_the_tier_below(kind: MemoryKind) -> None:
    below = FakeTier()
    first = make_engine(FakeRunner(num_cells=4096, memory_kind=kind), below=below)
    prompt = prompt_of(600)
    ask(first, "a", prompt)
    ask(first, "private", prompt_of(300, 9), persist=False)
    first.close()
    second = make_engine(FakeRunner(num_cells=4096, memory_kind=kind), below=below)
    again = ask(second, "a", [*prompt, 7, 7])
    assert again.num_cached == (600 if kind is MemoryKind.FULL_ATTENTION else 599)
    assert again.num_restored == {"disk": again.num_cached}
    assert ask(second, "private", prompt_of(300, 9)).num_cached == 0, "it was not to leave memory"


def test_blocks_that_come_back_are_progress_though_no_batch_is_computed() -> None:
    below = FakeTier()
    prompt = kept(below)
    engine = make_engine(FakeRunner(num_cells=4096), below=below)
    sequence = engine.add(SequenceSpec("a", [*prompt, 7, 7], greedy(), max_tokens=3))
    engine._restore_budget_s = -1.0  # one block at a time
    steps = [0]
    while sequence.num_computed == 0:
        engine.step()
        steps.append(engine.status().num_steps)
    assert steps[-1] >= len(below.blocks) - 1 > 3, "about one for each block"
    assert run(engine)


def test_a_damaged_block_ends_a_restore_where_it_is() -> None:
    below = FakeTier()
    first = make_engine(FakeRunner(num_cells=4096), below=below)
    prompt = prompt_of(800)
    ask(first, "a", prompt)
    first.close()
    below.lost.update(key for key, block in below.blocks.items() if block.start == 512)
    second = make_engine(FakeRunner(num_cells=4096), below=below)
    assert ask(second, "a", prompt).num_cached == 512
    assert ask(second, "b", [*prompt[:300], 9]).num_cached == 300


def test_streams_go_on_while_another_waits_for_the_disk() -> None:
    below = FakeTier()
    prompt = kept(below)
    below.is_slow = True
    engine = make_engine(FakeRunner(num_cells=4096, end_token=-1), below=below)
    engine.add(SequenceSpec("live", prompt_of(5), greedy(), max_tokens=100_000))
    engine.step()
    waiting = engine.add(SequenceSpec("b", prompt, greedy(), max_tokens=1))
    num_steps = engine.status().num_steps
    for _ in range(5):
        engine.step()
    assert engine.status().num_steps - num_steps == 5
    assert waiting.num_cached == 0
    below.is_slow = False
    while waiting.num_cached == 0:
        engine.step()
    assert waiting.num_cached == 1499
    engine.cancel("live")
    engine.cancel("b")
    check_integrity(engine)


@pytest.mark.parametrize("seed", range(20))
def test_a_close_saves_all_whenever_the_tier_below_has_written(seed: int) -> None:
    chance = random.Random(seed)

    class QuickTier(FakeTier):
        """May have written a block at any query, and never makes the caller wait."""

        def __init__(self) -> None:
            super().__init__()
            self.unsaid: list[DiskResult] = []

        def take_results(self, max_results: int, *, is_draft: bool = False, timeout_s: float = 0.0) -> list[DiskResult]:
            self.unsaid += super().take_results(max_results, is_draft=is_draft)
            num_said = len(self.unsaid) if timeout_s > 0 else sum(chance.random() < 0.3 for _ in self.unsaid)
            said, self.unsaid = self.unsaid[:num_said], self.unsaid[num_said:]
            return said

    below = QuickTier()
    engine = make_engine(FakeRunner(num_cells=4096), below=below, host_bytes=6_000)
    ask(engine, "a", prompt_of(3500))
    engine.close()
    assert sum(len(block.tokens) for block in below.blocks.values()) >= 3500


def test_a_cancel_in_the_middle_of_a_restore_leaves_nothing_open() -> None:
    below = FakeTier()
    prompt = kept(below)
    engine = make_engine(FakeRunner(num_cells=4096), below=below)
    engine.add(SequenceSpec("b", prompt, greedy(), max_tokens=1))
    engine.admit()
    assert engine.cancel("b") is not None
    check_integrity(engine)
    assert ask(engine, "c", prompt).num_cached == 1499


def test_blocks_that_would_take_longer_than_computing_are_left_alone() -> None:
    clock = FakeClock()

    class Slow(FakeRunner):
        def restore(self, seq_id: int, payload: memoryview, end: int) -> bool:  # type: ignore[override]
            clock.advance(2.0)
            return super().restore(seq_id, payload, end)

        def decode(self, slices: list[Slice], min_tokens: int = 0) -> None:  # type: ignore[override]
            clock.advance(0.1)
            super().decode(slices, min_tokens)

    engine = make_engine(Slow(num_cells=1100, max_batch=64), clock=clock)
    for seed in (1, 2, 1, 2):
        ask(engine, f"{seed}", prompt_of(900, seed))
    assert ask(engine, "b", prompt_of(900, 1)).num_cached == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_purge_forgets_a_partition_in_all_tiers(kind: MemoryKind) -> None:
    below = FakeTier()
    engine = make_engine(FakeRunner(num_cells=4096, memory_kind=kind), below=below)
    for partition in ("mine", "yours"):
        ask(engine, partition, prompt_of(300), partition=partition)
        ask(engine, partition, [*prompt_of(300), 5], partition=partition)
    assert engine.purge("mine") > 0
    check_integrity(engine)
    assert ask(engine, "a", prompt_of(300), partition="mine").num_cached == 0
    assert ask(engine, "b", prompt_of(300), partition="yours").num_cached == 299


def test_a_purge_is_done_when_its_files_are_gone(tmp_path: Path) -> None:
    disk = make_disk(tmp_path / "cache")
    engine = make_engine(FakeRunner(num_cells=4096), below=disk)
    ask(engine, "a", prompt_of(600))
    while engine.has_work:
        engine.step()
    disk.work()
    assert list(scan(tmp_path / "cache"))
    left: list[int] = []
    assert engine.purge("", lambda num_gone: left.append(len(list(scan(tmp_path / "cache"))))) > 0
    assert left == [], "the disk has not begun"
    disk.work()
    assert left == [0]


def test_without_a_disk_a_purge_is_done_at_once() -> None:
    engine = make_engine(FakeRunner(num_cells=4096))
    ask(engine, "a", prompt_of(600))
    gone: list[int] = []
    assert [engine.purge("", gone.append)] == gone


def test_what_runs_during_a_purge_leaves_nothing() -> None:
    engine = make_engine(FakeRunner(num_cells=4096))
    engine.add(SequenceSpec("a", prompt_of(300), greedy(), max_tokens=3))
    engine.step()
    engine.purge()
    assert run(engine)["a"] == naive(prompt_of(300), 3)
    assert ask(engine, "b", prompt_of(300)).num_cached == 0


class TestCheckpoints:
    """A memory that is a state can be saved only at its current position."""

    def test_they_are_at_the_boundaries_that_the_text_names(self) -> None:
        runner = FakeRunner(num_cells=4096, memory_kind=MemoryKind.RECURRENT)
        engine = make_engine(runner)
        system, question = prompt_of(200), prompt_of(100, 2)
        ask(engine, "a", [*system, *question, 7, 7], boundaries=(200, 300))
        assert ask(engine, "other question", [*system, *prompt_of(50, 3)]).num_cached == 200
        assert ask(engine, "other answer", [*system, *question, 8, 8]).num_cached == 300

    def test_a_prompt_without_boundaries_can_be_asked_again(self) -> None:
        runner = FakeRunner(num_cells=4096, memory_kind=MemoryKind.RECURRENT)
        engine = make_engine(runner)
        ask(engine, "a", prompt_of(100))
        assert ask(engine, "b", prompt_of(100)).num_cached == 99

    def test_where_two_prompts_part_the_third_goes_on(self) -> None:
        runner = FakeRunner(num_cells=4096, memory_kind=MemoryKind.RECURRENT)
        engine = make_engine(runner)
        cached = [ask(engine, f"{n}", [*prompt_of(170), *prompt_of(60, n + 3)]).num_cached for n in range(3)]
        assert cached == [0, 0, 170]

    def test_long_prompts_have_them_every_so_often(self) -> None:
        runner = FakeRunner(num_cells=4096, memory_kind=MemoryKind.RECURRENT)
        engine = make_engine(runner)
        ask(engine, "a", prompt_of(1000))
        assert ask(engine, "b", [*prompt_of(600), 1, 1, 1]).num_cached == 512


def test_pinned_prefixes_stay_when_others_flood_the_cache() -> None:
    runner = FakeRunner(num_cells=700)
    engine = make_engine(runner, host_bytes=8000)
    ask(engine, "kiosk", prompt_of(200), pin=True)
    for seed in range(20):
        ask(engine, f"{seed}", prompt_of(400, seed + 2))
    assert ask(engine, "again", prompt_of(200)).num_cached == 199


def test_finish_reason_of_a_prefill_that_is_wholly_in_blocks() -> None:
    runner = FakeRunner(num_cells=700)
    engine = make_engine(runner)
    ask(engine, "a", prompt_of(600))
    ask(engine, "b", prompt_of(600, 2))
    engine.add(SequenceSpec("c", prompt_of(600), greedy(), prefill_only=True))
    assert run(engine) == {"c": ([], FinishReason.STOP)}


def test_importance_orders_as_documented() -> None:
    assert list(Importance) == sorted(Importance)


@pytest.mark.parametrize("whose", ["mine", None])
def test_a_purge_is_not_undone_by_blocks_that_were_being_read(whose: str | None) -> None:
    below = FakeTier()
    first = make_engine(FakeRunner(num_cells=4096), below=below)
    prompt = prompt_of(600)
    ask(first, "a", prompt, partition="mine")
    first.close()
    below.is_slow = True
    engine = make_engine(FakeRunner(num_cells=4096), below=below)
    engine.add(SequenceSpec("b", prompt, greedy(), max_tokens=3, partition="mine"))
    engine.step()
    engine.purge(whose)
    below.is_slow = False
    assert run(engine)["b"] == naive(prompt, 3), "what runs goes on"
    assert engine.memory_cache().num_blocks == 0
    assert not below.blocks
    assert ask(engine, "c", prompt, partition="mine").num_cached == 0


def test_what_was_preempted_before_a_purge_leaves_nothing() -> None:
    clock = FakeClock()
    clock.advance(1.0)
    engine = make_engine(FakeRunner(num_cells=700, end_token=-1), clock=clock)
    for name in ("a", "b"):
        engine.add(SequenceSpec(name, prompt_of(300, ord(name)), greedy(), max_tokens=200))
    while engine.status().num_waiting == 0 or engine.status().num_steps < 50:
        engine.step()
    engine.purge()
    run(engine)
    assert engine.memory_cache().num_blocks == 0


def test_no_more_is_read_ahead_than_all_sequences_together_may_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    below = FakeTier()
    first = make_engine(FakeRunner(num_cells=8192), below=below)
    prompts = [prompt_of(1500, seed) for seed in range(3)]
    for number, prompt in enumerate(prompts):
        ask(first, f"{number}", prompt)
    first.close()
    size = max(block.num_bytes for block in below.blocks.values())
    monkeypatch.setattr("edgeagent.engine.cache.restorer._MAX_AHEAD_BYTES", 3 * size)
    engine = make_engine(FakeRunner(num_cells=8192), below=below)
    reads = engine.prefixes.restorer._reads
    most = 0
    request = reads.request

    def counted(key: bytes, num_bytes: int) -> None:
        nonlocal most
        request(key, num_bytes)
        most = max(most, reads.num_bytes)

    monkeypatch.setattr(reads, "request", counted)
    for number, prompt in enumerate(prompts):
        engine.add(SequenceSpec(f"{number}", prompt, greedy(), max_tokens=3))
    sequences = list(engine._waiting.values())
    assert run(engine) == {f"{number}": naive(prompt, 3) for number, prompt in enumerate(prompts)}
    assert [sequence.num_cached for sequence in sequences] == [1499] * 3
    assert size < most <= (3 + 2) * size, "three blocks for all, and one for each that would have none"
    assert reads.num_bytes == 0
