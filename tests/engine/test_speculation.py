"""How many tokens are drafted, and what the draft model remembers."""

from __future__ import annotations

from array import array

from edgeagent.engine.cost_model import CostModel
from edgeagent.engine.sampling import ResolvedSampling, Sampler
from edgeagent.engine.sequence import Sequence, SequenceSpec
from edgeagent.engine.speculation import DraftLength, DraftModel
from edgeagent.errors import InternalError
from tests.fakes import FakeRunner, next_token


def measured(step_s: dict[int, float]) -> CostModel:
    costs = CostModel(512)
    for size, seconds in step_s.items():
        costs.observe(size, 10, seconds)
    return costs


class TestLength:
    def test_cheap_verification_and_good_guesses_draft_deep(self) -> None:
        length = DraftLength(7, measured({1: 0.010, 2: 0.010, 4: 0.011, 8: 0.012}))
        length.observe_draft_step(0.0005)
        for _ in range(200):
            length.observe(3, 3)
        assert length.choose(1, 10) == 7

    def test_bad_guesses_are_given_up_and_tried_again_later(self) -> None:
        length = DraftLength(7, measured({1: 0.010, 2: 0.015, 4: 0.025, 8: 0.045}))
        length.observe_draft_step(0.003)
        for _ in range(200):
            length.observe(1, 0)
        chosen = [length.choose(1, 10) for _ in range(128)]
        assert set(chosen) == {0, 1}
        assert chosen.count(1) == 2

    def test_tokens_after_the_first_refusal_are_not_judged(self) -> None:
        length = DraftLength(7, measured({1: 0.010, 2: 0.010, 4: 0.010, 8: 0.010}))
        # Seven drafted, six stood: one refusal among seven, however deep.
        for _ in range(200):
            length.observe(7, 6)
        assert length.choose(1, 10) == 7

    def test_zero_allowed_means_never(self) -> None:
        length = DraftLength(0, measured({1: 0.01}))
        assert {length.choose(1, 10) for _ in range(200)} == {0}


def decoding(tokens: list[int], name: str = "a") -> Sequence:
    spec = SequenceSpec(name, tokens[:-1], Sampler(ResolvedSampling(), 50))
    return Sequence(spec, array("i", tokens), len(tokens) - 1, 200, 0, seq_id=0, num_computed=len(tokens) - 1)


class TestDraftModel:
    def test_proposes_what_it_would_generate(self) -> None:
        draft = DraftModel(FakeRunner(), DraftLength(3, CostModel(64)))
        sequence = decoding([5, 6, 7])
        (proposed,) = draft.draft([sequence]).values()
        tokens = [5, 6, 7]
        for token in proposed:
            assert token == next_token(tokens, 50)
            tokens.append(token)
        assert len(proposed) == 3

    def test_accepted_guesses_are_not_computed_again(self) -> None:
        runner = FakeRunner()
        draft = DraftModel(runner, DraftLength(3, CostModel(64)))
        sequence = decoding([5, 6, 7])
        (proposed,) = draft.draft([sequence]).values()
        sequence.tokens.extend([*proposed, 9])
        before = runner.num_tokens_computed
        draft.draft([sequence])
        # The third guess was never fed, so it is caught up on; then three guesses.
        assert runner.num_tokens_computed - before == 1 + 3
        draft.release(sequence)
        draft.check_integrity()

    def test_refused_guesses_are_taken_back(self) -> None:
        runner = FakeRunner()
        draft = DraftModel(runner, DraftLength(3, CostModel(64)))
        sequence = decoding([5, 6, 7])
        (proposed,) = draft.draft([sequence]).values()
        other = (proposed[0] + 1) % 50
        sequence.tokens.append(other)
        (again,) = draft.draft([sequence]).values()
        assert again[0] == next_token([5, 6, 7, other], 50)

    def test_an_interrupted_draft_proposes_nothing_and_recovers(self) -> None:
        runner = FakeRunner()
        draft = DraftModel(runner, DraftLength(3, CostModel(64)))
        sequence = decoding([5, 6, 7])
        runner.cancel_next = 0
        assert draft.draft([sequence]) == {}
        (proposed,) = draft.draft([sequence]).values()
        assert proposed[0] == next_token([5, 6, 7], 50)

    def test_a_long_prompt_is_caught_up_in_chunks(self) -> None:
        runner = FakeRunner(max_batch=16, num_cells=256)
        draft = DraftModel(runner, DraftLength(2, CostModel(64)))
        sequence = decoding(list(range(1, 41)))
        steps = [draft.draft([sequence]) for _ in range(3)]
        assert [bool(step) for step in steps] == [False, False, True]

    def test_a_draft_that_breaks_costs_nobody_an_answer(self) -> None:
        class Broken(FakeRunner):
            is_broken = False

            def decode(self, slices: list) -> None:  # type: ignore[override, type-arg]
                super().decode(slices)
                if self.is_broken:
                    raise InternalError("llama_decode failed with status -3")

        runner = Broken()
        draft = DraftModel(runner, DraftLength(3, CostModel(64)))
        sequence = decoding([5, 6, 7])
        assert draft.draft([sequence])
        runner.is_broken = True
        assert draft.draft([sequence]) == {}
        runner.is_broken = False
        expected, tokens = [], [5, 6, 7]
        for _ in range(3):
            tokens.append(next_token(tokens, 50))
            expected.append(tokens[-1])
        assert draft.draft([sequence]) == {"a": tuple(expected)}
        draft.release(sequence)
        draft.check_integrity()
