"""The engine on a fake runner, with one sequence or a few: ends, shared prefixes, forced tokens and failures."""

from __future__ import annotations

import pytest

from edgeagent.engine.engine import Engine
from edgeagent.engine.sampling.params import resolve
from edgeagent.engine.sampling.sampler import Sampler
from edgeagent.engine.sequence import SequenceSpec
from edgeagent.engine.speculation.proposals import Drafters
from edgeagent.errors import ContextLengthExceeded, InternalError
from edgeagent.types import FinishReason, MemoryKind, SamplingParams
from tests.engine.support import GREEDY, greedy, make_engine, naive, run
from tests.fakes import FakeRunner, next_token
from tests.integrity import check_integrity


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
        engine = Engine(FakeRunner(), max_running=4, drafters=Drafters(max_tokens=3))
        engine.add(SequenceSpec("a", [5, 6, 7], self.Forcing(expected, wrong), max_tokens=12))
        assert run(engine) == {"a": (expected, reason)}
        if not wrong:
            assert engine.status().num_steps <= 1 + -(-len(expected) // 4)


class TestFailure:
    def test_a_broken_sampler_fails_its_own_sequence_only(self) -> None:
        class Broken:
            is_repeatable, num_ranked = True, 0

            def sample(self, logits: object, drawn: object) -> object:
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

    def test_sequences_that_never_fit_together_run_one_after_another(self) -> None:
        runner = FakeRunner()
        runner.max_slices = 1
        engine = make_engine(runner)
        for name in ("a", "b", "c"):
            engine.add(SequenceSpec(name, [5, 6, 7], greedy(), max_tokens=5))
        num_refused = 0
        outputs: dict[str, list[int]] = {}
        while engine.has_work and num_refused < 50:
            num_steps, num_decodes = engine.status().num_steps, runner.num_decodes
            for output in engine.step():
                outputs.setdefault(output.sequence.id, []).extend(output.tokens)
            # The watchdog takes a step for progress.
            assert engine.status().num_steps - num_steps == runner.num_decodes - num_decodes
            num_refused += runner.num_decodes == num_decodes
            check_integrity(engine)
        assert outputs == dict.fromkeys(("a", "b", "c"), naive([5, 6, 7], 5)[0])

    def test_a_sequence_alone_that_finds_no_room_fails(self) -> None:
        runner = FakeRunner()
        engine = make_engine(runner)
        engine.add(SequenceSpec("a", [5, 6, 7], greedy()))
        runner.refuse_next = True
        errors = [output.error for output in engine.step() if output.error]
        assert [type(error) for error in errors] == [InternalError]
        assert not engine.has_work
        check_integrity(engine)
