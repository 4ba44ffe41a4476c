"""Cancels and interrupted steps: neither changes another sequence's output or holds it up."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import replace

import pytest

from edgeagent.engine.engine import Engine
from edgeagent.engine.runner import Slice
from edgeagent.engine.sequence import SequenceSpec
from edgeagent.types import MemoryKind
from tests.engine.support import BatchSizes, greedy, make_engine, naive, run
from tests.fakes import FakeClock, FakeRunner
from tests.integrity import check_integrity


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

    def test_of_two_equal_prompts_one_goes_on_where_the_other_was_cancelled(self) -> None:
        """As a voice framework sends them: a request ahead of the last word, and the same again once it was spoken."""
        runner = FakeRunner(num_cells=2048, max_batch=64)
        engine = make_engine(runner)
        prompt = [1 + index % 40 for index in range(400)]
        engine.add(SequenceSpec("ahead", prompt, greedy(), max_tokens=8))
        engine.step()
        final = engine.add(SequenceSpec("final", prompt, greedy(), max_tokens=8))
        engine.step()
        assert final.seq_id is None and final.awaited_prefill is not None
        num_computed = runner.num_tokens_computed
        assert 64 <= num_computed < 400
        engine.cancel("ahead")
        assert run(engine)["final"][0] == naive(prompt, 8)[0]
        assert final.num_cached == num_computed
        assert runner.num_tokens_computed <= 400 + 8

    @pytest.mark.parametrize(("elapsed", "num_shared"), [(0.0, 60), (0.25, 50), (0.75, 20)])
    def test_a_step_helps_a_prompt_if_its_end_comes_sooner_than_the_shared_tokens(
        self, elapsed: float, num_shared: int
    ) -> None:
        clock, seen = FakeClock(), list[bool]()

        class Watched(FakeRunner):
            def decode(self, slices: Items[Slice], min_tokens: int = 0) -> None:
                super().decode(slices)
                assert engine.current_step.expected_s
                clock.advance(elapsed * engine.current_step.expected_s)
                for num in (num_shared, num_shared - 10):
                    spec = SequenceSpec("b", [*prompt[:num], 49, 48], greedy())
                    seen.append(engine.step_helps(spec))
                    seen.append(engine.step_helps(replace(spec, read_cache=False)))
                    seen.append(engine.step_helps(replace(spec, partition="other")))

        prompt = [1 + index % 40 for index in range(60)]
        engine = make_engine(Watched(), batch_s=1.0, clock=clock)
        engine.add(SequenceSpec("a", prompt, greedy(), max_tokens=1))
        assert not engine.step_helps(SequenceSpec("b", prompt, greedy()))
        engine.step()
        assert seen == [True] + [False] * 5

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

        def has_command() -> bool:
            seen.append(engine.current_step.is_long)
            return True

        engine.step(has_command)
        assert (seen, runner.num_tokens_computed, engine.current_step.is_long) == ([True], 0, False)
        engine.step()
        engine.step(has_command)
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
