"""The engine on a fake runner, and its law: batched, cached and speculative output equals naive greedy output."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Any

import pytest

from edgeagent.engine.cache.block import Keyring
from edgeagent.engine.cache.host import HostTier
from edgeagent.engine.cache.lookup import BlockCache
from edgeagent.engine.cache.prefix_store import PrefixStore
from edgeagent.engine.engine import Engine
from edgeagent.engine.runner import Slice
from edgeagent.engine.sampling.params import resolve
from edgeagent.engine.sampling.sampler import Sampler
from edgeagent.engine.sequence import Sequence, SequenceSpec
from edgeagent.engine.speculation.draft_model import DraftModel
from edgeagent.engine.speculation.proposals import Drafters
from edgeagent.errors import ContextLengthExceeded, InternalError
from edgeagent.types import FinishReason, MemoryKind, SamplingParams, Tier
from tests.fakes import ALWAYS, FakeClock, FakeRunner, FakeTier, next_token, warm_costs
from tests.integrity import check_integrity

END = 0
GREEDY = SamplingParams(
    temperature=0.0,
    top_k=0,
    top_p=1.0,
    min_p=0.0,
    repeat_penalty=1.0,
    repeat_last_n=0,
    presence_penalty=0.0,
    frequency_penalty=0.0,
)


def greedy(num_vocab: int = 50) -> Sampler:
    return Sampler(resolve(SamplingParams(), GREEDY), num_vocab)


def naive(prompt: list[int], max_tokens: int, num_vocab: int = 50) -> tuple[list[int], FinishReason]:
    """Return what a plain loop would generate."""
    tokens, output = list(prompt), list[int]()
    while True:
        token = next_token(tokens, num_vocab)
        if token == END:
            return output, FinishReason.STOP
        output.append(token)
        tokens.append(token)
        if len(output) == max_tokens:
            return output, FinishReason.LENGTH


@dataclass
class Expected:
    prompt: list[int]
    max_tokens: int


def run(engine: Engine, check: bool = True) -> dict[str, tuple[list[int], FinishReason | None]]:
    """Step to the end; return each sequence's output."""
    results: dict[str, tuple[list[int], FinishReason | None]] = {}
    collected: dict[str, list[int]] = {}
    for _ in range(100_000):
        if not engine.has_work:
            return results
        for output in engine.step():
            assert output.error is None
            collected.setdefault(output.sequence.id, []).extend(output.tokens)
            if output.finish_reason is not None:
                assert output.sequence.id not in results
                results[output.sequence.id] = (collected[output.sequence.id], output.finish_reason)
        if check:
            check_integrity(engine)
    raise AssertionError("the engine does not come to an end")


def make_engine(
    runner: FakeRunner,
    *,
    max_running: int = 4,
    draft: FakeRunner | None = None,
    host_bytes: int = 0,
    below: FakeTier | None = None,
    batch_s: float = 0.0,
) -> Engine:
    """Make an engine that predicts `batch_s` seconds for a full batch."""

    can_cut = runner.memory_kind is MemoryKind.FULL_ATTENTION
    host = HostTier(host_bytes, can_cut=can_cut, below=below)
    blocks = BlockCache(Keyring(b"fake", b"s" * 32), host, below, can_cut=can_cut)
    costs = warm_costs(runner.max_batch, batch_s)
    drafters = None
    if draft is not None:
        host = HostTier(host_bytes // 4, below=below)
        keyring = Keyring(b"fake draft", b"s" * 32)
        kept = BlockCache(keyring, host, below, can_cut=True, block_tokens=64, is_draft=True)
        drafters = Drafters(DraftModel(draft, PrefixStore(draft, kept)), max_tokens=4, planning_share=ALWAYS)
    prefixes = PrefixStore(runner, blocks, costs)
    return Engine(runner, max_running=max_running, drafters=drafters, prefixes=prefixes)


class TestOne:
    def test_generates_until_the_end_token(self) -> None:
        engine = make_engine(FakeRunner())
        engine.add(SequenceSpec("a", [5, 6, 7], greedy()))
        assert run(engine) == {"a": naive([5, 6, 7], 1000)}

    def test_stops_at_max_tokens(self) -> None:
        engine = make_engine(FakeRunner(end_token=-1, num_vocab=1000))
        engine.add(SequenceSpec("a", [5, 6, 7], greedy(1000), max_tokens=4))
        tokens, reason = run(engine)["a"]
        assert (len(tokens), reason) == (4, FinishReason.LENGTH)

    def test_stops_where_the_context_is_full(self) -> None:
        engine = make_engine(FakeRunner(end_token=-1, num_cells=16))
        engine.add(SequenceSpec("a", list(range(1, 11)), greedy()))
        tokens, reason = run(engine)["a"]
        assert (len(tokens), reason) == (6, FinishReason.LENGTH)

    def test_refuses_a_prompt_that_never_fits_with_both_counts(self) -> None:
        engine = make_engine(FakeRunner(num_cells=16))
        with pytest.raises(ContextLengthExceeded, match=r"16 tokens.*holds 16"):
            engine.add(SequenceSpec("a", [1] * 16, greedy()))
        engine.add(SequenceSpec("b", [1] * 15, greedy()))
        assert len(run(engine)["b"][0]) <= 1

    @pytest.mark.parametrize(
        ("num_trained", "advice"),
        [(0, "a larger --ctx."), (32, "a larger --ctx, 32 at most."), (20, "trained for more than 20 tokens.")],
    )
    def test_no_context_is_advised_that_the_model_was_not_trained_for(self, num_trained: int, advice: str) -> None:
        engine = Engine(FakeRunner(num_cells=16), max_running=1, num_trained=num_trained)
        with pytest.raises(ContextLengthExceeded) as refused:
            engine.add(SequenceSpec("a", [1] * 20, greedy()))
        assert refused.value.message.endswith(advice)

    def test_prefill_only_samples_nothing_and_leaves_a_prefix(self) -> None:
        runner = FakeRunner()
        engine = make_engine(runner)
        engine.add(SequenceSpec("a", [5, 6, 7], greedy(), prefill_only=True))
        assert run(engine) == {"a": ([], FinishReason.STOP)}
        sequence = engine.add(SequenceSpec("b", [5, 6, 7, 8], greedy()))
        assert run(engine)["b"] == naive([5, 6, 7, 8], 1000)
        assert sequence.num_cached == 3

    def test_a_prompt_longer_than_a_batch_goes_in_chunks(self) -> None:
        runner = FakeRunner(max_batch=8)
        engine = make_engine(runner)
        engine.add(SequenceSpec("a", list(range(1, 40)), greedy(), max_tokens=5))
        assert run(engine) == {"a": naive(list(range(1, 40)), 5)}


class TestPrefixes:
    def test_a_follow_up_reuses_the_whole_conversation(self) -> None:
        runner = FakeRunner()
        engine = make_engine(runner)
        engine.add(SequenceSpec("a", [5, 6, 7], greedy(), max_tokens=6))
        answer, _ = run(engine)["a"]
        follow_up = [5, 6, 7, *answer, 9, 9]
        before = runner.num_tokens_computed
        sequence = engine.add(SequenceSpec("b", follow_up, greedy(), max_tokens=1))
        assert run(engine)["b"] == naive(follow_up, 1)
        # Everything but the answer's last token, which was never computed, and the new tokens.
        assert sequence.num_cached == len(follow_up) - 3
        assert runner.num_tokens_computed - before == 3

    def test_the_same_prompt_computes_one_token(self) -> None:
        runner = FakeRunner()
        engine = make_engine(runner)
        engine.add(SequenceSpec("a", [5, 6, 7], greedy(), max_tokens=1))
        run(engine)
        before = runner.num_tokens_computed
        engine.add(SequenceSpec("b", [5, 6, 7], greedy(), max_tokens=1))
        assert run(engine)["b"] == naive([5, 6, 7], 1)
        assert runner.num_tokens_computed - before == 1

    def test_a_live_sequence_shares_its_prefix(self) -> None:
        engine = make_engine(FakeRunner(end_token=-1))
        engine.add(SequenceSpec("a", [5, 6, 7, 8], greedy(), max_tokens=30))
        first = [token for output in engine.step() for token in output.tokens]
        shared = engine.add(SequenceSpec("b", [5, 6, 7, 9], greedy(), max_tokens=2))
        results = run(engine)
        assert shared.num_cached == 3
        assert (first + results["a"][0], results["a"][1]) == naive_without_end([5, 6, 7, 8], 30)
        assert results["b"] == naive_without_end([5, 6, 7, 9], 2)

    def test_partitions_share_nothing(self) -> None:
        engine = make_engine(FakeRunner())
        engine.add(SequenceSpec("a", [5, 6, 7], greedy(), partition="x"))
        run(engine)
        other = engine.add(SequenceSpec("b", [5, 6, 7], greedy(), partition="y"))
        run(engine)
        same = engine.add(SequenceSpec("c", [5, 6, 7], greedy(), partition="x"))
        run(engine)
        assert (other.num_cached, same.num_cached) == (0, 2)

    def test_unread_and_unwritten_caches(self) -> None:
        engine = make_engine(FakeRunner())
        engine.add(SequenceSpec("a", [5, 6, 7], greedy(), write_cache=False))
        run(engine)
        second = engine.add(SequenceSpec("b", [5, 6, 7], greedy()))
        run(engine)
        third = engine.add(SequenceSpec("c", [5, 6, 7], greedy(), read_cache=False))
        run(engine)
        assert (second.num_cached, third.num_cached) == (0, 0)

    def test_a_memory_that_cannot_be_cut_reuses_only_whole_sequences(self) -> None:
        engine = make_engine(FakeRunner(memory_kind=MemoryKind.RECURRENT))
        engine.add(SequenceSpec("a", [5, 6, 7], greedy(), max_tokens=4))
        answer, _ = run(engine)["a"]
        edited = engine.add(SequenceSpec("b", [5, 6, 9], greedy(), max_tokens=1))
        run(engine)
        follow_up = [5, 6, 7, *answer, 9]
        continued = engine.add(SequenceSpec("c", follow_up, greedy(), max_tokens=3))
        assert run(engine)["c"] == naive(follow_up, 3)
        assert (edited.num_cached, continued.num_cached) == (0, len(follow_up) - 2)


def naive_without_end(prompt: list[int], max_tokens: int) -> tuple[list[int], FinishReason]:
    tokens = list(prompt)
    for _ in range(max_tokens):
        tokens.append(next_token(tokens, 50))
    return tokens[len(prompt) :], FinishReason.LENGTH


class Harassed(FakeRunner):
    """A cancel interrupts every step that may be interrupted."""

    engine: Engine
    num_batches = 0
    num_interrupted = 0

    def decode(self, slices: Items[Slice], min_tokens: int = 0) -> None:
        self.num_batches += 1
        if self.engine.current_step.is_long:
            self.num_interrupted += 1
            self.cancel_next = len(slices)
        super().decode(slices)


class TestCancel:
    def test_cancels_waiting_and_running_and_ignores_the_unknown(self) -> None:
        engine = make_engine(FakeRunner(end_token=-1), max_running=1)
        engine.add(SequenceSpec("a", [5], greedy(), max_tokens=100))
        engine.add(SequenceSpec("b", [6], greedy(), max_tokens=100))
        engine.step()
        assert engine.cancel("b") is not None
        assert engine.cancel("a") is not None
        assert engine.cancel("a") is None
        assert not engine.has_work
        check_integrity(engine)

    @pytest.mark.parametrize("kind", [MemoryKind.FULL_ATTENTION, MemoryKind.RECURRENT])
    def test_an_interrupted_batch_is_computed_again(self, kind: MemoryKind) -> None:
        runner = FakeRunner(memory_kind=kind)
        engine = make_engine(runner)
        for name, prompt in {"a": [5, 6, 7], "b": [8, 9], "c": [10, 11, 12]}.items():
            engine.add(SequenceSpec(name, prompt, greedy(), max_tokens=20))
        results: dict[str, list[int]] = {}
        for step in range(200):
            if not engine.has_work:
                break
            if step % 3 == 1:
                runner.cancel_next = step % 4
            for output in engine.step():
                results.setdefault(output.sequence.id, []).extend(output.tokens)
            check_integrity(engine)
        assert results == {
            name: naive(prompt, 20)[0] for name, prompt in {"a": [5, 6, 7], "b": [8, 9], "c": [10, 11, 12]}.items()
        }

    @pytest.mark.parametrize("kind", [MemoryKind.FULL_ATTENTION, MemoryKind.RECURRENT])
    def test_cancels_without_end_hold_up_nobody_for_good(self, kind: MemoryKind) -> None:
        runner = Harassed(num_cells=1024, memory_kind=kind)
        engine = runner.engine = make_engine(runner, batch_s=1.0)
        prompts = {"a": [1 + i % 40 for i in range(400)], "b": [2 + i % 40 for i in range(300)]}
        for name, prompt in prompts.items():
            engine.add(SequenceSpec(name, prompt, greedy(), max_tokens=5))
        outputs: dict[str, list[int]] = {}
        for _ in range(500):
            for output in engine.step():
                outputs.setdefault(output.sequence.id, []).extend(output.tokens)
            check_integrity(engine)
        assert outputs == {name: naive(prompt, 5)[0] for name, prompt in prompts.items()}

    @pytest.mark.parametrize("kind", [MemoryKind.SLIDING_WINDOW, MemoryKind.RECURRENT, MemoryKind.HYBRID])
    def test_a_memory_that_cannot_take_a_step_back_is_not_interrupted(self, kind: MemoryKind) -> None:
        seen: list[bool] = []

        class Watched(FakeRunner):
            def decode(self, slices: Items[Slice], min_tokens: int = 0) -> None:
                seen.append(engine.current_step.is_long)
                super().decode(slices)

        engine = make_engine(Watched(memory_kind=kind), batch_s=1.0)
        engine.add(SequenceSpec("a", [1 + i % 40 for i in range(200)], greedy(), max_tokens=3))
        run(engine)
        assert len(seen) > 3
        assert not any(seen)

    def test_a_step_behind_an_interrupted_one_ends(self) -> None:
        runner = Harassed(num_cells=1024, max_batch=64)
        engine = runner.engine = make_engine(runner, batch_s=1.0)
        engine.add(SequenceSpec("a", [1 + i % 40 for i in range(640)], greedy(), max_tokens=1))
        run(engine)
        assert runner.num_interrupted <= 1 + runner.num_batches // 2

    def test_who_was_interrupted_and_sent_back_to_wait_slows_nobody(self) -> None:
        runner = BatchSizes(num_cells=1024, max_batch=64, end_token=-1)
        engine = make_engine(runner)
        lost = engine.add(SequenceSpec("lost", [1 + i % 40 for i in range(300)], greedy(), max_tokens=9))
        engine.step()
        runner.cancel_next = 0
        engine.step()
        engine._preempt(lost)
        engine.add(SequenceSpec("other", [2 + i % 40 for i in range(300)], greedy(), max_tokens=1))
        runner.sizes.clear()
        run(engine)
        assert runner.sizes[0] == 64

    def test_a_long_step_is_not_begun_before_a_waiting_command_is_read(self) -> None:
        runner = FakeRunner()
        engine = make_engine(runner, batch_s=1.0)
        engine.add(SequenceSpec("a", [1 + i % 40 for i in range(60)], greedy(), max_tokens=3))
        seen: list[bool] = []

        def is_wanted() -> bool:
            seen.append(engine.current_step.is_long)
            return True

        engine.step(is_wanted)
        assert (seen, runner.num_tokens_computed, engine.current_step.is_long) == ([True], 0, False)
        engine.step()
        engine.step(is_wanted)
        assert runner.num_tokens_computed == 61, "a short step is not asked about"

    def test_a_flood_of_commands_holds_up_no_stream(self) -> None:
        runner = Harassed(end_token=-1, num_cells=2048, max_batch=64)
        engine = runner.engine = make_engine(runner, batch_s=0.1)
        engine.add(SequenceSpec("a", [1 + i % 40 for i in range(640)], greedy(), max_tokens=3))
        num_calls = 0
        while engine.has_work:
            engine.step(lambda: True)
            num_calls += 1
            assert num_calls < 100
        assert runner.num_interrupted
        assert engine.status().num_steps == runner.num_batches < num_calls, "what was put off is no step"


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
        assert sum(sequence.is_raised for sequence in (long, *urgent)) <= 1
    assert long.num_output == 3


def test_a_raised_sequence_that_lacks_cells_holds_up_all_but_realtime_ones() -> None:
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
    assert long.is_raised and long.seq_id is None
    other = engine.add(SequenceSpec("other", [3] * 20, greedy(), max_tokens=3))
    urgent = engine.add(SequenceSpec("urgent", [2] * 20, greedy(), max_tokens=3, tier=Tier.REALTIME))
    engine.step()
    assert (urgent.num_output, other.num_computed) == (1, 0)
    engine.cancel("stream")
    engine.cancel("urgent")
    engine.step()
    assert long.seq_id is not None


def test_one_that_waits_for_a_prefill_that_gets_further_is_not_raised() -> None:
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
        assert not (leader.is_raised or follower.is_raised)
    assert clock() > 70


class TestForced:
    """Tokens that a grammar forces are checked several at a time in one step."""

    class Forcing(Sampler):
        """A greedy sampler that announces its next tokens, wrongly in every other case."""

        def __init__(self, answer: list[int], wrong: bool) -> None:
            super().__init__(resolve(SamplingParams(), GREEDY), 50)
            self._answer, self._at, self._wrong = answer, 0, wrong

        def accept(self, token: int) -> None:
            super().accept(token)
            self._at += 1

        def forced(self) -> list[int]:
            ahead = self._answer[self._at : self._at + 5]
            return [(token + 1) % 50 for token in ahead] if self._wrong and self._at % 2 else ahead

    @pytest.mark.parametrize("wrong", [False, True])
    def test_they_save_steps_and_change_nothing(self, wrong: bool) -> None:
        expected, reason = naive([5, 6, 7], 12)
        engine = Engine(FakeRunner(), max_running=4, drafters=Drafters(max_forced=3))
        engine.add(SequenceSpec("a", [5, 6, 7], self.Forcing(expected, wrong), max_tokens=12))
        assert run(engine) == {"a": (expected, reason)}
        if not wrong:
            assert engine.status().num_steps <= 1 + -(-len(expected) // 4)


class TestUrgency:
    def test_realtime_goes_before_batch_and_equals_by_arrival(self) -> None:
        engine = make_engine(FakeRunner(end_token=-1), max_running=1)
        for name, tier in (("a", Tier.BATCH), ("b", Tier.INTERACTIVE), ("c", Tier.REALTIME), ("d", Tier.REALTIME)):
            engine.add(SequenceSpec(name, [5], greedy(), max_tokens=1, tier=tier))
        finished = []
        while engine.has_work:
            finished += [output.sequence.id for output in engine.step() if output.finish_reason]
        assert finished == ["c", "d", "b", "a"]


class BatchSizes(FakeRunner):
    """Records the size of each batch."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.sizes: list[int] = []

    def decode(self, slices: Items[Slice], min_tokens: int = 0) -> None:
        self.sizes.append(sum(len(part.tokens) for part in slices))
        super().decode(slices)


class TestComputedAgain:
    """Results depend on batch sizes, so repeatable output is recomputed with its original batch boundaries."""

    @pytest.mark.parametrize(
        ("params", "sizes"),
        [
            (SamplingParams(), [9, 1, 2, 1, 1]),
            (SamplingParams(temperature=1.0, seed=5), [9, 1, 2, 1, 1]),
            (SamplingParams(temperature=1.0), [14]),
        ],
        ids=["greedy", "seeded", "random"],
    )
    def test_what_was_delivered(self, params: SamplingParams, sizes: list[int]) -> None:
        prompt = list(range(5, 14))
        delivered = naive(prompt, 5)[0]
        runner = BatchSizes()
        engine = make_engine(runner)
        sampler = Sampler(resolve(params, GREEDY), 50)
        spec = SequenceSpec("a", prompt, sampler, max_tokens=6, delivered=delivered, step_lengths=(1, 1, 2, 1))
        engine.add(spec)
        run(engine)
        assert runner.sizes == sizes

    @pytest.mark.parametrize(("num_known", "sizes"), [(8, [2, 1, 2, 1, 1]), (9, [1, 2, 1, 1]), (11, [2, 1, 1])])
    def test_what_is_known_of_it_leaves_no_token_alone_that_was_not(self, num_known: int, sizes: list[int]) -> None:
        prompt = list(range(5, 14))
        delivered = naive(prompt, 5)[0]
        runner = BatchSizes()
        runner.min_prompt_chunk = 2
        engine = make_engine(runner)
        engine.add(SequenceSpec("known", [*prompt, *delivered][:num_known], greedy(), prefill_only=True))
        run(engine)
        runner.sizes.clear()
        spec = SequenceSpec("a", prompt, greedy(), max_tokens=6, delivered=delivered, step_lengths=(1, 1, 2, 1))
        engine.add(spec)
        run(engine)
        assert runner.sizes == sizes

    @pytest.mark.parametrize(("num_delivered", "num_batches"), [(512, 513), (513, 9)])
    def test_a_long_answer_that_is_nowhere_kept_is_computed_in_chunks(
        self, num_delivered: int, num_batches: int
    ) -> None:
        runner = BatchSizes(num_cells=1024, num_vocab=10_000)
        engine = make_engine(runner)
        sampler = Sampler(resolve(SamplingParams(), GREEDY), 10_000)
        delivered = naive([5, 6, 7], num_delivered, 10_000)[0]
        spec = SequenceSpec(
            "a", [5, 6, 7], sampler, num_delivered + 1, delivered=delivered, step_lengths=[1] * num_delivered
        )
        engine.add(spec)
        run(engine)
        assert len(runner.sizes) == num_batches

    def test_what_was_generated_before_a_preemption(self) -> None:
        runner = BatchSizes()
        engine = make_engine(runner)
        sequence = engine.add(SequenceSpec("a", [5, 6, 7], greedy(), max_tokens=9, write_cache=False))
        while sequence.num_output < 4:
            engine.step()
        runner.sizes.clear()
        engine._preempt(sequence)
        rest, _ = run(engine)["a"]
        assert rest == naive([5, 6, 7], 9)[0][4:]
        assert runner.sizes == [3] + [1] * 8


class TestFailure:
    def test_a_broken_sampler_fails_its_own_sequence_only(self) -> None:
        class Broken:
            is_repeatable = True

            def sample(self, logits: object) -> object:
                raise InternalError("NaN in the logits")

        engine = make_engine(FakeRunner())
        engine.add(SequenceSpec("bad", [1, 2], Broken()))  # type: ignore[arg-type]
        engine.add(SequenceSpec("good", [5, 6, 7], greedy()))
        errors, tokens = {}, []
        while engine.has_work:
            for output in engine.step():
                if output.error:
                    errors[output.sequence.id] = str(output.error)
                elif output.sequence.id == "good":
                    tokens += output.tokens
            check_integrity(engine)
        assert errors == {"bad": "NaN in the logits"}
        assert tokens == naive([5, 6, 7], 1000)[0]

    def test_no_room_in_the_runner_is_survived(self) -> None:
        runner = FakeRunner()
        engine = make_engine(runner)
        engine.add(SequenceSpec("a", [5, 6, 7], greedy()))
        engine.add(SequenceSpec("b", [5, 6, 8], greedy()))
        engine.step()
        runner.refuse_next = True
        assert run(engine).keys() == {"a", "b"}

    def test_a_sequence_alone_that_finds_no_room_fails(self) -> None:
        runner = FakeRunner()
        engine = make_engine(runner)
        engine.add(SequenceSpec("a", [5, 6, 7], greedy()))
        runner.refuse_next = True
        errors = [output.error for output in engine.step() if output.error]
        assert [type(error) for error in errors] == [InternalError]
        assert not engine.has_work
        check_integrity(engine)


@pytest.mark.parametrize(
    ("kind", "speculative"),
    [
        (MemoryKind.FULL_ATTENTION, False),
        (MemoryKind.FULL_ATTENTION, True),
        (MemoryKind.RECURRENT, False),
        (MemoryKind.RECURRENT, True),
    ],
)
@pytest.mark.parametrize("seed", range(20))
def test_the_law_over_random_schedules(seed: int, kind: MemoryKind, speculative: bool) -> None:
    rng = random.Random(seed)
    runner = FakeRunner(
        num_cells=rng.choice((48, 96, 256, 1024)),
        num_sequences=rng.choice((4, 6, 12)),
        max_batch=rng.choice((8, 16, 64)),
        memory_kind=kind,
        max_drafts=3,
    )
    # The draft agrees only if its function of the prefix is the same, so it gets an equal one.
    draft = FakeRunner(num_cells=runner.num_cells, num_sequences=runner.num_sequences) if speculative else None
    host_bytes = rng.choice((0, 3000, 20_000, 1 << 20))
    below = rng.choice((None, FakeTier()))
    engine = make_engine(runner, max_running=rng.choice((1, 2, 4)), draft=draft, host_bytes=host_bytes, below=below)
    known: list[list[int]] = [[rng.randrange(1, 50) for _ in range(10)]]
    if runner.num_cells == 1024:
        known.append([rng.randrange(1, 50) for _ in range(700)])
    expected: dict[str, Expected] = {}
    outputs: dict[str, list[int]] = {}
    finished: dict[str, FinishReason] = {}
    for step in range(600):
        if step < 300 and rng.random() < 0.2:
            base = rng.choice(known)
            prompt = base[: rng.randrange(1, len(base) + 1)] + [
                rng.randrange(1, 50) for _ in range(rng.randrange(1, 6))
            ]
            prompt = prompt[-(runner.num_cells - 2) :]
            name = f"s{step}"
            expected[name] = Expected(prompt, rng.randrange(1, 15))
            engine.add(
                SequenceSpec(name, prompt, greedy(), max_tokens=expected[name].max_tokens, tier=rng.choice(list(Tier)))
            )
        if expected and rng.random() < 0.03:
            victim = rng.choice(list(expected))
            if engine.cancel(victim):
                del expected[victim]
        if rng.random() < 0.1:
            runner.cancel_next = rng.randrange(3)
        # A sequence that is refused while it has the memory to itself fails; see TestFailure.
        if rng.random() < 0.02 and engine.status().num_running > 2:
            runner.refuse_next = True
        runner.refuse_restores = rng.random() < 0.05
        if below is not None and below.blocks and rng.random() < 0.02:
            below.lost.add(rng.choice(list(below.blocks)))
        if rng.random() < 0.005:
            engine.purge()
        is_refused = runner.refuse_next
        for output in engine.step():
            name = output.sequence.id
            if output.error is not None:
                # The others were preempted for lack of cells, so this one was alone when it was refused.
                assert is_refused
                assert engine.status().num_running == 0
                del expected[name]
                outputs.pop(name, None)
                continue
            assert name not in finished
            outputs.setdefault(name, []).extend(output.tokens)
            if output.finish_reason:
                finished[name] = output.finish_reason
                known.append([*expected[name].prompt, *outputs[name]])
        runner.refuse_next = False  # if the step computed nothing, the refusal is still set
        check_integrity(engine)
    runner.cancel_next, runner.refuse_next = None, False
    while engine.has_work:
        for output in engine.step():
            outputs.setdefault(output.sequence.id, []).extend(output.tokens)
            if output.finish_reason:
                finished[output.sequence.id] = output.finish_reason
        check_integrity(engine)
    for name, want in expected.items():
        room = runner.num_cells - len(want.prompt)
        tokens, reason = naive(want.prompt, min(want.max_tokens, room))
        assert (outputs[name], finished[name]) == (tokens, reason), name
    engine.close()
    # A later process has only the tier below.
    fresh = [each and FakeRunner(num_cells=each.num_cells, memory_kind=kind) for each in (runner, draft)]
    assert fresh[0] is not None
    engine = make_engine(fresh[0], draft=fresh[1], host_bytes=host_bytes, below=below)
    for number, tokens in enumerate(known):
        prompt = tokens[: runner.num_cells - 6]
        engine.add(SequenceSpec(f"again {number}", prompt, greedy(), max_tokens=5))
        assert run(engine, check=True) == {f"again {number}": naive(prompt, 5)}
    engine.close()
