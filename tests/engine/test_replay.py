"""The batch boundaries of a sequence's output, for recomputing it with the same bits."""

from __future__ import annotations

import pytest

from edgeagent.engine.sampling.params import resolve
from edgeagent.engine.sampling.sampler import Sampler
from edgeagent.engine.sequence import BatchEnds, SequenceSpec
from edgeagent.types import SamplingParams
from tests.engine.support import GREEDY, BatchSizes, greedy, make_engine, naive, run


def test_delivered_steps_end_where_their_batches_did() -> None:
    ends = BatchEnds.of_steps(10, (1, 1, 3))  # the first token comes from the prompt's batch
    assert [ends.after(position) for position in (9, 10, 11, 13, 14)] == [10, 11, 14, 14, None]


def test_a_position_is_within_a_batch_only_if_both_its_ends_are_known() -> None:
    ends = BatchEnds([10, 11, 14])
    assert [ends.around(position) for position in (9, 10, 12, 14)] == [None, (10, 11), (11, 14), None]


def test_what_would_take_seconds_is_computed_in_chunks() -> None:
    ends = BatchEnds()
    ends.record(10)
    ends.forget_if_many(512)
    assert ends.after(9) == 10
    ends.forget_if_many(513)
    assert ends.after(9) is None


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
