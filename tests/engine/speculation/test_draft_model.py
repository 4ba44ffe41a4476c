"""What the draft model proposes, and what it keeps."""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Items

import pytest

from edgeagent.engine.runner import Slice
from edgeagent.engine.sampling.params import ResolvedSampling
from edgeagent.engine.sampling.sampler import Sampler
from edgeagent.engine.sequence import Sequence, SequenceSpec
from edgeagent.engine.speculation.draft_model import DraftModel
from edgeagent.errors import InternalError
from tests.fakes import FakeClock, FakeRunner, next_token
from tests.integrity import check_integrity


def decoding(tokens: list[int], name: str = "a") -> Sequence:
    spec = SequenceSpec(name, tokens[:-1], Sampler(ResolvedSampling(), 50))
    return Sequence(spec, array("i", tokens), len(tokens) - 1, 200, 0, seq_id=0, num_computed=len(tokens) - 1)


class TestDraftModel:
    def test_proposes_what_it_would_generate(self) -> None:
        draft = DraftModel(FakeRunner())
        sequence = decoding([5, 6, 7])
        (proposed,) = draft.draft([(sequence, 3)]).values()
        tokens = [5, 6, 7]
        for token in proposed:
            assert token == next_token(tokens, 50)
            tokens.append(token)
        assert len(proposed) == 3

    def test_accepted_guesses_are_not_computed_again(self) -> None:
        runner = FakeRunner()
        draft = DraftModel(runner)
        sequence = decoding([5, 6, 7])
        (proposed,) = draft.draft([(sequence, 3)]).values()
        sequence.tokens.extend([*proposed, 9])
        before, batches = runner.num_tokens_computed, runner.num_decodes
        draft.draft([(sequence, 3)])
        # The third draft token was never computed, so it is computed with the first of the three new ones.
        assert runner.num_tokens_computed - before == 1 + 3
        assert runner.num_decodes - batches == 3
        draft.release(sequence)
        check_integrity(draft)

    def test_refused_guesses_are_taken_back(self) -> None:
        runner = FakeRunner()
        draft = DraftModel(runner)
        sequence = decoding([5, 6, 7])
        (proposed,) = draft.draft([(sequence, 3)]).values()
        other = (proposed[0] + 1) % 50
        sequence.tokens.append(other)
        (again,) = draft.draft([(sequence, 3)]).values()
        assert again[0] == next_token([5, 6, 7, other], 50)

    def test_an_interrupted_draft_proposes_nothing_and_recovers(self) -> None:
        runner = FakeRunner()
        draft = DraftModel(runner)
        sequence = decoding([5, 6, 7])
        runner.cancel_next = 0
        assert draft.draft([(sequence, 3)]) == {}
        (proposed,) = draft.draft([(sequence, 3)]).values()
        assert proposed[0] == next_token([5, 6, 7], 50)

    def test_a_long_prompt_is_caught_up_in_chunks(self) -> None:
        runner = FakeRunner(max_batch=16, num_cells=256)
        draft = DraftModel(runner)
        sequence = decoding(list(range(1, 41)))
        steps = [draft.draft([(sequence, 3)]) for _ in range(3)]
        assert [bool(step) for step in steps] == [False, False, True]

    def test_a_slow_draft_catches_up_in_small_chunks(self) -> None:
        clock, sizes = FakeClock(), list[int]()

        class Slow(FakeRunner):
            def decode(self, slices: Items[Slice], min_tokens: int = 0) -> None:
                sizes.append(sum(len(part.tokens) for part in slices))
                clock.advance(sizes[-1] / 200)
                super().decode(slices)

        draft = DraftModel(Slow(max_batch=512, num_cells=1024), clock=clock)
        sequence = decoding([1 + i % 40 for i in range(400)])
        while not draft.draft([(sequence, 3)]):
            pass
        assert max(sizes) == 32, "200 tokens a second"

    def test_the_start_of_a_draft_takes_longer_by_what_it_lacks(self) -> None:
        clock = FakeClock()

        class Timed(FakeRunner):
            def decode(self, slices: Items[Slice], min_tokens: int = 0) -> None:
                clock.advance(0.010 * sum(len(part.tokens) for part in slices))
                super().decode(slices)

        draft = DraftModel(Timed(), clock=clock)
        sequence = decoding([5, 6, 7])
        for _ in range(100):
            (proposed,) = draft.draft([(sequence, 2)]).values()
            draft.costs.fit_if_due()  # as the engine does between steps
            sequence.tokens.extend([*proposed, 9])  # so that it lacks the second of the proposed tokens
            if len(sequence.tokens) > 150:
                draft.release(sequence)
                sequence = decoding([5, 6, 7])
        assert draft.start_s == pytest.approx(0.010, rel=0.2)
        assert draft.steps_s(1, 100)[1] == pytest.approx(0.010, rel=0.2)

    def test_cells_of_guesses_that_another_took_meanwhile(self) -> None:
        runner = FakeRunner(num_cells=16)
        draft = DraftModel(runner)
        first, second = decoding([5, 6, 7]), decoding(list(range(1, 15)), "b")
        ((_, proposed),) = draft.draft([(first, 3)]).items()
        assert draft.draft([(second, 1)])
        first.tokens.extend([*proposed, 9])
        assert draft.draft([(first, 3)]) == {}, "there is no room for both"
        draft.release(second)
        assert draft.draft([(first, 1)]).keys() == {"a"}
        draft.release(first)
        check_integrity(draft)

    def test_a_draft_that_breaks_costs_nobody_an_answer(self) -> None:
        class Broken(FakeRunner):
            is_broken = False

            def decode(self, slices: Items[Slice], min_tokens: int = 0) -> None:
                super().decode(slices)
                if self.is_broken:
                    raise InternalError("llama_decode failed with status -3")

        runner = Broken()
        draft = DraftModel(runner)
        sequence = decoding([5, 6, 7])
        assert draft.draft([(sequence, 3)])
        runner.is_broken = True
        assert draft.draft([(sequence, 3)]) == {}
        runner.is_broken = False
        expected, tokens = [], [5, 6, 7]
        for _ in range(3):
            tokens.append(next_token(tokens, 50))
            expected.append(tokens[-1])
        assert draft.draft([(sequence, 3)]) == {"a": tuple(expected)}
        draft.release(sequence)
        check_integrity(draft)
